"""Extracts the records that a share group handed out from the batches they came in.

A broker sends whole batches of the log, with the list of offsets that were acquired. Those need not be contiguous, nor
cover the batches: other records of a batch may be another member's, or done. Nor does every offset have a record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from kraftpy.client.model import ShareRecord, TimestampType
from kraftpy.ports import Buffer
from kraftpy.protocol.messages.share_fetch import AcquiredRecords
from kraftpy.protocol.record_batch import CorruptBatch, check_crc, iter_records, split_batches
from kraftpy.types import TopicPartition

MAX_ACQUIRED: Final = 1 << 20
MAX_ACQUIRED_HEADERS: Final = 1 << 20
"""Bounds on the records of one answer and their headers: all are held until they are acknowledged."""


def acquired_offsets(acquired: Sequence[AcquiredRecords]) -> list[int]:
    """Return all offsets of the ranges, in order, each once. Raises `CorruptBatch` for more than batches can hold."""
    count = sum(each.last_offset - each.first_offset + 1 for each in acquired)
    if count > MAX_ACQUIRED or any(each.last_offset < each.first_offset for each in acquired):
        raise CorruptBatch(f"{count} records acquired at once")
    return sorted({offset for each in acquired for offset in range(each.first_offset, each.last_offset + 1)})


def acquired_records(
    name: TopicPartition, batches: Buffer, acquired: Sequence[AcquiredRecords], *, check_crcs: bool
) -> list[ShareRecord]:
    """Return the records at acquired offsets, ordered by offset. Raises `CorruptBatch`."""
    ranges = sorted((each.first_offset, each.last_offset, each.delivery_count) for each in acquired)
    starts = [first for first, _, _ in ranges]
    topic, partition = name
    found: dict[int, ShareRecord] = {}
    headers = 0
    for header, batch in split_batches(batches, allow_partial=True):
        if header.is_control:
            continue
        if check_crcs and not check_crc(batch):
            raise CorruptBatch(f"{name}: the CRC of the batch at offset {header.base_offset} is wrong")
        kind, epoch = TimestampType(int(header.timestamp_type)), header.partition_leader_epoch
        try:
            for record in iter_records(batch, header):
                place = bisect_right(starts, record[0]) - 1
                if place >= 0 and record[0] <= ranges[place][1]:
                    found[record[0]] = ShareRecord(topic, partition, *record, kind, epoch, ranges[place][2])
                    headers += len(record[4])
                    if headers > MAX_ACQUIRED_HEADERS:
                        raise CorruptBatch(f"more than {MAX_ACQUIRED_HEADERS} headers of records acquired at once")
        except CorruptBatch as error:
            text = f"{name}: the batch at offset {header.base_offset} cannot be read: {error.message}"
            raise CorruptBatch(text, error.code) from error
    return [found[offset] for offset in sorted(found)]
