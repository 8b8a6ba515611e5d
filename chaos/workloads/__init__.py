"""Workloads: clients that carry out a generator's calls against a cluster and record the outcome."""
