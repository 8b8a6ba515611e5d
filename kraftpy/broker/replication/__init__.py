"""The partitions of one broker in their roles, around `kraftpy.replication`.

`ReplicaManager` opens and closes replicas as the metadata says, and `Replicas` is the table that requests look them up
in. A `Replica` appends and reads as leader or follower, fetchers copy from the leaders, and ISR changes are proposed to
the metadata log. Fetch sessions and responses are here because consumers and followers share them.
"""
