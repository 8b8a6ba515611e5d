"""Replays the records of groups that the coordinator assigns to: consumer, share and streams groups.

Each kind has its own keys. A group takes on its kind with the first such record and loses it when the last one is
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

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
"""Durable state by group: its stored generation, its half of another kind, if any, and its offsets."""

Make = Callable[[str], Group]


class _Named(Protocol):
    """A record's key."""

    @property
    def group_id(self) -> str: ...


class _Known(Protocol):
    """The durable state of a group of one kind."""

    @property
    def is_gone(self) -> bool: ...


K = TypeVar("K", bound=_Named)
V = TypeVar("V")
G = TypeVar("G", bound=_Known)


class _Replayed(NamedTuple):
    """A record was of this kind."""

    gone: str | None
    """The group that this record left empty, if any."""


_NONE_IS_GONE = _Replayed(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[K, V, G]):
    """How to parse the records of one kind of group, and the `Group` attribute they change."""

    read_key: Callable[[Buffer], K | None]  # None for a key of another kind
    read_value: Callable[[K, Buffer], V]
    begin: Callable[[str], G]
    apply: Callable[[G, K, V | None], None]
    of: Callable[[Group], G | None]
    put: Callable[[Group, G | None], None]

    def replay(self, key: Buffer, value: Buffer | None, groups: Groups, make: Make) -> _Replayed | None:
        """Apply a record; None if it is of another kind."""
        named = self.read_key(key)
        if named is None:
            return None
        said = None if value is None else self.read_value(named, value)
        group = make(named.group_id) if said is not None else groups.get(named.group_id)
        known = None if group is None else self.of(group)
        if group is None or (said is None and known is None):
            return _NONE_IS_GONE
        if known is None:
            known = self.begin(named.group_id)
            self.put(group, known)
        self.apply(known, named, said)
        if not known.is_gone:
            return _NONE_IS_GONE
        self.put(group, None)
        return _Replayed(group.group_id)


def _put_consumer(group: Group, known: ConsumerGroup | None) -> None:
    group.consumer = known


def _put_share(group: Group, known: ShareGroup | None) -> None:
    group.share = known


def _put_streams(group: Group, known: StreamsGroup | None) -> None:
    group.streams = known


_CONSUMER: _Kind[consumer_records.ConsumerKey, consumer_records.ConsumerValue, ConsumerGroup] = _Kind(
    read_key=consumer_records.read_key,
    read_value=consumer_records.read_value,
    begin=lambda group_id: ConsumerGroup(group_id=group_id),
    apply=ConsumerGroup.apply,
    of=lambda group: group.consumer,
    put=_put_consumer,
)
_SHARE: _Kind[share_records.ShareKey, share_records.ShareValue, ShareGroup] = _Kind(
    read_key=share_records.read_key,
    read_value=share_records.read_value,
    begin=lambda group_id: ShareGroup(group_id=group_id),
    apply=ShareGroup.apply,
    of=lambda group: group.share,
    put=_put_share,
)
_STREAMS: _Kind[streams_records.StreamsKey, streams_records.StreamsValue, StreamsGroup] = _Kind(
    read_key=streams_records.read_key,
    read_value=streams_records.read_value,
    begin=lambda group_id: StreamsGroup(group_id=group_id),
    apply=StreamsGroup.apply,
    of=lambda group: group.streams,
    put=_put_streams,
)
_REPLAYS = (_CONSUMER.replay, _SHARE.replay, _STREAMS.replay)


def replay_record(key: Buffer, value: Buffer | None, groups: Groups, make: Make) -> str | None:
    """Apply a record. Returns the group that it left with nothing of its kind, if any. Raises ProtocolError.

    `make` returns the group with that id, creating it if necessary.
    """
    for replay in _REPLAYS:
        replayed = replay(key, value, groups, make)
        if replayed is not None:
            return replayed.gone
    return None


def durable(groups: Groups) -> Durable:
    """Return the durable state of every group that has any in the log."""
    return {
        group_id: (
            group.persisted,
            group.durable_half(),
            dict(group.offsets),
        )
        for group_id, group in sorted(groups.items())
        if group.persisted is not None or group.durable_half() is not None or group.offsets
    }
