"""The records of `__share_group_state`, exactly in Kafka's format, so that Kafka's own tools read them.

A key begins with its type, an int16: 0 is a snapshot of a share partition, 1 an update since the last snapshot. Keys
are not flexible. A value begins with its version, an int16 of 0, and is flexible. A snapshot without a value deletes
the share partition.

An update's start offset of -1 means that it is unchanged. `delivery_complete_count` is tagged since Kafka 4.2
(KIP-1226).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.primitives import uvarint
from kraftpy.protocol.schema import array, decode, encode, int8, int16, int32, int64, message, string, tag, uuid
from kraftpy.protocol.schema import struct as struct_of
from kraftpy.share.batches import MAX_OFFSET, TELLABLE, DeliveryState, StateBatch
from kraftpy.types import TopicId

SNAPSHOT, UPDATE = 0, 1
_VERSION = 0
_NUMBER = struct.Struct(">h")
_NO_API = -1
_BATCH = struct.Struct(">qqbhB")
_SNAPSHOT_HEAD = 36
_UPDATE_HEAD = 16
"""The bytes of a value before its batches."""

Record = tuple[bytes, bytes | None]
"""A key and a value as they are in the log."""


class ShareKey(NamedTuple):
    """A share partition: one partition of a topic as one share group reads it."""

    group_id: str
    topic_id: TopicId
    partition: int


@message(api_key=_NO_API, versions="0-0", flexible="none")
class _Key:
    """A key, after its type."""

    group_id: Annotated[str, string]
    topic_id: Annotated[bytes, uuid]
    partition: Annotated[int, int32]


@struct_of
class _Batch:
    """A range of offsets in one state."""

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    delivery_state: Annotated[int, int8]
    delivery_count: Annotated[int, int16]


@message(api_key=_NO_API, versions="0-0", flexible="0+")
class ShareSnapshotValue:
    """The full state of a share partition."""

    snapshot_epoch: Annotated[int, int32]
    state_epoch: Annotated[int, int32]
    leader_epoch: Annotated[int, int32]
    start_offset: Annotated[int, int64]
    delivery_complete_count: Annotated[int, int32, tag(0)] = -1  # KIP-1226
    create_timestamp: Annotated[int, int64]
    write_timestamp: Annotated[int, int64]
    state_batches: Annotated[list[_Batch], array]


@message(api_key=_NO_API, versions="0-0", flexible="0+")
class ShareUpdateValue:
    """The changes since the snapshot of that epoch."""

    snapshot_epoch: Annotated[int, int32]
    leader_epoch: Annotated[int, int32]
    start_offset: Annotated[int, int64]
    delivery_complete_count: Annotated[int, int32, tag(0)] = -1  # KIP-1226
    state_batches: Annotated[list[_Batch], array]


def write_key(kind: int, key: ShareKey) -> bytes:
    """Return a key's bytes, as they are in the log."""
    return _NUMBER.pack(kind) + encode(
        _Key(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition), _VERSION
    )


def write_value(value: ShareSnapshotValue | ShareUpdateValue, batches: Sequence[StateBatch] = ()) -> bytes:
    """Return a value's bytes, as they are in the log, with these batches; the value itself must have none.

    There may be thousands of batches, so they are packed without an object for each.
    """
    assert not value.state_batches, value
    encoded = encode(value, _VERSION)
    place = _SNAPSHOT_HEAD if isinstance(value, ShareSnapshotValue) else _UPDATE_HEAD
    packed = [_BATCH.pack(*each, 0) for each in batches]  # no tags
    after = encoded[place + 1 :]  # the length of an empty list takes a byte
    return b"".join((_NUMBER.pack(_VERSION), encoded[:place], uvarint(len(packed) + 1), *packed, after))


def read_key(data: Buffer) -> tuple[int, ShareKey] | None:
    """Return a key's type and share partition; None if the type is unknown. Raises ProtocolError."""
    kind = _number(data)
    if kind not in (SNAPSHOT, UPDATE):
        return None
    found = decode(_Key, memoryview(data)[_NUMBER.size :], _VERSION)
    return kind, ShareKey(found.group_id, TopicId(found.topic_id), found.partition)


def read_snapshot(data: Buffer) -> ShareSnapshotValue:
    """Parse a snapshot's value. Raises ProtocolError."""
    return decode(ShareSnapshotValue, _body(data), _VERSION)


def read_update(data: Buffer) -> ShareUpdateValue:
    """Parse an update's value. Raises ProtocolError."""
    return decode(ShareUpdateValue, _body(data), _VERSION)


def from_batches(batches: list[_Batch]) -> list[StateBatch]:
    """Convert batches from the form they have in a value; every last offset is capped so that one may follow it.

    Raises ProtocolError for a state that is never reported to a coordinator.
    """
    found = []
    for each in batches:
        if each.delivery_state not in TELLABLE:
            raise ProtocolError(f"a share record has the unknown delivery state {each.delivery_state}")
        state = DeliveryState(each.delivery_state)
        found.append(StateBatch(each.first_offset, min(each.last_offset, MAX_OFFSET - 1), state, each.delivery_count))
    return found


def _number(data: Buffer) -> int:
    if len(data) < _NUMBER.size:
        raise ProtocolError(f"a share record of {len(data)} bytes is too short for its type or version")
    number: int = _NUMBER.unpack_from(data)[0]
    return number


def _body(data: Buffer) -> memoryview:
    version = _number(data)
    if version != _VERSION:
        raise ProtocolError(f"a share record has version {version}; supported is 0")
    return memoryview(data)[_NUMBER.size :]
