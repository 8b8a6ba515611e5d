"""Replays the records of groups that the coordinator assigns to: consumer, share and streams groups.

Each kind has its own keys. A group takes on its kind with the first such record and loses it when the last one is
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kraftpy.frozen import frozen
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.consumer import records as consumer_records
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.group import Group
from kraftpy.groups.records import GroupMetadataValue, OffsetCommitValue
from kraftpy.groups.share import records as share_records
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.streams import records as streams_records
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.ports import Buffer
from kraftpy.types import TopicPartition

Groups = Mapping[str, Group]
Durable = dict[
    str,
    tuple[
        GroupMetadataValue | None,
        ConsumerGroup | ShareGroup | StreamsGroup | None,
        dict[TopicPartition, OffsetCommitValue],
    ],
]
"""Durable state by group: its stored generation if it is a classic one, else its state, and its offsets."""

Make = Callable[[str], Group]


class _Named(Protocol):
    """A record's key."""

    @property
    def group_id(self) -> str: ...


K = TypeVar("K", bound=_Named)
V = TypeVar("V")
G = TypeVar("G", ConsumerGroup, ShareGroup, StreamsGroup)


class _Replayed(NamedTuple):
    """A record was of this kind."""

    gone: str | None
    """The group that this record left empty, if any."""


_NONE_IS_GONE = _Replayed(None)


@frozen
class _Kind(Generic[K, V, G]):
    """How to parse the records of one kind of group, and the class of group they describe."""

    read_key: Callable[[Buffer], K | None]  # None for a key of another kind
    read_value: Callable[[K, Buffer], V]
    kind: type[G]
    apply: Callable[[G, K, V | None], None]

    def parse(self, key: Buffer, value: Buffer) -> V | None:
        """Parse the value of a record; None if it is of another kind."""
        named = self.read_key(key)
        return None if named is None else self.read_value(named, value)

    def replay(
        self, key: Buffer, value: Buffer | None, groups: Groups, make: Make, parsed: Any = None
    ) -> _Replayed | None:
        """Apply a record; None if it is of another kind."""
        named = self.read_key(key)
        if named is None:
            return None
        said: V | None = parsed
        if said is None and value is not None:
            said = self.read_value(named, value)
        group = make(named.group_id) if said is not None else groups.get(named.group_id)
        if group is None:
            return _NONE_IS_GONE
        if not isinstance(group.kind, self.kind):
            if said is None:
                return _NONE_IS_GONE
            group.kind = self.kind(group_id=named.group_id)
        self.apply(group.kind, named, said)
        if not group.kind.is_gone:
            return _NONE_IS_GONE
        group.kind = group.classic_or_empty()
        return _Replayed(group.group_id)


_CONSUMER: _Kind[consumer_records.ConsumerKey, consumer_records.ConsumerValue, ConsumerGroup] = _Kind(
    read_key=consumer_records.read_key,
    read_value=consumer_records.read_value,
    kind=ConsumerGroup,
    apply=ConsumerGroup.apply,
)
_SHARE: _Kind[share_records.ShareKey, share_records.ShareValue, ShareGroup] = _Kind(
    read_key=share_records.read_key,
    read_value=share_records.read_value,
    kind=ShareGroup,
    apply=ShareGroup.apply,
)
_STREAMS: _Kind[streams_records.StreamsKey, streams_records.StreamsValue, StreamsGroup] = _Kind(
    read_key=streams_records.read_key,
    read_value=streams_records.read_value,
    kind=StreamsGroup,
    apply=StreamsGroup.apply,
)
_REPLAYS = (_CONSUMER.replay, _SHARE.replay, _STREAMS.replay)


def parse_record(key: Buffer, value: Buffer) -> object:
    """Parse the value of a record. Raises ProtocolError."""
    for kind in (_CONSUMER, _SHARE, _STREAMS):
        parsed = kind.parse(key, value)
        if parsed is not None:
            return parsed
    return None


def replay_record(key: Buffer, value: Buffer | None, groups: Groups, make: Make, parsed: object = None) -> str | None:
    """Apply a record. Returns the group that it left with nothing of its kind, if any. Raises ProtocolError.

    `make` returns the group with that id, creating it if necessary. `parsed` is the value, if it was parsed before.
    """
    for replay in _REPLAYS:
        replayed = replay(key, value, groups, make, parsed)
        if replayed is not None:
            return replayed.gone
    return None


def durable(groups: Groups) -> Durable:
    """Return the durable state of every group that has any in the log."""
    found: Durable = {}
    for group_id, group in sorted(groups.items()):
        generation = group.kind.persisted if isinstance(group.kind, ClassicGroup) else None
        assigned = group.durable_kind()
        if generation is not None or assigned is not None or group.offsets:
            found[group_id] = generation, assigned, dict(group.offsets)
    return found
