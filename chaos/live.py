"""A run on a real cluster: workload, faults, healing, last reads, every node's logs, the checkers, a page.

    world.open -> load and faults (in rounds) -> heal -> in sync -> load continues a little -> last reads
    -> looks at each node -> stop -> each node's logs are read -> every checker -> report.html

The history is written to a directory line by line as it happens, so that a run that dies leaves all it saw.

Faults are drawn in rounds of `ROUND`: after each round everything is healed and every replica in sync again, so that
each round may again harm data on one disk. A seed always gives the same faults; how the processes react in real time
varies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.console import Console

from chaos import checkers, nemesis
from chaos.availability import by_kind, outages
from chaos.checkers.verdict import Options, Verdict
from chaos.generator import (
    Call,
    Calls,
    FinalPolls,
    GroupCalls,
    GroupOptions,
    LogCalls,
    LogOptions,
    Offsets,
    QueueCalls,
    TopicCalls,
)
from chaos.history import FAULT, History, HistoryWriter, Op, Type
from chaos.nemesis import Fault, Kind, NodeId, Plan, schedule
from chaos.progress import Progress
from chaos.replica_logs import read_node
from chaos.report import RUN, render
from chaos.terminal import show, unavailability
from chaos.workloads import sharing, transactions
from chaos.workloads.clients import Client, Setting
from chaos.workloads.sharing import Limits, ShareClient
from chaos.workloads.topics import OnlyTopics, TopicClient
from chaos.workloads.transactions import TransactionClient
from chaos.worlds.living import LiveWorld
from kraftpy.broker.containment import UNEXPECTED
from kraftpy.client.runtime import RealRuntime
from kraftpy.protocol.apis import ApiKey

ROUND: Final = 10
LOOKER: Final = 1_000_000
"""Looks at node n are recorded under process LOOKER + n."""
MEMBERS: Final = 3
SENDERS: Final = 2
"""Clients that send to the topics of the group."""
TOPICS: Final = 2
"""Clients that create, change and delete topics."""
_QUEUE_CALLS_PER_SECOND: Final = 2.0
_TOPIC_CALLS_PER_SECOND: Final = 0.7
_TOPIC_SECONDS: Final = 7.0
_READERS: Final = 3
_READY_SECONDS: Final = 120.0
_IN_SYNC_SECONDS: Final = 180.0
_CALM_SECONDS: Final = 5.0
"""The time under load without faults, before the first and after the last."""
_FINAL_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 2.0
_LATE_MS: Final = 500
_THREADS: Final = 32
_MISTAKES: Final = {
    "traceback(s)": "Traceback (most recent call last)",
    "unexpected error(s) that it survived": UNEXPECTED,
    "line(s) of what did not end with the node": "still running at the end of the stop",
}
"""Log lines of a node that no fault excuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run, which ends with the faults or with the minutes, depending on which come first."""

    seed: int
    directory: Path
    command: str
    faults: int | None = None
    minutes: float | None = None
    kinds: tuple[Kind, ...] = tuple(Kind)
    """The kinds wanted; the world may support only some of them."""
    clients: int = 4
    """In addition to the group's members and their senders."""
    transactions: bool = False
    """Add the seven clients of `chaos.workloads.transactions`."""
    queue: Limits | None = None
    """Add the four clients of `chaos.workloads.sharing`, with these limits for share groups' records."""
    group_protocol: str = "classic"
    """The members' protocol: classic, or consumer (KIP-848)."""
    calls_per_second: float = 8.0
    """The most that each client makes."""
    pause_ms: tuple[int, int] = (3_000, 8_000)
    lasts_ms: tuple[int, int] = (1_000, 10_000)

    @property
    def workloads(self) -> list[str]:
        """Return the names of the workloads."""
        others = {"transactions": self.transactions, "queue": self.queue is not None}
        return ["log", "group", "topics", *(name for name, is_there in others.items() if is_there)]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a run."""

    history: History
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Failures besides anomalies: nodes that ended without being asked to, or did not heal; clients that hang."""
    damage: list[str] = field(default_factory=list)
    """Bytes that a fault changed and that have not been read since: known damage, which an operator repairs."""

    @property
    def is_good(self) -> bool:
        """Return True if nothing is wrong or undecided."""
        return not self.problems and all(verdict.valid for verdict in self.verdicts)


class Interrupted(Exception):
    """The run was asked to end."""


def run(world: LiveWorld, settings: Settings, console: Console | None = None) -> Outcome:
    """Run to the end in spite of any failure; tables on the terminal, history and page in the directory.

    Raises Interrupted after Ctrl-C or SIGTERM, once everything is removed; RuntimeError if the world cannot be made.
    """
    try:
        return asyncio.run(_Run(world, settings, console or Console(highlight=False)).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted from None


class _Two:
    """Combines a group's workload and that of logs in one history: a process belongs to one of them by its number."""

    def __init__(self, group: GroupCalls, logs: LogCalls, clients: int) -> None:
        self._group, self._logs, self._clients = group, logs, clients

    def _of(self, process: int) -> Calls:
        return self._group if process % self._clients < MEMBERS + SENDERS else self._logs

    def call(self, process: int) -> Call | None:
        """Ask the process's own workload."""
        return self._of(process).call(process)

    def observe(self, op: Op) -> None:
        """Pass the completion to the process's own workload."""
        if isinstance(op.process, int):
            self._of(op.process).observe(op)


def drawn(seed: int, number: int, plan: Plan, first_id: int, most: int) -> list[Fault]:
    """Draw the faults of one round, `ROUND` at most."""
    found = schedule(Random(f"round {number} of {seed}").getrandbits(32), plan)[: min(ROUND, most)]
    return [
        replace(
            fault,
            id=first_id + place,
            settings={
                name: tuple(replace(part, id=first_id + place) for part in what) if name == "parts" else what
                for name, what in fault.settings.items()
            },
        )
        for place, fault in enumerate(found)
    ]


class _Run:
    def __init__(self, world: LiveWorld, settings: Settings, console: Console) -> None:
        self.world = world
        self.settings = settings
        self.console = console
        self.chance = Random(f"run {settings.seed}")
        self.ops: list[Op] = []
        self.problems: list[str] = []
        self.damage: list[str] = []
        self.offsets = Offsets()
        self.began = time.monotonic()
        self.progress = Progress(
            faults=settings.faults,
            minutes=settings.minutes,
            each_seconds=(sum(settings.pause_ms) + sum(settings.lasts_ms)) / 2000 + 2.0,
        )
        self.clients: list[Client] = []
        self.transacting: list[TransactionClient] = []

    def now_ns(self) -> int:
        """Return nanoseconds since the run began."""
        return int((time.monotonic() - self.began) * 1e9)

    def emit(self, op: Op) -> None:
        """Take every operation once it is written."""
        self.ops.append(op)
        self.offsets.observe(op)
        self.progress.observe(op, time.monotonic() - self.began)
        told = self.progress.told(op)
        if told is not None:
            self.console.print(told, soft_wrap=True)

    async def run(self) -> Outcome:
        settings = self.settings
        settings.directory.mkdir(parents=True, exist_ok=True)
        this = asyncio.current_task()
        assert this is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, this.cancel)
        loop.set_default_executor(ThreadPoolExecutor(_THREADS))  # for blocking questions, some of them to paused nodes
        with (settings.directory / "history.jsonl").open("w", encoding="utf-8") as sink:
            self.recorder = HistoryWriter(sink, self.emit)
            try:
                await self._open()
                await self._work()
            finally:
                await self._logs()
                await self.world.close()
            self.problems += self.world.problems()
            ended = self.ops[-1].time  # closing the world is not part of the run
            self.recorder.note(ended, RUN, RUN, {"problems": self.problems, "damage": self.damage})
        return self._judge()

    async def _open(self) -> None:
        world = self.world
        for kind, why in world.left_out.items():
            if kind in self.settings.kinds:
                self.console.print(f"left out: {kind}: {why}", style="dim", soft_wrap=True)
        self.console.print(f"{world.name}: starting {len(world.nodes)} nodes", style="dim")
        await world.open()
        if late := await world.wait_ready(_READY_SECONDS):
            raise RuntimeError("the nodes did not become ready: " + "; ".join(late))
        self.began = time.monotonic()

    async def _work(self) -> None:
        settings, world = self.settings, self.world
        said = {
            "world": world.name,
            "workload": ", ".join(settings.workloads),
            "seed": settings.seed,
            "nodes": len(world.nodes),
            "left_out": sorted(world.left_out),
            "command": settings.command,
        }
        self.recorder.note(self.now_ns(), RUN, RUN, said)
        is_over = False
        clients = settings.clients + MEMBERS + SENDERS
        count = clients + TOPICS
        calls = _Two(
            GroupCalls(
                self.chance.getrandbits(30),
                GroupOptions(clients=count, members=MEMBERS, crash_chance=0.002, topics="g"),
            ),
            LogCalls(self.chance.getrandbits(30), LogOptions(keys=8, crash_chance=0.002, topics="t")),
            count,
        )

        def rest() -> float:
            return self.chance.expovariate(settings.calls_per_second)

        with self.progress.shown(self.console):
            load = [
                asyncio.create_task(client.work(lambda: is_over, rest), name=f"client {client.process}")
                for client in self._make_clients(calls, range(clients), count)
            ]
            load += self._change_topics(range(clients, count), count, lambda: is_over)
            if settings.transactions:
                load += self._transact(transactions.roles(self.chance.getrandbits(30)), lambda: is_over, rest)
            queue, members = self._share()
            looks = [asyncio.create_task(self._look(node), name=f"looks at {node}") for node in world.nodes]
            try:
                await asyncio.sleep(_CALM_SECONDS)
                await self._harm()
                await asyncio.sleep(_CALM_SECONDS)
                is_over = True
                await self._end(load, "a client hangs")
                if queue is not None:
                    queue.stop_sending()
                    if await self._end(members, "the share group does not come to an end"):
                        drained = {"group": sharing.GROUP, "keys": queue.keys}
                        self.recorder.note(self.now_ns(), sharing.GROUP, "drained", drained)
                if settings.transactions:
                    last = transactions.last_roles(self.transacting, self.offsets.sent)
                    load = self._transact(last, lambda: False, lambda: 0.1)
                    await self._end(load, "a transactional id cannot be taken over in the end")
                self.progress.doing = "last reads"
                await self._read_all(sorted(client.process for client in self.clients), count)
            finally:
                for task in (*load, *members, *looks):
                    task.cancel()
                await asyncio.gather(*load, *members, *looks, return_exceptions=True)
            await self._last_looks()
            await self._dump()

    # --- clients --------------------------------------------------------------------------------------------------

    def _setting(self) -> Setting:
        return Setting(
            bootstrap_servers=self.world.bootstrap_servers,
            runtime=RealRuntime(),
            now_ns=self.now_ns,
            replication_factor=min(3, len(self.world.nodes)),
            group_protocol=self.settings.group_protocol,
            isolation_level="read_committed" if self.settings.transactions else "read_uncommitted",
        )

    def _make_clients(self, calls: Calls, processes: Sequence[int], count: int) -> list[Client]:
        self.clients = [Client(self._setting(), self.recorder, calls, number, count) for number in processes]
        return self.clients

    def _transact(
        self, roles: Sequence[transactions.Role], is_over: Callable[[], bool], rest: Callable[[], float]
    ) -> list[asyncio.Task[None]]:
        self.transacting = [TransactionClient(self._setting(), self.recorder, role) for role in roles]
        return [
            asyncio.create_task(client.work(is_over, rest), name=f"transactions {client.process}")
            for client in self.transacting
        ]

    def _share(self) -> tuple[QueueCalls | None, list[asyncio.Task[None]]]:
        """Start the share group's clients, which continue until the group has read everything."""
        limits = self.settings.queue
        if limits is None:
            return None, []
        calls = sharing.calls(self.chance.getrandbits(30))
        numbers = range(sharing.FIRST_PROCESS, sharing.FIRST_PROCESS + sharing.CLIENTS)
        clients = [ShareClient(self._setting(), self.recorder, calls, number, limits) for number in numbers]
        return calls, [
            asyncio.create_task(
                client.work(lambda: False, partial(client.rest, self.chance, _QUEUE_CALLS_PER_SECOND)),
                name=f"queue {client.process}",
            )
            for client in clients
        ]

    def _change_topics(
        self, processes: Sequence[int], count: int, is_over: Callable[[], bool]
    ) -> list[asyncio.Task[None]]:
        chance, nodes = Random(self.chance.getrandbits(30)), self.world.nodes

        def ask(node: NodeId, key: ApiKey, version: int, request: object) -> Awaitable[Any]:
            return self.world.ask(node, key, version, request, seconds=_TOPIC_SECONDS)

        calls = OnlyTopics(TopicCalls(self.chance.getrandbits(30), nodes=nodes))

        def rest() -> float:
            return chance.expovariate(_TOPIC_CALLS_PER_SECOND)

        return [
            asyncio.create_task(
                TopicClient(ask, nodes, self.now_ns, self.recorder, calls, number, count, chance).work(is_over, rest),
                name=f"topic client {number}",
            )
            for number in processes
        ]

    async def _end(self, tasks: Sequence[asyncio.Task[None]], problem: str) -> bool:
        """Give the tasks this long to end; return True if they did. A task that hangs or fails is a problem of the
        run."""
        _, late = await asyncio.wait(tasks, timeout=_FINAL_SECONDS)
        self.problems += [f"{problem}: {task.get_name()}" for task in late]
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.problems.append(f"{task.get_name()} failed: {error!r}")
        return not late

    async def _read_all(self, processes: Sequence[int], count: int) -> None:
        """Read with new clients, each of which reads all there is."""
        readers = processes[-_READERS:]
        calls = FinalPolls(self.offsets.highest(), readers)
        tasks = [
            asyncio.create_task(client.work(lambda: False, lambda: 0.0), name=f"reader {client.process}")
            for client in self._make_clients(calls, readers, count)
        ]
        try:
            await self._end(tasks, "a client cannot read all")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- faults ---------------------------------------------------------------------------------------------------

    async def _harm(self) -> None:
        settings, world = self.settings, self.world
        kinds = tuple(sorted(world.abilities & frozenset(settings.kinds)))
        if not kinds:
            raise RuntimeError(f"{world.name} can do none of the faults asked for here")
        deadline = None if settings.minutes is None else time.monotonic() + settings.minutes * 60
        number, next_id = 0, 0
        while deadline is None or time.monotonic() < deadline:
            left = ROUND if settings.faults is None else settings.faults - self.progress.faults
            if left <= 0:
                return
            seconds = 3600.0 if deadline is None else deadline - time.monotonic()
            plan = Plan(
                kinds=kinds,
                duration_ms=int(seconds * 1000),
                partitions=tuple(sorted(self.offsets.sent)[:3]) or ("t0-0",),
                groups=("g",),
                quiet_start_ms=settings.pause_ms[0],
                pause_ms=settings.pause_ms,
                lasts_ms=settings.lasts_ms,
            )
            faults = drawn(settings.seed, number, plan, next_id, left)
            if not faults:
                return
            await nemesis.run(world, faults, Random(f"{settings.seed} {number}"), self._note, _Pace().sleep_until_ms)
            number, next_id = number + 1, next_id + len(faults)
            if not await self._settle(number):
                return

    def _note(self, f: str, value: dict[str, Any]) -> None:
        self.recorder.note(self.now_ns(), "nemesis", f, value)

    async def _settle(self, number: int) -> bool:
        """Wait until a round's harm is undone everywhere; return False if it is not."""
        self.progress.doing = "healing"
        wrong = await self.world.wait_ready(_READY_SECONDS) or await self.world.wait_in_sync(_IN_SYNC_SECONDS)
        self._note("settled", {"round": number, "wrong": wrong})
        self.progress.doing = ""
        self.problems += [f"not healed after round {number}: {what}" for what in wrong]
        return not wrong

    # --- looks at nodes -------------------------------------------------------------------------------------------

    async def _look(self, node: NodeId) -> None:
        """Keep reading what a node says about its partitions and the controller."""
        while True:
            await self._look_once(node, final=False)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look_once(self, node: NodeId, *, final: bool) -> None:
        world, keys = self.world, sorted(self.offsets.sent)
        extra: dict[str, Any] = {"final": True} if final else {}
        before = world.incarnation(node)
        process = LOOKER + node
        found: list[dict[str, Any]] = []
        seen: dict[str, Any] | None = None
        with contextlib.suppress(OSError):
            found = await world.watermarks(node, keys, self.offsets.sent) if keys else []
            seen = await world.controller(node)
        if world.incarnation(node) != before:
            return  # unknown which node was asked
        extra |= {"incarnation": before}  # the next reading was requested a moment ago, before this look at the node
        for f, value in (*(("watermarks", each) for each in found), ("controller", seen)):
            if value is not None:
                self.recorder.invoke(self.now_ns(), process, f, {"node": node})
                self.recorder.complete(self.now_ns(), process, Type.OK, value, **extra)

    async def _last_looks(self) -> None:
        for node in self.world.nodes:
            await self._look_once(node, final=True)
        images = await self.world.images(_READY_SECONDS)
        for node, digest in sorted(images.items()):
            self.recorder.invoke(self.now_ns(), LOOKER + node, "image", {"node": node})
            value = {"node": node, "offset": 0, "digest": digest}
            self.recorder.complete(self.now_ns(), LOOKER + node, Type.OK, value, final=True)

    async def _dump(self) -> None:
        """Stop every node and read the contents of its disk."""
        self.progress.doing = "reading the replicas"
        state = await self.world.state()
        for node in self.world.nodes:
            await self.world.stop(node)
        damaged = {(node, str(op.value.get("kind"))) for op in self.ops if op.f == FAULT for node in op.value["nodes"]}
        for node in self.world.nodes:
            keys = [key for key, replicas in state.replicas.items() if node in replicas]
            directory = await self.world.log_directory(node)
            for reading in await asyncio.to_thread(list, read_node(directory, node, keys)):
                if reading.damage is None:
                    self.recorder.invoke(self.now_ns(), LOOKER + node, "replica", {"node": node})
                    self.recorder.complete(self.now_ns(), LOOKER + node, Type.OK, reading.value, final=True)
                elif any(kind in (Kind.CORRUPTION, Kind.SEVERAL) for at, kind in damaged if at == node):
                    self.damage.append(f"node {node}: {reading.damage}")
                else:
                    self.problems.append(f"node {node}: {reading.damage}")

    async def _logs(self) -> None:
        """Save every node's own log beside the history."""
        for node in self.world.nodes:
            with contextlib.suppress(OSError):
                text = self.world.server_log(node)
                (self.settings.directory / f"node-{node}.log").write_text(text, encoding="utf-8")
                for what, words in _MISTAKES.items():
                    if count := text.count(words):
                        self.problems.append(f"node {node} wrote {count} {what} to its log, node-{node}.log")

    # --- the end --------------------------------------------------------------------------------------------------

    def _judge(self) -> Outcome:
        history = History(self.ops)
        outcome = Outcome(
            history=history,
            verdicts=checkers.check(history, Options()),
            problems=self.problems,
            damage=self.damage,
        )
        page = self.settings.directory / "report.html"
        page.write_text(render(history, outcome.verdicts), encoding="utf-8")
        show(history, outcome.verdicts, console=self.console)
        self.console.print(unavailability(by_kind(outages(history))))
        for what in outcome.damage:
            self.console.print(f"[yellow]damaged, and not read since:[/] {what}", soft_wrap=True)
        for what in outcome.problems:
            self.console.print(f"[red]wrong:[/] {what}", soft_wrap=True)
        self.console.print(f"{self.progress.faults} faults; {page}", soft_wrap=True)
        self.console.print(f"again: {self.settings.command}", soft_wrap=True)
        return outcome


class _Pace:
    """The pace of a round: a step that takes longer than planned delays the following ones, so that the pauses
    remain."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def sleep_until_ms(self, at_ms: int) -> None:
        """Sleep until this long after the round's start."""
        left = self._began + at_ms / 1000 - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
        elif -left * 1000 > _LATE_MS:
            self._began -= left
