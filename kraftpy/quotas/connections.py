"""How fast connections may be created: on a broker, on each listener, and from each IP address (KIP-612).

A connection beyond the rate of the broker or its listener waits its turn, as in a queue of the listener: each is let
in when the one before it has been, and after its own wait. One beyond the rate of its address is closed after the wait,
and does not count. No wait is longer than one sample, so that a higher rate is noticed soon.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftpy.quotas.rates import Rate

MOST_ADDRESSES: Final = 10_000
"""The most addresses whose rates are kept; the ones without connections in the window go first."""

_LEAST_LIMIT: Final = 1e-9


class Verdict(NamedTuple):
    """What happens to a new connection."""

    wait_ms: float
    """How long it waits before it is served, or closed."""
    is_refused: bool
    """It is closed after the wait."""


class ConnectionRates:
    """The rates at which connections are created; each limit is an argument, None for none."""

    def __init__(self, samples: int, sample_ms: float, *, most_addresses: int = MOST_ADDRESSES) -> None:
        self._samples, self._sample_ms = samples, sample_ms
        self._most_addresses = most_addresses
        self._broker = Rate(samples, sample_ms)
        self._listeners: dict[str, Rate] = {}
        self._free_at: dict[str, float] = {}
        """When the listener lets in the next connection."""
        self._addresses: dict[str, Rate] = {}

    def arrive(
        self,
        listener: str,
        address: str,
        now: float,
        *,
        of_broker: float | None,
        of_listener: float | None,
        of_address: float | None,
    ) -> Verdict:
        """Count a new connection, and say what happens to it."""
        if of_address is not None:
            rate = self._rate_of(address, now)
            if wait_ms := self._count(rate, of_address, now):
                rate.record(-1, max(of_address, _LEAST_LIMIT), now)
                return Verdict(wait_ms, True)
        at = max(now, self._free_at.get(listener, now))
        wait_ms = 0.0
        if of_broker is not None:
            wait_ms = self._count(self._broker, of_broker, at)
        if of_listener is not None:
            rate = self._listeners.setdefault(listener, Rate(self._samples, self._sample_ms))
            wait_ms = max(wait_ms, self._count(rate, of_listener, at))
        self._free_at[listener] = at + wait_ms
        return Verdict(at + wait_ms - now, False)

    def _count(self, rate: Rate, limit: float, now: float) -> float:
        """Count a connection; return how long it has to wait."""
        limit = max(limit, _LEAST_LIMIT)
        rate.record(1, limit, now, forgives=True)
        return min(rate.wait_ms(limit, now), self._sample_ms)

    def _rate_of(self, address: str, now: float) -> Rate:
        found = self._addresses.pop(address, None)
        if found is None:
            if len(self._addresses) >= self._most_addresses:
                kept = {each: rate for each, rate in self._addresses.items() if not rate.is_as_new(now)}
                for each in list(kept)[: max(0, len(kept) - self._most_addresses * 3 // 4)]:
                    del kept[each]
                self._addresses = kept
            found = Rate(self._samples, self._sample_ms)
        self._addresses[address] = found
        return found
