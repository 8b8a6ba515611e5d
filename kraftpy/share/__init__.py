"""Share groups (KIP-932): which member holds which records of a partition, and a coordinator that stores the outcome."""
