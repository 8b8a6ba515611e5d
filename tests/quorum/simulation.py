"""A deterministic simulation of the quorum, ours and the stock library's, under faults; `make sim` runs many seeds.

One process, one clock that is moved by hand, one random number generator: a seed is a run. Nodes are killed and
started, paused, cut off from each other; links break and come back, and messages on an old connection may arrive
after the new one is up; sends are slow, batches and snapshots small; with ours, disks lose what was not synced, tear
the last write, and take their time, and voters are added and removed. After the chaos everything is repaired, and has
to converge.

The oracle. Every node applies a prefix of one sequence of commands, none twice, also after snapshots; no
term has two leaders; a command that was acknowledged (applied on the leader that took it, in the term it was taken) is
on every node in the end. Counted apart: SAFETY (the oracle was broken), FAILSTOP (a node stopped itself), LIVENESS (not
converged in the healing window). A run of ours that has not converged gets ten times the window: it is explained if it
converges then, and a failure if not.

The stock library has a perfect disk here and its voters do not change: its violations need neither.

One file because the simulated world, the two kinds of node in it and the command that runs them are read together.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import pickle
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgpack
from many_changes import many_changes
from stock_library import kept_journal, load_stock

from kraftpy.metadata.journal import Journal, JournalError, Snapshot
from kraftpy.metadata.quorum import BadMessageError, Message, Quorum, QuorumStoppedError
from kraftpy.metadata.voters import VoterSet
from kraftpy.testing.memory_files import Loss, MemoryDisk

STEPS = 1500
HEALING_STEPS = 2500
FIRST_PORT = 9000


MOST_QUEUED = 3_000
"""Messages on one link: more is a storm, which never ends."""


class SafetyError(Exception):
    """The oracle was broken: something happened that must never happen."""


class StormError(Exception):
    """More is sent than can be delivered."""


class Outcome(NamedTuple):
    """The outcome of one run."""

    seed: int
    failures: tuple[str, ...]
    acknowledged: int
    was_late: bool
    """Converged, but only in the longer window."""


class SimulatedNode(Protocol):
    """A node that is up, ours or stock."""

    applied: list[bytes]

    def turn(self) -> None: ...
    def connected(self, peer: int) -> None: ...
    def disconnected(self, peer: int) -> None: ...
    def receive(self, peer: int, body: Any) -> None: ...
    def submit(self, command: bytes) -> None: ...
    def change_voters(self) -> None: ...
    def kill(self) -> None: ...
    def applied_index(self) -> int: ...
    def leads_term(self) -> int | None: ...
    def is_settled(self) -> bool: ...


class World:
    """The nodes, what is between them, and what befalls them."""

    def __init__(self, seed: int, kind: type[OurNode] | type[StockNode], *, size: int = 3, directory: str = "") -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.directory = directory
        self.kind = kind
        self.now_ms = 1_000_000
        self.snapshot_after = self.random.choice([12, 40, 10**9])
        self.changes_voters = self.may_change_voters()
        self.voters = list(range(1, size + 1))
        self.ids = [*self.voters, *range(size + 1, size + 3)] if self.changes_voters else self.voters
        self.is_calm = False
        self.nodes: dict[int, SimulatedNode] = {}
        self.disks: dict[int, Any] = {}
        self.paused: dict[int, int] = {}
        self.links: set[tuple[int, int]] = set()
        self.cut: set[tuple[int, int]] = set()
        self.queues: dict[tuple[int, int], collections.deque[Any]] = {
            (first, second): collections.deque() for first, second in itertools.permutations(self.ids, 2)
        }
        self.late: list[tuple[int, int, Any]] = []  # of connections that are gone
        self.sequence: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.leaders: dict[int, int] = {}
        self.number = 0
        self.broken: str | None = None
        self.errors: collections.Counter[str] = collections.Counter()
        for node_id in self.ids:
            self.start(node_id)

    def may_change_voters(self) -> bool:
        return self.kind is OurNode and self.random.random() < 0.5

    # -- what nodes report

    def on_applied(self, node: SimulatedNode) -> None:
        """A node has one more command: it is the one that was there for all others."""
        place = len(node.applied) - 1
        if place == len(self.sequence):
            if node.applied[-1] in self.sequence[-200:]:
                self.broke(f"SAFETY-TWICE {node.applied[-1]!r}")
            self.sequence.append(node.applied[-1])
        elif place > len(self.sequence) or self.sequence[place] != node.applied[-1]:
            self.broke(f"SAFETY-APPLY command {place} is {node.applied[-1]!r} here")

    def on_restored(self, applied: list[bytes]) -> None:
        if applied != self.sequence[: len(applied)]:
            self.broke("SAFETY-SNAPSHOT a snapshot is of no state that there was")

    def broke(self, what: str) -> None:
        """Note the violation and raise it; the note stays even if the node handles the exception."""
        self.broken = self.broken or what
        raise SafetyError(what)

    def send(self, sender: int, receiver: int, body: Any) -> bool:
        if not self.is_linked(sender, receiver):
            return False
        if not self.is_calm and self.random.random() < 0.02:
            self.now_ms += self.random.randrange(80)  # a slow send
        self.queues[sender, receiver].append(body)
        if len(self.queues[sender, receiver]) > MOST_QUEUED:
            raise StormError
        return True

    # -- nodes and links

    def is_linked(self, first: int, second: int) -> bool:
        return (min(first, second), max(first, second)) in self.links

    def start(self, node_id: int) -> None:
        self.nodes[node_id] = self.kind(self, node_id)

    def link(self, first: int, second: int) -> None:
        self.links.add((first, second))
        self.nodes[first].connected(second)
        self.nodes[second].connected(first)

    def unlink(self, first: int, second: int) -> None:
        self.links.discard((first, second))
        for one, other in ((first, second), (second, first)):
            for body in self.queues[one, other]:
                if self.random.random() < 0.3:
                    self.late.append((one, other, body))
            self.queues[one, other].clear()
            if one in self.nodes:
                self.nodes[one].disconnected(other)

    def kill(self, node_id: int) -> None:
        for other in self.ids:
            if other != node_id and self.is_linked(node_id, other):
                for _ in range(self.random.randint(0, len(self.queues[node_id, other]))):  # the kernel still had these
                    self.deliver(node_id, other)
        node = self.nodes.pop(node_id)
        node.kill()
        for other in self.ids:
            if other != node_id and self.is_linked(node_id, other):
                self.unlink(min(node_id, other), max(node_id, other))

    def deliver(self, sender: int, receiver: int) -> None:
        queue = self.queues[sender, receiver]
        if queue and receiver in self.nodes:
            self.nodes[receiver].receive(sender, queue.popleft())

    # -- time

    def step(self) -> None:
        if self.broken:
            raise SafetyError(self.broken)
        chance = self.random
        self.now_ms += chance.choice((5, 20, 50))
        for node_id in list(self.nodes):
            if self.paused.get(node_id, 0) > self.now_ms and not self.is_calm:
                continue
            if chance.random() < 0.85:
                self.turn(node_id)
        for (sender, receiver), queue in self.queues.items():
            if queue and (self.is_calm or self.paused.get(receiver, 0) <= self.now_ms):
                for _ in range(chance.randint(0, 4)):
                    self.deliver(sender, receiver)
        if self.late and chance.random() < 0.3:
            sender, receiver, body = self.late.pop(chance.randrange(len(self.late)))
            if receiver in self.nodes:
                self.nodes[receiver].receive(sender, body)
        if not self.is_calm:
            self.chaos()
        for first, second in itertools.combinations(self.ids, 2):
            is_down = (first, second) not in self.links and first in self.nodes and second in self.nodes
            if is_down and (self.is_calm or ((first, second) not in self.cut and chance.random() < 0.05)):
                self.link(first, second)

    def turn(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.turn()
        term = node.leads_term()
        if term is not None and self.leaders.setdefault(term, node_id) != node_id:
            raise SafetyError(f"SAFETY-LEADERS nodes {self.leaders[term]} and {node_id} both lead term {term}")

    def chaos(self) -> None:
        chance = self.random
        if self.nodes and chance.random() < 0.5:
            node = self.nodes[chance.choice(list(self.nodes))]
            for _ in range(chance.choice((1, 1, 4))):
                self.number += 1
                node.submit(b"%06d" % self.number + b"x" * 40)
        if self.nodes and chance.random() < 0.012:
            self.kill(chance.choice(list(self.nodes)))
        if len(self.nodes) < len(self.ids) and chance.random() < 0.03 * (len(self.ids) - len(self.nodes)):
            self.start(chance.choice([node_id for node_id in self.ids if node_id not in self.nodes]))
        if self.links and chance.random() < 0.02:
            self.unlink(*chance.choice(sorted(self.links)))
        if chance.random() < 0.004:
            self.cut = set(
                chance.sample(list(itertools.combinations(self.ids, 2)), chance.randint(0, len(self.ids) - 1))
            )
            for link in sorted(self.links & self.cut):
                self.unlink(*link)
        if chance.random() < 0.004:
            self.paused[chance.choice(self.ids)] = self.now_ms + chance.randrange(3000)
        if self.changes_voters and self.nodes and chance.random() < 0.02:
            self.nodes[chance.choice(list(self.nodes))].change_voters()

    # -- a run

    def run(self, steps: int, healing_steps: int) -> Outcome:
        try:
            for _ in range(steps):
                self.step()
            self.is_calm = True
            for node_id in self.ids:
                if node_id not in self.nodes:
                    self.start(node_id)
            was_late = False
            if not self.converges(healing_steps):
                was_late = True
                if self.kind is StockNode or not self.converges(10 * healing_steps):
                    failures = ["LIVENESS " + ", ".join(f"{n}: {self.nodes[n].applied_index()}" for n in self.ids)]
                    return Outcome(self.seed, (*failures, *self.compared()), len(self.acknowledged), was_late)
            return Outcome(self.seed, self.compared(), len(self.acknowledged), was_late)
        except SafetyError as error:
            return Outcome(self.seed, (str(error),), len(self.acknowledged), False)
        except StormError:
            return Outcome(self.seed, ("LIVENESS a storm of messages",), len(self.acknowledged), False)
        except (QuorumStoppedError, JournalError) as error:
            return Outcome(self.seed, (self.broken or f"FAILSTOP {error}",), len(self.acknowledged), False)

    def converges(self, steps: int) -> bool:
        for number in range(steps):
            self.step()
            if number > 100 and not any(self.queues.values()) and not self.late:
                applied = {node.applied_index() for node in self.nodes.values()}
                if len(applied) == 1 and any(node.is_settled() for node in self.nodes.values()):
                    return True
        return False

    def compared(self) -> tuple[str, ...]:
        found = []
        best = max(self.nodes.values(), key=lambda node: node.applied_index())
        for node in self.nodes.values():
            if node.applied != best.applied[: len(node.applied)]:
                found.append("SAFETY-PREFIX")
            if len(node.applied) != len(set(node.applied)):
                found.append("SAFETY-TWICE")
            if node.applied_index() == best.applied_index() and self.acknowledged - set(node.applied):
                found.append(f"SAFETY-LOST {len(self.acknowledged - set(node.applied))} acknowledged")
        return tuple(found)


# -- ours


class Machine:
    def __init__(self, world: World, node: OurNode) -> None:
        self.world = world
        self.node = node

    def apply(self, index: int, term: int, data: bytes) -> None:
        self.node.applied.append(data)
        self.world.on_applied(self.node)
        if self.node.proposed.pop((index, term), None) == data:
            self.world.acknowledged.add(data)

    def snapshot(self) -> bytes:
        packed: bytes = msgpack.packb(self.node.applied)
        return packed

    def capture(self) -> Callable[[], bytes]:
        data = self.snapshot()
        return lambda: data

    def decode(self, data: bytes) -> Callable[[], None]:
        return lambda: self.restore(data)

    def restore(self, data: bytes) -> None:
        restored = msgpack.unpackb(data)
        self.world.on_restored(restored)
        self.node.applied = restored


class OurNode:
    """Our quorum in the shell's loop, its disk work done in its own time."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.applied: list[bytes] = []
        self.proposed: dict[tuple[int, int], bytes] = {}
        self.disk: MemoryDisk = world.disks.setdefault(node_id, MemoryDisk())
        self.journal = Journal(self.disk.root)
        loaded = self.journal.load()
        self.held: list[Message] = []
        self.job: Iterator[None] | None = None
        self.job_ends_ms = 0
        voters, directory_id = self.identity()
        self.quorum = Quorum(
            node_id=node_id,
            voters=voters,
            directory_id=directory_id,
            journal=self.journal,
            loaded=loaded,
            machine=Machine(world, self),
            rng=world.random,
            now_ms=world.now_ms,
            election_timeout_ms=400,
            snapshot_after_entries=world.snapshot_after,
            batch_bytes=200,  # so small that there are many
            chunk_bytes=300,
        )

    def identity(self) -> tuple[VoterSet, bytes | None]:
        """The first voters, and the id of this node's directory if the quorum tells disks apart."""
        return VoterSet({voter: f"host:{FIRST_PORT + voter}" for voter in self.world.voters}), None

    def turn(self) -> None:
        self.quorum.tick(self.world.now_ms)
        self.work()

    def work(self) -> None:
        """The shell: send what may leave, and let the disk do one thing at a time."""
        for message in self.quorum.take_messages():
            if self.hold(message):
                self.held.append(message)
            else:
                self.send(message)
        if self.job is not None and self.world.now_ms >= self.job_ends_ms:
            next(self.job, None)
            self.job = None
        if self.job is None:
            job = self.next_job()
            if job is not None:
                next(job)
                self.job = job
                slow = self.world.random.random() < 0.1 and not self.world.is_calm
                self.job_ends_ms = self.world.now_ms + self.world.random.randrange(300 if slow else 10)
            elif not self.quorum.needs_sync:
                self.release(self.held)
                self.held = []

    def hold(self, message: Message) -> bool:
        return message.after_sync

    def next_job(self) -> Iterator[None] | None:
        quorum = self.quorum
        if quorum.snapshot_to_decode is not None:
            return self.decode()
        if quorum.snapshot_wanted:
            return self.encode()
        if quorum.received_snapshot is not None:
            return self.save_received()
        if quorum.snapshot_due:
            return self.save_own()
        return self.sync() if quorum.needs_sync else None

    def sync(self) -> Iterator[None]:
        """The disk is done at the beginning or at the end of the time that it takes: what is killed may have either."""
        held, self.held = self.held, []
        is_early = self.world.random.random() < 0.5
        durable = self.journal.sync() if is_early else None
        yield
        self.quorum.synced(self.journal.sync() if durable is None else durable)
        self.release(held)

    def decode(self) -> Iterator[None]:
        """A leader's snapshot is decoded while messages arrive."""
        decode = self.quorum.snapshot_to_decode
        assert decode is not None
        outcome = decode()
        yield
        self.quorum.snapshot_decoded(outcome)

    def encode(self) -> Iterator[None]:
        """A snapshot for followers is captured, and encoded while messages arrive."""
        captured = self.quorum.capture_snapshot()
        yield
        self.quorum.snapshot_encoded(Snapshot(index=captured.index, term=captured.term, data=captured.encode()))

    def save_own(self) -> Iterator[None]:
        captured = self.quorum.begin_snapshot()
        index, term, data = captured.index, captured.term, captured.encode()
        is_early = self.world.random.random() < 0.5
        if is_early:
            self.journal.save_snapshot(index, term, data)
        yield
        if not is_early:
            self.journal.save_snapshot(index, term, data)
        self.quorum.snapshot_saved(index)

    def save_received(self) -> Iterator[None]:
        received = self.quorum.received_snapshot
        assert received is not None
        is_early = self.world.random.random() < 0.5
        if is_early:
            self.journal.save_snapshot(received.index, received.term, received.data)
        yield
        if not is_early:
            self.journal.save_snapshot(received.index, received.term, received.data)
        self.quorum.snapshot_installed()

    def release(self, held: list[Message]) -> None:
        for message in held:
            self.send(message)

    def send(self, message: Message) -> None:
        self.world.send(self.id, message.peer, message.body)

    def connected(self, peer: int) -> None:
        self.quorum.connected(peer, self.world.now_ms)

    def disconnected(self, peer: int) -> None:
        self.held = [message for message in self.held if message.peer != peer]
        self.quorum.disconnected(peer, self.world.now_ms)

    def receive(self, peer: int, body: Any) -> None:
        try:
            self.quorum.receive(peer, msgpack.unpackb(msgpack.packb(body)), self.world.now_ms)
        except BadMessageError as error:
            raise SafetyError(f"SAFETY-MESSAGE {error}") from error
        if self.world.random.random() < 0.5:
            self.work()

    def submit(self, command: bytes) -> None:
        proposed = self.quorum.propose(command)
        if proposed is not None:
            self.proposed[proposed] = command
            if self.world.random.random() < 0.5:
                self.work()

    def change_voters(self) -> None:
        chance, voters = self.world.random, self.quorum.voters
        if chance.random() < 0.1:
            self.quorum.resign()
        elif chance.random() < 0.5 or len(voters) == 1:
            peer = chance.choice(self.world.ids)
            self.quorum.change_voter(add=(peer, f"host:{FIRST_PORT + peer}"))
        else:
            self.quorum.change_voter(remove=chance.choice(sorted(voters)))

    def kill(self) -> None:
        if self.job is not None:
            self.job.close()
        losses = [Loss.NOTHING, Loss.NOTHING, Loss.NOTHING, Loss.EVERYTHING, Loss.PREFIX, Loss.SECTORS]
        self.disk.crash(self.world.random, self.world.random.choice(losses))

    def applied_index(self) -> int:
        return self.quorum.applied_index

    def leads_term(self) -> int | None:
        return self.quorum.term if self.quorum.is_leader else None

    def is_settled(self) -> bool:
        return self.quorum.is_active and self.quorum.applied_index == self.quorum.last_index


# -- stock


_stock: Any = None


def stock_classes() -> tuple[Any, Any]:
    """The stock library and a replicated list on it."""
    global _stock
    if _stock is not None:
        return _stock  # type: ignore[no-any-return]
    library = load_stock()

    class Transport(library.Transport):  # type: ignore[misc, name-defined]
        def __init__(self, node: StockNode) -> None:
            super().__init__(None, None, ())
            self.node = node

        def send(self, node: Any, message: Any) -> bool:
            self.node.world.now_ms += self.node.world.random.random() < 0.2
            return self.node.world.send(self.node.id, node.id, pickle.dumps(message))

    class Replicated(library.SyncObj):  # type: ignore[misc, name-defined]
        def __init__(self, node: StockNode) -> None:
            world = node.world
            self.node = node
            configuration = library.SyncObjConf(
                autoTick=False, journalFile=str(node.id), fullDumpFile=f"{world.directory}/{node.id}.dump",
                useFork=False, appendEntriesBatchSizeBytes=200, logCompactionMinEntries=world.snapshot_after,
                logCompactionMinTime=10**9, leaderFallbackTimeout=2.0,
                appendEntriesUseBatch=world.random.random() < 0.5, logCompactionBatchSize=300, commandsWaitLeader=False,
            )  # fmt: skip
            others = [library.Node(other) for other in world.ids if other != node.id]
            super().__init__(library.Node(node.id), others, configuration, transport=Transport(node))
            self.applied: list[bytes] = []

        @library.replicated  # type: ignore[misc]
        def add(self, command: bytes) -> None:
            self.applied.append(command)
            self.node.applied = self.applied
            self.node.world.on_applied(self.node)

    _stock = (library, Replicated)
    return _stock


class StockNode:
    """The library as published, with the in-memory transport."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.library, replicated = stock_classes()
        self.library.monotonicTime = lambda: world.now_ms / 1000
        self.library.random = world.random
        self.library.createJournal = lambda name: world.disks.setdefault(int(name), kept_journal())
        self.applied: list[bytes] = []
        self.raft = replicated(self)

    def call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except (SafetyError, StormError):
            raise
        except Exception as error:
            self.world.errors[repr(error)[:60]] += 1
        self.applied = self.raft.applied  # a dump replaces the list

    def turn(self) -> None:
        self.call(self.raft.doTick, 0.0)

    def connected(self, peer: int) -> None:
        self.call(self.raft._SyncObj__onNodeConnected, self.library.Node(peer))

    def disconnected(self, peer: int) -> None:
        self.call(self.raft._SyncObj__onNodeDisconnected, self.library.Node(peer))

    def receive(self, peer: int, body: Any) -> None:
        self.call(self.raft._SyncObj__onMessageReceived, self.library.Node(peer), pickle.loads(body))

    def submit(self, command: bytes) -> None:
        def told(_: object, error: int) -> None:
            if error == self.library.FAIL_REASON.SUCCESS:
                self.world.acknowledged.add(command)

        self.raft.add(command, callback=told)

    def change_voters(self) -> None: ...

    def kill(self) -> None:
        unfinished = self.raft._SyncObj__serializer._Serializer__incomingTransmissionFile
        if unfinished is not None:
            unfinished.close()

    def applied_index(self) -> int:
        return int(self.raft.raftLastApplied)

    def leads_term(self) -> int | None:
        return int(self.raft.raftCurrentTerm) if self.raft._isLeader() else None

    def is_settled(self) -> bool:
        return bool(self.raft._isLeader())


# -- many


def run_seed(
    kind: str, seed: int, *, steps: int = STEPS, healing_steps: int = HEALING_STEPS, node: type[Any] | None = None
) -> Outcome:
    """One run. `kind` is `ours` or `stock`; every fourth seed has five nodes."""
    directory = tempfile.mkdtemp(prefix="quorum-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        node = node or (OurNode if kind == "ours" else StockNode)
        world = World(seed, node, size=5 if seed % 4 == 3 else 3, directory=directory)
        outcome = world.run(steps, healing_steps if node is not StockNode else min(healing_steps, 600))
        for each in world.nodes.values():
            each.kill()
        return outcome
    finally:
        shutil.rmtree(directory, ignore_errors=True)


MOST_BYTES = 2 << 30
"""The most memory of a process that runs seeds. If the stock library has put parts of two snapshots into one file, the
unpickled object may ask for any amount: 12 GB in seed 50. The allocation is refused, as on a machine without more
memory, and the run continues."""


def _limit_memory() -> None:
    """Limit the memory of this process to `MOST_BYTES`; the hard limit stays."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, most))


def _job(job: tuple[str, int, int]) -> tuple[str, Outcome]:
    kind, seed, steps = job
    return kind, run_seed(kind, seed, steps=steps)


def kind_of(failure: str) -> str:
    return failure.split("-")[0].split(" ")[0]


def main() -> int:
    """Run seeds of both, with a line that moves and a summary; 1 where ours failed or the stock library did not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--ours", type=int, default=1000)
    parser.add_argument("--stock", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--changes", type=int, default=0, help="then make so many metadata changes on a real disk")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.first, options.first + max(options.ours, options.stock))
    jobs = [
        (kind, seed, options.steps)
        for seed in seeds
        for kind, count in (("ours", options.ours), ("stock", options.stock))
        if seed - options.first < count
    ]
    began = time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    counts: dict[str, collections.Counter[str]] = {"ours": collections.Counter(), "stock": collections.Counter()}
    examples: list[str] = []
    with multiprocessing.Pool(options.processes, initializer=_limit_memory) as pool:
        for kind, outcome in pool.imap_unordered(_job, jobs):
            done[kind] += 1
            counts[kind]["acknowledged"] += outcome.acknowledged
            for what in {kind_of(failure) for failure in outcome.failures}:
                counts[kind][what] += 1
            counts[kind]["clean"] += not outcome.failures
            counts[kind]["late"] += outcome.was_late and not any(kind_of(f) == "LIVENESS" for f in outcome.failures)
            if outcome.failures and kind == "ours":
                examples.append(f"seed {outcome.seed}: {'; '.join(outcome.failures)[:300]}")
                print(f"\r{examples[-1]}", flush=True)
            if sys.stderr.isatty() or sum(done.values()) % 50 == 0:
                spent = time.monotonic() - began
                unsafe = {name: counts[name]["SAFETY"] for name in counts}
                print(f"\r{spent:6.0f} s, runs {dict(done)}, unsafe {unsafe}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for kind, count in counts.items():
        print(
            f"{kind}: {done[kind]} seeds, {count['acknowledged']} commands acknowledged, {count['clean']} clean, "
            f"{count['SAFETY']} unsafe, {count['FAILSTOP']} fail-stopped, {count['LIVENESS']} never converged, "
            f"{count['late']} converged only in ten times the window"
        )
    ours, stock = counts["ours"], counts["stock"]
    is_good = ours["clean"] == done["ours"] and (stock["SAFETY"] > 0 or not done["stock"])
    print(f"{time.monotonic() - began:.0f} s; {'as it must be' if is_good else 'NOT as it must be'}")
    if options.changes:
        with tempfile.TemporaryDirectory(prefix="quorum-") as directory:
            made = many_changes(Path(directory), options.changes)
        is_good = is_good and made.changes_after_restart == options.changes
        print(
            f"{options.changes} changes in {made.seconds:.0f} s: the directory had at most "
            f"{made.largest_bytes >> 10} KiB, a restart took {made.restart_seconds * 1000:.0f} ms"
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
