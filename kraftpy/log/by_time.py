"""Finding records by time, over the segments of a log. Each search decodes one batch.

A batch's times are its header's: with LogAppendTime every record has the batch's, whatever the records say (KIP-32).
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.log.results import TimestampAndOffset
from kraftpy.log.segment import Placed, Segment
from kraftpy.protocol.record_batch import Record, iter_records


def _records(segment: Segment, placed: Placed) -> list[Record]:
    return list(iter_records(segment.log.get().read(placed.position, placed.size)))


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, start_offset: int, end_offset: int
) -> TimestampAndOffset | None:
    """The first record of that timestamp (ms) or a later one in [start, end); None where there is none."""
    for segment in segments:
        if segment.base_offset >= end_offset:
            return None
        if not segment.size or segment.max_timestamp()[0] < timestamp:
            continue
        for placed in segment.first_at_least(timestamp, start_offset):
            if placed.base_offset >= end_offset:
                return None
            for record in _records(segment, placed):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    if record.offset >= end_offset:
                        return None
                    return TimestampAndOffset(record.offset, record.timestamp, placed.leader_epoch)
    return None


def latest(segments: Sequence[Segment], start_offset: int) -> TimestampAndOffset | None:
    """The first record that has the largest timestamp of all (KIP-734); None where no record has a timestamp.

    Where that record is below `start_offset`, the latest of those left of its batch stands for it.
    """
    timed = [segment for segment in segments if segment.size and segment.max_timestamp()[0] >= 0]
    if not timed:
        return None
    segment = max(timed, key=lambda each: (each.max_timestamp()[0], -each.base_offset))
    timestamp, last_offset = segment.max_timestamp()
    placed = segment.find(last_offset)
    if placed is None:
        return None
    records = [record for record in _records(segment, placed) if record.offset >= start_offset]
    if not records:
        return TimestampAndOffset(last_offset, timestamp, placed.leader_epoch)
    best = max(records, key=lambda record: (record.timestamp, -record.offset))
    return TimestampAndOffset(best.offset, best.timestamp, placed.leader_epoch)
