"""The partitions of one broker in their roles, around `kraftpy.replication`.

Replicas append and read as leaders, fetchers copy from the leaders as followers, and ISR changes are proposed to the
metadata log. Fetch sessions and responses are here because consumers and followers share them.
"""
