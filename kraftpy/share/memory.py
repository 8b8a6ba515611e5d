"""How much memory the state of share partitions takes, roughly, and the bound that a broker's coordinators share.

Existing state is never refused: leaders go on to write what became of records. While there is no room, only a new
share partition is refused, and a write that leaves more batches than any leader has in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STATE_BYTES: Final = 700
BATCH_BYTES: Final = 120
MOST_BATCHES: Final = 20_000
"""Twice the most records that `group.share.partition.max.record.locks` may be set to."""

MAX_BYTES_SETTING: Final = "kraftpy.share.coordinator.max.bytes"


def weight(group_id: str, batches: int) -> int:
    """The bytes that the state of one share partition counts for."""
    return STATE_BYTES + 2 * len(group_id) + BATCH_BYTES * batches


class Room:
    """The memory that all coordinators of a broker share, in bytes. `refused` is told of each refusal, in words."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self.used = 0

    def has(self, growth: int) -> bool:
        """Whether so much more may be kept."""
        return self.used + growth <= self.max_bytes
