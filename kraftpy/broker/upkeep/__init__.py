"""The background work of one broker.

Loops that nobody asked for: retention, compaction, checkpoints, expiry, moves of replicas between log directories, and
reports of failed directories to the cluster.
"""
