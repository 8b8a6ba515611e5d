"""The header of a record batch of format 2: its fields, read from the wire.

Nothing is checked here (`record_batch` does that). The log gives a header its final values in place when it stamps the
batch (`record_batch.stamp`); apart from that, a header is not changed once it was read.

A class and not a named tuple: compiled, its fields are read without the interpreter (decision 49), and a request reads
some forty of them.

KIP-98 (format), KIP-32 (timestamp types), KIP-534 (delete horizon).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from kraftpy.ports import Buffer
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import CorruptBatch

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12
"""The size of base_offset and batch_length, which batch_length does not count."""
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
LAST_CODEC: Final = int(Compression.ZSTD)
_LAYOUT: Final = struct.Struct(">qiibIhiqqqhii")


class TimestampType(IntEnum):
    """The clock that a batch's timestamps come from (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader:
    """A batch's header, with the fields of the wire, in its order."""

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "base_timestamp", "batch_length", "crc", "last_offset_delta",
        "magic", "max_timestamp", "partition_leader_epoch", "producer_epoch", "producer_id", "records_count",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        partition_leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        records_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.records_count = records_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchHeader) and self.values() == other.values()

    def __repr__(self) -> str:
        return f"BatchHeader{self.values()}"

    def values(self) -> tuple[int, ...]:
        """Return the fields in order."""
        return (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        )

    def copy(self) -> BatchHeader:
        """Return another header with the same fields."""
        return BatchHeader(*self.values())

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, including its first 12 bytes."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        """The last record's offset, kept even when compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """One past the last offset."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, wrapping from 2^31 - 1 to 0; -1 if the batch has none (KIP-98)."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The codec. Raises CorruptBatch with UNSUPPORTED_COMPRESSION_TYPE for an unknown number."""
        codec = self.attributes & CODEC_MASK
        if codec > LAST_CODEC:
            raise CorruptBatch(f"compression codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return Compression(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True if the records count only once their transaction has committed."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """True if the batch holds a transaction marker instead of records."""
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """True if `base_timestamp` is the time from which tombstones in the batch may be removed (KIP-534)."""
        return self.attributes & DELETE_HORIZON != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which tombstones may be removed, or None. Record timestamps remain deltas to it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position`, without checking it. Raises CorruptBatch if fewer than 61 bytes are left."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return header_at(buffer, position)


def header_at(buffer: Buffer, position: int) -> BatchHeader:
    """Decode the header at `position`. Raises struct.error if it is cut short."""
    # One by one, not by `*`, which the compiler does not turn into a direct call.
    offset, length, epoch, magic, crc, bits, delta, base, largest, producer, its_epoch, sequence, count = (
        _LAYOUT.unpack_from(buffer, position)
    )
    return BatchHeader(
        offset, length, epoch, magic, crc, bits, delta, base, largest, producer, its_epoch, sequence, count
    )
