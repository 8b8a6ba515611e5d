"""Which segments are old enough to go: by time, by size, by log start. Decisions only.

Segments go oldest first and without gaps. One goes only when all of it is below the high watermark, as a follower or
reader may still need the rest. By time: when its largest timestamp is older than `retention.ms`. By size: while what is
left after it still is `retention.bytes`. By log start: when DeleteRecords has passed its end. The last segment may go
too: the log then goes on in a new one.

Left out: a segment without any timestamp counts from when it was opened, not from its file's modification time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kraftpy.config.topic import TopicConfig
from kraftpy.types import Millis


class SegmentAge(NamedTuple):
    """What the decision asks of a segment."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    """The largest timestamp in ms; where there is none, when it was opened."""


def segments_to_delete(
    segments: Iterable[SegmentAge],
    config: TopicConfig,
    *,
    log_bytes: Callable[[], int],
    now: Millis,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many of the oldest segments may go.

    `segments` is the whole log in order, the one being written included unless it is empty; no more is taken of it than
    the first that stays. `log_bytes` gives the size of all and is asked for only where there is a limit.
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
