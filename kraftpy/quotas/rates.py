"""Measures a rate over a sliding window, and how long a client has to wait until its rate is back at its limit.

The window has `samples` samples of `sample_ms` (`quota.window.num`, `quota.window.size.seconds`). The rate is the sum
of the samples in the window by the time that they span, and they span at least all samples but one: so a burst after a
pause is averaged over nearly the whole window. KIP-13, KIP-124.

With a rate O above the limit T over a window of W, a wait of X brings it down if O * W / (W + X) = T; hence
X = (O - T) / T * W. A use may be taken back (`record` with a negative amount).
"""

from __future__ import annotations

from typing import Final

MOST_WAIT_MS: Final = 2**31 - 1
"""The longest wait that an answer can tell."""


class _Sample:
    __slots__ = ("amount", "began_at", "last_at")

    def __init__(self, now: float) -> None:
        self.began_at = self.last_at = now
        self.amount = 0.0


class Rate:
    """What was used within the window."""

    __slots__ = ("_sample_ms", "_samples", "_window")

    def __init__(self, samples: int, sample_ms: float) -> None:
        """`samples` is 1 or more."""
        self._samples = samples
        self._sample_ms = sample_ms
        self._window: list[_Sample] = []

    def record(self, amount: float, now: float) -> None:
        """Count a use. Time does not go back."""
        window = self._window
        if not window or now - window[-1].began_at >= self._sample_ms:
            self._forget(now)
            window.append(_Sample(now))
        last = window[-1]
        last.amount += amount
        last.last_at = now

    def measure(self, now: float) -> float:
        """Return the use per second."""
        self._forget(now)
        return sum(sample.amount for sample in self._window) / self._span_ms(now) * 1000

    def wait_ms(self, limit: float, now: float) -> int:
        """Return for how long nothing may be used so that the rate falls to `limit`; 0 if it is not above it."""
        rate = self.measure(now)
        if rate <= limit:
            return 0
        return round(min((rate - limit) / limit * self._span_ms(now), MOST_WAIT_MS))

    def is_as_new(self, now: float) -> bool:
        """Return whether nothing is left in the window, so that forgetting this changes nothing."""
        self._forget(now)
        return not self._window

    def _forget(self, now: float) -> None:
        """Drop the samples that have ended before the window; one that reaches into it stays whole."""
        oldest = now - self._samples * self._sample_ms
        while self._window and self._window[0].last_at <= oldest:
            del self._window[0]

    def _span_ms(self, now: float) -> float:
        elapsed = now - self._window[0].began_at if self._window else 0.0
        missing = self._samples - 1 - int(elapsed // self._sample_ms)
        return max(elapsed + max(0, missing) * self._sample_ms, 1.0)
