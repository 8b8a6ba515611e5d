"""Sizes in records that no memory holds: every reader refuses them, with the error for malformed bytes.

Compiled code reads no byte at a position beyond 64 bits and says so with another exception than interpreted code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hostile_batches import record

from kraftpy.log.compaction_batches import keys_of, raw_records
from kraftpy.protocol.record_batch import CorruptBatch, encode_payload, read_header
from kraftpy.protocol.records import check_records, decode_headers, decode_records, encode_varint, record_times

SIZES = [1 << 31, 1 << 33, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 1]


def records(key_size: int = 1, value_size: int = 1, name_size: int = 1, header_size: int = 1) -> bytes:
    """Two records; the first has one header, and sizes that its bytes do not have."""
    body = bytes(1) + encode_varint(0) + encode_varint(0)
    body += encode_varint(key_size) + b"k" + encode_varint(value_size) + b"v" + encode_varint(1)
    body += encode_varint(name_size) + b"n" + encode_varint(header_size) + b"h"
    return encode_varint(len(body)) + body + record(1)


def malformed(size: int) -> dict[str, bytes]:
    """Records with that size in place of each of theirs."""
    sound = records()
    return {
        "record": encode_varint(size) + sound[1:],
        "key": records(key_size=size),
        "value": records(value_size=size),
        "header's name": records(name_size=size),
        "header": records(header_size=size),
    }


def by_batch(read: Callable[..., Iterable[Any]]) -> Callable[[bytes], Iterable[Any]]:
    def whole(data: bytes) -> Iterable[Any]:
        batch = encode_payload(data, records_count=2, base_timestamp=0, max_timestamp=0)
        return read(read_header(batch), batch)

    return whole


READERS: dict[str, Callable[[bytes], Iterable[Any]]] = {
    "decode": lambda data: decode_records(
        data, records_count=2, base_offset=0, last_offset_delta=1, base_timestamp=0, append_time=None
    ),
    "check": lambda data: check_records(data, 2, needs_keys=False, max_headers=100),
    "times": lambda data: record_times(data, 2),
    "keys": by_batch(lambda header, batch: keys_of(header, batch).keys),
    "raw": by_batch(raw_records),
}


@pytest.mark.parametrize("reader", READERS)
def test_sound_records_are_read(reader: str) -> None:
    assert len(list(READERS[reader](records()))) == {"check": 0, "times": 1}.get(reader, 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("reader", "fields"),
    [
        ("decode", ["record", "key", "value", "header's name", "header"]),
        ("check", ["record", "key", "value", "header's name", "header"]),
        ("times", ["record"]),
        ("keys", ["record", "key"]),
        ("raw", ["record", "key"]),
    ],
)
def test_no_size_is_believed(reader: str, fields: list[str], size: int) -> None:
    for field in fields:
        with pytest.raises(CorruptBatch):
            list(READERS[reader](malformed(size)[field]))


@pytest.mark.parametrize("size", SIZES)
def test_no_size_in_headers_is_believed(size: int) -> None:
    for headers in (
        encode_varint(1) + encode_varint(size) + b"n" + encode_varint(1) + b"h",
        encode_varint(1) + encode_varint(1) + b"n" + encode_varint(size) + b"h",
    ):
        with pytest.raises(CorruptBatch):
            decode_headers(headers)
