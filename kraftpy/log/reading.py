"""Reads whole batches from a log, verified: what is returned is as it was appended.

A read finds a position through an index, walks at most one index interval of headers, and takes whole batches of one
segment in one go, as bytes or as a slice of the file. Its cost does not depend on the length of the log.

Headers and index entries only propose a range (`_locate`); the bytes in it are then verified (`verifying.check`). If
either fails, `_read_around` checks every batch from a verified index entry on. It may find that an index was wrong, and
has the log rebuild it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.log.results import LogSlice, ReadResult
from kraftpy.log.segment import FAR_BYTES, CorruptSegment, Segment
from kraftpy.log.verifying import Checked, IntactBatch, check, check_file
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import read_header

if TYPE_CHECKING:
    from kraftpy.log.partition_log import PartitionLog

_REMEMBERED_FROM_BYTES: Final = 64 << 10
"""The CRCs of a shorter read cost less than finding out that they need not be computed."""
NEVER: Final = 1 << 62
"""The `slice_from` of a read that must return bytes."""


class ReadRequest(NamedTuple):
    """The arguments of a read (see `PartitionLog.read`). `limit` is the offset at which it must end."""

    offset: int
    max_bytes: int
    limit: int
    min_one_batch: bool


class _Inconclusive(CorruptSegment):
    """Headers alone cannot decide what to return: most likely nothing, or a batch that lies behind a gap."""


def limit_of(log: PartitionLog, offset: int, end_offset: int | None) -> int:
    """Return the offset at which a read of `offset` must end. Raises KafkaError OFFSET_OUT_OF_RANGE."""
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        partition = log.directory.path.rpartition("/")[2]
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Received request for offset {offset} for partition {partition}, but we only have log segments from "
            f"{log.log_start_offset} upto {log_end_offset}.",
        )
    return log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset


def read(log: PartitionLog, request: ReadRequest, slice_from: int) -> ReadResult | LogSlice:
    """Read from one segment, or from a later one if compaction left no records in the first.

    A result of `slice_from` bytes or more is a slice if the file may be pinned.
    """
    found, with_records = _read_segment(log, request, slice_from)
    if with_records or not log.config.is_compacted:
        return found
    # Compaction has emptied all of these batches. A client may take a response without records for one that its
    # size limit cut short, so return later batches that have records instead, if there are any.
    following = found
    while following.next_offset > request.offset and not with_records:
        request = request._replace(offset=following.next_offset)
        following, with_records = _read_segment(log, request, slice_from)
    return following if with_records else found


def _read_segment(log: PartitionLog, request: ReadRequest, slice_from: int) -> tuple[ReadResult | LogSlice, bool]:
    """Read from one segment; also return whether the result has any records."""
    try:
        found = _locate(log, request)
    except CorruptSegment as error:
        return _read_around(log, request, is_index_suspect=not isinstance(error, _Inconclusive))
    if found is None:
        return ReadResult(b"", request.offset), False
    segment, position, length, expected, next_offset = found
    if length >= slice_from and not segment.log.may_pin:
        slice_from = NEVER
    file, stop, bound, data = segment.log.get(), position + length, min(next_offset, request.limit), b""
    if length < slice_from:
        data = file.read(position, length)
        checked = _check(log, segment, position, data, expected, bound) if log.checks_reads else None
    else:
        checked = check_file(file, position, length, expected, bound, log.epochs) if log.checks_reads else None
    if checked is None:
        segment.remember_position(next_offset, stop)
        with_records = not log.config.is_compacted or has_records(data or file.read(position, length))
    elif not checked.is_whole:
        return _read_around(log, request, is_index_suspect=True)
    else:
        next_offset = checked.next_offset
        segment.remember_position(next_offset, stop)
        if stop >= segment.size:  # compaction may have removed the last offsets of the segment
            next_offset = log.segments.end_offset_of(segment, log.log_end_offset)
        with_records = checked.has_records
    if length < slice_from:
        return ReadResult(data, next_offset), with_records
    return LogSlice(segment.log, position, length, next_offset), with_records


def _check(log: PartitionLog, segment: Segment, position: int, data: bytes, expected: int, end_offset: int) -> Checked:
    """Check what was read at `position`; compute no CRC of bytes that were written or checked here.

    Segments of compacted topics are read by another process as well, the cleaner, so that nothing is known of them.
    """
    if len(data) < _REMEMBERED_FROM_BYTES or log.config.is_compacted:
        return check(data, expected, end_offset, log.epochs)
    disk_reads, stop = segment.log.disk_reads(), position + len(data)
    if disk_reads is None:
        return check(data, expected, end_offset, log.epochs)
    is_known = segment.known.has(position, stop, disk_reads)
    checked = check(data, expected, end_offset, log.epochs, are_known_bytes=is_known)
    if checked.is_whole and not is_known:
        segment.known.checked(position, stop, disk_reads)
    return checked


def _locate(log: PartitionLog, request: ReadRequest) -> tuple[Segment, int, int, int, int] | None:
    """Return segment, position, length, the offset at which the first batch must begin, and the next read's offset.

    The result rests on headers and index entries alone, so the caller must verify it. Raises CorruptSegment if they
    contradict each other or are inconclusive.
    """
    offset, max_bytes, limit, min_one_batch = request
    if offset >= limit:
        return None
    segments = log.segments
    segment = segments.holding(offset)
    while segment is not None:
        if segment.size and (found := segment.find_start(offset)) is not None:
            break
        segment = segments.after(segment)  # compaction left nothing from `offset` on in this one
    else:
        return None
    start, expected, base_offset = found
    segment_end_offset = segments.end_offset_of(segment, log.log_end_offset)
    if limit >= segment_end_offset:
        stop, next_offset = segment.size, segment_end_offset
    else:
        last = segment.find(limit)
        if last is None:  # no batch reaches the limit: compaction removed those that did
            stop, next_offset = segment.size, segment_end_offset
        else:
            stop, next_offset = last.position, last.base_offset
    if stop - start > max_bytes:
        stop, boundary_offset = segment.last_boundary(start, start + max_bytes, min_one_batch=min_one_batch)
        if stop == start:
            return None
        next_offset = segment_end_offset if boundary_offset is None else min(boundary_offset, segment_end_offset)
    if stop <= start or base_offset > offset:
        # The batch reaches beyond the limit or lies behind a gap, or a damaged header makes it seem so.
        raise _Inconclusive(segment.log.name, start, f"no batch of offset {offset}")
    return segment, start, stop - start, expected, next_offset


def _read_around(log: PartitionLog, request: ReadRequest, *, is_index_suspect: bool) -> tuple[ReadResult, bool]:
    """Do as `_read_segment`, the slow and sure way: check every batch, starting from a verified index entry."""
    offset, max_bytes, limit, min_one_batch = request
    batches: list[IntactBatch] = []
    for segment, end_offset in log.segments.from_offset(offset, log.log_end_offset):
        taken, is_over, passed_bytes, is_damaged = 0, False, 0, False
        for found in segment.intact_batches(offset, end_offset, log.epochs):
            if isinstance(found, CorruptSegment):
                is_damaged = True
                if batches:
                    break
                assert found.end_offset is not None
                if found.end_offset > offset:
                    raise found
            elif found.last_offset >= offset:
                is_over = found.last_offset >= limit or (taken + found.size > max_bytes and bool(batches))
                if is_over or (found.size > max_bytes and not min_one_batch):
                    is_over = True
                    break
                batches.append(found)
                taken += found.size
            else:
                passed_bytes += found.size
        if not segment.index.is_in_memory and ((is_index_suspect and not is_damaged) or passed_bytes > FAR_BYTES):
            log.rebuild_index(segment)
        if batches or is_over:
            break
    if not batches:
        return ReadResult(b"", offset), False
    next_offset = batches[-1].last_offset + 1
    segment.remember_position(next_offset, batches[-1].position + batches[-1].size)
    data = b"".join(batch.data for batch in batches)
    return ReadResult(data, next_offset), has_records(data)


def has_records(batches: bytes) -> bool:
    """Return whether any of these whole batches has a record."""
    position = 0
    while position < len(batches):
        header = read_header(batches, position)
        if header.records_count:
            return True
        position += header.size_bytes
    return False
