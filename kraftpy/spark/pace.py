"""In how many tasks a stream's batches are read: few while they are quick, one for each partition once they are not.

Pure; the time is an argument. A task in Python costs Spark some 40 ms, so that small batches are read in fewer tasks
than there are partitions, or by the planner. Whatever the query does with the rows then runs in as few tasks. If that
takes long, tasks are worth more than they cost: the next batch has one for each partition, as with Spark's own source.
After it, few are tried again; each time that is slow, twice as many batches are left out, up to `MOST_LEFT_OUT`.

A batch ends, as far as a planner can know, when Spark asks for the next. With a `processingTime` above a second every
batch is slow in this sense, and has its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kraftpy.spark.offsets import OffsetRange

RECORDS_PER_TASK = 125_000
SLOW_MS = 1_000
RECORDS_PER_MS = 250
"""A batch may also take the time in which this many records are read."""
MOST_LEFT_OUT = 1_024


@dataclass(slots=True)
class Pace:
    """Watches a run's batches."""

    _limit_ms: int | None = None
    """When the batch under way will have been slow; None if it has all its tasks, or has ended."""
    _left_out: int = 0
    """For how many more batches few tasks are not tried."""
    _next_left_out: int = 1

    def asked(self, now_ms: int) -> None:
        """Note that Spark asks for the next batch."""
        if self._limit_ms is None:
            return
        if now_ms > self._limit_ms:
            self._left_out = self._next_left_out
            self._next_left_out = min(self._next_left_out * 2, MOST_LEFT_OUT)
        else:
            self._next_left_out = 1
        self._limit_ms = None

    def planned(self, ranges: Sequence[OffsetRange], now_ms: int) -> bool:
        """Return whether the batch may be read in few tasks; it is assumed to begin now."""
        if self._left_out:
            self._left_out -= 1
            self._limit_ms = None
            return False
        self._limit_ms = now_ms + SLOW_MS + _records(ranges) // RECORDS_PER_MS
        return True


def few_tasks(ranges: Sequence[OffsetRange]) -> int:
    """Return how many tasks are few for a batch."""
    return max(1, _records(ranges) // RECORDS_PER_TASK)


def _records(ranges: Sequence[OffsetRange]) -> int:
    return sum(each.size for each in ranges)
