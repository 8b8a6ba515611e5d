"""Random faults from a seed while a test does its work: `with cluster.chaos(seed) as chaos:`.

    kill         nodes are killed, and started again
    pause        nodes are paused for a while
    partition    nodes are cut off from the other nodes, in one direction or in both
    clients      brokers are cut off from clients, in one direction or in both
    slow-disk    fsyncs of nodes take longer
    drop         requests of an API are dropped, or their answers
    delay        requests of an API take longer, or their answers
    move-leader  a partition's replicas are reordered, and the first of them becomes leader

`schedule` yields one fault after the other, each with the pause before it, from the seed and the cluster's shape alone.
Faults are carried out one at a time, after the cluster has recovered from the previous one: every node is ready and
every replica in sync. So at most `most_nodes` nodes are down or behind at once, by default a minority (of one broker or
two: one).

At the end of the block everything is healed, and the cluster is ready and in sync when it returns. `Chaos.log` says
what was done when. If the block ends with an exception, a note on it has the same, with the seed.

Nodes that the test itself has killed, stopped or paused are not killed or paused; the log says that they were spared.

Left out: faults that harm data, and overlapping faults. Faults by the test itself do not count towards the limit: with
one node of three down, killing another one stops the quorum until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.faults import Fault
from kraftpy.testing.server_process import BrokerDied

if TYPE_CHECKING:
    from kraftpy.testing.nodes import Cluster

KINDS = ("kill", "pause", "partition", "clients", "slow-disk", "drop", "delay", "move-leader")

_APIS = (
    *("Produce", "Fetch") * 3,  # most client requests are these
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "InitProducerId",
)
_CLIENTS = "clients"
_MANY_SEEDS = 1 << 32

Range = tuple[float, float]

RUNS: list[Chaos] = []
"""The runs of the current test, for the pytest plugin, which clears them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next fault, the seconds before it, and the seconds that it lasts."""

    pause: float
    kind: str
    lasts: float
    nodes: tuple[int, ...] = ()
    direction: str = "both"
    """The direction of a cut: both, what the nodes send ("out"), or what is sent to them ("in")."""
    api: str = ""
    response: bool = False
    number: int = 0
    """The number of requests, the number of the partition, or the delay in milliseconds."""

    def __str__(self) -> str:
        nodes = f"node{'' if len(self.nodes) == 1 else 's'} {', '.join(map(str, self.nodes))}"
        what = {
            "kill": f"kill {nodes}",
            "pause": f"pause {nodes}",
            "partition": f"cut off {nodes} from the other nodes ({self.direction})",
            "clients": f"cut off {nodes} from clients ({self.direction})",
            "slow-disk": f"fsyncs of {nodes} slower by {self.number} ms",
            "drop": f"drop {self.number} {self.api} {'answers' if self.response else 'requests'}",
            "delay": f"{self.api} {'answers' if self.response else 'requests'} slower by {self.number} ms",
            "move-leader": f"move the leader of partition number {self.number}",
        }[self.kind]
        return what if self.kind == "move-leader" else f"{what} for {self.lasts:.2f} s"


def schedule(
    seed: int,
    brokers: Sequence[int],
    controllers: Sequence[int],
    *,
    kinds: Sequence[str] = KINDS,
    most_nodes: int = 1,
    lasts: Range = (0.5, 3.0),
    pause: Range = (0.2, 1.0),
) -> Iterator[Step]:
    """Yield the faults of a seed, endlessly."""
    chance = random.Random(seed)
    every = sorted({*brokers, *controllers})
    while True:
        kind = chance.choice(kinds)
        nodes = sorted(brokers) if kind == "clients" else every
        number = {"slow-disk": chance.randint(20, 500), "delay": chance.randint(20, 1000)}.get(kind)
        yield Step(
            pause=round(chance.uniform(*pause), 3),
            kind=kind,
            lasts=round(chance.uniform(*lasts), 3),
            nodes=tuple(sorted(chance.sample(nodes, k=chance.randint(1, min(most_nodes, len(nodes)))))),
            direction=chance.choice(("both", "both", "in", "out")),
            api=chance.choice(_APIS),
            response=chance.random() < 0.5,
            number=number if number is not None else chance.randint(1, 8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """An entry of the log: something that was done."""

    at: float
    """Seconds since the block began."""
    what: str

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.what}"


class Chaos:
    """Faults in the background, for as long as its block lasts.

    `faults` is the maximum number of faults; `chaos.wait()` waits for all of them, `chaos.wait(3)` for three. `lasts`
    and `pause` are ranges: how many seconds a fault lasts, and how many pass before it. `settle` is how long the
    cluster may take to recover after each.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int | None = None,
        *,
        faults: int | None = None,
        kinds: Sequence[str] | None = None,
        most_nodes: int | None = None,
        lasts: Range = (0.5, 3.0),
        pause: Range = (0.2, 1.0),
        settle: float = 60.0,
    ) -> None:
        if unknown := sorted(set(kinds or ()) - set(KINDS)):
            raise ValueError(f"unknown kind of fault {unknown[0]!r}; expected one of {', '.join(KINDS)}")
        possible = [kind for kind in KINDS if cluster.can_partition or kind != "partition"]
        self.seed = random.SystemRandom().randrange(_MANY_SEEDS) if seed is None else seed
        """The seed that repeats this run."""
        self.log: list[LogEntry] = []
        """The log of what was done, in order."""
        minority = (min(len(cluster.brokers), len(cluster.controllers)) - 1) // 2
        self._steps = itertools.islice(
            schedule(
                self.seed,
                cluster.brokers,
                cluster.controllers,
                kinds=possible if kinds is None else list(kinds),
                most_nodes=max(1, minority) if most_nodes is None else most_nodes,
                lasts=lasts,
                pause=pause,
            ),
            faults,
        )
        self._cluster = cluster
        self._settle = settle
        self._began = 0.0
        self._over = 0
        """The number of faults that have begun and ended."""
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._is_done = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"chaos({self.seed})", daemon=True)

    # --- the block ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Chaos:
        RUNS.append(self)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        failure = self._failure
        if failure is None:
            try:
                self._recover()
            except BrokerDied as lasting:
                failure = lasting
        if error is not None:
            error.add_note(str(self))
            if failure is not None and failure is not error:
                error.add_note(f"and {failure}")
        elif failure is not None:
            failure.add_note(str(self))
            raise failure

    def __str__(self) -> str:
        """Format the seed and the log."""
        lines = [f"chaos({self.seed}): repeat it with this seed. Log:"]
        return "\n".join(lines + [f"  {each}" for each in self.log])

    def wait(self, faults: int | None = None, timeout: float = 300.0) -> None:
        """Wait until that many faults have begun and ended; by default, all of them.

        Raises TimeoutError, and any exception of the faults themselves.
        """
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._is_done or (faults is not None and self._over >= faults), timeout
            )
            if self._failure is not None:
                raise self._failure
            if not reached:
                raise TimeoutError(f"chaos({self.seed}): {self._over} faults in {timeout:g} s")

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for step in self._steps:
                if self._stopping.wait(step.pause):
                    break
                self._recover()
                if self._stopping.is_set():
                    break
                self._carry_out(step)
                with self._changed:
                    self._over += 1
                    self._changed.notify_all()
        except BaseException as error:
            self._failure = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _carry_out(self, step: Step) -> None:
        if step.kind in ("kill", "pause"):
            spared = tuple(node for node in step.nodes if not self._cluster.can_ask(node))
            if spared:
                self._note(f"spared, since the test has ended or paused it: {replace(step, nodes=spared)}")
                step = replace(step, nodes=tuple(node for node in step.nodes if node not in spared))
            if not step.nodes:
                return
        with contextlib.ExitStack() as healed:
            self._note(str(step))
            begun = []
            for begin in self._faults(step):
                fault = begin()
                begun.append(fault)
                healed.callback(fault.heal)
            if begun:
                self._stopping.wait(step.lasts)
        if begun:
            met = sum(len(fault.hits) for fault in begun)
            self._note(f"healed: {step}{f'; met {met} times' if step.kind in ('drop', 'delay', 'slow-disk') else ''}")

    def _faults(self, step: Step) -> list[Callable[[], Fault]]:
        """Return functions that begin the faults of a step; none if the step is complete once carried out."""
        cluster, one_way = self._cluster, step.direction != "both"
        match step.kind:
            case "kill":
                return [lambda node=node: cluster.kill(node) for node in step.nodes]  # type: ignore[misc]
            case "pause":
                return [lambda node=node: cluster.pause(node) for node in step.nodes]  # type: ignore[misc]
            case "partition":
                others = [node for node in cluster.nodes if node not in step.nodes]
                some, rest = (others, step.nodes) if step.direction == "in" else (step.nodes, others)
                return [lambda: cluster.partition(some, rest, one_way=one_way)]
            case "clients":
                if step.direction == "in":
                    return [lambda: cluster.partition(_CLIENTS, step.nodes, one_way=True)]
                return [lambda: cluster.partition(step.nodes, _CLIENTS, one_way=one_way)]
            case "slow-disk":
                return [lambda: cluster.slow_disk(step.nodes, seconds=step.number / 1000)]
            case "drop":
                return [lambda: cluster.drop(step.api, response=step.response, count=step.number)]
            case "delay":
                return [lambda: cluster.delay(step.api, seconds=step.number / 1000, response=step.response)]
            case _:
                self._move_leader(step.number)
                return []

    def _move_leader(self, number: int) -> None:
        partitions = self._cluster.partitions()
        if not partitions:
            self._note("there is no partition")
            return
        topic, partition, leader, _ = partitions[number % len(partitions)]
        try:
            now = self._cluster.move_leader(topic, partition)
        except KafkaError as refused:
            self._note(f"{topic}-{partition}: {refused}")
        else:
            self._note(f"{topic}-{partition} is led by {now}, no more by {leader}")

    def _recover(self) -> None:
        """Wait until the cluster has recovered. Raises BrokerDied."""
        try:
            self._cluster.wait_ready(self._settle)
            self._cluster.wait_in_sync(self._settle)
        except BrokerDied as error:
            last = self.log[-1] if self.log else "nothing"
            raise BrokerDied(f"chaos({self.seed}): the cluster did not recover; last was {last}: {error}") from error

    def _note(self, what: str) -> None:
        self.log.append(LogEntry(at=time.monotonic() - self._began, what=what))


class AsyncChaos:
    """A `Chaos` whose methods are coroutines."""

    def __init__(self, blocking: Chaos) -> None:
        self.blocking = blocking
        """The blocking chaos."""

    async def __aenter__(self) -> AsyncChaos:
        self.blocking.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.blocking.__exit__, kind, error, trace)

    def __str__(self) -> str:
        return str(self.blocking)

    @property
    def seed(self) -> int:
        """The seed that repeats this run."""
        return self.blocking.seed

    @property
    def log(self) -> list[LogEntry]:
        """The log of what was done, in order."""
        return self.blocking.log

    async def wait(self, faults: int | None = None, timeout: float = 300.0) -> None:  # noqa: ASYNC109 - handed on
        """Like `Chaos.wait`."""
        await asyncio.to_thread(self.blocking.wait, faults, timeout)
