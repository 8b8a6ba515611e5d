"""Consumer groups of KIP-848: the coordinator assigns, and members heartbeat.

The group and its records, heartbeats, assignors and reconciliation, and the migration from and to classic groups.
"""
