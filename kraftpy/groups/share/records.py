"""The records of share groups (KIP-932) in `__consumer_offsets`, exactly in Kafka's format.

A key starts with the number of its kind (an int16) and is not flexible; a value starts with its version, 0, and is
flexible.

    10 a member: its metadata, from its own requests
    11 the group: its epoch, and a hash of its subscribed topics at that time
    12 the assignment: the group epoch for which it was computed, and when (KIP-1263)
    13 a member's target: the partitions it should have
    14 a member's current assignment: its epoch, and what it reads
    15 the partitions for which the share coordinator keeps state, or is about to start or stop keeping it

Kind 9, the topics' partitions, was never released; it is ignored when read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from kraftpy.frozen import frozen
from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.assignment import (
    NOTHING,
    Assignment,
    TopicIdPartition,
    read_partitions,
    read_strings,
    write_partitions,
    write_strings,
)
from kraftpy.groups.assignment_interval import NEVER_ASSIGNED, read_assigned_at, write_assigned_at
from kraftpy.groups.records import Record, RecordReader
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.primitives import compact_nullable_string, compact_string, string, uvarint
from kraftpy.types import TopicId

VERSION = 0
_NO_TAGS = b"\x00"
_STABLE = 0
"""The only state that a member of a share group can have."""


class TopicState(NamedTuple):
    """Partitions of one topic with state at the share coordinator, and when that was last requested (wall clock)."""

    name: str
    partitions: frozenset[int]
    timestamp: int = 0


# ---- keys


@dataclass(frozen=True, slots=True)
class ShareMemberKey:
    """A member's metadata (10)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupKey:
    """The group itself (11)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ShareTargetMetadataKey:
    """The assignment of the whole group (12)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ShareTargetMemberKey:
    """A member's target (13)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareCurrentKey:
    """A member's current assignment (14)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareStateKey:
    """The partitions with state at the share coordinator (15)."""

    group_id: str


ShareKey = (
    ShareMemberKey | ShareGroupKey | ShareTargetMetadataKey | ShareTargetMemberKey | ShareCurrentKey | ShareStateKey
)


# ---- values


@frozen
class ShareMemberValue:
    """A member's metadata. Topic names are sorted."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()


@frozen
class ShareGroupValue:
    """The group's epoch, and a hash of its subscribed topics at that time."""

    epoch: int
    metadata_hash: int = 0


@frozen
class ShareTargetMetadataValue:
    """The group epoch for which the targets were computed, and when that was."""

    assignment_epoch: int
    assigned_at: int = NEVER_ASSIGNED  # wall clock


@frozen
class ShareTargetMemberValue:
    """The partitions a member should have."""

    partitions: Assignment


@frozen
class ShareCurrentValue:
    """The last assignment sent to a member: its epoch, and what it reads."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Assignment = NOTHING


@frozen
class ShareStateValue:
    """Partitions by topic whose state is being created or exists, and topics whose state is being deleted."""

    initializing: Mapping[TopicId, TopicState] = field(default_factory=dict)
    initialized: Mapping[TopicId, TopicState] = field(default_factory=dict)
    deleting: Mapping[TopicId, str] = field(default_factory=dict)

    @property
    def is_nothing(self) -> bool:
        """True if there is no state, and no pending request can create any."""
        return not (self.initializing or self.initialized or self.deleting)

    @property
    def size(self) -> int:
        """The number of topics and partitions. If there are very many topics, their partitions do not count."""
        topics = len(self.initializing) + len(self.initialized) + len(self.deleting)
        if topics > UNITS_AT_ONCE:
            return topics
        states = (*self.initializing.values(), *self.initialized.values())
        return topics + sum(len(state.partitions) for state in states)


ShareValue = (
    ShareMemberValue
    | ShareGroupValue
    | ShareTargetMetadataValue
    | ShareTargetMemberValue
    | ShareCurrentValue
    | ShareStateValue
)


# ---- writing


def write_key(key: ShareKey) -> bytes:
    """Encode a key."""
    match key:
        case ShareMemberKey(group_id, member_id):
            return struct.pack(">h", 10) + string(group_id) + string(member_id)
        case ShareGroupKey(group_id):
            return struct.pack(">h", 11) + string(group_id)
        case ShareTargetMetadataKey(group_id):
            return struct.pack(">h", 12) + string(group_id)
        case ShareTargetMemberKey(group_id, member_id):
            return struct.pack(">h", 13) + string(group_id) + string(member_id)
        case ShareCurrentKey(group_id, member_id):
            return struct.pack(">h", 14) + string(group_id) + string(member_id)
        case ShareStateKey(group_id):
            return struct.pack(">h", 15) + string(group_id)
        case _:
            assert_never(key)


def _topic_states(states: Mapping[TopicId, TopicState]) -> bytes:
    topics = []
    for topic_id, state in sorted(states.items()):
        partitions = sorted(state.partitions)
        topics.append(
            topic_id
            + compact_string(state.name)
            + uvarint(len(partitions) + 1)
            + struct.pack(f">{len(partitions)}iq", *partitions, state.timestamp)
            + _NO_TAGS
        )
    return uvarint(len(topics) + 1) + b"".join(topics)


def write_value(value: ShareValue) -> bytes:
    """Encode a value."""
    tags = _NO_TAGS
    match value:
        case ShareMemberValue():
            body = b"".join(
                (
                    compact_nullable_string(value.rack_id),
                    compact_string(value.client_id),
                    compact_string(value.client_host),
                    write_strings(value.subscribed_topic_names),
                )
            )
        case ShareGroupValue():
            body = struct.pack(">iq", value.epoch, value.metadata_hash)
        case ShareTargetMetadataValue():
            body = struct.pack(">i", value.assignment_epoch)
            tags = write_assigned_at(value.assigned_at)
        case ShareTargetMemberValue():
            body = write_partitions(value.partitions)
        case ShareCurrentValue():
            epochs = struct.pack(">iib", value.member_epoch, value.previous_member_epoch, _STABLE)
            body = epochs + write_partitions(value.assigned)
        case ShareStateValue():
            topics = [topic_id + compact_string(name) + _NO_TAGS for topic_id, name in sorted(value.deleting.items())]
            deleting = uvarint(len(topics) + 1) + b"".join(topics)
            body = _topic_states(value.initializing) + _topic_states(value.initialized) + deleting
        case _:
            assert_never(value)
    return struct.pack(">h", VERSION) + body + tags


def share_record(key: ShareKey, value: ShareValue | None) -> Record:
    """Return the record that stores this value, or deletes it if the value is None."""
    return write_key(key), None if value is None else write_value(value)


# ---- reading


def read_key(data: Buffer) -> ShareKey | None:
    """Parse a key; None if it is of another kind. Raises ProtocolError."""
    reader = RecordReader(data)
    match reader.int16():
        case 10:
            return ShareMemberKey(reader.string(), reader.string())
        case 11:
            return ShareGroupKey(reader.string())
        case 12:
            return ShareTargetMetadataKey(reader.string())
        case 13:
            return ShareTargetMemberKey(reader.string(), reader.string())
        case 14:
            return ShareCurrentKey(reader.string(), reader.string())
        case 15:
            return ShareStateKey(reader.string())
    return None


def _read_topic_states(reader: RecordReader) -> dict[TopicId, TopicState]:
    states = {}
    for _ in range(reader.array_length()):
        topic_id, name = TopicId(reader.raw(16)), reader.string()
        partitions = frozenset(reader.int32() for _ in range(reader.array_length()))
        states[topic_id] = TopicState(name, partitions, reader.int64())
        reader.tagged_fields()
    return states


def _read_state(reader: RecordReader) -> ShareStateValue:
    initializing, initialized = _read_topic_states(reader), _read_topic_states(reader)
    deleting = {}
    for _ in range(reader.array_length()):
        topic_id = TopicId(reader.raw(16))
        deleting[topic_id] = reader.string()
        reader.tagged_fields()
    return ShareStateValue(initializing=initializing, initialized=initialized, deleting=deleting)


def _read_current(reader: RecordReader) -> ShareCurrentValue:
    member_epoch, previous_member_epoch = reader.int32(), reader.int32()
    reader.int8()
    return ShareCurrentValue(
        member_epoch=member_epoch, previous_member_epoch=previous_member_epoch, assigned=read_partitions(reader)
    )


def _read_member(reader: RecordReader) -> ShareMemberValue:
    return ShareMemberValue(
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topic_names=read_strings(reader),
    )


def read_value(key: ShareKey, data: Buffer) -> ShareValue:
    """Parse the value for this key. Raises ProtocolError."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != VERSION:
        raise ProtocolError(f"a {type(key).__name__} has unknown version {version}; only {VERSION} is supported")
    reader.flexible = True
    if isinstance(key, ShareTargetMetadataKey):
        return ShareTargetMetadataValue(assignment_epoch=reader.int32(), assigned_at=read_assigned_at(reader))
    value = _read_fields(key, reader)
    reader.tagged_fields()
    return value


def _read_fields(
    key: ShareMemberKey | ShareGroupKey | ShareTargetMemberKey | ShareCurrentKey | ShareStateKey, reader: RecordReader
) -> ShareValue:
    match key:
        case ShareMemberKey():
            return _read_member(reader)
        case ShareGroupKey():
            return ShareGroupValue(epoch=reader.int32(), metadata_hash=reader.int64())
        case ShareTargetMemberKey():
            return ShareTargetMemberValue(partitions=read_partitions(reader))
        case ShareCurrentKey():
            return _read_current(reader)
        case ShareStateKey():
            return _read_state(reader)
        case _:
            assert_never(key)


def partitions_of(states: Mapping[TopicId, TopicState]) -> Assignment:
    """Return the partitions of all these topics."""
    return frozenset(
        TopicIdPartition(topic_id, each) for topic_id, state in states.items() for each in state.partitions
    )
