"""Where a workload runs: simulated, in namespaces, in containers."""
