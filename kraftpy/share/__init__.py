"""Share groups (KIP-932): what of a partition is whose, and the coordinator that remembers what became of it."""
