"""An operator's work after a fault, as the documentation describes it, with `kraftpy.client.Admin`.

* A copy of a partition with a damaged byte is thrown away and fetched again, as `kraftpy topic refetch` does.
* A node whose journal is damaged does not start. Its vote is taken away, the journal deleted, the node started, and its
  vote given back when it has caught up. The same for a node with an empty disk.

A node that cannot be mended within a minute of virtual time, although all else is whole, is a problem of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from chaos.worlds.simulated import CONTROLLER_PORT, NodeClock, SimulatedCluster, SimulatedRuntime
from kraftpy.client import Admin
from kraftpy.client.admin.model import QuorumEndpoint
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker

logger = logging.getLogger(__name__)

_ASK_SECONDS: Final = 20.0
_MEND_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.2


class Operator:
    """Looks after a cluster. `problems` lists what could not be done."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.damaged_copies: list[tuple[int, TopicPartition]] = []
        self.damaged_journals: set[int] = set()
        self.without_vote: set[int] = set()
        self.comes_as_new: set[int] = set()
        """Nodes whose journal is gone; each regains its vote as soon as it has caught up."""
        self.problems: list[str] = []

    async def ask(self, what: Callable[[Admin], Coroutine[Any, Any, Any]]) -> bool:
        """Return True if the cluster did it; a request that is refused, or not answered in time, counts as not done."""
        loop = self._cluster.loop
        runtime = SimulatedRuntime(NodeClock(loop), loop)
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_ASK_SECONDS):
                async with Admin(bootstrap_servers=self._cluster.bootstrap_servers, runtime=runtime) as admin:
                    await what(admin)
                    return True
        return False

    def newest(self) -> Broker | None:
        """Return the broker that knows most of the metadata."""
        ready = [node.broker for node in self._cluster.nodes.values() if node.is_ready and node.broker is not None]
        return max(ready, key=lambda broker: broker.metadata.applied_index, default=None)

    async def _until(self, is_so: Callable[[], bool], seconds: float = _MEND_SECONDS) -> bool:
        deadline = self._cluster.loop.time() + seconds
        while not is_so():
            if self._cluster.loop.time() > deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def mend(self, node: int) -> None:
        """Mend all damage on the node's disk."""
        if node in self.damaged_journals:
            await self._mend_journal(node)
        if node in self.comes_as_new:
            await self.give_vote(node)
        for damaged in [each for each in self.damaged_copies if each[0] == node]:
            await self._refetch(*damaged)
            self.damaged_copies.remove(damaged)

    # --- votes ---

    async def voters(self) -> frozenset[int]:
        """Return the voters; empty if they cannot be found out."""
        found: set[int] = set()

        async def described(admin: Admin) -> None:
            found.update(voter.node_id for voter in (await admin.describe_quorum()).voters)

        await self.ask(described)
        return frozenset(found)

    async def take_vote(self, node: int, *, seconds: float = _ASK_SECONDS) -> bool:
        """Return True if the node certainly has no vote. While it leads, removal is refused, so the change may take
        that long."""
        if node not in self._cluster.voters:
            return True
        self.without_vote.add(node)

        async def removed(admin: Admin) -> None:
            await self._until(lambda: self._leads_elsewhere(node), seconds)
            with contextlib.suppress(KafkaError):
                await admin.remove_raft_voter(node)
            if any(voter.node_id == node for voter in (await admin.describe_quorum()).voters):
                raise TimeoutError

        is_taken = await self.ask(removed)
        logger.info("node %d %s", node, "votes no more" if is_taken else "may vote or not")
        return is_taken

    def _leads_elsewhere(self, node: int) -> bool:
        broker = self.newest()
        return broker is not None and broker.metadata.leader_id not in (None, node)

    async def give_vote(self, node: int, *, is_last: bool = False) -> None:
        """Restore its vote once it has caught up; if that takes too long, it is tried again at the end."""
        if node not in self.without_vote:
            return
        endpoint = QuorumEndpoint(listener="CONTROLLER", host=f"node{node}", port=CONTROLLER_PORT)

        async def added(admin: Admin) -> None:
            with contextlib.suppress(KafkaError):
                await admin.add_raft_voter(node, [endpoint])
            if all(voter.node_id != node for voter in (await admin.describe_quorum()).voters):
                raise TimeoutError

        deadline = self._cluster.loop.time() + _MEND_SECONDS
        while not await self.ask(added):
            if self._cluster.loop.time() > deadline:
                if is_last:
                    self.problems.append(f"node {node} does not get its vote back")
                return
            await asyncio.sleep(1.0)
        self.without_vote.discard(node)
        self.comes_as_new.discard(node)
        logger.info("node %d votes again", node)

    async def _mend_journal(self, node: int) -> None:
        """Start it once more: it refuses, unless the damaged part of the journal was dropped meanwhile."""
        it = self._cluster.nodes[node]
        self.damaged_journals.discard(node)
        if it.is_running and it.is_ready:
            it.kill()
            it.start()
        await self._until(lambda: it.is_ready or not it.is_running)
        if it.is_running:
            return
        if not await self.take_vote(node):
            self.damaged_journals.add(node)  # tried again when all is healed
            return
        self.comes_as_new.add(node)
        it.disk.root.child("data").delete("metadata")
        it.start()

    # --- copies ---

    async def _refetch(self, node: int, key: TopicPartition) -> None:
        """Move the partition to the other replicas alone, and then back to this node too."""
        it = self._cluster.nodes[node]
        name = f"the damaged copy of {key} on node {node}"
        if not await self._until(lambda: it.is_ready):
            self.problems.append(f"{name}: it is not ready")
            return
        before = self._replicas(key)
        if node not in before:
            return  # moved or deleted meanwhile, and the copy with it
        others = [replica for replica in before if replica != node]
        for replicas, is_so in ((others, self._is_gone), (before, self._is_back)):
            if not await self._moved(key, replicas, lambda is_so=is_so: is_so(node, key)):  # type: ignore[misc]
                self.problems.append(f"{name}: not moved to {replicas}, it is on {self._replicas(key)}")
                return
        logger.info("%s was fetched anew", name)

    async def _moved(self, key: TopicPartition, replicas: list[int], is_so: Callable[[], bool]) -> bool:
        for _ in range(3):
            await self.ask(lambda admin: admin.alter_partition_reassignments({key: replicas}))
            if await self._until(lambda: is_so() or not self._replicas(key), _MEND_SECONDS / 3):
                return True
        return False

    def _replicas(self, key: TopicPartition) -> list[int]:
        broker = self.newest()
        partition = None if broker is None else broker.image.partition(*key)
        return [] if partition is None else [int(replica) for replica in partition.target_replicas]

    def _is_gone(self, node: int, key: TopicPartition) -> bool:
        broker, its = self.newest(), self._cluster.nodes[node].broker
        partition = None if broker is None else broker.image.partition(*key)
        return partition is not None and node not in partition.replicas and _holds_no_more(its, key)

    def _is_back(self, node: int, key: TopicPartition) -> bool:
        broker = self.newest()
        partition = None if broker is None else broker.image.partition(*key)
        return partition is not None and node in partition.isr


def _holds_no_more(broker: Broker | None, key: TopicPartition) -> bool:
    return broker is not None and all(replica.topic_partition != key for replica in broker.replicas)


def partition_named(name: str) -> TopicPartition:
    """Return the partition that `orders-3` means."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))
