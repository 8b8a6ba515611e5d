"""Record batch format v2: the header, what a producer may send, building, and reading records.

A batch is 61 bytes of header and then records, compressed as a whole or not at all. `batch_length` counts what follows itself
(position 12 on); the CRC-32C covers `attributes` to the end, so a broker can write `base_offset` and `partition_leader_epoch`
without touching it. Inside, everything is a zigzag varint, and offsets and timestamps are deltas to the header's.

```
 0 base_offset int64           16 magic int8              27 base_timestamp int64    51 producer_epoch int16
 8 batch_length int32          17 crc uint32              35 max_timestamp int64     53 base_sequence int32
12 partition_leader_epoch i32  21 attributes int16        43 producer_id int64       57 records_count int32
                               23 last_offset_delta int32                            61 records
```

Invariants: malformed bytes raise `CorruptBatch` (a KafkaError) and nothing else; nothing is allocated because a length says so;
`split_batches`, `validate_batch` and `stamp` never look below the header and never copy.

Left out: message formats 0 and 1 (removed with Kafka 4.0; refused with UNSUPPORTED_FOR_MESSAGE_FORMAT), per-record attributes
(none is defined), checks that need the clock or a topic's settings (size and timestamp limits belong to the log).
KIP-98 (format), KIP-32 (timestamp types), KIP-82 (headers), KIP-534 (delete horizon).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain, count
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from kraftpy.ports import Buffer
from kraftpy.protocol.compression import Compression, compress, decompress
from kraftpy.protocol.errors import ErrorCode, KafkaError

HEADER_BYTES: Final = 61
MAGIC: Final = 2
MIN_RECORD_BYTES: Final = 7
"""The smallest record: a length and six one-byte fields."""
MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""What one batch may expand to unless the reader says otherwise."""
NO_TIMESTAMP: Final = -1

_PREFIX_BYTES: Final = 12  # base_offset and batch_length, which batch_length does not count
_CRC_START: Final = 21
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
_SENDABLE: Final = _CODEC_MASK | _TRANSACTIONAL

Headers = Sequence[tuple[str, bytes | None]]
"""A record's headers in order; keys may repeat."""
NewRecord = tuple[int, bytes | None, bytes | None, Headers]
"""A record to be written: timestamp in ms, key, value, headers."""


class CorruptBatch(KafkaError):  # noqa: N818 - named for what it says of the bytes
    """The bytes are not a record batch, or contradict themselves. CORRUPT_MESSAGE unless a finer code fits."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, reason)


class TimestampType(IntEnum):
    """Whose clock a batch's timestamps are of (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """What a control record says. Types above these belong to Kafka's own metadata log."""

    ABORT = 0
    COMMIT = 1


class BatchHeader(NamedTuple):
    """A batch's header, field by field as on the wire."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, its first 12 bytes included."""
        return self.batch_length + _PREFIX_BYTES

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
        """The last record's sequence number, wrapping from 2^31 - 1 to 0; -1 where there is none (KIP-98)."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The codec. CorruptBatch with UNSUPPORTED_COMPRESSION_TYPE for a number that is none."""
        codec = self.attributes & _CODEC_MASK
        if codec > Compression.ZSTD:
            raise CorruptBatch(f"compression codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return Compression(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records count only once their transaction commits."""
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker rather than records."""
        return self.attributes & _CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which tombstones here may be removed (KIP-534)."""
        return self.attributes & _DELETE_HORIZON != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """That time, or None. Record timestamps stay deltas to it."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


class Record(NamedTuple):
    """A record as read: absolute offset, timestamp in ms (-1 for none), key and value (None for null), headers in order."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ControlRecord(NamedTuple):
    """A transaction marker; `type` is a plain number where it is not one we know."""

    type: ControlType | int
    coordinator_epoch: int


# --- the header -------------------------------------------------------------------------------------------------------


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, only decoded. CorruptBatch where fewer than 61 bytes are left."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def split_batches(records: Buffer, *, allow_partial: bool = False) -> list[tuple[BatchHeader, memoryview]]:
    """Each batch of `records` with its header; the views share the buffer.

    Checks lengths and magic only. With `allow_partial` a last batch that is cut short is dropped, as fetch responses may end
    in one. CorruptBatch otherwise; its code is UNSUPPORTED_FOR_MESSAGE_FORMAT for message sets of format 0 and 1.
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
        header = BatchHeader._make(_HEADER.unpack_from(view, position))
        size = header.batch_length + _PREFIX_BYTES
        if size < HEADER_BYTES:
            raise CorruptBatch(f"batch length {header.batch_length} at {position} is too small")
        if size > left:
            if allow_partial:
                break
            raise CorruptBatch(f"a batch of {size} bytes at {position}, but only {left} are there")
        batches.append((header, view[position : position + size]))
        position += size
    return batches


def _refuse_magic(magic: int) -> NoReturn:
    if magic < MAGIC:
        raise CorruptBatch(f"message format {magic} is no longer accepted", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    raise CorruptBatch(f"magic {magic} is unknown")


def check_crc(batch: Buffer) -> bool:
    """Whether the CRC-32C in the header is that of the bytes it covers. `batch` is one whole batch."""
    if len(batch) < HEADER_BYTES:
        return False
    stored: int = int.from_bytes(batch[17:21], "big")
    return bool(crc32c(memoryview(batch)[_CRC_START:]) == stored)


def validate_batch(header: BatchHeader, batch: Buffer) -> None:
    """Refuse what a producer may not send, without looking below the header.

    `header` is that of `batch`, one whole batch as `split_batches` gives it. Raises KafkaError as Kafka answers:
    CORRUPT_MESSAGE (length, CRC), UNSUPPORTED_FOR_MESSAGE_FORMAT (old format), UNSUPPORTED_COMPRESSION_TYPE,
    INVALID_TIMESTAMP, INVALID_RECORD (everything else). `max_timestamp` may be -1: some clients never set it.
    """
    (
        base_offset,
        batch_length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    ) = header
    if magic != MAGIC:
        _refuse_magic(magic)
    payload_bytes = len(batch) - HEADER_BYTES
    if batch_length != len(batch) - _PREFIX_BYTES or payload_bytes < 0:
        raise CorruptBatch(f"batch length {batch_length} in a batch of {len(batch)} bytes")
    if crc32c(memoryview(batch)[_CRC_START:]) != crc:
        raise CorruptBatch("the CRC does not match")
    if records_count <= 0 or last_offset_delta != records_count - 1:
        _invalid(f"{records_count} records over offsets 0 to {last_offset_delta}")
    if attributes & ~_SENDABLE:
        _refuse_attributes(attributes)
    codec = attributes & _CODEC_MASK
    if codec > Compression.ZSTD:
        raise CorruptBatch(f"compression codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if payload_bytes < (1 if codec else records_count * MIN_RECORD_BYTES):
        _invalid(f"{payload_bytes} bytes cannot hold {records_count} records")
    if base_offset != 0:
        _invalid(f"base offset {base_offset}; a producer sends 0")
    if base_timestamp < -1 or max_timestamp < -1 or -1 < max_timestamp < base_timestamp:
        raise CorruptBatch(f"timestamps {base_timestamp} to {max_timestamp}", ErrorCode.INVALID_TIMESTAMP)
    if producer_id < 0:
        if producer_id != -1 or attributes & _TRANSACTIONAL:
            _invalid(f"producer id {producer_id}")
    elif base_sequence < 0 or producer_epoch < 0:
        _invalid(f"producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")


def _refuse_attributes(attributes: int) -> NoReturn:
    if attributes & _CONTROL:
        _invalid("clients may not write control records")
    if attributes & _LOG_APPEND_TIME:
        raise CorruptBatch("a producer may not set log append time", ErrorCode.INVALID_TIMESTAMP)
    _invalid(f"attributes 0x{attributes & 0xFFFF:04x}")


def _invalid(reason: str) -> NoReturn:
    raise CorruptBatch(reason, ErrorCode.INVALID_RECORD)


def stamp(
    batch: bytearray | memoryview, base_offset: int, leader_epoch: int, log_append_time: int | None = None
) -> None:
    """Write into `batch`, in place, what the leader decides. The CRC changes only with `log_append_time` (ms)."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)
    if log_append_time is not None:
        attributes = int.from_bytes(batch[21:23], "big") | _LOG_APPEND_TIME
        struct.pack_into(">H", batch, 21, attributes)
        struct.pack_into(">q", batch, 35, log_append_time)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[_CRC_START:]))


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """A signed number of up to 64 bits as a zigzag varint: 1 to 10 bytes."""
    rest = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL: Final = 8192  # where a varint outgrows two bytes
_VARINT: Final = tuple(map(encode_varint, range(_SMALL)))
_PLAIN_WITH_DELTA: Final = tuple(b"\0" + encoded for encoded in _VARINT)
_NULL: Final = b"\x01"  # the varint of -1, where a length would stand


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
    """One batch of `records`, offsets from `base_offset` on. At least one record, else ValueError."""
    records = records if isinstance(records, list) else list(records)
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][0]
    payload: Buffer = b"".join(_encode_records(records, base_timestamp))
    if compression:
        payload = compress(compression, payload, level)
    attributes = (
        compression
        | (_LOG_APPEND_TIME if timestamp_type else 0)
        | (_TRANSACTIONAL if is_transactional else 0)
        | (_CONTROL if is_control else 0)
    )
    out = bytearray(HEADER_BYTES + len(payload))
    out[HEADER_BYTES:] = payload
    _HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - _PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max([record[0] for record in records]),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[_CRC_START:]))
    return bytes(out)


def _encode_records(records: list[NewRecord], base_timestamp: int) -> list[bytes]:
    """The records in pieces. The producer's hot loop.

    Pieces in one flat list, joined once, beat growing a bytearray, `%` formatting and a join per record: a value is copied
    once. Varints of up to two bytes come from tables; neighbours mostly share their timestamp.
    """
    pieces: list[bytes] = []
    last_timestamp, plain_with_delta, fixed_bytes = None, b"", 0
    offset_deltas = chain(_VARINT, map(encode_varint, count(_SMALL)))
    for (timestamp, key, value, headers), offset_delta in zip(records, offset_deltas):
        if timestamp != last_timestamp:
            last_timestamp = timestamp
            delta = timestamp - base_timestamp
            plain_with_delta = _PLAIN_WITH_DELTA[delta] if 0 <= delta < _SMALL else b"\0" + encode_varint(delta)
            fixed_bytes = len(plain_with_delta)
        if key is None:
            key, key_length, key_bytes = b"", _NULL, 0
        else:
            key_bytes = len(key)
            key_length = _VARINT[key_bytes] if key_bytes < _SMALL else encode_varint(key_bytes)
        if value is None:
            value, value_length, value_bytes = b"", _NULL, 0
        else:
            value_bytes = len(value)
            value_length = _VARINT[value_bytes] if value_bytes < _SMALL else encode_varint(value_bytes)
        tail = _encode_headers(headers) if headers else b"\0"
        size = (
            fixed_bytes + len(offset_delta) + len(key_length) + key_bytes + len(value_length) + value_bytes + len(tail)
        )
        length = _VARINT[size] if size < _SMALL else encode_varint(size)
        pieces += (length, plain_with_delta, offset_delta, key_length, key, value_length, value, tail)
    return pieces


def _encode_headers(headers: Headers) -> bytes:
    pieces = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        pieces += (encode_varint(len(name)), name)
        pieces += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)


class BatchBuilder:
    """Records collected for one batch, with an upper bound of its size.

    Nothing is encoded until `build`, which can be called again with another producer id or sequence: encoding many records
    at once is the fast way, and a retry after a new producer epoch needs the same records under a new header.
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
        """The batch would not be larger than this, before compression."""

    def __len__(self) -> int:
        return len(self.records)

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Add a record, its timestamp in ms; the batch's size bound with it."""
        self.records.append((timestamp, key, value, headers))
        self.size_bytes += record_size_bound(key, value, headers)
        return self.size_bytes

    def build(self, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1) -> bytes:
        """The batch as it goes to the broker. ValueError where no record was added."""
        return encode_batch(
            self.records,
            compression=self.compression,
            level=self.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=self.is_transactional,
        )


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """An upper bound of one record's bytes, for any timestamp and place in the batch."""
    size = (len(key) if key else 0) + (len(value) if value else 0)
    for name, header_value in headers:
        size += 10 + len(name) * (1 if name.isascii() else 4) + (len(header_value) if header_value else 0)
    # Attributes 1, timestamp delta 10, offset delta 5; then the record's, key's and value's length and the header count,
    # each at most 2 bytes below 8 KiB and 5 above.
    size += 24 if size < _SMALL - 24 else 36
    return size


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
    """A transaction marker: a transactional control batch of one record (KIP-98)."""
    key = struct.pack(">hh", 0, control_type)
    value = struct.pack(">hi", 0, coordinator_epoch)
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
    """The records' bytes, uncompressed: a view of `batch` where it is not compressed. CorruptBatch where they cannot be right."""
    view = memoryview(batch)[HEADER_BYTES:]
    records_count = header.records_count
    payload: Buffer = view
    if header.attributes & _CODEC_MASK and (records_count or len(view)):
        codec = header.compression
        try:
            payload = decompress(codec, view, max_bytes)
        except KafkaError as error:
            raise CorruptBatch(str(error), error.code) from error
    if records_count < 0 or records_count * MIN_RECORD_BYTES > len(payload):
        raise CorruptBatch(f"{len(payload)} bytes cannot hold {records_count} records")
    return payload


def iter_records(
    batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of one whole batch, control records included; the caller knows which from the header.

    CorruptBatch where anything is malformed, at the latest when the iterator ends. The CRC is not checked here.
    """
    if header is None:
        header = read_header(batch)
        if header.magic != MAGIC:
            _refuse_magic(header.magic)
        if header.size_bytes != len(batch):
            raise CorruptBatch(f"batch length {header.batch_length} in a batch of {len(batch)} bytes")
    payload = record_payload(header, batch, max_bytes)
    return _iter_payload(bytes(payload), header)


def _iter_payload(data: bytes, header: BatchHeader) -> Iterator[Record]:
    try:
        yield from _decode_records(data, header)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch("a record is cut short or its header's key is not UTF-8") from error


def _decode_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The consumer's hot loop: varints of one byte in line, longer ones by call; every record must end where it said."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & _LOG_APPEND_TIME else None
    previous, position = -1, 0
    new, record_type, varint, no_headers = tuple.__new__, Record, _varint, ()
    for _ in range(header.records_count):
        size = data[position]
        if size < 128:
            size, position = size >> 1, position + 1
        else:
            size, position = varint(data, position)
        end = position + size
        # one byte of attributes, none of which is defined
        delta = data[position + 1]
        if delta < 128:
            delta, position = delta >> 1 ^ -(delta & 1), position + 2
        else:
            delta, position = varint(data, position + 1)
        timestamp = base_timestamp + delta if append_time is None else append_time
        delta = data[position]
        if delta < 128:
            delta, position = delta >> 1 ^ -(delta & 1), position + 1
        else:
            delta, position = varint(data, position)
        if delta <= previous:
            raise CorruptBatch(f"offset delta {delta} after {previous}")
        previous = delta
        key: bytes | None
        size = data[position]
        if size < 128:
            size, position = size >> 1 ^ -(size & 1), position + 1
        else:
            size, position = varint(data, position)
        if size >= 0:
            key = data[position : position + size]
            position += size
        else:
            key = None if size == -1 else _negative(size)
        value: bytes | None
        size = data[position]
        if size < 128:
            size, position = size >> 1 ^ -(size & 1), position + 1
        else:
            size, position = varint(data, position)
        if size >= 0:
            value = data[position : position + size]
            position += size
        else:
            value = None if size == -1 else _negative(size)
        headers: tuple[tuple[str, bytes | None], ...] = no_headers
        if data[position]:
            headers, position = _decode_headers(data, position)
        else:
            position += 1
        if position != end:
            raise CorruptBatch(f"a record ends at {position} and said {end}")
        yield new(record_type, (base_offset + delta, timestamp, key, value, headers))
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last record")
    if previous > header.last_offset_delta:
        raise CorruptBatch(f"offset delta {previous} in a batch that ends at {header.last_offset_delta}")


def _negative(size: int) -> NoReturn:
    raise CorruptBatch(f"length {size}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and the position after it. IndexError at the end of the data."""
    byte = data[position]
    value = byte & 127
    shift = 7
    while byte > 127:
        position += 1
        byte = data[position]
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise CorruptBatch("a varint of more than 10 bytes")
    if value >> 64:
        raise CorruptBatch("a varint of more than 64 bits")
    return value >> 1 ^ -(value & 1), position + 1


def _decode_headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """The header count at `position` and the headers after it. Grows with the bytes that are there, not with the count."""
    number, position = _varint(data, position)
    if number < 0:
        raise CorruptBatch(f"{number} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number):
        size, position = _varint(data, position)
        if size < 0:
            raise CorruptBatch(f"a header key of length {size}")
        name = data[position : position + size].decode()
        position += size
        size, position = _varint(data, position)
        if size < -1:
            raise CorruptBatch(f"a header value of length {size}")
        headers.append((name, None if size < 0 else data[position : position + size]))
        position += max(size, 0)
    return tuple(headers), position


def decode_headers(data: Buffer) -> tuple[tuple[str, bytes | None], ...]:
    """Headers from exactly the bytes of a record's header section, the count included. CorruptBatch where malformed."""
    whole = bytes(data)
    try:
        headers, position = _decode_headers(whole, 0)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch("a header is cut short or its key is not UTF-8") from error
    if position != len(whole):
        raise CorruptBatch(f"headers end at {position} of {len(whole)} bytes")
    return headers


def decode_control_record(record: Record) -> ControlRecord:
    """What a record of a control batch says. CorruptBatch where it says nothing readable; -1 for an epoch not given."""
    if record.key is None or len(record.key) < 4:
        raise CorruptBatch("a control record without its key")
    version, number = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise CorruptBatch(f"a control record of version {version}")
    known = number in (ControlType.ABORT, ControlType.COMMIT)
    epoch = -1
    if known and record.value is not None and len(record.value) >= 6:
        (epoch,) = struct.unpack_from(">i", record.value, 2)
    return ControlRecord(ControlType(number) if known else number, epoch)
