"""The background work of one broker.

Loops that no request triggers: retention, compaction, checkpoints, expiry, moves of replicas between log directories,
and reports of failed directories to the cluster.
"""
