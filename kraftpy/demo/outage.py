"""Kill a node (SIGKILL) after one count of acknowledged events, and start it again after another."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from kraftpy.testing import Cluster


@dataclass(slots=True)
class Meter:
    """Counts acknowledged events, and wakes tasks that wait for a number of them."""

    count: int = 0
    _waiting: list[tuple[int, asyncio.Event]] = field(default_factory=list)

    def advance(self, count: int) -> None:
        """Add `count` more. Call this on the event loop."""
        self.count += count
        for least, reached in self._waiting:
            if self.count >= least:
                reached.set()

    async def reach(self, least: int) -> None:
        """Wait for at least this many events."""
        if self.count < least:
            reached = asyncio.Event()
            self._waiting.append((least, reached))
            await reached.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The node that was down, between which counts of acknowledged events, and for how long."""

    node: int
    killed_at: int
    back_at: int
    seconds: float


async def kill_and_start(cluster: Cluster, meter: Meter, *, kill_at: int, start_at: int) -> Outage:
    """Kill the quorum's leader once `kill_at` events are acknowledged; start it again once `start_at` are.

    Returns when the node serves again. Raises BrokerDied if it does not.
    """
    await meter.reach(kill_at)
    node = await asyncio.to_thread(cluster.quorum_leader) or cluster.brokers[-1]
    killed_at, began = meter.count, time.perf_counter()
    await asyncio.to_thread(cluster.kill, node)
    await meter.reach(start_at)
    await asyncio.to_thread(cluster.start, node)
    return Outage(node=node, killed_at=killed_at, back_at=meter.count, seconds=time.perf_counter() - began)
