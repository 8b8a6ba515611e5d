"""Record batches through every reader: split, validated, decoded one by one, and in columns as Spark's reader does.

The first byte says whether size and CRC of the first batch are put right before, without which hardly any input would
come below the header. The only errors allowed are CorruptBatch and other KafkaErrors, and no reader may make more than
`MOST_BYTES` of a batch.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from random import Random

import batches
from crc32c import crc32c

from kraftpy.client.ranges.columns import decode_columns
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, iter_records, record_payload, split_batches, validate_batch

ALLOWED = (KafkaError,)
MOST_BYTES = 1 << 18
MORE_BYTES = 8 * MOST_BYTES


def one(data: bytes) -> None:
    """A byte of how, and batches."""
    if not data:
        return
    records = bytearray(data[1:])
    if data[0] & 1 and len(records) >= HEADER_BYTES:
        if data[0] & 2:
            struct.pack_into(">i", records, 8, len(records) - 12)
        size = min(max(struct.unpack_from(">i", records, 8)[0] + 12, HEADER_BYTES), len(records))
        struct.pack_into(">I", records, 17, crc32c(bytes(records[21:size])))
    with contextlib.suppress(KafkaError):
        decode_columns(records, check_crcs=not data[0] & 4, max_bytes=MOST_BYTES)
    for header, batch in split_batches(records, allow_partial=bool(data[0] & 8)):
        with contextlib.suppress(KafkaError):
            validate_batch(header, batch)
        if not header.is_control:
            payload = record_payload(header, batch, MOST_BYTES)
            assert len(payload) <= MOST_BYTES or not header.compression
        count = 0
        for record in iter_records(batch):
            count += 1
            assert record.offset >= header.base_offset
        assert count <= max(header.records_count, 0)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Legal ones and the wrong ones of the other fuzz."""
    for number in range(12):
        yield f"legal-{number}", b"\0" + batches.legal(Random(number))
    for number in range(40):
        yield f"wrong-{number}", bytes((number % 16,)) + batches.small(Random(number))
    for name in ("empty headers in ZSTD", "the same record in ZSTD", "a long value in ZSTD"):
        yield name.replace(" ", "-"), b"\0" + batches.heavy_named(name)
