"""Record batches to produce: good ones, and one for each way in which a batch can be odd."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from crc32c import crc32c
from differ import Differ

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import ControlType, encode_batch, encode_control_batch, encode_payload
from kraftpy.protocol.records import encode_varint
from kraftpy.protocol.schema import ZERO_UUID

Row = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def rows(
    time_ms: int,
    count: int = 1,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> list[Row]:
    return [(time_ms, key, value, headers)] * count


def sealed(batch: bytes) -> bytes:
    """Return a batch with the checksum of what it has."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def patched(batch: bytes, form: str, at: int, value: int, *, seal: bool = True) -> bytes:
    """Return a batch with another value in its header."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    return sealed(bytes(changed)) if seal else bytes(changed)


BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC, CRC = (">q", 0), (">i", 8), (">i", 12), (">b", 16), (">I", 17)
ATTRIBUTES, LAST_OFFSET_DELTA, BASE_TIME, MAX_TIME, COUNT = (">h", 21), (">i", 23), (">q", 27), (">q", 35), (">i", 57)


def old_message(magic: int, time_ms: int) -> bytes:
    """Return a message of the formats that Kafka 4.0 has removed."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", time_ms) if magic else b"")
    body += struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v"
    return struct.pack(">qi", 0, len(body) + 4) + struct.pack(">I", zlib.crc32(body)) + body


def with_deltas(deltas: Sequence[int], time_ms: int) -> bytes:
    """Return a batch whose records have these offset deltas."""
    records = (b"\0\0" + encode_varint(delta) + b"\x02k\x02v\0" for delta in deltas)
    payload = b"".join(encode_varint(len(record)) + record for record in records)
    return encode_payload(payload, records_count=len(deltas), base_timestamp=time_ms, max_timestamp=time_ms)


def bad_headers(good: bytes, now: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield batches whose header is odd."""
    yield "good", good
    yield "null records", None
    yield "empty records", b""
    yield "wrong checksum", patched(good, *CRC, 1, seal=False)
    for magic in (0, 1, 3, -1, 127):
        yield f"magic {magic}", patched(good, *MAGIC, magic)
    for magic in (0, 1):
        yield f"old message {magic}", old_message(magic, now)
    empty = encode_payload(b"", records_count=0, base_timestamp=now, max_timestamp=now)
    yield "no records", patched(empty, *LAST_OFFSET_DELTA, 0)
    yield "no records, delta -1", empty
    for count in (0, 1, 2, 4, -1, 2**31 - 1):
        yield f"count {count} of 3", patched(good, *COUNT, count)
    for delta in (0, 1, 3, -1, 2**31 - 1):
        yield f"last offset delta {delta} of 2", patched(good, *LAST_OFFSET_DELTA, delta)
    yield "count and delta of 4 for 3", patched(patched(good, *COUNT, 4), *LAST_OFFSET_DELTA, 3)
    for attributes in (5, 6, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x80, 0x100, -32768):
        yield f"attributes {attributes:#x}", patched(good, *ATTRIBUTES, attributes)
    for offset in (1, -1, 2**62):
        yield f"base offset {offset}", patched(good, *BASE_OFFSET, offset, seal=False)
    for epoch in (-1, 0, 99):
        yield f"leader epoch {epoch}", patched(good, *LEADER_EPOCH, epoch, seal=False)
    for length in (0, 1, 48, 49, 10**6, -1):
        yield f"batch length {length}", patched(good, *LENGTH, length, seal=False)
    for cut in (1, 12, 17, 60, 61, len(good) - 1):
        yield f"cut at {cut}", good[:cut]
    yield "bytes behind", good + b"\0" * 5
    yield "two batches", good + good
    yield "good and corrupt", good + patched(good, *CRC, 1, seal=False)


def bad_codecs(good: bytes, now: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield batches whose compression is odd."""
    for codec in (1, 2, 3, 4):
        yield f"codec {codec} over plain bytes", patched(good, *ATTRIBUTES, codec)
        compressed = encode_batch(rows(now, 3), compression=Compression(codec))
        yield f"compressed {codec}", compressed
        cut = sealed(struct.pack(">qi", 0, len(compressed) - 12 - 4) + compressed[12:-4])
        yield f"compressed {codec} cut", cut
        yield f"compressed {codec} count 4", patched(compressed, *COUNT, 4)
    one = encode_batch(rows(now, 1), compression=Compression(1))
    yield "two codecs", one + encode_batch(rows(now, 1))


def odd_times(differ: Differ, good: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yield batches whose times are odd."""
    moments = {"an hour and a half ahead": HOUR_MS * 3 // 2, "half an hour ahead": HOUR_MS // 2}
    moments |= {"a year ahead": 365 * DAY_MS, "a year ago": -365 * DAY_MS}
    times = {"-1": -1, "0": 0, "-2": -2, "the last": 2**63 - 1}
    times |= {name: differ.now(offset) for name, offset in moments.items()}
    for name, time_ms in times.items():
        yield f"time {name}", encode_batch(rows(time_ms, 2))
    yield "max timestamp wrong", patched(good, *MAX_TIME, differ.now(5))
    yield "max timestamp -1", patched(good, *MAX_TIME, -1)
    yield "base timestamp after", patched(good, *BASE_TIME, differ.now(5000))


def odd_records(good: bytes, now: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield batches whose records, or their producer, are odd."""
    yield "null key", encode_batch(rows(now, key=None))
    yield "null value", encode_batch(rows(now, value=None))
    yield "null both", encode_batch(rows(now, key=None, value=None))
    yield "headers", encode_batch(rows(now, headers=(("a", b"1"), ("a", None), ("", b""))))
    yield "record garbage", sealed(good[:61] + b"\xff" * (len(good) - 61))
    gap = with_deltas((0, 2), now)
    yield "offset deltas with a gap", patched(gap, *LAST_OFFSET_DELTA, 1)
    yield "offset deltas with a gap, right last", patched(gap, *LAST_OFFSET_DELTA, 2)
    yield "offset deltas twice the same", with_deltas((0, 0), now)
    yield "too large", encode_batch(rows(now, value=b"x" * 1_100_000))
    yield "just too large", encode_batch(rows(now, value=b"x" * (1048588 - 61 - 12)))
    for producer_id, epoch, sequence in (
        *(
            (-2, -1, -1),
            (5, -1, 0),
            (5, 0, -1),
            (-1, 0, 0),
            (-1, -1, 5),
            (424242, 0, 0),
            (424242, 0, 5),
            (424242, 3, 7),
        ),
    ):
        batch = encode_batch(rows(now), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        yield f"producer {producer_id} epoch {epoch} sequence {sequence}", batch
    yield "transactional bit without a producer", patched(good, *ATTRIBUTES, 0x10)
    kind = ControlType.COMMIT
    yield "control", encode_control_batch(kind, timestamp=now, producer_id=5, producer_epoch=0, coordinator_epoch=0)


def produced(
    topic: str,
    records: Any,
    acks: int = -1,
    *,
    index: int = 0,
    timeout_ms: int = 5000,
    transactional_id: str | None = None,
    topic_id: Any = ZERO_UUID,
) -> dict[str, Any]:
    """Return a Produce request to one partition, with the topic's id for the versions that need it."""
    data = [{"index": index, "records": records}]
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": data}],
    }


def read_back(differ: Differ, topic: str, topic_id: Any, note: str = "", index: int = 0) -> None:
    """Compare everything that a partition has."""
    partition = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 50_000_000}
    topics = [{"topic": topic, "topic_id": topic_id, "partitions": [partition]}]
    body = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 50_000_000, "topics": topics}
    differ.ask("fetch", body, 18, note=f"{note}{topic} read back")
