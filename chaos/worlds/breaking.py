"""The `World` of a simulated cluster: the faults that `chaos.nemesis` can inject, and their repair.

Metadata changes are requested as an administrator would; a change that is refused or not answered in time counts as no
fault. The world also does an operator's work after a fault (`mending`), as the documentation says.

A fault that no design could survive is skipped (`nemesis.FaultSkipped`, noted in the history): any loss is a bug.

* Losing unsynced records, a byte of a log, or a disk: only while every node runs and another replica of each of the
  node's partitions is known to have everything, in sync or eligible to lead (KIP-966).
  docs/explanation/durability.md promises no more: the copies that acks=all asked for, less one.
  If acknowledged records were synced before, a power loss is never skipped.
* SIGKILL of a node is skipped while the controller still counts on another node that has lost data: it has neither
  fenced nor re-registered it. The controller takes any such end for a loss, and two are one more than
  `min.insync.replicas` = 2 survives: chance decides which of the two it takes out first, and so who leads in the end.
* A sync that fails loses what it should have made durable. The machine is rebooted before the node starts again
  (docs/how-to/disks.md), so it counts as such a loss.
* A voter's disk, and a byte of its journal: only while all voters run, and two others are left to agree that it votes
  no more. An empty voter would vote again in terms it has voted in, and for logs that lack what it had agreed to; Raft
  has no answer to that. So its vote is taken away first and given back when it has caught up, as for a new node.
* A byte at the journal's end is not changed: if nothing says that the last record was synced, a damaged one is taken
  for a record that was being written, and is truncated (`metadata/journal.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from chaos.generator import TOPIC_PREFIX
from chaos.nemesis import ClusterState, Cut, FaultSkipped, Kind, NodeId
from chaos.worlds.mending import Operator, partition_named
from chaos.worlds.simulated import THREAD_SECONDS, Node, SimulatedCluster
from kraftpy.client import NewTopic
from kraftpy.groups.routing import partition_for_group
from kraftpy.testing.memory_files import Loss, MemoryDirectory
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
_STOP_SECONDS: Final = 120.0
_LOSSES: Final = (Loss.PREFIX, Loss.SECTORS, Loss.EVERYTHING, Loss.REORDERED)
_JOURNAL_BYTES: Final = 2048
"""A shorter journal has no first half worth the name."""
_FILES_THAT_SYNC: Final = ("journal", ".log", "")
_FULL, _FAILED, _DAMAGED = "No space left on device", "Input/output error", "cannot be trusted"
_ALONE: Final = frozenset(
    {
        Kind.PARTITION,
        Kind.CORRUPTION,
        Kind.LOSE_DISK,
        Kind.REMOVE_VOTER,
        Kind.MOVE_LEADER,
        Kind.REASSIGN,
        Kind.SLOW,
        Kind.LOSSY,
    }
)
"""Kinds that need more than one node."""


class SimulatedWorld:
    """Breaks and mends. `coordinated` are groups and transactional ids whose coordinators a target may name, each with
    the topic that its coordinator leads a partition of."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        chance: Random,
        *,
        is_synced: bool = False,
        coordinated: Mapping[str, str] = MappingProxyType({"g": GROUPS}),
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._is_synced = is_synced
        self._coordinated = coordinated
        self._cuts: dict[Cut, int] = {}  # how many faults cut this link
        self._sync_failed: set[NodeId] = set()
        self._lost_by: dict[NodeId, tuple[int, int]] = {}
        """Nodes that lost data, or are about to, with their registration's epoch and the newest entry known then."""
        self.operator = Operator(cluster)
        self.abilities: frozenset[Kind] = frozenset(Kind) - {Kind.SEVERAL}
        if len(cluster.nodes) == 1:
            self.abilities -= _ALONE
            if not is_synced:
                self.abilities -= {Kind.LOSE_UNSYNCED, Kind.FSYNC_ERROR}

    def _node(self, node: NodeId) -> Node:
        return self._cluster.nodes[node]

    def _brokers(self) -> list[Broker]:
        return [node.broker for node in self._cluster.nodes.values() if node.is_ready and node.broker is not None]

    async def state(self) -> ClusterState:
        """Return what the ready nodes know, the best informed first, without the topics of the workload."""
        nodes = tuple(sorted(self._cluster.nodes))
        ready = self._brokers()
        if not ready:
            return ClusterState(nodes=nodes)
        broker = max(ready, key=lambda broker: broker.metadata.applied_index)
        leaders, replicas = {}, {}
        for topic, number, partition in broker.image.partitions():
            if topic.name.startswith(TOPIC_PREFIX):
                continue
            replicas[f"{topic.name}-{number}"] = tuple(map(int, partition.replicas))
            if partition.leader >= 0:
                leaders[f"{topic.name}-{number}"] = int(partition.leader)
        coordinators = {}
        for name, topic_name in self._coordinated.items():
            internal = broker.image.topic(topic_name)
            number = 0 if internal is None else partition_for_group(name, len(internal.partitions))
            if (key := f"{topic_name}-{number}") in leaders:
                coordinators[name] = leaders[key]
        leader = broker.metadata.leader_id
        return ClusterState(
            nodes=nodes, controller=leader, leaders=leaders, replicas=replicas, coordinators=coordinators
        )

    # --- processes ---

    async def kill(self, node: NodeId) -> None:
        """SIGKILL."""
        if self._node(node).is_running:
            self._spare_who_is_left(node)
            self._node(node).kill()

    async def stop(self, node: NodeId) -> None:
        """Send SIGTERM (and SIGCONT), and wait; a node that takes two minutes is killed, and the run notes it."""
        it = self._node(node)
        await self.resume(node)
        it.stop()
        deadline = self._cluster.loop.time() + _STOP_SECONDS
        while it.is_running:
            if self._cluster.loop.time() > deadline:
                it.exits.append("it did not stop when it was asked to")
                it.kill()
                return
            await asyncio.sleep(0.05)

    async def start(self, node: NodeId) -> None:
        """Start the node unless it runs, and mend damage on its disk."""
        it = self._node(node)
        if node in self._sync_failed:
            self._sync_failed.discard(node)
            it.disk.heal()
            if it.is_running:
                self._lost_by.pop(node, None)
            else:
                it.disk.crash(self._chance, self._chance.choice(_LOSSES))  # the machine is rebooted
        if not it.is_running:
            it.start()
        await self.operator.mend(node)

    async def pause(self, node: NodeId) -> None:
        """SIGSTOP."""
        process = self._node(node).process
        assert process is not None
        process.pause()

    async def resume(self, node: NodeId) -> None:
        """SIGCONT."""
        process = self._node(node).process
        assert process is not None
        process.resume()

    # --- the network ---

    def _hosts(self, link: Cut) -> tuple[str, str]:
        return self._node(link[0]).host, self._node(link[1]).host

    async def cut(self, links: Sequence[Cut]) -> None:
        """Hold back all bytes from the first of each pair to the second."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1
            self._cluster.network.cut(*self._hosts(link))

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""
        for link in links:
            self._cuts[link] -= 1
            if not self._cuts[link]:
                self._cluster.network.mend(*self._hosts(link))

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Make the node's links to the others slow and lossy."""
        host = self._node(node).host
        for other in self._cluster.nodes.values():
            if other.node_id != node:
                for link in ((host, other.host), (other.host, host)):
                    self._cluster.network.degrade(*link, delay_ms / 1000, jitter_ms / 1000, loss)

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Make the node's wall clock wrong by this much."""
        self._node(node).clock.offset_ms = skew_ms

    # --- disks ---

    def _spare_the_last_copy(self, node: NodeId) -> None:
        """Raise `FaultSkipped` unless another replica is known to have everything that this node has."""
        for other in self._cluster.nodes.values():
            if not other.is_ready or other.process is None or other.process.is_paused:
                raise FaultSkipped(f"{other.host} does not run")
        newest = max(self._brokers(), key=lambda broker: broker.metadata.applied_index)
        for topic, number, partition in newest.image.partitions():
            if node in partition.replicas and not {*partition.isr, *partition.eligible_leader_replicas} - {node}:
                raise FaultSkipped(f"nobody but node {node} is known to have all of {topic.name}-{number}")

    def _loses(self, node: NodeId) -> None:
        broker = self.operator.newest()
        registered = None if broker is None else broker.image.broker(BrokerId(node))
        if broker is not None and registered is not None:
            self._lost_by[node] = registered.broker_epoch, broker.metadata.applied_index

    def _spare_who_is_left(self, node: NodeId) -> None:
        """Raise `FaultSkipped` if the controller counts on another node that has lost data."""
        broker = self.operator.newest()
        for other, (epoch, known_at) in sorted(self._lost_by.items()):
            is_newer = broker is not None and broker.metadata.applied_index > known_at
            registered = broker.image.broker(BrokerId(other)) if broker is not None and is_newer else None
            if registered is not None and (registered.fenced or registered.broker_epoch != epoch):
                del self._lost_by[other]
            elif other != node:
                raise FaultSkipped(f"the controller does not know yet what node {other} has lost")

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Make the node's disk slow, or full: there may be room for a little more."""
        it = self._node(node)
        it.thread_seconds = max(THREAD_SECONDS, fsync_delay_ms / 1000)
        if full:
            it.disk.capacity_bytes = it.disk.used_bytes + self._chance.choice([0, 100, 4000])
            it.excuses.add(_FULL)
            return
        it.disk.capacity_bytes = None
        it.excuses.discard(_FULL)
        if not it.is_running and it.excused and _FULL in it.excused[-1]:
            it.start()

    async def lose_unsynced(self, node: NodeId) -> None:
        """Cut the machine's power."""
        if not self._is_synced:
            self._spare_the_last_copy(node)
            self._loses(node)
        if self._node(node).is_running:
            self._node(node).kill(self._chance.choice(_LOSSES))

    async def fail_fsync(self, node: NodeId) -> None:
        """Fail the next sync: of the journal, of a log, or of the first file to be synced."""
        if not self._is_synced:
            self._spare_the_last_copy(node)
            self._loses(node)
        it = self._node(node)
        it.excuses.add(_FAILED)
        it.disk.fail("sync", name=self._chance.choice(_FILES_THAT_SYNC))
        self._sync_failed.add(node)

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Flip bits of one byte of a log or of the journal."""
        self._spare_the_last_copy(node)
        chance = Random(seed)
        if of == "quorum journal":
            return await self._corrupt_journal(node, chance)
        it = self._node(node)
        found: list[tuple[str, str]] = []
        data = it.disk.root.child("data")
        for key in self._partitions_on(node):
            logs = [name for name in data.child(key).names() if name.endswith(".log")]
            chosen = logs[-1:] if of == "active segment" else logs[:-1]
            found += [(key, name) for name in chosen if data.child(key).open(name).size()]
        if not found:
            return False
        key, name = chance.choice(found)
        size = data.child(key).open(name).size()
        it.disk.damage(f"/data/{key}/{name}", chance.randrange(size), 1 << chance.randrange(8))
        self.operator.damaged_copies.append((node, partition_named(key)))
        return True

    def _partitions_on(self, node: NodeId) -> list[str]:
        broker = self._node(node).broker
        assert broker is not None
        held = [str(replica.topic_partition) for replica in broker.replicas] if broker.config.is_broker else []
        names = set(self._node(node).disk.root.child("data").names())
        return sorted(key for key in held if key in names)

    async def _corrupt_journal(self, node: NodeId, chance: Random) -> bool:
        await self._spare_a_vote(node)
        directory: MemoryDirectory = self._node(node).disk.root.child("data").child("metadata")
        if not directory.exists("journal"):
            return False
        size = directory.open("journal").size()
        if size < _JOURNAL_BYTES:
            return False
        self._node(node).disk.damage("/data/metadata/journal", chance.randrange(size // 2), 1 << chance.randrange(8))
        self._node(node).excuses.add(_DAMAGED)
        self.operator.damaged_journals.add(node)
        return True

    async def _spare_a_vote(self, node: NodeId) -> None:
        voters = await self.operator.voters()
        if len(voters - {node}) < 2:
            raise FaultSkipped(f"without node {node} there are too few voters: {sorted(voters)}")

    async def lose_disk(self, node: NodeId) -> None:
        """Destroy the machine, and replace it with a new one of the same name."""
        await self._spare_a_vote(node)
        self._spare_the_last_copy(node)
        await self.kill(node)
        self._loses(node)
        if not await self.operator.take_vote(node):
            self._lost_by.pop(node, None)
            raise FaultSkipped(f"the vote of node {node} could not be taken away")
        self._node(node).new_disk()
        self.operator.comes_as_new.add(node)

    # --- what administrators do ---

    async def set_voter(self, node: NodeId, voter: bool) -> None:
        """Take the node's vote away, or give it back."""
        if voter:
            await self.operator.give_vote(node)
        elif node in await self.operator.voters():
            await self.operator.take_vote(node, seconds=0.0)

    async def move_leader(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Reorder the replicas, and let the first of them lead."""
        await self.reassign(partition, seed, replicas)
        moved = {partition_named(partition)}
        await self.operator.ask(lambda admin: admin.elect_leaders(moved))

    async def reassign(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Give the partition other replicas: these, or at least two in another order."""
        chance = Random(seed)
        nodes = sorted(self._cluster.brokers)
        drawn = chance.sample(nodes, k=chance.randint(min(2, len(nodes)), min(3, len(nodes))))
        moves = {partition_named(partition): list(replicas) or drawn}
        await self.operator.ask(lambda admin: admin.alter_partition_reassignments(moves))

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic beside the workload's."""
        new = NewTopic(name=topic, num_partitions=partitions, replication_factor=min(3, len(self._cluster.brokers)))
        await self.operator.ask(lambda admin: admin.create_topics([new]))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic that `create_topic` made."""
        await self.operator.ask(lambda admin: admin.delete_topics([topic]))

    # --- the end ---

    async def heal_all(self) -> None:
        """Mend, resume, start and correct everything that is not healthy."""
        self._cuts.clear()
        self._cluster.network.heal()
        for number, node in self._cluster.nodes.items():
            if node.process is not None:
                node.process.resume()
            node.clock.offset_ms = 0.0
            await self.disk(number, full=False, fsync_delay_ms=0)
        for number in self._cluster.nodes:
            await self.start(number)
        for number in self._cluster.voters:
            await self.operator.give_vote(number, is_last=True)
        for node in self._cluster.nodes.values():
            node.excuses.clear()
