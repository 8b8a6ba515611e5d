"""Special member epochs in heartbeats, which say that a member joins or leaves (KIP-848, KIP-932, KIP-1071)."""

from __future__ import annotations

JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2
"""The epochs with which a member joins, leaves, or (if static) leaves temporarily."""
