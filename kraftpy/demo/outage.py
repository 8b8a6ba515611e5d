"""A node dies while events come in, and returns: killed (SIGKILL) at one count of events, started again at another."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from kraftpy.testing import Cluster


@dataclass(slots=True)
class Meter:
    """How many events were acknowledged so far, for those who wait for a number of them."""

    count: int = 0
    _waiting: list[tuple[int, asyncio.Event]] = field(default_factory=list)

    def advance(self, count: int) -> None:
        """So many more. To be called on the event loop."""
        self.count += count
        for least, reached in self._waiting:
            if self.count >= least:
                reached.set()

    async def reach(self, least: int) -> None:
        """Wait until there were so many."""
        if self.count < least:
            reached = asyncio.Event()
            self._waiting.append((least, reached))
            await reached.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Which node was gone, between which counts of acknowledged events, and for how long."""

    node: int
    killed_at: int
    back_at: int
    seconds: float


async def kill_and_start(cluster: Cluster, meter: Meter, *, kill_at: int, start_at: int) -> Outage:
    """Kill the node that leads the quorum once `kill_at` events are acknowledged, start it once `start_at` are.

    Returns when it serves again. Raises BrokerDied where it does not.
    """
    await meter.reach(kill_at)
    node = await asyncio.to_thread(cluster.quorum_leader) or cluster.brokers[-1]
    killed_at, began = meter.count, time.perf_counter()
    await asyncio.to_thread(cluster.kill, node)
    await meter.reach(start_at)
    await asyncio.to_thread(cluster.start, node)
    return Outage(node=node, killed_at=killed_at, back_at=meter.count, seconds=time.perf_counter() - began)
