"""Distributions of durations as a list of small integers: counting one costs a few integer operations.

A value is counted in one of eight steps of each power of two, so a quantile is at most 12.5 % above the true one.
Quantiles are those of the last two windows, of which the newer one is being filled: they forget, as Kafka's do. Counts
and sums are those since the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BITS: Final = 3
_STEPS: Final = 1 << _BITS
_LARGEST: Final = (1 << 40) - 1
"""Twelve days in microseconds; longer durations count as that long."""
_BUCKETS: Final = ((_LARGEST.bit_length() - _BITS - 1) << _BITS) + 2 * _STEPS
WINDOW_S: Final = 150.0
"""Two windows are the five minutes that Kafka's histograms look back."""


def bucket_of(value: int) -> int:
    """Return the bucket that counts a value, which is from 0 to `_LARGEST`."""
    shift = value.bit_length() - _BITS - 1
    return (shift << _BITS) + (value >> shift) if shift > 0 else value


def upper_bound(bucket: int) -> int:
    """Return the largest value that a bucket counts."""
    shift = (bucket >> _BITS) - 1
    if shift <= 0:
        return bucket
    return ((bucket - (shift << _BITS) + 1) << shift) - 1


class Histogram:
    """Durations in microseconds."""

    __slots__ = ("_before", "_now", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        """How many durations were recorded since the start."""
        self.total = 0
        """Their sum, in microseconds."""
        self._now = [0] * _BUCKETS
        self._before: list[int] | None = None

    def record(self, value: int, weight: int = 1) -> None:
        """Count a duration as often as `weight` says. One below 0 counts as 0."""
        self.count += weight
        if value <= 0:
            self._now[0] += weight
            return
        self.total += value * weight
        self._now[bucket_of(min(value, _LARGEST))] += weight

    def begin_window(self) -> None:
        """Begin a new window: quantiles forget what is older than the window before it."""
        self._before, self._now = self._now, [0] * _BUCKETS

    def quantiles(self, wanted: Sequence[float]) -> list[int]:
        """Return quantiles of the last two windows, in microseconds; 0 if there were no durations.

        `wanted` ascends, from 0 to 1.
        """
        counts = self._now if self._before is None else list(map(int.__add__, self._now, self._before))
        count = sum(counts)
        found: list[int] = []
        if not count:
            return [0] * len(wanted)
        passed, bucket = counts[0], 0
        for quantile in wanted:
            needed = min(count, max(1, -int(-(quantile * count) // 1)))
            while passed < needed:
                bucket += 1
                passed += counts[bucket]
            found.append(upper_bound(bucket))
        return found
