"""Batches that are small on the wire and large once they are expanded, for the tests of brokers and readers."""

from __future__ import annotations

import struct

from crc32c import crc32c

from kraftpy.protocol.compression import Compression, compress
from kraftpy.protocol.record_batch import encode_payload
from kraftpy.protocol.records import encode_varint

NOW = 1_700_000_000_000


def record(
    offset_delta: int = 0, *, headers: int = 0, key: bytes = b"k", value: bytes = b"v", timestamp_delta: int = 0
) -> bytes:
    """One record, with this number of empty headers."""
    body = (
        b"\0"
        + encode_varint(timestamp_delta)
        + encode_varint(offset_delta)
        + encode_varint(len(key))
        + key
        + encode_varint(len(value))
        + value
    )
    body += encode_varint(headers) + bytes(2 * headers)
    return encode_varint(len(body)) + body


def batch_of(
    *records: bytes, codec: Compression = Compression.ZSTD, base_offset: int = 0, max_timestamp: int = NOW
) -> bytearray:
    """A batch of encoded records, whose times count from NOW."""
    return bytearray(
        encode_payload(
            b"".join(records),
            records_count=len(records),
            base_timestamp=NOW,
            max_timestamp=max_timestamp,
            compression=codec,
            base_offset=base_offset,
        )
    )


def patched(batch: bytes, layout: str, at: int, *values: int) -> bytes:
    """The batch with some bytes replaced, and a CRC that is right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, at, *values)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def with_max(batch: bytes, max_timestamp: int) -> bytes:
    """The batch, with another largest time in its header."""
    return patched(batch, ">q", 35, max_timestamp)


def bomb(headers: int = 8_000_000) -> bytearray:
    """353 bytes or some more: one record with 8 million headers, which took gigabytes to decode."""
    return batch_of(record(headers=headers))


def many_records(
    count: int, codec: Compression = Compression.ZSTD, *, last_after_ms: int = 0, max_timestamp: int | None = None
) -> bytearray:
    """A batch of records that say next to nothing, the last of them so much later than the others."""
    records = [record(number, value=b"") for number in range(count - 1)]
    records.append(record(count - 1, value=b"", timestamp_delta=last_after_ms))
    latest = NOW + last_after_ms if max_timestamp is None else max_timestamp
    return batch_of(*records, codec=codec, max_timestamp=latest)


def empty_members(codec: Compression, size: int = 1 << 20) -> bytearray:
    """A batch whose payload is nothing but compressed nothing."""
    nothing = compress(codec, b"")
    batch = batch_of(nothing * (size // len(nothing)), codec=Compression.NONE)
    batch[22] |= codec
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch
