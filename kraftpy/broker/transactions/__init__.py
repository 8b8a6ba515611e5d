"""The transaction coordinators of one broker, around `kraftpy.transactions`.

Each coordinator is a state machine that owns one partition of `__transaction_state`. It has the leaders of the
partitions that a transaction wrote to append the markers. Producer ids come in blocks from the metadata log.
"""
