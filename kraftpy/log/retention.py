"""Decides which segments retention deletes: by time, by size, by log start. Decisions only.

Segments are deleted oldest first and without gaps, and only if they lie wholly below the high watermark, as a follower
or reader may still need the rest. By time: once the largest timestamp is older than `retention.ms`. By size: as long as
the segments left still amount to `retention.bytes`. By log start: once DeleteRecords has passed the segment's end. Even
the last segment may go: the log then continues in a new one.

Left out: a segment without any timestamp counts from when it was opened, not from its file's modification time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kraftpy.config.topic import TopicConfig
from kraftpy.types import Millis


class SegmentAge(NamedTuple):
    """The facts about a segment that the decision needs."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    """The largest timestamp in ms; the time of opening if there is none."""


def segments_to_delete(
    segments: Iterable[SegmentAge],
    config: TopicConfig,
    *,
    log_bytes: Callable[[], int],
    now: Millis,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """Return how many of the oldest segments to delete.

    `segments` yields the whole log in order, including the active segment unless it is empty; it is consumed up to the
    first segment that stays. `log_bytes` returns the log's size and is called only if there is a size limit.
    """
    by_policy = "delete" in config.cleanup_policy
    excess_bytes = -1
    if by_policy and config.retention_bytes >= 0:
        excess_bytes = log_bytes() - config.retention_bytes
    going = 0
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        is_passed = segment.end_offset <= log_start_offset
        is_expired = by_policy and config.retention_ms >= 0 and now - segment.max_timestamp > config.retention_ms
        is_excess = excess_bytes >= segment.size_bytes
        if not (is_passed or is_expired or is_excess):
            break
        excess_bytes -= segment.size_bytes
        going += 1
    return going
