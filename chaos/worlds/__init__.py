"""The places where a workload runs: simulated, in network namespaces, in containers."""
