"""Epochs with a meaning of their own, in groups that the coordinator assigns to (KIP-848, KIP-932, KIP-1071)."""

from __future__ import annotations

JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2
"""The epochs with which a member joins, leaves, or (if static) leaves temporarily."""

FIRST_EPOCH = 1
"""The epoch of a new group, before any member subscribes to anything."""


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows a group's; 0 stands for a group without stored records."""
    return max(epoch, FIRST_EPOCH) + 1
