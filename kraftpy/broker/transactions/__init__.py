"""The transaction coordinators of one broker, around `kraftpy.transactions`.

Each coordinator is a state machine in a partition of `__transaction_state`. Markers are sent to the leaders of the
partitions that a transaction wrote to, and producer ids are handed out of blocks from the metadata log.
"""
