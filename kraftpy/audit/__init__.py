"""Auditing a pipeline: every tier counts its records by topic and window of time, and the books compare the counts."""
