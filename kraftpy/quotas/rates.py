"""Measures a client's usage against its rate, and how long it must wait before it may use more: a leaky bucket.

Usage drains at the rate. After a pause, a client may use at once what its rate allows in `samples` - 1 samples of
`sample_ms` (`quota.window.num`, `quota.window.size.seconds`). Beyond this burst it waits until the excess has drained;
so a client that always wants more gets its rate, evenly, after the first burst. `record` with a negative amount takes
back usage that was recorded before.

Kafka instead sums the samples of a sliding window (KIP-13, KIP-124). Its waits after a first burst are the same. But
the burst leaves the window all at once, and Kafka then allows another: a greedy client gets some nine tenths of its
quota, in bursts one window apart.
"""

from __future__ import annotations

from typing import Final

MOST_WAIT_MS: Final = 2**31 - 1
"""The longest wait that a response can carry."""


def burst_seconds(samples: int, sample_ms: float) -> float:
    """Return how many seconds' worth of its rate a client may use at once."""
    return max(1, samples - 1) * sample_ms / 1000


class Rate:
    """One client's usage. The limit per second is an argument, since it may change at any time."""

    __slots__ = ("_at", "_limit", "_used", "_window_s")

    def __init__(self, samples: int, sample_ms: float) -> None:
        self._window_s = burst_seconds(samples, sample_ms)
        self._used = self._at = self._limit = 0.0

    @property
    def limit(self) -> float:
        """The limit as of the last use; 0 before the first."""
        return self._limit

    def record(self, amount: float, limit: float, now: float, *, forgives: bool = False) -> None:
        """Record some usage.

        With `forgives`, usage beyond twice the burst is not counted. Quotas with bounded waits use this, so that a
        client that has stopped waits no longer than the window.
        """
        used = max(0.0, self._drained(limit, now) + amount)
        self._used = min(used, 2 * limit * self._window_s) if forgives else used

    def wait_ms(self, limit: float, now: float) -> int:
        """Return how long the client must wait before it may use more; 0 if it may at once."""
        ahead = self._drained(limit, now) - limit * self._window_s
        return round(min(ahead / limit * 1000, MOST_WAIT_MS)) if ahead > 0 else 0

    def is_as_new(self, now: float) -> bool:
        """Return whether all usage has drained, so that dropping this changes nothing."""
        return self._drained(self._limit, now) <= 0

    def _drained(self, limit: float, now: float) -> float:
        self._used = max(0.0, self._used - limit * max(0.0, now - self._at) / 1000)
        self._at, self._limit = now, limit
        return self._used
