"""Share groups (KIP-932): which member holds which records of a partition, and where their outcomes are stored."""
