"""Finding records by time, over the segments of a log. Each search decodes one batch.

Every batch that a search goes by is checked (`verifying`): CorruptSegment where one of them is damaged, or an index.

A batch's times are its header's: with LogAppendTime every record has the batch's, whatever the records say (KIP-32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kraftpy.log.results import TimestampAndOffset
from kraftpy.log.segment import CorruptSegment, Placed, Segment
from kraftpy.log.verifying import Epochs, check
from kraftpy.protocol.record_batch import Record, iter_records

_RECORDS_COUNT: Final = slice(57, 61)  # of a batch's header


def _records(segment: Segment, placed: Placed, epochs: Epochs) -> list[Record]:
    data = segment.log.get().read(placed.position, placed.size)
    if not check(data, placed.base_offset, placed.last_offset + 1, epochs).is_whole:
        raise CorruptSegment(segment.log.name, placed.position, "the batch is damaged")
    return list(iter_records(data))


def first_at_or_after(
    segments: Sequence[Segment], epochs: Epochs, timestamp: int, start_offset: int, end_offset: int, log_end_offset: int
) -> TimestampAndOffset | None:
    """The first record of that timestamp (ms) or a later one in [start, end); None where there is none."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    for segment, segment_end_offset in zip(segments, ends, strict=True):
        if segment.base_offset >= end_offset:
            return None
        if not segment.size or segment.max_timestamp()[0] < timestamp:
            continue
        for placed, data in segment.first_at_least(timestamp, start_offset, segment_end_offset, epochs):
            if placed.base_offset >= end_offset:
                return None
            for record in iter_records(data):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    if record.offset >= end_offset:
                        return None
                    return TimestampAndOffset(record.offset, record.timestamp, placed.leader_epoch)
    return None


def latest(segments: Sequence[Segment], epochs: Epochs, start_offset: int) -> TimestampAndOffset | None:
    """The first record that has the largest timestamp of all (KIP-734); None where no record has a timestamp.

    Where that record is below `start_offset`, the latest of those left of its batch stands for it; where none of it is
    left, the latest of all that are.
    """
    timed = [segment for segment in segments if segment.size and segment.max_timestamp()[0] >= 0]
    if not timed:
        return None
    segment = max(timed, key=lambda each: (each.max_timestamp()[0], -each.base_offset))
    _, last_offset = segment.max_timestamp()
    placed = segment.find(last_offset)
    if placed is None or placed.last_offset != last_offset:
        return None
    if segment.log.get().read(placed.position + _RECORDS_COUNT.start, 4) == bytes(4):
        return _latest_of_all(segments, epochs, start_offset)
    records = [record for record in _records(segment, placed, epochs) if record.offset >= start_offset]
    if not records:
        return _latest_of_all(segments, epochs, start_offset)
    best = max(records, key=lambda record: (record.timestamp, -record.offset))
    return TimestampAndOffset(best.offset, best.timestamp, placed.leader_epoch)


def _latest_of_all(segments: Sequence[Segment], epochs: Epochs, start_offset: int) -> TimestampAndOffset | None:
    """The same where the batch that had the largest timestamp is gone or empty: by looking at every batch."""
    best: tuple[int, Segment, Placed] | None = None
    for segment in segments:
        file = segment.log.get()
        for placed in segment.walk():
            if placed.last_offset < start_offset or (best is not None and placed.max_timestamp <= best[0]):
                continue
            if file.read(placed.position + _RECORDS_COUNT.start, 4) != bytes(4):
                best = placed.max_timestamp, segment, placed
    if best is None or best[0] < 0:
        return None
    _, segment, placed = best
    found = max(
        (record for record in _records(segment, placed, epochs) if record.offset >= start_offset),
        key=lambda record: (record.timestamp, -record.offset),
        default=None,
    )
    return None if found is None else TimestampAndOffset(found.offset, found.timestamp, placed.leader_epoch)
