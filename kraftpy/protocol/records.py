"""The inside of a record batch: records as zigzag varints and bytes, written and read one batch at a time.

```
length varint | attributes int8 | timestamp delta varlong | offset delta varint
key length varint, key | value length varint, value | header count varint, (key length, key, value length, value)*
```
A length of -1 is null. The two hot loops of the Python client are here; why they look as they do is said at each.

Invariants: malformed bytes raise `CorruptBatch` and nothing else; no length or count allocates what is not there.
KIP-98 (format), KIP-82 (headers). Left out: the attributes of a single record, of which none is defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Final, NamedTuple, NoReturn

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError

MIN_RECORD_BYTES: Final = 7
"""The smallest record: a length and six one-byte fields."""

Headers = Sequence[tuple[str, bytes | None]]
"""A record's headers in order; keys may repeat."""
NewRecord = tuple[int, bytes | None, bytes | None, Headers]
"""A record to be written: timestamp in ms, key, value, headers."""


class CorruptBatch(KafkaError):
    """The bytes are not a record batch, or contradict themselves. CORRUPT_MESSAGE unless a finer code fits."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, reason)


class Record(NamedTuple):
    """A record as read: absolute offset, timestamp in ms (-1 for none), key and value (None for null), headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


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
_VARINT: Final = tuple(
    [bytes((n << 1,)) for n in range(64)] + [bytes((n << 1 & 127 | 128, n >> 6)) for n in range(64, _SMALL)]
)
_PLAIN_WITH_DELTA: Final = tuple(b"\0" + encoded for encoded in _VARINT)
_NULL: Final = b"\x01"  # the varint of -1, where a length would stand


def encode_records(records: list[NewRecord], base_timestamp: int) -> tuple[bytes, int]:
    """The records one after the other, offset deltas from 0 on, and their highest timestamp. The producer's hot loop.

    Pieces in one flat list, joined once, beat growing a bytearray, `%` formatting and a join per record: a value is
    copied once. Varints of up to two bytes come from tables; neighbours mostly share their timestamp.
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
    """A record's headers, their count first."""
    pieces = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        pieces += (encode_varint(len(name)), name)
        pieces += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """An upper bound of one record's bytes, for any timestamp and place in the batch."""
    # Attributes 1, timestamp delta 10, offset delta 5; then the record's, key's and value's length and the header
    # count, each at most 2 bytes below 8 KiB and 5 above.
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
    """The `records_count` records that `data` is, one at a time; every record's time is `append_time` where given.

    CorruptBatch where a record does not end where it said, offsets do not rise or pass the last, or bytes are left.

    The consumer's hot loop: varints of one and two bytes are read in line, because a call costs as much as three.
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
                size, position = read_unsigned(data, position)
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
                size, position = read_unsigned(data, position)
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
    """The signed number of an unsigned varint's value."""
    return encoded >> 1 ^ -(encoded & 1)


def read_unsigned(data: Buffer, position: int) -> tuple[int, int]:
    """A varint of up to 64 bits, not zigzag decoded, and the position after it. IndexError at the end of the data."""
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


def _corrupt_offset(delta: int, previous: int) -> NoReturn:
    raise CorruptBatch(f"offset delta {delta} after {previous}")


def _corrupt_length(size: int) -> NoReturn:
    raise CorruptBatch(f"length {zigzag(size)}")


def _decode_headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """The header count at `position` and the headers after it; grows with the bytes that are there, not the count."""
    number, position = read_unsigned(data, position)
    if number & 1:
        _corrupt_length(number)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number >> 1):
        size, position = read_unsigned(data, position)
        if size & 1:
            _corrupt_length(size)
        end = position + (size >> 1)
        try:
            name = data[position:end].decode()
        except UnicodeDecodeError as error:
            raise CorruptBatch("a header's key is not UTF-8") from error
        size, position = read_unsigned(data, end)
        if size & 1:
            headers.append((name, None if size == 1 else _corrupt_length(size)))
        else:
            headers.append((name, data[position : position + (size >> 1)]))
            position += size >> 1
    return tuple(headers), position


def decode_headers(data: Buffer) -> tuple[tuple[str, bytes | None], ...]:
    """Headers from exactly the bytes of a record's header section, its count included. CorruptBatch where malformed."""
    whole = bytes(data)
    try:
        headers, position = _decode_headers(whole, 0)
    except IndexError as error:
        raise CorruptBatch("a header is cut short") from error
    if position != len(whole):
        raise CorruptBatch(f"headers end at {position} of {len(whole)} bytes")
    return headers
