"""An estimate of the memory that groups take, and the limit on it that all coordinators of a broker share.

Every group, member, committed offset and stored record has a weight, measured on the Python objects that represent it.
Existing state is never refused: a log that is loaded above the limit stays loaded, its members carry on, and offsets
committed again replace the old ones. Only additions are refused (`Room.has`) while there is no room.

Invariant: `Usage.bytes` is the weight of what `GroupCoordinator` holds (its `validate` recounts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kraftpy.groups.records import OffsetCommitValue

if TYPE_CHECKING:
    from kraftpy.groups.group import Group

GROUP_BYTES: Final = 2_000
MEMBER_BYTES: Final = 1_000
"""A member of the classic protocol, or an id handed out to one, without its protocol metadata."""
OFFSET_BYTES: Final = 300
RECORD_BYTES: Final = 700
"""A record about a member of the newer protocols, or about such a group, without its value."""
OBJECTS_PER_BYTE: Final = 8
"""The bytes that each byte of such a record's value takes once it is parsed into objects."""

MAX_BYTES_SETTING: Final = "kraftpy.group.coordinator.max.bytes"
GROUP_MAX_BYTES_SETTING: Final = "kraftpy.group.max.bytes"


def weight_of_offset(value: OffsetCommitValue) -> int:
    """Return the weight of a committed offset, in bytes."""
    return OFFSET_BYTES + len(value.metadata)


def weight_of_member(characters: int) -> int:
    """Return the weight of a member of the newer protocols whose heartbeat carries this many `characters`, in bytes."""
    return 3 * RECORD_BYTES + OBJECTS_PER_BYTE * characters


class Room:
    """The memory shared by all coordinators of a broker, in bytes. `refused` is called with a text for each refusal."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self.last_read: object = None
        """The group whose subscriptions were read last (`classic.reading`): only one group keeps the result."""
        self._usages: dict[int, Usage] = {}

    def join(self, usage: Usage) -> None:
        """Count one more coordinator."""
        self._usages[id(usage)] = usage

    def leave(self, usage: Usage) -> None:
        """Stop counting a coordinator that moved to another broker."""
        self._usages.pop(id(usage), None)

    @property
    def used(self) -> int:
        """The bytes in use now."""
        return sum(usage.bytes + usage.pending for usage in self._usages.values())

    def has(self, growth: int) -> bool:
        """Return True if there is room for this many more bytes."""
        return growth <= 0 or self.used + growth <= self.max_bytes


class Usage:
    """The memory that one coordinator uses, in bytes."""

    __slots__ = ("_records", "bytes", "pending")

    def __init__(self) -> None:
        self.bytes = 0
        self.pending = 0
        """Offsets committed in open transactions, counted separately."""
        self._records: dict[bytes, int] = {}

    def stored(self, key: bytes, value_bytes: int | None, weight_of_a_byte: int) -> None:
        """Count the new value of a key, of this many bytes; None if the key was deleted."""
        before = self._records.pop(key, 0)
        weight = 0
        if value_bytes is not None:
            weight = self._records[key] = RECORD_BYTES + len(key) + weight_of_a_byte * value_bytes
        self.bytes += weight - before

    def count(self, group: Group) -> None:
        """Recount a group whose weight may have changed, apart from its offsets and records."""
        weight = group.weight
        self.bytes += weight - group.counted
        group.counted = weight

    def validate(self, groups: Mapping[str, Group]) -> None:
        """Assert that everything is counted. For tests and simulations."""
        assert all(group.counted == group.weight for group in groups.values()), groups
        kept = sum(group.counted + sum(map(weight_of_offset, group.offsets.values())) for group in groups.values())
        assert self.bytes == kept + sum(self._records.values()), (self.bytes, kept, self._records)
