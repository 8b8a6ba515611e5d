"""Deletes segments from the beginning of a log: those beyond retention, and those that DeleteRecords has passed.

Deletion has two steps, because a power loss may undo the removal of some segments and not of others, which would leave
a hole: `advance_log_start` moves the log's start as retention demands, and once the log's owner has written its
checkpoint of log starts, `remove_before_log_start` removes the segments wholly before it. The files are renamed, and
deleted by `delete_files` after `file.delete.delay.ms`, so that reads in progress are not disturbed.

`retention` decides which segments go. KIP-107 (DeleteRecords).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kraftpy.log.retention import SegmentAge, segments_to_delete
from kraftpy.ports import Directory
from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.log.partition_log import PartitionLog


def advance_log_start(log: PartitionLog, now: Millis, high_watermark: int) -> bool:
    """Move the log's start as retention demands; return whether it moved."""
    going = segments_to_delete(
        _ages(log),
        log.config,
        log_bytes=lambda: log.segments.size_bytes,
        now=now,
        log_start_offset=log.log_start_offset,
        high_watermark=high_watermark,
    )
    return going > 0 and log.advance_log_start([*log.segments.bases, log.log_end_offset][going])


def _ages(log: PartitionLog) -> Iterator[SegmentAge]:
    """Yield the age of each segment in order, inspecting each one lazily."""
    for segment, end_offset in log.segments.from_offset(0, log.log_end_offset):
        if segment is log.segments.active and not segment.size:
            return
        timestamp = segment.max_timestamp()[0]
        yield SegmentAge(end_offset, segment.size, timestamp if timestamp >= 0 else segment.created_at)


def is_start_unwritten(log: PartitionLog) -> bool:
    """Return whether segments cannot be removed until the owner has written its checkpoint."""
    return log.written_log_start < log.log_start_offset and log.segments.bases[0] < log.log_start_offset


def remove_before_log_start(log: PartitionLog, now: Millis) -> list[str]:
    """Remove the segments that lie wholly before the log's start, up to the start that is checkpointed.

    Returns the new names of the renamed files, including those of truncations since the last call.
    """
    trash, log.files_to_delete = log.files_to_delete, []
    if log.is_swapping:
        return trash
    start = min(log.log_start_offset, log.written_log_start)
    if start == log.log_end_offset and log.segments.active.size:
        try:
            log.roll(now)
        except OSError:
            log.files_to_delete = trash
            raise
    going = log.segments.wholly_before(start)
    if not going:
        return trash
    gone = trash + log.remove(going)
    log.producers.aborted.forget_before(log.segments.bases[0])
    return gone + log.snapshots.rename_to_deleted(segment.base_offset for segment in going)


def delete_old_segments(log: PartitionLog, now: Millis, high_watermark: int) -> list[str]:
    """Apply retention and remove segments in one call, for logs whose start is not checkpointed."""
    advance_log_start(log, now, high_watermark)
    log.written_log_start = log.log_start_offset
    return remove_before_log_start(log, now)


def delete_files(directory: Directory, names: list[str]) -> None:
    """Delete files that were removed from a log. Blocks."""
    for name in names:
        directory.delete(name)
