"""One node of the quorum on a disk in memory, and some of them joined by hand: the shell's loop, as tests need it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgpack

from kraftpy.metadata.journal import Journal, Snapshot
from kraftpy.metadata.quorum import Message, Quorum
from kraftpy.metadata.raft.state import BATCH_BYTES
from kraftpy.testing.memory_files import Loss, MemoryDisk

THREE = {1: "one:9093", 2: "two:9093", 3: "three:9093"}


class ListMachine:
    """A state machine that keeps every command, in order."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.places: list[tuple[int, int]] = []

    def apply(self, index: int, term: int, data: bytes) -> None:
        self.commands.append(data)
        self.places.append((index, term))

    def snapshot(self) -> bytes:
        packed: bytes = msgpack.packb(self.commands)
        return packed

    def capture(self) -> Callable[[], bytes]:
        data = self.snapshot()
        return lambda: data

    def decode(self, data: bytes) -> Callable[[], None]:
        ListMachine().restore(data)
        return lambda: self.restore(data)

    def restore(self, data: bytes) -> None:
        commands = msgpack.unpackb(data)
        if not isinstance(commands, list):
            raise ValueError("not a list of commands")
        self.commands = commands
        self.places = []


class Node:
    """A node that is up: its disk, journal, machine and quorum."""

    def __init__(
        self,
        node_id: int,
        voters: Mapping[int, str] = THREE,
        *,
        disk: MemoryDisk | None = None,
        now_ms: int = 1000,
        batch_bytes: int = BATCH_BYTES,
        snapshot_after_entries: int = 10_000,
        snapshot_after_bytes: int = 20 << 20,
        machine: ListMachine | None = None,
    ) -> None:
        self.id = node_id
        self.disk = disk or MemoryDisk()
        self.journal = Journal(self.disk.root)
        loaded = self.journal.load()
        self.machine = machine or ListMachine()
        self.quorum = Quorum(
            node_id=node_id,
            voters=voters,
            journal=self.journal,
            loaded=loaded,
            machine=self.machine,
            rng=random.Random(node_id),
            now_ms=now_ms,
            snapshot_after_entries=snapshot_after_entries,
            snapshot_after_bytes=snapshot_after_bytes,
            batch_bytes=batch_bytes,
        )

    def sync(self) -> None:
        if self.quorum.needs_sync:
            self.quorum.synced(self.journal.sync())

    def save_snapshots(self) -> None:
        self.work_on_snapshots()
        received = self.quorum.received_snapshot
        if received is not None:
            self.journal.save_snapshot(received.index, received.term, received.data)
            self.quorum.snapshot_installed()
        if self.quorum.snapshot_due:
            captured = self.quorum.begin_snapshot()
            self.journal.save_snapshot(captured.index, captured.term, captured.encode())
            self.quorum.snapshot_saved(captured.index)

    def work_on_snapshots(self) -> None:
        """Do the work of the shell's thread: decode and encode."""
        if (decode := self.quorum.snapshot_to_decode) is not None:
            outcome: Callable[[], None] | Exception
            try:
                outcome = decode()
            except Exception as error:
                outcome = error
            self.quorum.snapshot_decoded(outcome)
        if self.quorum.snapshot_wanted:
            captured = self.quorum.capture_snapshot()
            self.quorum.snapshot_encoded(Snapshot(index=captured.index, term=captured.term, data=captured.encode()))

    def messages(self) -> list[Message]:
        """Return the messages that may leave now, when everything is synced."""
        taken = self.quorum.take_messages()
        self.work_on_snapshots()
        self.sync()
        return taken + self.quorum.take_messages()


class Cluster:
    """Nodes that hear each other in order and at once, unless they are cut off; time passes by hand."""

    def __init__(
        self,
        voters: Mapping[int, str] = THREE,
        *,
        batch_bytes: int = BATCH_BYTES,
        snapshot_after_entries: int = 10_000,
    ) -> None:
        self.now_ms = 1000
        self.voters = voters
        self.batch_bytes = batch_bytes
        self.snapshot_after_entries = snapshot_after_entries
        self.disks: dict[int, MemoryDisk] = {}
        self.nodes: dict[int, Node] = {}
        self.links: set[frozenset[int]] = set()
        self.cut: set[frozenset[int]] = set()
        for node_id in sorted(voters):
            self.start(node_id)

    def start(self, node_id: int, voters: Mapping[int, str] | None = None) -> Node:
        self.nodes[node_id] = Node(
            node_id,
            self.voters if voters is None else voters,
            disk=self.disks.setdefault(node_id, MemoryDisk()),
            now_ms=self.now_ms,
            batch_bytes=self.batch_bytes,
            snapshot_after_entries=self.snapshot_after_entries,
        )
        self.join()
        return self.nodes[node_id]

    def join(self) -> None:
        """Connect to each node that is up and not cut off."""
        for first in sorted(self.nodes):
            for second in sorted(self.nodes):
                link = frozenset((first, second))
                if first < second and link not in self.links | self.cut:
                    self.links.add(link)
                    self.nodes[first].quorum.connected(second, self.now_ms)
                    self.nodes[second].quorum.connected(first, self.now_ms)

    def part(self, first: int, second: int) -> None:
        """Cut a link, and keep it cut."""
        self.cut.add(frozenset((first, second)))
        self._break(first, second)

    def isolate(self, node_id: int) -> None:
        for other in sorted(self.nodes.keys() - {node_id}):
            self.part(node_id, other)

    def heal(self) -> None:
        self.cut.clear()
        self.join()

    def _break(self, first: int, second: int) -> None:
        if frozenset((first, second)) in self.links:
            self.links.discard(frozenset((first, second)))
            for one, other in ((first, second), (second, first)):
                if one in self.nodes:
                    self.nodes[one].quorum.disconnected(other, self.now_ms)

    def kill(self, node_id: int, loss: Loss = Loss.NOTHING) -> None:
        del self.nodes[node_id]
        self.disks[node_id].crash(random.Random(self.now_ms), loss)
        for other in sorted(self.nodes):
            self._break(node_id, other)

    def step(self, milliseconds: int = 5) -> None:
        self.now_ms += milliseconds
        for node_id in sorted(self.nodes):
            node = self.nodes[node_id]
            node.quorum.tick(self.now_ms)
            for message in node.messages():
                if message.peer in self.nodes and frozenset((node_id, message.peer)) in self.links:
                    self.nodes[message.peer].quorum.receive(node_id, message.body, self.now_ms)
            node.save_snapshots()

    def run(self, milliseconds: int) -> None:
        end = self.now_ms + milliseconds
        while self.now_ms < end:
            self.step()

    def leaders(self) -> list[Node]:
        return [self.nodes[node_id] for node_id in sorted(self.nodes) if self.nodes[node_id].quorum.is_leader]

    def leader(self, within_ms: int = 5000) -> Node:
        """The active leader that a majority follows."""
        end = self.now_ms + within_ms
        while self.now_ms < end:
            for node in self.leaders():
                follow = [other for other in self.nodes.values() if other.quorum.leader_id == node.id]
                if node.quorum.is_active and 2 * len(follow) > len(node.quorum.voters):
                    return node
            self.step()
        raise AssertionError(f"no leader within {within_ms} ms")

    def settle(self, within_ms: int = 10_000) -> Node:
        """Until every node has applied all that the leader has."""
        end = self.now_ms + within_ms
        leader = self.leader(within_ms)
        while self.now_ms < end:
            leader = self.leader(within_ms)
            last = leader.quorum.last_index
            if all(node.quorum.applied_index == last for node in self.nodes.values()):
                return leader
            self.step()
        applied = {node.id: node.quorum.applied_index for node in self.nodes.values()}
        raise AssertionError(f"not settled: {applied} of {leader.quorum.last_index}")
