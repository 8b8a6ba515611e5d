"""The share consumer (KIP-932): a queue over topics.

A membership says which partitions are assigned, one share session for each leader acquires and acknowledges records,
and the consumer hands them to the application.
"""
