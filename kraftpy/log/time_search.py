"""Finds records by time: first the batch, by headers and indexes, then the record in it, without decoding any.

Every batch on the way is verified (`verifying`); a damaged one, or a damaged index, raises CorruptSegment. Finding and
copying a batch takes one step. Its records are then inspected as `log.work`, which no longer needs the log.

With LogAppendTime every record has the time in the batch's header, regardless of its own timestamp (KIP-32).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.log.results import TimestampAndOffset
from kraftpy.log.segment import BatchPosition, CorruptSegment, Segment
from kraftpy.log.verifying import Epochs, check
from kraftpy.log.work import Work, expanded
from kraftpy.protocol.record_batch import BatchHeader, TimestampType, read_header
from kraftpy.protocol.records import record_times

if TYPE_CHECKING:
    from kraftpy.log.partition_log import PartitionLog

_COUNT_AT: Final = 57  # the position of the record count, 4 bytes, in a batch's header
_BATCHES_AT_ONCE: Final = 2048


class FoundBatch(NamedTuple):
    """A whole batch, copied from the log."""

    header: BatchHeader
    data: bytes


# --- searches ---------------------------------------------------------------------------------------------------------


def search_timestamp(
    log: PartitionLog, timestamp: int, *, end_offset: int | None = None
) -> Work[TimestampAndOffset | None]:
    """Find, in steps, the first record at or after `timestamp` (ms) and below `end_offset`; None if none exists.

    The log may change, or even be closed, between two steps: the caller has to handle that. Raises CorruptBatch if
    records cannot be read, and CorruptSegment if a batch that may hold the record is damaged.
    """
    log_end_offset = log.log_end_offset
    limit = log_end_offset if end_offset is None else min(end_offset, log_end_offset)
    offset = log.log_start_offset
    while True:
        start_offset = max(offset, log.log_start_offset)
        found = _repairing(log, partial(first_batch, log, timestamp, start_offset, limit))
        if found is None:
            return None
        record = yield from first_record(found, timestamp, start_offset, log.limits.max_expanded_bytes)
        if record is not None:
            return record if record.offset < limit else None
        offset = found.header.next_offset
        yield None


def search_max_timestamp(log: PartitionLog) -> Work[TimestampAndOffset | None]:
    """Find, in steps, the first record with the largest timestamp (KIP-734); None if no record has a timestamp.

    The caveats of `search_timestamp` apply.
    """
    start_offset, max_bytes = log.log_start_offset, log.limits.max_expanded_bytes
    found = _repairing(log, partial(latest_batch, log, start_offset))
    if found is None:
        return None
    record = None
    if found.header.records_count:
        record = yield from latest_record(found, start_offset, max_bytes)
    if record is not None:
        return record
    # The batch that had the largest timestamp is gone or empty: look at the headers of all others.
    progress = HeaderSearch(start_offset)
    while progress.offset >= 0:
        progress = search_headers(log, progress, start_offset)
        yield None
    if progress.max_timestamp < 0:
        return None
    found = _repairing(log, partial(batch_of, log, progress.last_offset))
    if found is None:
        return None
    return (yield from latest_record(found, start_offset, max_bytes))


def _repairing(log: PartitionLog, search: Callable[[], FoundBatch | None]) -> FoundBatch | None:
    """Run a search; if a segment seems damaged and its index can be rebuilt, rebuild it and search again."""
    for _ in range(len(log.segments)):
        try:
            return search()
        except CorruptSegment as error:
            damaged = next(segment for segment in log.segments if segment.log.name == error.name)
            if not log.rebuild_index(damaged):
                raise
    return search()


# --- batches ----------------------------------------------------------------------------------------------------------


def first_batch(log: PartitionLog, timestamp: int, start_offset: int, end_offset: int) -> FoundBatch | None:
    """Return the first batch with offsets in [start, end) whose largest timestamp (ms) is `timestamp` or later.

    Returns None if there is none.
    """
    for segment, segment_end_offset in log.segments.from_offset(start_offset, log.log_end_offset):
        if segment.base_offset >= end_offset:
            return None
        if segment_end_offset <= start_offset or not segment.size or segment.max_timestamp()[0] < timestamp:
            continue
        for placed, data in _candidates(segment, timestamp, start_offset, segment_end_offset, log.epochs):
            return None if placed.base_offset >= end_offset else FoundBatch(read_header(data), data)
    return None


def _candidates(
    segment: Segment, timestamp: int, from_offset: int, end_offset: int, epochs: Epochs
) -> Iterator[tuple[BatchPosition, bytes]]:
    """Yield the batches that may hold a segment's first record at or after both `timestamp` and `from_offset`.

    At most one index interval is read before the first of them. `end_offset` is that of the segment. Raises
    CorruptSegment if an index or a batch on the way is damaged.
    """
    index = segment.index
    part = 0.5
    if not index.is_in_memory:
        first, last = segment.first_timestamp() or 0, segment.max_timestamp()[0]
        if first < last:
            part = (timestamp - first) / (last - first)
    times = index.time_entries(timestamp, part)
    number = bisect_left(times.timestamps, timestamp)
    if not index.is_in_memory:
        for near in times.entries(number - 1, number + 1):
            segment.check_time_entry(*near)
    if number == len(times):  # it can only be after the last entry
        named, position = index.entry_before(segment.size, segment.size)
    else:
        # The batch is in the interval that ends at this time entry: it begins at the index entry before.
        named, position = index.entry_for(segment.base_offset + times.offsets[number] - 1)
    named, position = max((position, named), index.entry_for(from_offset)[::-1])[::-1]
    file, expected = segment.log.get(), segment.base_offset
    for placed in segment.walk_from(named, position):
        data = file.read(placed.position, placed.size)
        if placed.position == position and position:
            expected = placed.base_offset
        if not check(data, expected, end_offset, epochs).is_whole:
            raise CorruptSegment(segment.log.name, placed.position, "the batch is damaged")
        expected = placed.last_offset + 1
        if placed.max_timestamp >= timestamp and placed.last_offset >= from_offset:
            yield placed, data


def latest_batch(log: PartitionLog, start_offset: int) -> FoundBatch | None:
    """Return the batch with the largest timestamp; None if no batch has one. Compaction may have emptied it."""
    timed = [segment for segment in log.segments if segment.size and segment.max_timestamp()[0] >= 0]
    if not timed:
        return None
    segment = max(timed, key=lambda each: (each.max_timestamp()[0], -each.base_offset))
    return _read(log, segment, segment.max_timestamp()[1])


class HeaderSearch(NamedTuple):
    """The progress of a search through the headers of all batches, and the best batch so far."""

    offset: int
    """The offset to continue at; -1 if no batch is left."""
    max_timestamp: int = -1
    last_offset: int = -1


def search_headers(log: PartitionLog, progress: HeaderSearch, start_offset: int) -> HeaderSearch:
    """Look at the next 2048 headers, from `progress.offset` on."""
    offset, max_timestamp, last_offset = progress
    left = _BATCHES_AT_ONCE
    for segment, end_offset in log.segments.from_offset(offset, log.log_end_offset):
        if not segment.size:
            continue
        first = segment.find(offset)
        if first is None:
            continue
        file = segment.log.get()
        for placed in segment.walk(first.position):
            if not left:
                return HeaderSearch(placed.base_offset, max_timestamp, last_offset)
            left -= 1
            if placed.last_offset < start_offset or placed.max_timestamp <= max_timestamp:
                continue
            if file.read(placed.position + _COUNT_AT, 4) != bytes(4):
                max_timestamp, last_offset = placed.max_timestamp, placed.last_offset
        offset = end_offset
    return HeaderSearch(-1, max_timestamp, last_offset)


def batch_of(log: PartitionLog, last_offset: int) -> FoundBatch | None:
    """Return the batch that ends at `last_offset`; None if it is gone."""
    segment = log.segments.holding(last_offset)
    return None if segment is None else _read(log, segment, last_offset)


def _read(log: PartitionLog, segment: Segment, last_offset: int) -> FoundBatch | None:
    placed = segment.find(last_offset)
    if placed is None or placed.last_offset != last_offset:
        return None
    data = segment.log.get().read(placed.position, placed.size)
    if not check(data, placed.base_offset, placed.last_offset + 1, log.epochs).is_whole:
        raise CorruptSegment(segment.log.name, placed.position, "the batch is damaged")
    return FoundBatch(read_header(data), data)


# --- records ----------------------------------------------------------------------------------------------------------


def first_record(
    batch: FoundBatch, timestamp: int, start_offset: int, max_bytes: int
) -> Work[TimestampAndOffset | None]:
    """Return the batch's first record at or after both `timestamp` and `start_offset`, or None.

    Raises CorruptBatch if the batch cannot be read, or expands to more than `max_bytes`.
    """
    header = batch.header
    payload = yield from expanded(header, batch.data, max_bytes)
    for offset_deltas, timestamp_deltas in record_times(payload, header.records_count):
        if offset_deltas[0]:
            yield None  # between two slices
        times = _times(header, timestamp_deltas)
        if max(times) >= timestamp:
            for delta, time in zip(offset_deltas, times, strict=True):
                if time >= timestamp and header.base_offset + delta >= start_offset:
                    return _found(header, delta, time)
    return None


def latest_record(batch: FoundBatch, start_offset: int, max_bytes: int) -> Work[TimestampAndOffset | None]:
    """Return the batch's first record with the largest timestamp among those from `start_offset` on.

    Returns None if there is none. Raises as `first_record` does.
    """
    header = batch.header
    payload = yield from expanded(header, batch.data, max_bytes)
    best: tuple[int, int] | None = None
    for offset_deltas, timestamp_deltas in record_times(payload, header.records_count):
        if offset_deltas[0]:
            yield None  # between two slices
        times = _times(header, timestamp_deltas)
        if best is None or max(times) > best[1]:
            for delta, time in zip(offset_deltas, times, strict=True):
                if header.base_offset + delta >= start_offset and (best is None or time > best[1]):
                    best = delta, time
    return None if best is None else _found(header, *best)


def _times(header: BatchHeader, deltas: Sequence[int]) -> list[int]:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return [header.max_timestamp] * len(deltas)
    base = header.base_timestamp
    return [base + delta for delta in deltas]


def _found(header: BatchHeader, delta: int, timestamp: int) -> TimestampAndOffset:
    return TimestampAndOffset(header.base_offset + delta, timestamp, header.partition_leader_epoch)
