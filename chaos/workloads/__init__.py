"""Workloads: clients that carry out a generator's calls against a cluster and record what came of them."""
