"""Share groups of KIP-932: members share partitions, and records are delivered individually.

The group and its records, heartbeats and the assignor, and the partitions whose state the share coordinators keep.
"""
