"""Audit a pipeline: every tier counts its records by topic and time window, and the books compare the counts."""
