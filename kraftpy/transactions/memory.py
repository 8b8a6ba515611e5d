"""How much memory transactional ids take, roughly, and the bound of it that all coordinators of a broker share.

An id counts for what it was measured to take as Python objects, with its name and the partitions of its transaction.
Existing state is never refused, and no transaction is kept from ending: only new ids beyond the bound are refused, and
partitions beyond a quarter more, so that ids which nobody uses do not keep the others from working.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftpy.transactions.transaction import TransactionValue

ID_BYTES: Final = 900
PARTITION_BYTES: Final = 180

MAX_BYTES_SETTING: Final = "kraftpy.transaction.coordinator.max.bytes"


def weight(transactional_id: str, value: TransactionValue | None) -> int:
    """The bytes that an id counts for; 0 if the log does not know it."""
    if value is None:
        return 0
    return ID_BYTES + 2 * len(transactional_id) + PARTITION_BYTES * len(value.partitions)


class Room:
    """The memory that all coordinators of a broker share, in bytes. `refused` is told of each refusal, in words."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self.used = 0

    def has(self, growth: int, *, is_new: bool) -> bool:
        """Whether so much more may be kept: of an id that is new, or of one that is there."""
        most = self.max_bytes if is_new else self.max_bytes + self.max_bytes // 4
        return growth <= 0 or self.used + growth <= most
