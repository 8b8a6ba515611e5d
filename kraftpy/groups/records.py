"""The records of `__consumer_offsets`, exactly in Kafka's format, so that Kafka's own tools can read them.

Keys and values each start with an int16. The key's number is the kind of record: 0 and 1 are a committed offset (0 from
the oldest brokers, the same fields), 2 is a classic group. The value's number is the version of its layout. All numbers
are big endian, strings carry an int16 length (-1: null), byte arrays an int32. From version 4 values are flexible:
compact lengths and a section of tagged fields.

The versions written are the ones Kafka writes: an offset as v3 (v1 if the client asked for its own retention, since
only v1 has an expiry), a group as v3. Every version is read. A null value deletes what the key names.

The records of the consumer protocol (KIP-848) are in `consumer.records`, those of share groups (KIP-932) in
`share.records`, and those of streams groups (KIP-1071) in `streams.records`; `read_key` returns None for them.

Left out: tagged fields, which are skipped.
"""

from __future__ import annotations

import struct

from kraftpy.frozen import frozen
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicPartition

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_WITH_EXPIRY_VERSION = 1
GROUP_VALUE_VERSION = 3
LAST_VALUE_VERSION = 4
FIRST_FLEXIBLE_VERSION = 4
NO_TIMESTAMP = -1


@frozen
class OffsetCommitKey:
    """Identifies a group's offset in one partition."""

    group_id: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose offset this is."""
        return TopicPartition(self.topic, self.partition)


@frozen
class GroupMetadataKey:
    """Identifies a classic group."""

    group_id: str


@frozen
class OffsetCommitValue:
    """A committed offset: the position from which the group resumes. Timestamps are wall-clock milliseconds."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP


@frozen
class MemberMetadata:
    """One member of a stored generation: its metadata for the chosen protocol and its assignment, both opaque."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@frozen
class GroupMetadataValue:
    """A group's generation as stored. `protocol` and `leader` are None if the group is empty."""

    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = NO_TIMESTAMP
    members: tuple[MemberMetadata, ...] = ()


Key = OffsetCommitKey | GroupMetadataKey
Record = tuple[bytes, bytes | None]
"""An encoded key and value; a value of None is a tombstone."""


# ---- writing


def _string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def write_key(key: Key) -> bytes:
    """Encode a key."""
    match key:
        case OffsetCommitKey():
            return (
                struct.pack(">h", OFFSET_KEY_VERSION)
                + _string(key.group_id)
                + _string(key.topic)
                + struct.pack(">i", key.partition)
            )
        case GroupMetadataKey():
            return struct.pack(">h", GROUP_KEY_VERSION) + _string(key.group_id)


def write_offset(value: OffsetCommitValue) -> bytes:
    """Encode a committed offset: v3, or v1 (which has no leader epoch) if it carries its own expiry."""
    if value.expire_timestamp != NO_TIMESTAMP:
        return (
            struct.pack(">hq", OFFSET_VALUE_WITH_EXPIRY_VERSION, value.offset)
            + _string(value.metadata)
            + struct.pack(">qq", value.commit_timestamp, value.expire_timestamp)
        )
    return (
        struct.pack(">hqi", OFFSET_VALUE_VERSION, value.offset, value.leader_epoch)
        + _string(value.metadata)
        + struct.pack(">q", value.commit_timestamp)
    )


def write_group(value: GroupMetadataValue) -> bytes:
    """Encode a group as v3."""
    parts = [
        struct.pack(">h", GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        struct.pack(">i", value.generation_id),
        _string(value.protocol),
        _string(value.leader),
        struct.pack(">qi", value.current_state_timestamp, len(value.members)),
    ]
    for member in value.members:
        parts += [
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    return b"".join(parts)


def offset_record(key: OffsetCommitKey, value: OffsetCommitValue | None) -> Record:
    """Return the record that stores a committed offset, or deletes it if the value is None."""
    return write_key(key), None if value is None else write_offset(value)


def group_record(group_id: str, value: GroupMetadataValue | None) -> Record:
    """Return the record that stores a group, or deletes it if the value is None."""
    return write_key(GroupMetadataKey(group_id=group_id)), None if value is None else write_group(value)


# ---- reading


class RecordReader:
    """A cursor over one key or value. Malformed data raises ProtocolError."""

    __slots__ = ("_position", "_view", "flexible")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._position = 0
        self.flexible = False

    def _take(self, length: int) -> memoryview:
        end = self._position + length
        if length < 0 or end > len(self._view):
            raise ProtocolError(f"a coordinator record of {len(self._view)} bytes ends inside a field of {length}")
        taken = self._view[self._position : end]
        self._position = end
        return taken

    def int8(self) -> int:
        """Read a signed byte."""
        return int.from_bytes(self._take(1), "big", signed=True)

    def raw(self, length: int) -> bytes:
        """Read `length` bytes."""
        return bytes(self._take(length))

    def int16(self) -> int:
        """Read a signed 16-bit integer."""
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        """Read a signed 32-bit integer."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        """Read a signed 64-bit integer."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def uvarint(self) -> int:
        """Read an unsigned varint."""
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolError("a coordinator record has a varint longer than five bytes")

    def nullable_string(self) -> str | None:
        """Read a string, or None."""
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a coordinator record has a string that is not UTF-8: {error}") from error

    def string(self) -> str:
        """Read a string that must not be null."""
        value = self.nullable_string()
        if value is None:
            raise ProtocolError("a coordinator record has null where a string is required")
        return value

    def blob(self) -> bytes:
        """Read bytes preceded by their length."""
        return bytes(self._take(self.uvarint() - 1 if self.flexible else self.int32()))

    def array_length(self) -> int:
        """Read the length of an array, which cannot exceed the bytes left."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if not 0 <= length <= len(self._view) - self._position:
            raise ProtocolError(f"a coordinator record has an array of {length} elements")
        return length

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields, by tag; empty if the layout has none."""
        count = self.uvarint() if self.flexible else 0
        return {self.uvarint(): bytes(self._take(self.uvarint())) for _ in range(count)}

    def value_version(self, what: str) -> int:
        """Read the version at the start of a value, which determines its layout."""
        version = self.int16()
        if not 0 <= version <= LAST_VALUE_VERSION:
            raise ProtocolError(f"{what} has unknown version {version}; 0 to {LAST_VALUE_VERSION} are supported")
        self.flexible = version >= FIRST_FLEXIBLE_VERSION
        return version


def read_key(data: Buffer) -> Key | None:
    """Parse a key; None if the coordinator does not keep this kind. Raises ProtocolError."""
    reader = RecordReader(data)
    match reader.int16():
        case 0 | 1:
            return OffsetCommitKey(group_id=reader.string(), topic=reader.string(), partition=reader.int32())
        case 2:
            return GroupMetadataKey(group_id=reader.string())
    return None


def read_offset(data: Buffer) -> OffsetCommitValue:
    """Parse a committed offset of any version. Raises ProtocolError."""
    reader = RecordReader(data)
    version = reader.value_version("a committed offset")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else NO_TIMESTAMP
    reader.tagged_fields()
    return OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
    )


def _read_member(reader: RecordReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else NO_TIMESTAMP
    session_timeout_ms = reader.int32()
    subscription = reader.blob()
    assignment = reader.blob()
    reader.tagged_fields()
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def read_group(data: Buffer) -> GroupMetadataValue:
    """Parse a group of any version. Raises ProtocolError."""
    reader = RecordReader(data)
    version = reader.value_version("a group")
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    current_state_timestamp = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(reader, version) for _ in range(reader.array_length()))
    reader.tagged_fields()
    return GroupMetadataValue(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol=protocol,
        leader=leader,
        current_state_timestamp=current_state_timestamp,
        members=members,
    )
