"""A segment's contents, row by row, in the one form in which implementations are compared: see `java/Segments.java`."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kraftpy.cli.segments import read_batches
from kraftpy.protocol.record_batch import iter_records

_AS_IT_IS_BYTES = 48
_DELETE_HORIZON = 0x40
_BOUND_SECONDS = 60.0


def shown(data: bytes | None) -> str | None:
    """Bytes as base64; a lot of them as their number and their SHA-256."""
    if data is None:
        return None
    if len(data) <= _AS_IT_IS_BYTES:
        return base64.b64encode(data).decode()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def record_row(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> dict[str, Any]:
    return {
        "kind": "record",
        "offset": offset,
        "timestamp": timestamp,
        "key": shown(key),
        "value": shown(value),
        "headers": [[shown(name.encode()), shown(data)] for name, data in headers],
    }


def segment_rows(path: Path) -> Iterator[dict[str, Any]]:
    """A segment as kraftpy reads it."""
    for batch in read_batches(path):
        header = batch.header
        has_horizon = bool(header.attributes & _DELETE_HORIZON)
        yield {
            "kind": "batch",
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records_count": header.records_count,
            "size_bytes": header.size_bytes,
            "crc": header.crc,
            "compression": header.compression.name.lower(),
            "timestamp_type": header.timestamp_type.name.lower(),
            "max_timestamp": header.max_timestamp,
            "partition_leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
            "delete_horizon_ms": header.base_timestamp if has_horizon else None,
        }
        for record in iter_records(batch.data):
            yield record_row(record.offset, record.timestamp, record.key, record.value, list(record.headers))


def records_once_compacted(directory: Path, keys: int) -> int:
    """Count the records left once no key occurs twice in the cleanable part: all but the segment being written.

    A broker is at work there, so files come and go.
    """
    deadline = time.monotonic() + _BOUND_SECONDS
    while True:
        try:
            *sealed, active = sorted(directory.glob("*.log"))
            found = [row["key"] for path in sealed for row in segment_rows(path) if row["kind"] == "record"]
            if len(found) == len(set(found)) and len(found) <= keys:
                return len(found) + sum(row["kind"] == "record" for row in segment_rows(active))
        except (FileNotFoundError, ValueError):
            pass  # put in place meanwhile
        assert time.monotonic() < deadline, f"{directory.name} is not compacted"
        time.sleep(0.05)
