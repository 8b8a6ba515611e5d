"""The client's access to the world: two clocks, random numbers, and TCP connections.

Everything else in this package asks a `Runtime` and never `time` or `random`. Waiting and timers go through the running
event loop, so a loop with a virtual clock needs only a `Runtime` that agrees with it. `pause` is for the blocking
reader, which has no loop.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Runtime(Protocol):
    """Clocks, random numbers and connections, passed as an argument."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch; they may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Return milliseconds that never go back."""
        ...

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def pause(self, seconds: float) -> None:
        """Block the thread."""
        ...

    async def connect(self, protocol: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None = None) -> P:
        """Open a TCP connection, with TLS if there is a context, and hand it to a new protocol. Raises `OSError`."""
        ...


class RealRuntime:
    """The machine's own clocks, random numbers and TCP."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Return milliseconds since some moment; asyncio's own loops count the same."""
        return time.monotonic() * 1000.0

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return random.random()

    async def connect(self, protocol: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None = None) -> P:
        """Open a TCP connection, with TLS if there is a context, and hand it to a new protocol. Raises `OSError`."""
        _, connected = await asyncio.get_running_loop().create_connection(protocol, host, port, ssl=tls)
        return connected


def backoff_ms(attempt: int, *, base_ms: float, max_ms: float, random: Callable[[], float]) -> float:
    """Return how long to wait before retry `attempt` (from 0): exponential, with 20 % jitter each way (KIP-580)."""
    return float(min(base_ms * 2.0 ** min(attempt, 30), max_ms) * (0.8 + 0.4 * random()))
