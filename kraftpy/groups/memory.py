"""How much memory groups take, roughly, and the bound of it that all coordinators of a broker share.

Every group, member, committed offset and stored record counts for what it was measured to take as Python objects. What
is there already is never refused: state that was loaded above the bound stays, members may go on, and offsets that are
committed again replace the old ones. Only what would add to it is (`Room.has`), while there is no room.

Invariant: `Usage.bytes` is what `GroupCoordinator` keeps, by the weights here (its `validate` counts again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kraftpy.groups.records import OffsetCommitValue

if TYPE_CHECKING:
    from kraftpy.groups.group import Group

GROUP_BYTES: Final = 2_000
MEMBER_BYTES: Final = 1_000
"""A member of the classic protocol, or an id that was given out, without what it says of itself."""
OFFSET_BYTES: Final = 300
RECORD_BYTES: Final = 700
"""A record about a member of the newer protocols, or about such a group, without its value."""
OBJECTS_PER_BYTE: Final = 8
"""The bytes that each byte of such a record's value takes once it is read into objects."""

MAX_BYTES_SETTING: Final = "kraftpy.group.coordinator.max.bytes"
GROUP_MAX_BYTES_SETTING: Final = "kraftpy.group.max.bytes"


def weight_of_offset(value: OffsetCommitValue) -> int:
    """The bytes that a committed offset counts for."""
    return OFFSET_BYTES + len(value.metadata)


def weight_of_saying(said: int) -> int:
    """The bytes that a member of the newer protocols counts for if it says `said` characters of itself."""
    return 3 * RECORD_BYTES + OBJECTS_PER_BYTE * said


class Room:
    """The memory that all coordinators of a broker share, in bytes. `refused` is told of each refusal, in words."""

    def __init__(self, max_bytes: int, refused: Callable[[str], None] = lambda text: None) -> None:
        self.max_bytes = max_bytes
        self.refused = refused
        self._usages: dict[int, Usage] = {}

    def join(self, usage: Usage) -> None:
        """One more coordinator counts here."""
        self._usages[id(usage)] = usage

    def leave(self, usage: Usage) -> None:
        """Its coordinator is another broker's now."""
        self._usages.pop(id(usage), None)

    @property
    def used(self) -> int:
        """The bytes in use now."""
        return sum(usage.bytes + usage.pending for usage in self._usages.values())

    def has(self, growth: int) -> bool:
        """Whether so much more may be kept."""
        return growth <= 0 or self.used + growth <= self.max_bytes


class Usage:
    """The memory that one coordinator uses, in bytes."""

    __slots__ = ("_records", "bytes", "pending")

    def __init__(self) -> None:
        self.bytes = 0
        self.pending = 0
        """Besides: offsets committed in transactions that are open."""
        self._records: dict[bytes, int] = {}

    def stored(self, key: bytes, value_bytes: int | None, weight_of_a_byte: int) -> None:
        """The log has another value under this key, of so many bytes; None: no more."""
        before = self._records.pop(key, 0)
        weight = 0
        if value_bytes is not None:
            weight = self._records[key] = RECORD_BYTES + len(key) + weight_of_a_byte * value_bytes
        self.bytes += weight - before

    def count(self, group: Group) -> None:
        """The group may weigh more or less than it did, apart from its offsets and records."""
        weight = group.weight
        self.bytes += weight - group.counted
        group.counted = weight

    def validate(self, groups: Mapping[str, Group]) -> None:
        """Assert that nothing was forgotten on the way. For tests and simulations."""
        assert all(group.counted == group.weight for group in groups.values()), groups
        kept = sum(group.counted + sum(map(weight_of_offset, group.offsets.values())) for group in groups.values())
        assert self.bytes == kept + sum(self._records.values()), (self.bytes, kept, self._records)
