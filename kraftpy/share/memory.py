"""How much memory the state of share partitions takes, roughly, and the bound that a broker's coordinators share.

Existing state is never refused: leaders can always write outcomes. If memory runs out, the coordinator refuses only new
share partitions, and writes that would leave more batches than any leader has in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STATE_BYTES: Final = 700
BATCH_BYTES: Final = 120
MOST_BATCHES: Final = 20_000
"""Twice the highest allowed value of `group.share.partition.max.record.locks`."""

MAX_BYTES_SETTING: Final = "kraftpy.share.coordinator.max.bytes"


def weight(group_id: str, batches: int) -> int:
    """Return the bytes that the state of one share partition counts for."""
    return STATE_BYTES + 2 * len(group_id) + BATCH_BYTES * batches


class Room:
    """The memory shared by all coordinators of a broker, in bytes. `refused` gets a message for each refusal."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self.used = 0

    def has(self, growth: int) -> bool:
        """Return whether this many more bytes fit."""
        return self.used + growth <= self.max_bytes
