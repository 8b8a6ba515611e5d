"""The messages that members of a consumer group send each other through the coordinator.

The coordinator passes them on unread in a classic group. In a consumer group it reads those of classic members
(KIP-848).

JoinGroup carries a `Subscription`, SyncGroup an assignment; each begins with its own version. Version 3 of both is
written here (owned partitions KIP-429, generation KIP-792, rack KIP-881). Any version from 0 on is read; fields
appended by a newer version are ignored, as in Kafka's own reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct, error

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicPartition

PROTOCOL_TYPE = "consumer"
_VERSION = 3
_INT16 = Struct(">h")
_INT32 = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics a member subscribes to, and the partitions it owns while it joins."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    rack_id: str | None = None
    user_data: bytes | None = None
    group_instance_id: str | None = None  # not part of these bytes: JoinGroup carries it as a field of its own


class _Reader:
    """A cursor over the bytes; reading past the end raises `ProtocolError`."""

    __slots__ = ("data", "position")

    def __init__(self, data: Buffer) -> None:
        self.data = bytes(data)
        self.position = 0

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise ProtocolError(f"consumer protocol: {count} bytes wanted at {self.position} of {len(self.data)}")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def count(self) -> int:
        """Read an array's length; an element takes at least two bytes."""
        count = self.int32()
        if count > (len(self.data) - self.position) // 2:
            raise ProtocolError(f"consumer protocol: an array of {count} elements in {len(self.data)} bytes")
        return max(count, 0)

    def string(self) -> str:
        try:
            return self.take(self.int16()).decode()
        except UnicodeDecodeError as bad:
            raise ProtocolError("consumer protocol: a string that is not UTF-8") from bad

    def nullable_string(self) -> str | None:
        if self.data[self.position : self.position + 2] == b"\xff\xff":
            self.position += 2
            return None
        return self.string()

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self.take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.string()
            found.extend(TopicPartition(topic, self.int32()) for _ in range(self.count()))
        return tuple(found)

    def at_end(self) -> bool:
        return self.position >= len(self.data)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _nullable_bytes(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT32.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        parts.append(_string(topic))
        parts.append(_INT32.pack(len(indexes)))
        parts.extend(map(_INT32.pack, indexes))
    return b"".join(parts)


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode the metadata that a member sends in JoinGroup."""
    return b"".join(
        (
            _INT16.pack(_VERSION),
            _INT32.pack(len(subscription.topics)),
            *map(_string, subscription.topics),
            _nullable_bytes(subscription.user_data),
            _partitions(subscription.owned),
            _INT32.pack(subscription.generation_id),
            _INT16.pack(-1) if subscription.rack_id is None else _string(subscription.rack_id),
        )
    )


def decode_subscription(data: Buffer, group_instance_id: str | None = None) -> Subscription:
    """Read JoinGroup metadata of any version. Raises `ProtocolError`."""
    reader = _Reader(data)
    version = reader.int16()
    if version < 0:
        raise ProtocolError(f"consumer protocol: subscription version {version}")
    topics = tuple(reader.string() for _ in range(reader.count()))
    user_data = reader.nullable_bytes() if not reader.at_end() else None
    return Subscription(
        topics=topics,
        user_data=user_data,
        owned=reader.partitions() if version >= 1 else (),
        generation_id=reader.int32() if version >= 2 else -1,
        rack_id=reader.nullable_string() if version >= 3 else None,
        group_instance_id=group_instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Encode one member's assignment, for SyncGroup."""
    return _INT16.pack(_VERSION) + _partitions(partitions) + _nullable_bytes(user_data)


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """Read an assignment of any version; empty bytes mean no partitions. Raises `ProtocolError`."""
    if not len(data):
        return ()
    reader = _Reader(data)
    version = reader.int16()
    if version < 0:
        raise ProtocolError(f"consumer protocol: assignment version {version}")
    return reader.partitions()


def assignment_user_data(data: Buffer) -> bytes | None:
    """Return the user data of a custom assignor in an assignment of any version. Raises `ProtocolError`."""
    if not len(data):
        return None
    reader = _Reader(data)
    reader.int16()
    reader.partitions()
    return None if reader.at_end() else reader.nullable_bytes()


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Encode the state that the `sticky` assignor keeps between generations: owned partitions, then the generation."""
    return _partitions(owned) + _INT32.pack(generation_id)


def decode_sticky_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Return the owned partitions and their generation; ((), -1) if the bytes are missing or unreadable."""
    if not data:
        return (), -1
    reader = _Reader(data)
    try:
        owned = reader.partitions()
        return owned, -1 if reader.at_end() else reader.int32()
    except (ProtocolError, error):
        return (), -1


def encode_generation(generation_id: int) -> bytes:
    """Encode the generation as the `cooperative-sticky` assignor's user data, for readers older than KIP-792."""
    return _INT32.pack(generation_id)


def decode_generation(data: bytes | None) -> int:
    """Return the generation in that user data, or -1."""
    return int(_INT32.unpack_from(data)[0]) if data is not None and len(data) >= 4 else -1
