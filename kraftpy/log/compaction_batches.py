"""Batches under compaction: extracting their keys fast, and rewriting a batch with fewer records.

`keys_of` is the cleaner's hot loop: it reads lengths and keys only. `raw_records` extracts each record whole, for the
few batches that are rewritten. A rewritten batch keeps its offsets, sequence numbers, leader epoch and timestamp type;
only its record count, largest timestamp, CRC and, on request, its codec and delete horizon change.

Raises CorruptBatch if records are malformed. KIP-98 (format), KIP-534 (delete horizon).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

from kraftpy.log.key_map import WHOLE_KEY_BYTES, short_key
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.compression import Compression, compress
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    record_payload,
)
from kraftpy.protocol.records import encode_varint, read_size, read_unsigned, zigzag

_CODEC_MASK: Final = 0x07
_TIME_BOUND = 1 << 63
_DELETE_HORIZON: Final = 0x40


class Keys(NamedTuple):
    """The keys of a batch's records in the form of a `KeyMap` (None for a record without a key), and their offsets."""

    keys: list[bytes | None]
    offsets: Sequence[int]
    has_tombstones: bool


class RawRecord(NamedTuple):
    """A record and its bytes, split where a new delete horizon changes them."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    is_tombstone: bool
    raw: bytes
    """The record's bytes without its length field."""
    rest: int
    """The position in `raw` just after the timestamp delta."""


class Codec(NamedTuple):
    """The codec and level of rewritten batches, if the topic sets its own."""

    compression: Compression
    level: int | None


def keys_of(header: BatchHeader, batch: bytes) -> Keys:
    """Return the keys of one whole batch."""
    data = bytes(record_payload(header, batch))
    keys: list[bytes | None] = []
    has_tombstones, position, end = False, 0, 0
    try:
        for number in range(header.records_count):
            # One- and two-byte varints are decoded inline: a call costs as much as everything else here.
            size = data[position]
            if size < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                size += (high << 7) - 128
                position += 2
            else:
                size, position = read_size(data, position)
            end = position + (size >> 1)
            position += 1  # the attributes
            while data[position] > 127:  # the timestamp
                position += 1
            position += 1
            delta = data[position]
            if delta < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                delta += (high << 7) - 128
                position += 2
            else:
                delta, position = read_unsigned(data, position)
            if delta != number << 1:
                return _sparse_keys(header, batch)
            size = data[position]
            if size < 128:
                position += 1
            elif (high := data[position + 1]) < 128:
                size += (high << 7) - 128
                position += 2
            else:
                size, position = read_size(data, position)
            if size & 1:
                keys.append(None)
            else:
                size >>= 1
                key = data[position : position + size]
                position += size
                keys.append(key if size <= WHOLE_KEY_BYTES else short_key(key))
            if data[position] == 1:
                has_tombstones = True
            if position >= end:
                raise CorruptBatch(f"a record ends at {end} of {len(data)} bytes, its value begins at {position}")
            position = end
    except IndexError as error:
        raise CorruptBatch("a record is cut short") from error
    if end > len(data):
        raise CorruptBatch("a record is cut short")
    return Keys(keys, range(header.base_offset, header.base_offset + len(keys)), has_tombstones)


def _sparse_keys(header: BatchHeader, batch: bytes) -> Keys:
    """Return the keys of a batch that has already lost records."""
    records = list(raw_records(header, batch))
    return Keys(
        [record.key for record in records],
        [header.base_offset + record.offset_delta for record in records],
        any(record.is_tombstone for record in records),
    )


def raw_records(header: BatchHeader, batch: bytes, numbers: Container[int] | None = None) -> Iterator[RawRecord]:
    """Yield the records of one whole batch with their bytes, or only those with the given numbers, counted from 0.

    Long keys have the form of a `KeyMap`.
    """
    data = bytes(record_payload(header, batch))
    position = 0
    try:
        for number in range(header.records_count):
            size = data[position]
            if size < 128:
                start = position + 1
            elif (high := data[position + 1]) < 128:
                size += (high << 7) - 128
                start = position + 2
            else:
                size, start = read_size(data, position)
            position = end = start + (size >> 1)
            if numbers is not None and number not in numbers:
                continue
            timestamp_delta, rest = read_unsigned(data, start + 1)
            offset_delta, at = read_unsigned(data, rest)
            key_size, at = read_size(data, at)
            key_bytes = zigzag(key_size)
            key = None if key_bytes < 0 else data[at : at + key_bytes]
            value_size, at = read_unsigned(data, at + max(key_bytes, 0))
            if at > end or end > len(data):
                raise CorruptBatch(f"a record of {end - start} bytes in {len(data) - start}")
            yield RawRecord(
                zigzag(offset_delta),
                zigzag(timestamp_delta),
                short_key(key) if key_bytes > WHOLE_KEY_BYTES and key is not None else key,
                zigzag(value_size) < 0,
                data[start:end],
                rest - start,
            )
    except IndexError as error:
        raise CorruptBatch("a record is cut short") from error


def rewritten(
    header: BatchHeader,
    batch: bytes,
    records: Sequence[RawRecord],
    *,
    horizon: int | None = None,
    codec: Codec | None = None,
) -> bytes:
    """Return the batch with only these of its records, at least one, in the given codec or else its own.

    With a delete horizon, the records' times become relative to it.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon is not None:
        attributes |= _DELETE_HORIZON
        shift, base_timestamp = base_timestamp - horizon, horizon
        raws = [
            record.raw[:1] + encode_varint(_in_64_bits(record.timestamp_delta + shift)) + record.raw[record.rest :]
            for record in records
        ]
    else:
        raws = [record.raw for record in records]
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = _in_64_bits(max(header.base_timestamp + record.timestamp_delta for record in records))
    payload = b"".join(piece for raw in raws for piece in (encode_varint(len(raw)), raw))
    used = Codec(header.compression, None) if codec is None else codec
    if used.compression:
        payload = compress(used.compression, payload, used.level)
    return _assembled(
        batch, attributes & ~_CODEC_MASK | used.compression, base_timestamp, max_timestamp, len(records), payload
    )


def _in_64_bits(number: int) -> int:
    """Clamp a time to the range of its 64-bit field: a producer may have sent anything."""
    return max(-_TIME_BOUND, min(number, _TIME_BOUND - 1))


def emptied(header: BatchHeader, batch: bytes) -> bytes:
    """Return the batch without any record; its offsets, producer fields and largest timestamp stay."""
    attributes = header.attributes & ~(_CODEC_MASK | _DELETE_HORIZON)
    return _assembled(batch, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _assembled(
    batch: bytes, attributes: int, base_timestamp: int, max_timestamp: int, records_count: int, payload: bytes
) -> bytes:
    out = bytearray(batch[:HEADER_BYTES]) + payload
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">h", out, 21, attributes)
    struct.pack_into(">qq", out, 27, base_timestamp, max_timestamp)
    struct.pack_into(">i", out, 57, records_count)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)
