"""What the client is given of the world: two clocks, chance, and how to connect.

Everything else in this package asks a `Runtime` and never `time` or `random`. Waiting and timers go through the
running event loop, so a loop with a virtual clock needs only a `Runtime` that agrees with it. `pause` is for the one
reader that has no loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Runtime(Protocol):
    """The world, as an argument."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""
        ...

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def pause(self, seconds: float) -> None:
        """Block the thread."""
        ...

    async def connect(self, protocol: Callable[[], P], host: str, port: int) -> P:
        """Open a TCP connection and hand it to a new protocol. Raises `OSError`."""
        ...


class RealRuntime:
    """The machine's clocks, chance and TCP."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment; asyncio's own loops count the same."""
        return time.monotonic() * 1000.0

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def random(self) -> float:
        """A float in [0, 1)."""
        return random.random()

    async def connect(self, protocol: Callable[[], P], host: str, port: int) -> P:
        """Open a TCP connection and hand it to a new protocol. Raises `OSError`."""
        _, connected = await asyncio.get_running_loop().create_connection(protocol, host, port)
        return connected


def backoff_ms(attempt: int, *, base_ms: float, max_ms: float, random: Callable[[], float]) -> float:
    """How long to wait before retry `attempt` (from 0): exponential, with a jitter of a fifth either way (KIP-580)."""
    return float(min(base_ms * 2.0 ** min(attempt, 30), max_ms) * (0.8 + 0.4 * random()))
