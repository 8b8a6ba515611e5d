"""The records of groups of the consumer protocol (KIP-848) in `__consumer_offsets`, exactly in Kafka's format.

A key starts with the number of its kind (an int16) and is not flexible; a value starts with its version, 0, and is
flexible.

    3  the group: its epoch, and a hash of its subscribed topics at that time (KIP-1101)
    5  a member: its metadata, from its own requests
    6  the assignment: the group epoch for which it was computed, and when (KIP-1263)
    7  a member's target: the partitions it should have
    8  a member's current assignment: its epoch, what it may read, what it was asked to revoke
    16 a regular expression: the topics that it matched when last resolved

Kind 4, the topics' partitions, was written by Kafka before 4.1 instead of the hash; it is ignored when read.

Left out: the creation time of a group, the epochs at which partitions were assigned (KIP-1251): tags that are skipped
when read and not written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from kraftpy.frozen import frozen
from kraftpy.groups.assignment import (
    NOTHING,
    Assignment,
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

VERSION = 0
_NO_TAGS = b"\x00"
_HASH_TAG = 0
_CLASSIC_TAG = 0
_NOT_NULL = b"\x01"


class MemberState(Enum):
    """A member's progress towards its target; the values are those in the record."""

    STABLE = 0  # has its whole target as of its epoch
    UNREVOKED_PARTITIONS = 1  # was asked to revoke partitions and has not confirmed it
    UNRELEASED_PARTITIONS = 2  # waits for partitions that others have yet to give up
    UNKNOWN = 127  # written by a newer coordinator


# ---- keys


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The group itself (3)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A member's metadata (5)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetMetadataKey:
    """The assignment of the whole group (6)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class TargetMemberKey:
    """A member's target (7)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentKey:
    """A member's current assignment (8)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RegexKey:
    """A regular expression that members subscribe with (16)."""

    group_id: str
    regex: str


ConsumerKey = GroupKey | MemberKey | TargetMetadataKey | TargetMemberKey | CurrentKey | RegexKey


# ---- values


@frozen
class GroupValue:
    """The group's epoch, and a hash of its subscribed topics at that time."""

    epoch: int
    metadata_hash: int = 0


@frozen
class ClassicMember:
    """A member's JoinGroup: its session timeout, and its protocols with their metadata, the chosen one first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def protocol_name(self) -> str:
        """The protocol that the coordinator chose for the member."""
        return self.protocols[0][0] if self.protocols else ""


@frozen
class MemberValue:
    """A member's metadata. Topic names are sorted. `classic` is set if it speaks the classic protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None


@frozen
class TargetMetadataValue:
    """The group epoch for which the targets were computed, and when that was."""

    assignment_epoch: int
    assigned_at: int = NEVER_ASSIGNED  # wall clock


@frozen
class TargetMemberValue:
    """The partitions a member should have."""

    partitions: Assignment


@frozen
class CurrentValue:
    """The last assignment sent to a member: its epoch, what it may read, and what it has yet to revoke."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    pending_revocation: Assignment = NOTHING


@frozen
class RegexValue:
    """The topics that a regular expression matched, sorted, and when (wall clock)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


ConsumerValue = GroupValue | MemberValue | TargetMetadataValue | TargetMemberValue | CurrentValue | RegexValue


# ---- writing


def write_key(key: ConsumerKey) -> bytes:
    """Encode a key."""
    match key:
        case GroupKey(group_id):
            return struct.pack(">h", 3) + string(group_id)
        case MemberKey(group_id, member_id):
            return struct.pack(">h", 5) + string(group_id) + string(member_id)
        case TargetMetadataKey(group_id):
            return struct.pack(">h", 6) + string(group_id)
        case TargetMemberKey(group_id, member_id):
            return struct.pack(">h", 7) + string(group_id) + string(member_id)
        case CurrentKey(group_id, member_id):
            return struct.pack(">h", 8) + string(group_id) + string(member_id)
        case RegexKey(group_id, regex):
            return struct.pack(">h", 16) + string(group_id) + string(regex)
        case _:
            assert_never(key)


def _classic(value: ClassicMember) -> bytes:
    protocols = [
        compact_string(name) + uvarint(len(metadata) + 1) + metadata + _NO_TAGS for name, metadata in value.protocols
    ]
    head = struct.pack(">i", value.session_timeout_ms) + uvarint(len(protocols) + 1)
    return head + b"".join(protocols) + _NO_TAGS


def write_value(value: ConsumerValue) -> bytes:
    """Encode a value."""
    tags = _NO_TAGS
    match value:
        case GroupValue():
            body = struct.pack(">i", value.epoch)
            if value.metadata_hash:
                tags = b"\x01" + uvarint(_HASH_TAG) + uvarint(8) + struct.pack(">q", value.metadata_hash)
        case MemberValue():
            body = b"".join(
                (
                    compact_nullable_string(value.instance_id),
                    compact_nullable_string(value.rack_id),
                    compact_string(value.client_id),
                    compact_string(value.client_host),
                    write_strings(value.subscribed_topic_names),
                    compact_nullable_string(value.subscribed_topic_regex),
                    struct.pack(">i", value.rebalance_timeout_ms),
                    compact_nullable_string(value.server_assignor),
                )
            )
            if value.classic is not None:
                classic = _NOT_NULL + _classic(value.classic)
                tags = b"\x01" + uvarint(_CLASSIC_TAG) + uvarint(len(classic)) + classic
        case TargetMetadataValue():
            body = struct.pack(">i", value.assignment_epoch)
            tags = write_assigned_at(value.assigned_at)
        case TargetMemberValue():
            body = write_partitions(value.partitions)
        case CurrentValue():
            body = (
                struct.pack(">iib", value.member_epoch, value.previous_member_epoch, value.state.value)
                + write_partitions(value.assigned)
                + write_partitions(value.pending_revocation)
            )
        case RegexValue():
            body = write_strings(value.topics) + struct.pack(">qq", value.version, value.timestamp)
        case _:
            assert_never(value)
    return struct.pack(">h", VERSION) + body + tags


def consumer_record(key: ConsumerKey, value: ConsumerValue | None) -> Record:
    """Return the record that stores this value, or deletes it if the value is None."""
    return write_key(key), None if value is None else write_value(value)


# ---- reading


def read_key(data: Buffer) -> ConsumerKey | None:
    """Parse a key; None if it is of another kind. Raises ProtocolError."""
    reader = RecordReader(data)
    match reader.int16():
        case 3:
            return GroupKey(reader.string())
        case 5:
            return MemberKey(reader.string(), reader.string())
        case 6:
            return TargetMetadataKey(reader.string())
        case 7:
            return TargetMemberKey(reader.string(), reader.string())
        case 8:
            return CurrentKey(reader.string(), reader.string())
        case 16:
            return RegexKey(reader.string(), reader.string())
    return None


def _read_member(reader: RecordReader) -> MemberValue:
    return MemberValue(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topic_names=read_strings(reader),
        subscribed_topic_regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        server_assignor=reader.nullable_string(),
    )


def _read_classic(data: bytes | None) -> ClassicMember | None:
    if data is None or not data.startswith(_NOT_NULL):
        return None
    reader = RecordReader(memoryview(data)[1:])
    reader.flexible = True
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.blob()))
        reader.tagged_fields()
    return ClassicMember(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _read_current(reader: RecordReader) -> CurrentValue:
    member_epoch, previous_member_epoch, state = reader.int32(), reader.int32(), reader.int8()
    return CurrentValue(
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=MemberState(state) if state in (0, 1, 2) else MemberState.UNKNOWN,
        assigned=read_partitions(reader),
        pending_revocation=read_partitions(reader),
    )


def read_value(key: ConsumerKey, data: Buffer) -> ConsumerValue:
    """Parse the value for this key. Raises ProtocolError."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != VERSION:
        raise ProtocolError(f"a {type(key).__name__} has unknown version {version}; only {VERSION} is supported")
    reader.flexible = True
    if isinstance(key, GroupKey):
        epoch = reader.int32()
        hashed = reader.tagged_fields().get(_HASH_TAG, bytes(8))
        return GroupValue(epoch=epoch, metadata_hash=RecordReader(hashed).int64())
    if isinstance(key, TargetMetadataKey):
        return TargetMetadataValue(assignment_epoch=reader.int32(), assigned_at=read_assigned_at(reader))
    if isinstance(key, MemberKey):
        member = _read_member(reader)
        return replace(member, classic=_read_classic(reader.tagged_fields().get(_CLASSIC_TAG)))
    value = _read_fields(key, reader)
    reader.tagged_fields()
    return value


def _read_fields(key: TargetMemberKey | CurrentKey | RegexKey, reader: RecordReader) -> ConsumerValue:
    match key:
        case TargetMemberKey():
            return TargetMemberValue(partitions=read_partitions(reader))
        case CurrentKey():
            return _read_current(reader)
        case RegexKey():
            return RegexValue(topics=read_strings(reader), version=reader.int64(), timestamp=reader.int64())
        case _:
            assert_never(key)
