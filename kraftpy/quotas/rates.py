"""Measures what a client uses against its rate, and how long it has to wait until it may use more: a leaky bucket.

What was used drains at the rate. A client may be ahead of its rate by what the rate allows in the window of `samples`
samples of `sample_ms` but one (`quota.window.num`, `quota.window.size.seconds`): so much it may use at once after a
pause. Beyond that it waits for just as long as it is ahead; after one burst, a client that wants more gets its rate,
evenly. A use may be taken back (`record` with a negative amount).

Kafka sums the samples of a sliding window (KIP-13, KIP-124). The waits for a first burst are the same. When that
leaves the window, all at once, Kafka lets the next one in: a greedy client gets some nine tenths of its quota there, in
bursts that are a window apart.
"""

from __future__ import annotations

from typing import Final

MOST_WAIT_MS: Final = 2**31 - 1
"""The longest wait that an answer can tell."""


class Rate:
    """One client's use. The limit per second is an argument, since it may change at any time."""

    __slots__ = ("_at", "_limit", "_used", "_window_s")

    def __init__(self, samples: int, sample_ms: float) -> None:
        self._window_s = max(1, samples - 1) * sample_ms / 1000
        self._used = self._at = self._limit = 0.0

    def record(self, amount: float, limit: float, now: float, *, forgives: bool = False) -> None:
        """Count a use.

        If this `forgives`, a use that is ahead by more than twice the burst is not counted: for quotas whose waits are
        bounded, so that nobody who has stopped is made to wait for longer than the window.
        """
        used = max(0.0, self._drained(limit, now) + amount)
        self._used = min(used, 2 * limit * self._window_s) if forgives else used

    def wait_ms(self, limit: float, now: float) -> int:
        """Return for how long nothing may be used; 0 if more may be used at once."""
        ahead = self._drained(limit, now) - limit * self._window_s
        return round(min(ahead / limit * 1000, MOST_WAIT_MS)) if ahead > 0 else 0

    def is_as_new(self, now: float) -> bool:
        """Return whether nothing is left of what was used, so that forgetting this changes nothing."""
        return self._drained(self._limit, now) <= 0

    def _drained(self, limit: float, now: float) -> float:
        self._used = max(0.0, self._used - limit * max(0.0, now - self._at) / 1000)
        self._at, self._limit = now, limit
        return self._used
