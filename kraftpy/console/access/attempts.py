"""Limits on failed sign-ins: of one address, of one user from one address, and of one user from everywhere.

Each has a number of failures that may follow one another at once, and one more after each interval. A success gives
back what it took, so that only failures count. The limit of a user from everywhere is wide: it slows guessing down
without shutting out for long a user who knows the password.

Addresses of IPv6 count by their network of 64 bits, which one host usually has as a whole. Bound: `MOST_KEPT` counts of
each limit; those that were changed longest ago are forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_KEPT: Final = 10_000
MOST_NAME_CHARACTERS: Final = 256
"""Longer names count by their beginning; none of them is right."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many attempts at once, and one more after each interval."""

    burst: int
    seconds: float


OF_ADDRESS: Final = Limit(30, 6.0)
OF_USER_AT_ADDRESS: Final = Limit(5, 60.0)
OF_USER: Final = Limit(50, 20.0)


class _Counts:
    """The counts of one limit: by key, the number of attempts that count at a time, changed longest ago first."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._counts: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def wait(self, key: str, now: float) -> float:
        """Return the seconds until another attempt is allowed; 0 if it is now."""
        over = self._count(key, now) + 1 - self._limit.burst
        return max(0.0, over * self._limit.seconds)

    def add(self, key: str, now: float, amount: float = 1.0) -> None:
        """Count an attempt, or with a negative amount, give it back."""
        count = max(0.0, self._count(key, now) + amount)
        self._counts.pop(key, None)
        if count > 0:
            self._counts[key] = (count, now)
            if len(self._counts) > MOST_KEPT:
                del self._counts[next(iter(self._counts))]

    def _count(self, key: str, now: float) -> float:
        count, at = self._counts.get(key, (0.0, now))
        return max(0.0, count - (now - at) / self._limit.seconds)


class Attempts:
    """The attempts to sign in."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._addresses = _Counts(OF_ADDRESS)
        self._pairs = _Counts(OF_USER_AT_ADDRESS)
        self._users = _Counts(OF_USER)

    def __len__(self) -> int:
        return len(self._addresses) + len(self._pairs) + len(self._users)

    def begin(self, address: str, user: str | None = None) -> float:
        """Count an attempt, and return 0.0; if it is one too many, count nothing, and return the seconds to wait.

        An attempt counts as soon as it begins, so that many at once do not pass.
        """
        now, asked = self._clock(), self._asked(address, user)
        wait = max(counts.wait(key, now) for counts, key in asked)
        if wait > 0:
            return wait
        for counts, key in asked:
            counts.add(key, now)
        return 0.0

    def succeeded(self, address: str, user: str | None = None) -> None:
        """Give back what an attempt took: it was no failure."""
        now = self._clock()
        for counts, key in self._asked(address, user):
            counts.add(key, now, -1.0)

    def _asked(self, address: str, user: str | None) -> list[tuple[_Counts, str]]:
        network = network_of(address)
        user = None if user is None else user[:MOST_NAME_CHARACTERS]
        asked = [(self._addresses, network)]
        if user is not None:
            asked += [(self._pairs, f"{network} {user}"), (self._users, user)]
        return asked


def network_of(address: str) -> str:
    """Return what an address counts by: itself, or for IPv6 its network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
