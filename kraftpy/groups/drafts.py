"""A group that the coordinator itself assigns to as it will be, whichever kind it is.

What differs between the kinds is their records: a subclass says which there are of a group, and how they are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from kraftpy.groups.records import Record


class AssignedGroup(Protocol):
    """What the log says of a group."""

    @property
    def group_id(self) -> str:
        """Whose it is."""

    @property
    def members(self) -> Mapping[str, object]:
        """By id."""

    @property
    def targets(self) -> Mapping[str, object]:
        """What they shall have."""

    @property
    def currents(self) -> Mapping[str, object]:
        """What they have."""

    def copy(self) -> Self:
        """One that can be changed alone."""

    def apply(self, key: Any, value: Any) -> None:
        """What one record says becomes so."""


class OfMember(Protocol):
    """The key of a record that is about one member."""

    @property
    def member_id(self) -> str:
        """Whose it is."""


G = TypeVar("G", bound=AssignedGroup)
K = TypeVar("K")
V = TypeVar("V")


class AnyDraft(ABC, Generic[G, K, V]):
    """A group as it will be: records are collected here and say at once what they will say in the log."""

    current_key: ClassVar[type[OfMember]]
    """The keys of what members have."""

    def __init__(self, group: G) -> None:
        self._before = group
        self.group = group
        self.records: list[Record] = []
        self.changed: dict[str, None] = {}
        """Members that have something else now, or nothing any more."""
        self._said: list[tuple[K, V | None]] = []
        self.cost = 0
        """What targets have cost that were made on it: members, partitions and topics that were looked at."""

    @staticmethod
    @abstractmethod
    def _record(key: K, value: V | None) -> Record:
        """As it is written."""

    @abstractmethod
    def _keys_of(self, member_id: str) -> Iterable[K]:
        """All that may be written of a member."""

    @abstractmethod
    def _keys(self) -> Iterable[K]:
        """All that may be written of the group besides."""

    def put(self, key: K, value: V | None) -> None:
        """Have this stored, or with None deleted."""
        if self.group is self._before:
            self.group = self._before.copy()
        self.group.apply(key, value)
        self.records.append(self._record(key, value))
        self._said.append((key, value))
        if isinstance(key, self.current_key):
            self.changed[key.member_id] = None

    def take_back(self, count: int) -> None:
        """Keep the first `count` records only: the decision after them failed halfway."""
        kept, self._said = self._said[:count], []
        self.group, self.records, self.changed = self._before, [], {}
        for key, value in kept:
            self.put(key, value)

    def delete_all(self) -> None:
        """Have nothing left of the group."""
        for member_id in sorted(self.group.members.keys() | self.group.currents.keys() | self.group.targets.keys()):
            for key in self._keys_of(member_id):
                self.put(key, None)
        for key in self._keys():
            self.put(key, None)
