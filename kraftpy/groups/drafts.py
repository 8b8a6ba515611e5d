"""A draft of a group that the coordinator assigns to: the state that its pending records will give it.

The kinds of groups differ in their records. A subclass says which records a group has, and how they are encoded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from kraftpy.groups.records import GroupMetadataValue, Record


class AssignedGroup(Protocol):
    """The durable state of a group."""

    @property
    def group_id(self) -> str:
        """The group's id."""

    @property
    def members(self) -> Mapping[str, object]:
        """Members by id."""

    @property
    def targets(self) -> Mapping[str, object]:
        """Target assignments by member id."""

    @property
    def currents(self) -> Mapping[str, object]:
        """Current assignments by member id."""

    def copy(self) -> Self:
        """Return a copy that can be changed independently."""

    def apply(self, key: Any, value: Any) -> None:
        """Apply one record."""


class OfMember(Protocol):
    """The key of a record about one member."""

    @property
    def member_id(self) -> str:
        """The member's id."""


G = TypeVar("G", bound=AssignedGroup)
K = TypeVar("K")
V = TypeVar("V")


class AnyDraft(ABC, Generic[G, K, V]):
    """The group as it will be. Records are collected here and applied to the draft at once."""

    current_key: ClassVar[type[OfMember]]
    """The key type of current assignments."""

    def __init__(self, group: G) -> None:
        self._before = group
        self.group = group
        self.records: list[Record] = []
        self.changed: dict[str, None] = {}
        """Members that were changed or removed."""
        self._written: list[tuple[K, V | None]] = []
        self.cost = 0
        """Work spent on targets for this draft: the members, partitions and topics examined."""
        self.successor: GroupMetadataValue | None = None
        """The generation of the classic group that the group becomes; its record comes last."""

    @staticmethod
    @abstractmethod
    def _record(key: K, value: V | None) -> Record:
        """Encode a record."""

    @abstractmethod
    def _keys_of(self, member_id: str) -> Iterable[K]:
        """Return all keys a member can have."""

    @abstractmethod
    def _keys(self) -> Iterable[K]:
        """Return the keys of the group other than its members'."""

    def put(self, key: K, value: V | None) -> None:
        """Store a value under the key, or delete it with None."""
        if self.group is self._before:
            self.group = self._before.copy()
        self.group.apply(key, value)
        self.records.append(self._record(key, value))
        self._written.append((key, value))
        if isinstance(key, self.current_key):
            self.changed[key.member_id] = None

    @property
    def before(self) -> G:
        """The group as it was when the draft began."""
        return self._before

    @property
    def count(self) -> int:
        """The number of records of the draft: those of this kind of group, and the successor's."""
        return len(self._written) + (self.successor is not None)

    def take_back(self, count: int) -> None:
        """Keep only the first `count` records: the decision that added the rest failed halfway."""
        kept, self._written = self._written[:count], []
        self.group, self.records, self.changed, self.successor = self._before, [], {}, None
        for key, value in kept:
            self.put(key, value)

    def delete_all(self) -> None:
        """Delete every record of the group."""
        for member_id in sorted(self.group.members.keys() | self.group.currents.keys() | self.group.targets.keys()):
            for key in self._keys_of(member_id):
                self.put(key, None)
        for key in self._keys():
            self.put(key, None)
