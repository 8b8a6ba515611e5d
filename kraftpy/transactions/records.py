"""The records of `__transaction_state`, exactly in Kafka's format, so that Kafka's own tools read them.

Keys and values each begin with an int16. In a key, 0 stands for a transactional id. In a value, the number is the
version of the layout: version 0 has fixed fields, int16 string lengths and int32 array lengths; version 1 has compact
lengths, and tagged fields for the previous producer id (0), the next one (1) and the client's version of transactions
(2). Version 1 is written, both are read. A null value deletes the id.

Left out: the tagged field of two-phase commit (KIP-939), which is skipped like any unknown one.
"""

from __future__ import annotations

import struct
from itertools import repeat

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.transactions.transaction import NO_PRODUCER_ID, State, TransactionValue
from kraftpy.types import TopicPartition

VALUE_VERSION = 1
_NUMBERS = {
    State.EMPTY: 0,
    State.ONGOING: 1,
    State.PREPARE_COMMIT: 2,
    State.PREPARE_ABORT: 3,
    State.COMPLETE_COMMIT: 4,
    State.COMPLETE_ABORT: 5,
    State.DEAD: 6,
    State.PREPARE_EPOCH_FENCE: 7,
}
_STATES = {number: state for state, number in _NUMBERS.items()}
_PREVIOUS, _NEXT, _CLIENT_VERSION = range(3)

Record = tuple[bytes, bytes | None]
"""A key and a value as they are in the log; a value of None is a tombstone."""


# ---- writing


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact_string(value: str) -> bytes:
    data = value.encode()
    return _uvarint(len(data) + 1) + data


def write_key(transactional_id: str) -> bytes:
    """Return a key's bytes, as they are in the log."""
    data = transactional_id.encode()
    return struct.pack(">hh", 0, len(data)) + data


def write_value(value: TransactionValue) -> bytes:
    """Return a value's bytes, in version 1."""
    parts = [
        struct.pack(
            ">hqhib",
            VALUE_VERSION,
            value.producer_id,
            value.producer_epoch,
            value.timeout_ms,
            _NUMBERS[value.state],
        )
    ]
    if value.state is State.EMPTY:
        parts.append(_uvarint(0))  # null
    else:
        topics = by_topic(value.partitions)
        parts.append(_uvarint(len(topics) + 1))
        for topic, partitions in topics.items():
            parts += [_compact_string(topic), _uvarint(len(partitions) + 1)]
            parts.append(struct.pack(f">{len(partitions)}i", *partitions))
            parts.append(_uvarint(0))
    parts.append(struct.pack(">qq", value.updated_at, value.started_at))
    tags: list[tuple[int, bytes]] = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS, struct.pack(">q", value.previous_producer_id)))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT, struct.pack(">q", value.next_producer_id)))
    if value.client_version:
        tags.append((_CLIENT_VERSION, struct.pack(">h", value.client_version)))
    parts.append(_uvarint(len(tags)))
    parts += [_uvarint(tag) + _uvarint(len(data)) + data for tag, data in tags]
    return b"".join(parts)


def transaction_record(transactional_id: str, value: TransactionValue | None) -> Record:
    """Return the record that stores a transactional id, or deletes it if `value` is None."""
    return write_key(transactional_id), None if value is None else write_value(value)


def by_topic(partitions: frozenset[TopicPartition] | set[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:  # sorting them as pairs would take several times as long
        topics.setdefault(topic, []).append(partition)
    return {topic: sorted(topics[topic]) for topic in sorted(topics)}


# ---- reading


class _Reader:
    """A cursor over one key or value. Raises ProtocolError for anything malformed."""

    __slots__ = ("_position", "_view", "flexible")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._position = 0
        self.flexible = False

    def take(self, length: int) -> memoryview:
        end = self._position + length
        if length < 0 or end > len(self._view):
            raise ProtocolError(f"a transaction record of {len(self._view)} bytes ends inside a field of {length}")
        taken = self._view[self._position : end]
        self._position = end
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolError("a transaction record has a varint longer than five bytes")

    def string(self) -> str:
        length = self.uvarint() - 1 if self.flexible else self.integer(2)
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a transaction record has a string that is not UTF-8: {error}") from error

    def array_length(self) -> int:
        """Read an array's length; -1 stands for null."""
        length = self.uvarint() - 1 if self.flexible else self.integer(4)
        if not -1 <= length <= len(self._view) - self._position:
            raise ProtocolError(f"a transaction record has an array of {length} elements")
        return length

    def tagged_fields(self) -> dict[int, memoryview]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())} if self.flexible else {}


def read_key(data: Buffer) -> str | None:
    """Return the transactional id, or None for a key of an unknown kind. Raises ProtocolError."""
    reader = _Reader(data)
    return reader.string() if reader.integer(2) == 0 else None


def read_value(data: Buffer) -> TransactionValue:
    """Parse a value of either version. Raises ProtocolError."""
    reader = _Reader(data)
    version = reader.integer(2)
    if not 0 <= version <= VALUE_VERSION:
        raise ProtocolError(f"a transaction record has version {version}; supported are 0 to {VALUE_VERSION}")
    reader.flexible = version >= 1
    producer_id, producer_epoch, timeout_ms = reader.integer(8), reader.integer(2), reader.integer(4)
    state = _STATES.get(number := reader.integer(1))
    if state is None:
        raise ProtocolError(f"a transaction record has the unknown state {number}")
    partitions: set[TopicPartition] = set()
    for _ in range(max(0, reader.array_length())):
        topic = reader.string()
        count = max(0, reader.array_length())
        numbers = struct.unpack(f">{count}i", reader.take(4 * count))
        partitions.update(map(TopicPartition, repeat(topic), numbers))
        reader.tagged_fields()
    updated_at, started_at = reader.integer(8), reader.integer(8)
    tags = reader.tagged_fields()

    def tagged(tag: int, default: int) -> int:
        return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default

    return TransactionValue(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        updated_at=updated_at,
        started_at=started_at,
        previous_producer_id=tagged(_PREVIOUS, NO_PRODUCER_ID),
        next_producer_id=tagged(_NEXT, NO_PRODUCER_ID),
        client_version=tagged(_CLIENT_VERSION, 0),
    )
