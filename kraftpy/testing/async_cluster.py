"""`AsyncCluster`: a `Cluster` for a test that has an event loop; its methods are coroutines, and run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.testing.nodes import Cluster


class AsyncCluster:
    """A `Cluster` whose methods are coroutines: what `async with Cluster() as cluster` gives."""

    def __init__(self, cluster: Cluster) -> None:
        self.blocking = cluster
        """The cluster itself."""

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of every broker, with commas, whether it runs or not."""
        return self.blocking.bootstrap_servers

    @property
    def brokers(self) -> tuple[int, ...]:
        """The node ids of those that serve clients."""
        return self.blocking.brokers

    @property
    def controllers(self) -> tuple[int, ...]:
        """The node ids of those that vote on the metadata."""
        return self.blocking.controllers

    async def start(self, node: int, *, wait: bool = True) -> None:
        """As `Cluster.start`."""
        await asyncio.to_thread(self.blocking.start, node, wait=wait)

    async def kill(self, node: int) -> None:
        """As `Cluster.kill`."""
        await asyncio.to_thread(self.blocking.kill, node)

    async def stop(self, node: int) -> None:
        """As `Cluster.stop`."""
        await asyncio.to_thread(self.blocking.stop, node)

    async def pause(self, node: int) -> None:
        """As `Cluster.pause`."""
        self.blocking.pause(node)

    async def resume(self, node: int) -> None:
        """As `Cluster.resume`."""
        self.blocking.resume(node)

    async def partition(self, some: Iterable[int], others: Iterable[int]) -> None:
        """As `Cluster.partition`."""
        await asyncio.to_thread(self.blocking.partition, some, others)

    async def heal(self) -> None:
        """As `Cluster.heal`."""
        await asyncio.to_thread(self.blocking.heal)

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - handed on
        """As `Cluster.wait_ready`."""
        await asyncio.to_thread(self.blocking.wait_ready, timeout)

    async def wait_in_sync(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - handed on
        """As `Cluster.wait_in_sync`."""
        await asyncio.to_thread(self.blocking.wait_in_sync, timeout)

    async def leader_of(self, topic: str, partition: int = 0, *, ask: int | None = None) -> int | None:
        """As `Cluster.leader_of`."""
        return await asyncio.to_thread(self.blocking.leader_of, topic, partition, ask=ask)

    async def coordinator_of(self, group: str) -> int | None:
        """As `Cluster.coordinator_of`."""
        return await asyncio.to_thread(self.blocking.coordinator_of, group)

    async def quorum_leader(self) -> int | None:
        """As `Cluster.quorum_leader`."""
        return await asyncio.to_thread(self.blocking.quorum_leader)

    def logs(self, node: int) -> str:
        """As `Cluster.logs`."""
        return self.blocking.logs(node)
