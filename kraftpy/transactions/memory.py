"""Roughly how much memory transactional ids take, and the bound that all coordinators of a broker share.

An id counts for its measured size as Python objects, with its name and the partitions of its transaction. Existing
state is never refused, and no transaction is kept from ending. Beyond the bound only new ids are refused; partitions
are refused only beyond 125 % of it, so that unused ids do not block the active ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftpy.transactions.transaction import TransactionValue

ID_BYTES: Final = 900
PARTITION_BYTES: Final = 180

MAX_BYTES_SETTING: Final = "kraftpy.transaction.coordinator.max.bytes"


def weight(transactional_id: str, value: TransactionValue | None) -> int:
    """Return the bytes that an id counts for; 0 if the log does not have it."""
    if value is None:
        return 0
    return ID_BYTES + 2 * len(transactional_id) + PARTITION_BYTES * len(value.partitions)


class Room:
    """The memory shared by all coordinators of a broker, in bytes. `refused` gets a message for each refusal."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self.used = 0

    def has(self, growth: int, *, is_new: bool) -> bool:
        """Return whether this many more bytes fit, for a new id or for an existing one."""
        most = self.max_bytes if is_new else self.max_bytes + self.max_bytes // 4
        return growth <= 0 or self.used + growth <= most
