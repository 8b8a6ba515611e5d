"""Disks and log directories of one broker, around `kraftpy.log`.

Opens and locks log directories, syncs logs in rounds, inspects clients' records in threads, and runs compactions in a
process of its own. Knows partitions only as logs on a disk: roles, leaders and followers belong to `replication`.
"""
