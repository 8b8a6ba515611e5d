"""The record batch format (v2): its header, validation of producers' batches, building and reading batches.

A batch is a header of 61 bytes and then records (`protocol/records.py`), compressed as a whole or not at all.
`batch_length` counts the bytes after itself (from byte 12 on). The CRC-32C covers everything from `attributes` to the
end, so a broker can set `base_offset` and `partition_leader_epoch` without changing it. The records' offsets and
timestamps are deltas to those of the header.

```
 0 base_offset int64             16 magic int8               27 base_timestamp int64    51 producer_epoch int16
 8 batch_length int32            17 crc uint32               35 max_timestamp int64     53 base_sequence int32
12 partition_leader_epoch int32  21 attributes int16         43 producer_id int64       57 records_count int32
                                 23 last_offset_delta int32                             61 the records
```

Invariants: malformed bytes raise `CorruptBatch` (a KafkaError) and nothing else; no claimed length makes us allocate
anything; `split_batches`, `validate_batch` and `stamp` never look past the header and never copy.

Left out: message formats 0 and 1 (removed with Kafka 4.0; refused with UNSUPPORTED_FOR_MESSAGE_FORMAT), checks that
need the clock or a topic's settings (size and time limits belong to the log).
KIP-98 (format), KIP-32 (timestamp types), KIP-534 (delete horizon).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

from kraftpy.ports import Buffer
from kraftpy.protocol.batch_header import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LAST_CODEC,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    TimestampType,
    header_at,
    read_header,
)
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.compression import Compression, ExpandsTooFar, compress, copied, decompress
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    MIN_RECORD_BYTES,
    CorruptBatch,
    ExpandedTooFar,
    Headers,
    NewRecord,
    Record,
    decode_records,
    encode_records,
    record_size_bound,
)

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "MAX_BATCH_RECORDS",
    "MAX_DECOMPRESSED_BYTES",
    "NO_TIMESTAMP",
    "BatchBuilder",
    "BatchHeader",
    "ControlRecord",
    "ControlType",
    "CorruptBatch",
    "Headers",
    "NewRecord",
    "Record",
    "TimestampType",
    "check_crc",
    "decode_control_record",
    "encode_batch",
    "encode_control_batch",
    "encode_payload",
    "iter_payload",
    "iter_records",
    "one_batch",
    "read_header",
    "read_markers",
    "record_payload",
    "record_size_bound",
    "split_batches",
    "stamp",
    "validate_batch",
    "with_max_timestamp",
]

MAGIC: Final = 2
MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""The default limit on the uncompressed size of one batch."""
NO_TIMESTAMP: Final = -1
MAX_BATCH_RECORDS: Final = 1 << 20
"""The default limit on the records in a producer's batch: a million empty ones take 7 MB."""

_CRC_START: Final = 21
_MAGIC_AT: Final = 16
_LEAST_LENGTH: Final = 14
"""The length of the smallest message of the oldest format."""
_NOT_COVERED, _COVERED = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")  # halves of the header; the CRC covers one
_STAMPED: Final = struct.Struct(">qii")  # base_offset, batch_length, partition_leader_epoch
_MAX_MARKER_BYTES: Final = 1 << 16
_KNOWN: Final = 0x7F  # the attribute bits with a meaning; others are kept until a batch's attributes are rewritten


class ControlType(IntEnum):
    """The type of a control record. Higher ones belong to Kafka's own metadata log."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """A transaction marker; `type` is a plain number if it is unknown."""

    type: ControlType | int
    coordinator_epoch: int


# --- the header -------------------------------------------------------------------------------------------------------


def split_batches(records: Buffer, *, allow_partial: bool = False) -> list[tuple[BatchHeader, memoryview]]:
    """Split `records` into batches, each with its header; the views share the buffer.

    Checks lengths and magic only. With `allow_partial`, an incomplete last batch is dropped, since fetch responses may
    end in one; otherwise it raises CorruptBatch. Message sets of formats 0 and 1 raise UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    view = memoryview(records)
    end = len(view)
    position = 0
    batches: list[tuple[BatchHeader, memoryview]] = []
    while position < end:
        left = end - position
        if left > 16 and view[position + 16] != MAGIC:
            _refuse_magic(view[position + 16])
        if left < HEADER_BYTES:
            if allow_partial:
                break
            raise CorruptBatch(f"{left} bytes at {position} are too few for a batch header")
        header = header_at(view, position)
        size = header.batch_length + PREFIX_BYTES
        if size < HEADER_BYTES:
            raise CorruptBatch(f"batch length {header.batch_length} at {position} is too small")
        if size > left:
            if allow_partial:
                break
            raise CorruptBatch(f"a batch of {size} bytes at {position}, but only {left} are there")
        batches.append((header, view[position : position + size]))
        position += size
    return batches


def one_batch(records: Buffer, version: int) -> tuple[BatchHeader, Buffer]:
    """Return the one batch that a producer may send for a partition, with its header, and without bytes that follow.

    Checks lengths and magic only, as Kafka does: bytes too few for a batch are ignored, also after the first batch.
    Raises CorruptBatch with INVALID_RECORD for no batch, for several and for old message formats, with CORRUPT_MESSAGE
    for bytes that cannot be a batch. The messages contain the `version` of the request.
    """
    if len(records) >= HEADER_BYTES and records[_MAGIC_AT] == MAGIC:
        header = header_at(records, 0)
        if header.batch_length == len(records) - PREFIX_BYTES:
            return header, records
    sender = f"Produce requests with version {version}"
    view = memoryview(records)
    size = _whole_batch(view)
    if size is None:
        _invalid(f"{sender} must have at least one record batch per partition")
    if view[_MAGIC_AT] != MAGIC:
        _invalid(f"{sender} are only allowed to contain record batches with magic version {MAGIC}")
    if size < HEADER_BYTES:
        raise CorruptBatch(f"batch length {size - PREFIX_BYTES} is too small")
    if _whole_batch(view[size:]) is not None:
        _invalid(f"{sender} are only allowed to contain exactly one record batch per partition")
    return header_at(view, 0), view[:size]


def _whole_batch(view: memoryview) -> int | None:
    """Return the size of the batch at the start, of any format; None if it is incomplete. Raises CorruptBatch."""
    if len(view) < PREFIX_BYTES:
        return None
    length: int = struct.unpack_from(">i", view, 8)[0]
    if length < _LEAST_LENGTH:
        raise CorruptBatch(f"Found record size {length} smaller than minimum record overhead ({_LEAST_LENGTH}).")
    if len(view) <= _MAGIC_AT:
        return None
    magic = view[_MAGIC_AT]
    if magic > MAGIC:
        raise CorruptBatch(f"Invalid magic found in record: {magic - 256 if magic > 127 else magic}")
    return length + PREFIX_BYTES if length + PREFIX_BYTES <= len(view) else None


def _refuse_magic(magic: int) -> NoReturn:
    if magic in (0, 1):
        raise CorruptBatch(f"message format {magic} is no longer accepted", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    raise CorruptBatch(f"magic {magic} is unknown")


def check_crc(batch: Buffer) -> bool:
    """Return whether the CRC-32C in the header matches the bytes it covers. `batch` is one whole batch."""
    if len(batch) < HEADER_BYTES:
        return False
    stored: int = int.from_bytes(batch[17:21], "big")
    return bool(crc32c(memoryview(batch)[_CRC_START:]) == stored)


def validate_batch(header: BatchHeader, batch: Buffer, max_records: int = MAX_BATCH_RECORDS) -> None:
    """Refuse batches that a producer may not send, without looking past the header.

    `header` belongs to `batch`, one whole batch as `split_batches` returns it. Raises KafkaError with the same codes as
    Kafka: CORRUPT_MESSAGE (length, CRC), UNSUPPORTED_FOR_MESSAGE_FORMAT (old format), UNSUPPORTED_COMPRESSION_TYPE,
    INVALID_TIMESTAMP, INVALID_RECORD (everything else, including more than `max_records` records). `max_timestamp` may
    be anything, because some clients never set it, and so may attribute bits that have no meaning yet.
    """
    magic, attributes, records_count = header.magic, header.attributes, header.records_count
    producer_id = header.producer_id
    if magic != MAGIC:
        _refuse_magic(magic)
    payload_bytes = len(batch) - HEADER_BYTES
    if header.batch_length != len(batch) - PREFIX_BYTES or payload_bytes < 0:
        raise CorruptBatch(f"batch length {header.batch_length} in a batch of {len(batch)} bytes")
    if crc32c(memoryview(batch)[_CRC_START:]) != header.crc:
        raise CorruptBatch("the CRC does not match")
    if records_count <= 0 or header.last_offset_delta != records_count - 1:
        _invalid(f"{records_count} records over offsets 0 to {header.last_offset_delta}")
    if records_count > max_records:
        _invalid(f"{records_count} records in a batch; kraftpy.batch.max.records allows {max_records}")
    if attributes & CONTROL:
        _invalid("Clients are not allowed to write control records")
    codec = attributes & CODEC_MASK
    if codec > LAST_CODEC:
        raise CorruptBatch(f"compression codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if payload_bytes < (1 if codec else records_count * MIN_RECORD_BYTES):
        _invalid(f"{payload_bytes} bytes cannot hold {records_count} records")
    if header.base_offset != 0:
        _invalid(f"base offset {header.base_offset}; a producer sends 0")
    if header.base_timestamp < NO_TIMESTAMP:
        raise CorruptBatch(f"base timestamp {header.base_timestamp}", ErrorCode.INVALID_TIMESTAMP)
    if producer_id < 0:
        if producer_id != -1 or attributes & TRANSACTIONAL:
            _invalid(f"producer id {producer_id}")
    elif header.base_sequence < 0 or header.producer_epoch < 0:
        _invalid(f"producer {producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}")


def _invalid(reason: str) -> NoReturn:
    raise CorruptBatch(reason, ErrorCode.INVALID_RECORD)


def stamp(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    log_append_time: int | None = None,
    *,
    header: BatchHeader | None = None,
) -> BatchHeader:
    """Write the leader's values into `batch` and its header, in place; return the header.

    The CRC changes only with `log_append_time` (ms). `header` is the batch's present header, if the caller knows it.
    """
    if header is None:
        header = read_header(batch)
    _STAMPED.pack_into(batch, 0, base_offset, header.batch_length, leader_epoch)
    header.base_offset, header.partition_leader_epoch = base_offset, leader_epoch
    if log_append_time is None:
        return header
    attributes = header.attributes & _KNOWN | LOG_APPEND_TIME
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">q", batch, 35, log_append_time)
    crc = crc32c(memoryview(batch)[_CRC_START:])
    struct.pack_into(">I", batch, 17, crc)
    header.crc, header.attributes, header.max_timestamp = crc, attributes, log_append_time
    return header


def with_max_timestamp(header: BatchHeader, batch: memoryview, max_timestamp: int) -> tuple[BatchHeader, memoryview]:
    """Return the batch with this largest timestamp, as the producer's own time; a changed batch is a copy."""
    if max_timestamp == header.max_timestamp and not header.attributes & LOG_APPEND_TIME:
        return header, batch
    attributes = header.attributes & _KNOWN & ~LOG_APPEND_TIME
    changed = bytearray(batch)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">q", changed, 35, max_timestamp)
    crc = crc32c(memoryview(changed)[_CRC_START:])
    struct.pack_into(">I", changed, 17, crc)
    header = header.copy()
    header.crc, header.attributes, header.max_timestamp = crc, attributes, max_timestamp
    return header, memoryview(changed)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Encode `records` as one batch, with offsets from `base_offset` on. Raises ValueError if there are none."""
    records = records if isinstance(records, list) else list(records)
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][0]
    payload, max_timestamp = encode_records(records, base_timestamp)
    return encode_payload(
        payload,
        records_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        compression=compression,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
        is_transactional=is_transactional,
        is_control=is_control,
    )


def encode_payload(
    payload: Buffer,
    *,
    records_count: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Build a batch from encoded records, whose offset deltas are 0, 1, 2...; they are compressed here."""
    if compression:
        payload = compress(compression, payload, level)
    covered = _COVERED.pack(
        compression
        | (LOG_APPEND_TIME if timestamp_type else 0)
        | (TRANSACTIONAL if is_transactional else 0)
        | (CONTROL if is_control else 0),
        records_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    batch_length = HEADER_BYTES - PREFIX_BYTES + len(payload)
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_NOT_COVERED.pack(base_offset, batch_length, leader_epoch, MAGIC, crc), covered, payload))


class BatchBuilder:
    """Collects the records of one batch, and keeps an upper bound of its size.

    Nothing is encoded until `build`, because encoding many records at once is fastest. `build` can be called again with
    another producer id or sequence: a retry under a new producer epoch needs the same records with a new header.
    """

    __slots__ = ("compression", "is_transactional", "level", "records", "size_bytes")

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        *,
        level: int | None = None,
        is_transactional: bool = False,
    ) -> None:
        self.compression = compression
        self.level = level
        self.is_transactional = is_transactional
        self.records: list[NewRecord] = []
        self.size_bytes = HEADER_BYTES
        """An upper bound of the batch's size, before compression."""

    def __len__(self) -> int:
        return len(self.records)

    def __bool__(self) -> bool:
        return len(self) > 0

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Add a record, with its timestamp in ms, and update the bound of the batch's size."""
        self.records.append((timestamp, key, value, headers))
        self.size_bytes += record_size_bound(key, value, headers)
        return self.size_bytes

    def build(self, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1) -> bytes:
        """Return the batch as it is sent to the broker. Raises ValueError if no record was added."""
        return encode_batch(
            self.records,
            compression=self.compression,
            level=self.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=self.is_transactional,
        )


def encode_control_batch(
    control_type: ControlType,
    *,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Encode a transaction marker: a transactional control batch with one record (KIP-98)."""
    key, value = struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, coordinator_epoch)
    return encode_batch(
        [(timestamp, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        is_transactional=True,
        is_control=True,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def record_payload(header: BatchHeader, batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Return the uncompressed bytes of the records: a view of `batch` if they were never compressed.

    Raises CorruptBatch if they are malformed, more than `max_bytes`, or too few for the record count.
    """
    view, records_count = memoryview(batch)[HEADER_BYTES:], header.records_count
    payload: Buffer = view
    if header.attributes & CODEC_MASK and (records_count or len(view)):
        try:
            payload = decompress(header.compression, view, max_bytes)
        except ExpandsTooFar as expansion:
            raise ExpandedTooFar(expansion.message) from expansion
        except KafkaError as error:
            raise CorruptBatch(error.message, error.code) from error
    if records_count < 0 or records_count * MIN_RECORD_BYTES > len(payload):
        raise CorruptBatch(f"{len(payload)} bytes cannot hold {records_count} records")
    return payload


def iter_records(
    batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """Iterate over the records of one whole batch, including control records, which only the header tells apart.

    Raises CorruptBatch if anything is malformed, either at once or during the iteration. Does not check the CRC.
    """
    if header is None:
        header = read_header(batch)
        if header.magic != MAGIC:
            _refuse_magic(header.magic)
        if header.size_bytes != len(batch):
            raise CorruptBatch(f"batch length {header.batch_length} in a batch of {len(batch)} bytes")
    return iter_payload(copied(record_payload(header, batch, max_bytes)), header)


def iter_payload(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    """Iterate, as `iter_records` does, over records whose uncompressed bytes (`record_payload`) are at hand."""
    return decode_records(
        payload,
        records_count=header.records_count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        append_time=header.max_timestamp if header.attributes & LOG_APPEND_TIME else None,
    )


def read_markers(header: BatchHeader, batch: Buffer) -> Iterator[ControlRecord]:
    """Decode the records of a control batch, normally one. Raises CorruptBatch if one is unreadable."""
    for record in iter_records(batch, header, max_bytes=_MAX_MARKER_BYTES):
        yield decode_control_record(record)


def decode_control_record(record: Record) -> ControlRecord:
    """Decode one record of a control batch; an epoch that it lacks is -1. Raises CorruptBatch if it is unreadable."""
    if record.key is None or len(record.key) < 4:
        raise CorruptBatch("a control record without its key")
    version, number = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise CorruptBatch(f"a control record of version {version}")
    known, epoch = number in (ControlType.ABORT, ControlType.COMMIT), -1
    if known and record.value is not None and len(record.value) >= 6:
        (epoch,) = struct.unpack_from(">i", record.value, 2)
    return ControlRecord(ControlType(number) if known else number, epoch)
