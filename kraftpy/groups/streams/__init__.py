"""Streams groups of KIP-1071: the coordinator assigns the tasks of a topology.

The group and its records, its topology and the internal topics it needs, heartbeats, the assignor and reconciliation.
"""
