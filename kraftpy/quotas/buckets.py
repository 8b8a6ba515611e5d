"""A token bucket: a long-term rate that allows bursts (KIP-599).

It begins full, fills at `rate` tokens a second up to `rate` x `samples` x the seconds of a sample, and may be
overdrawn: an operation is allowed as soon as there are any tokens, so that one larger than the bucket is possible.
"""

from __future__ import annotations

from kraftpy.quotas.rates import MOST_WAIT_MS


class TokenBucket:
    """The tokens of one client. The rate is an argument, since it may change at any time."""

    __slots__ = ("_filled_at", "_rate", "_tokens", "_window_s")

    def __init__(self, samples: int, sample_ms: float) -> None:
        self._window_s = samples * sample_ms / 1000
        self._tokens: float | None = None  # as many as fit
        self._filled_at = self._rate = 0.0

    def tokens(self, rate: float, now: float) -> float:
        """Return the number of tokens now; negative if the bucket is overdrawn."""
        burst = rate * self._window_s
        tokens = burst if self._tokens is None else self._tokens + rate * max(0.0, now - self._filled_at) / 1000
        self._tokens = tokens = min(burst, tokens)
        self._filled_at, self._rate = now, rate
        return tokens

    def take(self, count: float, rate: float, now: float) -> None:
        """Take tokens, even more than there are; a negative count gives some back."""
        tokens = self.tokens(rate, now)
        self._tokens = min(rate * self._window_s, tokens - count)

    def wait_ms(self, rate: float, now: float) -> int:
        """Return how long the bucket stays overdrawn; 0 if it is not."""
        tokens = self.tokens(rate, now)
        return 0 if tokens >= 0 else round(min(-tokens / rate * 1000, MOST_WAIT_MS))

    def is_as_new(self, now: float) -> bool:
        """Return whether the bucket is full at its last rate, so that forgetting this changes nothing."""
        return self.tokens(self._rate, now) >= self._rate * self._window_s
