"""The records inside a batch, as zigzag varints and bytes: written and read one batch at a time.

```
length varint | attributes int8 | timestamp delta varlong | offset delta varint
key length varint, key | value length varint, value | header count varint, (key length, key, value length, value)*
```
A length of -1 is null. The two hot loops of the Python client are here; each explains its form.

`check_records` and `record_times` scan a batch without making an object per record or header. They yield after a
counted part of the work, so that an event loop can serve other clients in between.

Invariants: malformed bytes raise `CorruptBatch` and nothing else; no claimed length or count allocates more than the
bytes present warrant. A record with more than `MAX_RECORD_HEADERS` headers, which would take a hundred times its own
size, is never decoded. A header's key is text for clients, but a producer can write any bytes: invalid UTF-8 is read as
U+FFFD, as Kafka's clients do, because a client that refused it could never read past it. KIP-98 (format), KIP-82
(headers). Left out: attributes of single records; none are defined.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain, count
from typing import Final, NamedTuple, NoReturn

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError

MIN_RECORD_BYTES: Final = 7
"""The size of the smallest record: a length and six one-byte fields."""

MAX_RECORD_HEADERS: Final = 1 << 17
"""The most headers one record may have, however small. Kafka has no limit; ordinary records have fewer than 100."""

SLICE_RECORDS: Final = 512
"""The number of records scanned without a pause."""
_SLICE_HEADERS: Final = 4096

Headers = Sequence[tuple[str, bytes | None]]
"""A record's headers in order; keys may repeat."""
NewRecord = tuple[int, bytes | None, bytes | None, Headers]
"""A record to write: timestamp in ms, key, value, headers."""


MOST_NAMED: Final = 1_000
"""The most bad records of a batch that are named; a client treats the other records as in a refused batch."""


class CorruptBatch(KafkaError):
    """Bytes that are not a valid record batch. The code is CORRUPT_MESSAGE unless a more specific one applies."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, reason)


class ExpandedTooFar(CorruptBatch):
    """The records of a batch expand to more bytes than allowed. The code is CORRUPT_MESSAGE."""


class RecordError(NamedTuple):
    """The problem with one record of a refused batch (KIP-467)."""

    batch_index: int
    """The record's position in the batch."""
    message: str


class BadRecords(CorruptBatch):
    """A batch is refused because of some of its records; up to `MOST_NAMED` of them are named."""

    def __init__(self, reason: str, code: ErrorCode, errors: tuple[RecordError, ...]) -> None:
        super().__init__(reason, code)
        self.errors = errors


class Record(NamedTuple):
    """A decoded record: absolute offset, timestamp in ms (-1 for none), key and value (None for null), headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """Encode a signed number of up to 64 bits as a zigzag varint of 1 to 10 bytes."""
    rest = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL: Final = 8192  # the first value whose varint takes more than two bytes
_VARINT: Final = tuple(
    [bytes((n << 1,)) for n in range(64)] + [bytes((n << 1 & 127 | 128, n >> 6)) for n in range(64, _SMALL)]
)
_PLAIN_WITH_DELTA: Final = tuple(b"\0" + encoded for encoded in _VARINT)
_NULL: Final = b"\x01"  # the varint of -1, as the length of a null


def encode_records(records: list[NewRecord], base_timestamp: int) -> tuple[bytes, int]:
    """Encode records with offset deltas from 0 on; return their bytes and highest timestamp. The producer's hot loop.

    Joining one flat list of pieces once beats growing a bytearray, `%` formatting and a join per record: each value is
    copied only once. Varints of up to two bytes come from tables, and adjacent records mostly share their timestamp.
    """
    pieces: list[bytes] = []
    last_timestamp, max_timestamp, plain_with_delta, fixed_bytes = None, base_timestamp, b"", 0
    offset_deltas = chain(_VARINT, map(encode_varint, count(_SMALL)))
    for (timestamp, key, value, headers), offset_delta in zip(records, offset_deltas, strict=False):
        if timestamp != last_timestamp:
            last_timestamp = timestamp
            if timestamp > max_timestamp:
                max_timestamp = timestamp
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
        tail = encode_headers(headers) if headers else b"\0"
        size = fixed_bytes + len(offset_delta) + len(key_length) + key_bytes
        size += len(value_length) + value_bytes + len(tail)
        length = _VARINT[size] if size < _SMALL else encode_varint(size)
        pieces += (length, plain_with_delta, offset_delta, key_length, key, value_length, value, tail)
    return b"".join(pieces), max_timestamp


def encode_headers(headers: Headers) -> bytes:
    """Encode a record's headers, beginning with their count."""
    pieces = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        pieces += (encode_varint(len(name)), name)
        pieces += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return an upper bound of one record's size in bytes, for any timestamp and any position in the batch."""
    # Attributes take 1 byte, the timestamp delta 10, the offset delta 5; the lengths of record, key and value and the
    # header count take at most 2 bytes each below 8 KiB and 5 above.
    size = 24
    if key:
        size += len(key)
    if value:
        size += len(value)
    for name, header_value in headers:
        size += 10 + len(name) * (1 if name.isascii() else 4) + (len(header_value) if header_value else 0)
    return size if size < _SMALL else size + 12


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_records(
    data: bytes,
    *,
    records_count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> Iterator[Record]:
    """Yield the `records_count` records in `data`, one at a time; each has the timestamp `append_time` if one is given.

    Raises CorruptBatch if a record does not end at its stated length, if offsets do not rise or pass the last one, or
    if bytes are left over.

    This is the consumer's hot loop: varints of one and two bytes are read inline, because a call costs as much as
    reading three of them.
    """
    previous, position = -1, 0
    new, record_type, no_headers = tuple.__new__, Record, ()
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    try:
        for _ in range(records_count):
            length = data[position]
            if length < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                length += (high << 7) - 128
                position += 2
            else:
                length, position = read_unsigned(data, position)
            start = position

            delta = data[position + 1]  # after the attributes
            if delta < 128:
                position += 2
            elif (high := data[position + 2]) < 128:
                delta += (high << 7) - 128
                position += 3
            else:
                delta, position = read_unsigned(data, position + 1)
            timestamp = base_timestamp + (delta >> 1 ^ -(delta & 1)) if append_time is None else append_time

            delta = data[position]
            if delta < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                delta += (high << 7) - 128
                position += 2
            else:
                delta, position = read_unsigned(data, position)
            if delta & 1 or (delta := delta >> 1) <= previous:
                _corrupt_offset(delta, previous)
            previous = delta

            size = data[position]
            if size < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                size += (high << 7) - 128
                position += 2
            else:
                size, position = read_size(data, position)
            if size & 1:
                key = None if size == 1 else _corrupt_length(size)
            else:
                key = data[position : position + (size >> 1)]
                position += size >> 1

            size = data[position]
            if size < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                size += (high << 7) - 128
                position += 2
            else:
                size, position = read_size(data, position)
            if size & 1:
                value = None if size == 1 else _corrupt_length(size)
            else:
                value = data[position : position + (size >> 1)]
                position += size >> 1

            if data[position]:
                headers, position = _decode_headers(data, position)
            else:
                headers = no_headers
                position += 1
            if (position - start) << 1 != length:
                raise CorruptBatch(f"a record takes {position - start} bytes where it said {zigzag(length)}")
            yield new(record_type, (base_offset + delta, timestamp, key, value, headers))
    except IndexError as error:
        raise CorruptBatch("a record is cut short") from error
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last record")
    if previous > last_offset_delta:
        raise CorruptBatch(f"offset delta {previous} in a batch that ends at {last_offset_delta}")


def zigzag(encoded: int) -> int:
    """Return the signed number that a zigzag-encoded unsigned value stands for."""
    return encoded >> 1 ^ -(encoded & 1)


def read_unsigned(data: Buffer, position: int) -> tuple[int, int]:
    """Read a varint of up to 64 bits without zigzag decoding; return it and the position after it. Raises IndexError at
    the end of the data.
    """
    value = shift = 0
    while (byte := data[position]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise CorruptBatch("a varint of more than 10 bytes")
    value |= byte << shift
    if value >> 64:
        raise CorruptBatch("a varint of more than 64 bits")
    return value, position + 1


def read_size(data: Buffer, position: int) -> tuple[int, int]:
    """Read a varint that is the size of something, without zigzag decoding. Raises like `read_unsigned`.

    Positions are computed from sizes. Compiled code reads no byte at a position beyond 64 bits: ValueError.
    """
    size, position = read_unsigned(data, position)
    if size >> 32:
        raise CorruptBatch(f"length {zigzag(size)}")
    return size, position


def _corrupt_offset(delta: int, previous: int) -> NoReturn:
    raise CorruptBatch(f"offset delta {delta} after {previous}")


def _corrupt_length(size: int) -> NoReturn:
    raise CorruptBatch(f"length {zigzag(size)}")


def _too_many_headers(number: int) -> NoReturn:
    raise CorruptBatch(f"a record with {number} headers; {MAX_RECORD_HEADERS} are allowed", ErrorCode.INVALID_RECORD)


def _decode_headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Decode the headers at `position`, beginning with their count. Memory grows with the bytes, not the count."""
    number, position = read_unsigned(data, position)
    if number & 1:
        _corrupt_length(number)
    if number >> 1 > MAX_RECORD_HEADERS:
        _too_many_headers(number >> 1)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number >> 1):
        size, position = read_size(data, position)
        if size & 1:
            _corrupt_length(size)
        end = position + (size >> 1)
        name = data[position:end].decode(errors="replace")
        size, position = read_size(data, end)
        if size & 1:
            headers.append((name, None if size == 1 else _corrupt_length(size)))
        else:
            headers.append((name, data[position : position + (size >> 1)]))
            position += size >> 1
    return tuple(headers), position


def decode_headers(data: Buffer) -> tuple[tuple[str, bytes | None], ...]:
    """Decode a record's header section, which `data` must hold exactly. Raises CorruptBatch if malformed."""
    whole = bytes(data)
    try:
        headers, position = _decode_headers(whole, 0)
    except IndexError as error:
        raise CorruptBatch("a header is cut short") from error
    if position != len(whole):
        raise CorruptBatch(f"headers end at {position} of {len(whole)} bytes")
    return headers


# --- looking, without decoding ----------------------------------------------------------------------------------------


def check_records(
    data: bytes, records_count: int, *, needs_keys: bool, max_headers: int
) -> Generator[None, None, tuple[int, int]]:
    """Check that `data` holds exactly this many records with offset deltas 0, 1, 2...; return the smallest and the
    largest timestamp delta.

    Yields after each slice of the work. Raises CorruptBatch if anything is malformed, and with INVALID_RECORD if the
    records together have more than `max_headers` headers; BadRecords if `needs_keys` and records have no key.
    """
    position = sliced_headers = 0
    min_delta, max_delta = 1 << 63, -(1 << 63)
    keyless: list[int] = []
    try:
        for first in range(0, records_count, SLICE_RECORDS):
            if first:
                yield
            for number in range(first, min(first + SLICE_RECORDS, records_count)):
                length = data[position]
                if length < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    length += (high << 7) - 128
                    position += 2
                else:
                    length, position = read_unsigned(data, position)
                start = position

                delta = data[position + 1]  # after the attributes
                if delta < 128:
                    position += 2
                elif (high := data[position + 2]) < 128:
                    delta += (high << 7) - 128
                    position += 3
                else:
                    delta, position = read_unsigned(data, position + 1)
                delta = delta >> 1 ^ -(delta & 1)
                if delta > max_delta:
                    max_delta = delta
                if delta < min_delta:
                    min_delta = delta

                delta = data[position]
                if delta < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    delta += (high << 7) - 128
                    position += 2
                else:
                    delta, position = read_unsigned(data, position)
                if delta != number << 1:
                    raise CorruptBatch(f"offset delta {zigzag(delta)} where {number} should be")

                size = data[position]
                if size < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    size += (high << 7) - 128
                    position += 2
                else:
                    size, position = read_size(data, position)
                if not size & 1:
                    position += size >> 1
                elif size > 1:
                    _corrupt_length(size)
                elif needs_keys:
                    keyless.append(number)

                size = data[position]
                if size < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    size += (high << 7) - 128
                    position += 2
                else:
                    size, position = read_size(data, position)
                if not size & 1:
                    position += size >> 1
                elif size > 1:
                    _corrupt_length(size)

                if data[position]:
                    headers, position = _check_headers(data, position, max_headers)
                    max_headers -= headers
                    sliced_headers += headers
                    if sliced_headers >= _SLICE_HEADERS:
                        sliced_headers = 0
                        yield
                else:
                    position += 1
                if (position - start) << 1 != length:
                    raise CorruptBatch(f"a record takes {position - start} bytes where it said {zigzag(length)}")
    except IndexError as error:
        raise CorruptBatch("a record is cut short") from error
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last record")
    if keyless:
        _refuse_keyless(keyless)
    return min_delta, max_delta


def _refuse_keyless(numbers: list[int]) -> NoReturn:
    errors = tuple(
        RecordError(number, "Compacted topic cannot accept message without key") for number in numbers[:MOST_NAMED]
    )
    shown = ", ".join(f"RecordError(batchIndex={each.batch_index}, message='{each.message}')" for each in errors[:3])
    raise BadRecords(
        f"One or more records have been rejected due to {len(numbers)} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]",
        ErrorCode.INVALID_RECORD,
        errors,
    )


def _check_headers(data: bytes, position: int, max_headers: int) -> tuple[int, int]:
    """Check the headers at `position`; return how many there are, and the position after them."""
    number, position = read_unsigned(data, position)
    if number & 1:
        _corrupt_length(number)
    number >>= 1
    if number > MAX_RECORD_HEADERS:
        _too_many_headers(number)
    if number > max_headers:
        raise CorruptBatch("the batch has too many headers (kraftpy.batch.max.headers)", ErrorCode.INVALID_RECORD)
    for _ in range(number):
        size = data[position]
        if size < 128:
            position += 1
        else:
            size, position = read_size(data, position)
        if size & 1:
            _corrupt_length(size)
        end = position + (size >> 1)
        size = data[end]
        if size < 128:
            position = end + 1
        else:
            size, position = read_size(data, end)
        if not size & 1:
            position += size >> 1
        elif size > 1:
            _corrupt_length(size)
    return number, position


def record_times(data: bytes, records_count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the offset deltas and timestamp deltas of the records at the start of `data`, one slice of records at a
    time.

    Apart from these, only a record's length is read. Raises CorruptBatch if a record is cut short or offsets do not
    rise.
    """
    position, previous = 0, -1
    for first in range(0, records_count, SLICE_RECORDS):
        offset_deltas: list[int] = []
        timestamp_deltas: list[int] = []
        try:
            for _ in range(min(SLICE_RECORDS, records_count - first)):
                length = data[position]
                if length < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    length += (high << 7) - 128
                    position += 2
                else:
                    length, position = read_size(data, position)
                end = position + (length >> 1)

                delta = data[position + 1]
                if delta < 128:
                    position += 2
                elif (high := data[position + 2]) < 128:
                    delta += (high << 7) - 128
                    position += 3
                else:
                    delta, position = read_unsigned(data, position + 1)
                timestamp_deltas.append(delta >> 1 ^ -(delta & 1))

                delta = data[position]
                if delta < 128:
                    position += 1
                elif (high := data[position + 1]) < 128:
                    delta += (high << 7) - 128
                    position += 2
                else:
                    delta, position = read_unsigned(data, position)
                if delta & 1 or (delta := delta >> 1) <= previous:
                    _corrupt_offset(delta, previous)
                previous = delta
                offset_deltas.append(delta)
                if length & 1 or end < position:
                    raise CorruptBatch(f"a record of {zigzag(length)} bytes")
                position = end
        except IndexError as error:
            raise CorruptBatch("a record is cut short") from error
        if position > len(data):
            raise CorruptBatch("a record is cut short")
        yield offset_deltas, timestamp_deltas
