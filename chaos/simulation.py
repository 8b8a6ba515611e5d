"""One seed, one history: a simulated cluster under load and faults, judged.

The seed draws the workload, the number of clients, the settings of the cluster and every fault. Safety phase: faults
and load for `minutes` of virtual time. Liveness phase: everything is healed; each node must be ready, each client must
make progress, and everything that was acknowledged must be readable.

A seed repeats a run to the callback, independently of string hashes (a test has two processes with different ones);
`python -m chaos sim` fixes those all the same (`PYTHONHASHSEED=0`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final

from chaos import checkers, nemesis
from chaos.checkers.verdict import Options, Verdict
from chaos.checkers.versions import sends
from chaos.drawing import Drawn, draw
from chaos.generator import (
    TOPIC_PREFIX,
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
from chaos.history import NEMESIS, History, Op, Recorder, Type
from chaos.nemesis import Fault, Plan, schedule
from chaos.workloads import (
    arrivals,
    bundles,
    compacted,
    hostile,
    pipelines,
    rates,
    security,
    sharing,
    tokens,
    transactions,
)
from chaos.workloads.clients import Client, Setting, goes_on
from chaos.workloads.sharing import ShareClient
from chaos.workloads.topic_admins import FIRST_PROCESS, TopicAdmin, final_looks
from chaos.workloads.transactions import TransactionClient
from chaos.worlds.breaking import GROUPS, TRANSACTIONS, SimulatedWorld
from chaos.worlds.loop import Process, collect_quietly
from chaos.worlds.readings import Readings
from chaos.worlds.simulated import (
    CLIENT_PORT,
    CONTROLLER_PORT,
    SECURE_PORT,
    SimulatedCluster,
    SimulatedRuntime,
    simulated_cluster,
)
from chaos.worlds.watching import Tell, Watch, told_log_lines
from kraftpy.broker.containment import UNEXPECTED

_CALLS_PER_SECOND: Final = 1.0
_READY_SECONDS: Final = 60.0
_FINAL_SECONDS: Final = 300.0
_CONVERGE_SECONDS: Final = 60.0
_QUEUE_CALLS_PER_SECOND: Final = 1.0
_TOPIC_CLIENTS: Final = 2
_TOPIC_PAUSE_SECONDS: Final = 4.0
_TOPICS: Final = 4
_MOST_BURSTS_PER_SECOND: Final = 2.0
_STALL_SECONDS: Final = (0.5, 12.0)
"""Ranges from less than it takes to move a partition to more than a member's session."""
_MOST_SPINS: Final = 20
"""Seconds of anybody."""
_MOST_HARMS: Final = 1000
"""No limit for data on disk, since the world spares the last copy."""


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    ops: list[Op] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Failures besides anomalies: nodes that ended, clients that hang."""
    faults: list[Fault] = field(default_factory=list)
    """The schedule that ran."""
    virtual_seconds: float = 0.0
    callbacks: int = 0

    @property
    def is_good(self) -> bool:
        """Return True if nothing is wrong or undecided."""
        return not self.problems and all(verdict.valid for verdict in self.verdicts)


def run(
    seed: int,
    minutes: float = 5.0,
    *,
    calls_per_second: float | None = None,
    drawn: Drawn | None = None,
    calm_seconds: float = 30.0,
    faults: Sequence[Fault] | None = None,
    trace: Tell | None = None,
    is_last: bool = False,
) -> Outcome:
    """Simulate a seed. Each client makes at most `calls_per_second`; without that, as many as the seed draws.

    `drawn` and `faults` take the place of what the seed draws; `calm_seconds` is how long the clients continue once all
    is healed. `trace` is called with (virtual seconds, who, what) for faults, nodes that start and end, leaders,
    in-sync replicas, and nodes' log lines; the run is the same with and without it. If the run `is_last` in its
    process, what it leaves is not collected.
    """
    drawn = draw(seed) if drawn is None else drawn
    calls_per_second = _CALLS_PER_SECOND * drawn.load if calls_per_second is None else calls_per_second
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        options: dict[str, Any] = {"brokers": drawn.brokers, "controllers": drawn.controllers}
        own = security.broker_settings() if drawn.with_security else {}
        options |= {"settings": {**drawn.settings, **own}, "is_secure": drawn.with_security}
        with simulated_cluster(seed, **options) as cluster, ExitStack() as stack:
            if drawn.with_pipelines:
                stack.enter_context(pipelines.refusals())
            this = _Run(cluster, drawn, seed, minutes, calls_per_second, calm_seconds)
            this.outcome.faults = this.schedule() if faults is None else list(faults)
            if trace is not None:
                this.watch = Watch(cluster, trace)
                stack.enter_context(told_log_lines(this.watch))
            outcome = this.run()
        if not is_last:
            del cluster, this
            collect_quietly()
    finally:
        logging.disable(disabled)
    return outcome


def _spinning(spins: Sequence[tuple[int, str, int, str]]) -> list[str]:
    """Return a line for each process that did too much: its worst second, and in how many seconds it did."""
    worst: dict[str, tuple[int, int, str]] = {}
    seconds: Counter[str] = Counter()
    for second, who, count, what in spins:
        seconds[who] += 1
        worst[who] = max(worst.get(who, (0, 0, "")), (count, second, what))
    return [
        f"{who} spins: {count} callbacks in second {second}, most of them {what}; too many in {seconds[who]} seconds"
        for who, (count, second, what) in worst.items()
    ]


class _Run:
    def __init__(
        self,
        cluster: SimulatedCluster,
        drawn: Drawn,
        seed: int,
        minutes: float,
        calls_per_second: float,
        calm_seconds: float,
    ) -> None:
        self.cluster = cluster
        self.drawn = drawn
        self.chance = Random(f"run {seed}")
        self.outcome = Outcome(seed)
        self.recorder = Recorder(self.outcome.ops.append)
        self.minutes = minutes
        self.calls_per_second = calls_per_second
        self.calm_seconds = calm_seconds
        self.count = drawn.clients
        self.coordinated = {"g": GROUPS} if drawn.workload != "log" else {}
        if drawn.with_transactions:
            self.coordinated[transactions.transactional_id(transactions.LOGS_FIRST) or ""] = TRANSACTIONS
        world_chance = Random(f"world {seed}")
        self.world = SimulatedWorld(cluster, world_chance, is_synced=drawn.is_synced, coordinated=self.coordinated)
        self.readings = Readings(cluster, self.recorder, self.now_ns)
        self.protected = security.Protected()
        self.holder: tokens.Holder
        self.watch: Watch | None = None
        self.is_over = False
        """True once the clients must finish."""
        cluster.network.phantoms = drawn.phantoms
        for node, drift in zip(cluster.nodes.values(), drawn.drifts, strict=True):
            node.clock.drift = drift

    def run_until(self, done: Callable[[], bool], *, at_most_seconds: float) -> bool:
        """Run the loop, and follow it for the trace if there is one."""
        watch = self.watch
        if watch is None:
            return self.cluster.loop.run_until(done, at_most_seconds=at_most_seconds)

        def looked_and_done() -> bool:
            watch.look()
            return done()

        return self.cluster.loop.run_until(looked_and_done, at_most_seconds=at_most_seconds)

    def run_for(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        self.run_until(lambda: False, at_most_seconds=seconds)

    def wait_ready(self) -> bool:
        """Run until every node serves; return True if all do."""
        nodes = self.cluster.nodes.values()
        return self.run_until(lambda: all(node.is_ready for node in nodes), at_most_seconds=_READY_SECONDS)

    def now_ns(self) -> int:
        return int(self.cluster.loop.time() * 1e9)

    def run(self) -> Outcome:
        cluster, outcome = self.cluster, self.outcome
        for node in cluster.nodes.values():
            node.start()
        if not self.wait_ready():
            outcome.problems.append("the nodes did not become ready at first")
        else:
            self._work()
        for node in cluster.nodes.values():
            outcome.problems += [f"{node.host} ended: {why}" for why in node.exits]
            outcome.problems += [f"{node.host} met an {UNEXPECTED}: {what}" for what in node.survived]
        outcome.problems += self.world.operator.problems
        outcome.problems += [f"unhandled: {each}" for each in cluster.loop.unhandled]
        outcome.problems += _spinning(cluster.loop.spins)
        outcome.virtual_seconds = cluster.loop.time()
        outcome.callbacks = cluster.loop.callbacks
        outcome.verdicts = checkers.check(History(outcome.ops), Options())
        return outcome

    def _calls(self) -> Calls:
        seed = self.chance.randrange(1 << 30)
        if self.drawn.workload == "groups":
            return GroupCalls(seed, GroupOptions(clients=self.count, members=(self.count + 1) // 2, crash_chance=0.002))
        via = "assign" if self.drawn.workload == "log" else "subscribe"
        return LogCalls(seed, LogOptions(via=via, keys=6, crash_chance=0.002))

    def _work(self) -> None:
        calls = self._calls()
        clients = self._clients(
            calls, list(range(self.count)), lambda: self.is_over, lambda: self.chance.expovariate(self.calls_per_second)
        )
        if self.drawn.with_topics:
            clients += self._topic_admins(lambda: self.is_over)
        if self.drawn.with_compaction:
            clients += self._putting_clients(lambda: self.is_over)
        if self.drawn.with_bundles:
            clients += self._bundling_clients(lambda: self.is_over)
        if self.drawn.with_pipelines:
            clients += self._pipelining_clients(lambda: self.is_over)
        if self.drawn.with_hostile:
            clients += self._hostile_client(lambda: self.is_over)
        if self.drawn.with_security:
            clients += self._security_clients(lambda: self.is_over)
        queue = sharing.calls(self.chance.randrange(1 << 30)) if self.drawn.with_queue else None
        members: list[Any] = []
        if queue is not None:
            members = self._queue_clients(queue)
        transacting: list[TransactionClient] = []
        if self.drawn.with_transactions:
            roles = transactions.roles(self.chance.randrange(1 << 30))
            transacting, tasks = self._transaction_clients(roles, lambda: self.is_over)
            clients += tasks
        self.readings.begin()
        self._harm()
        self._heal()
        self.run_for(self.calm_seconds)
        self.is_over = True
        self._wait(clients, "a client hangs")
        if queue is not None:
            queue.stop_sending()
            if self._wait(members, "the share group does not come to an end"):
                drained = {"group": sharing.GROUP, "keys": queue.keys}
                self.recorder.note(self.now_ns(), sharing.GROUP, "drained", drained)
        if transacting:
            sent = {key for op in self.outcome.ops for key, _, _ in sends(op)}
            _, tasks = self._transaction_clients(transactions.last_roles(transacting, sent), lambda: False)
            self._wait(tasks, "a transactional id cannot be taken over in the end")
        processes = sorted(client.process for client in self.alive)
        offsets = Offsets()
        for op in self.outcome.ops:
            offsets.observe(op)
        readers = self._clients(FinalPolls(offsets.highest(), processes), processes, lambda: False, lambda: 0.01)
        self._wait(readers, "a client cannot read all")
        self._compare()

    def _compare(self) -> None:
        """Read everything that nodes hold once all is quiet."""
        if self.drawn.with_security:
            self.run_until(
                lambda: not self.readings.differences() or self._spins_on(), at_most_seconds=_CONVERGE_SECONDS
            )
            self._audit()
        self.run_until(lambda: not self.readings.differences() or self._spins_on(), at_most_seconds=_CONVERGE_SECONDS)
        self.outcome.problems += [f"in the end: {difference}" for difference in self.readings.differences()]
        self.readings.end()
        if self.drawn.with_compaction and any(op.f == "put" and op.type is Type.OK for op in self.outcome.ops):
            self._read_compacted()
        if self.drawn.with_topics:
            process, runtime = self.cluster.client("topics")
            topics = [f"{TOPIC_PREFIX}{number}" for number in range(_TOPICS)]
            looks = final_looks(self._setting(runtime), self.recorder, FIRST_PROCESS - 1, topics)
            self._wait([process.run(looks, name="final looks")], "nobody can say which topics there are")
        self.readings.read(final=True)

    def _stall(self, process: Process) -> Callable[[], Awaitable[None]]:
        """Return a function that stops a client's process from time to time: nothing of it runs meanwhile, not even
        heartbeats."""
        if not self.drawn.stalls:
            return goes_on

        async def stall() -> None:
            if self.is_over or process.random.random() >= self.drawn.stalls:
                return
            seconds = process.random.uniform(*_STALL_SECONDS)
            self.recorder.note(self.now_ns(), process.name, "stall", {"seconds": round(seconds, 3)})
            process.pause()
            self.cluster.loop.call_later(seconds, process.resume, context=self.cluster.loop.outside)
            await asyncio.sleep(0)  # everything that follows is held until then

        return stall

    def _clients(
        self, calls: Calls, processes: list[int], is_over: Callable[[], bool], pause: Callable[[], float]
    ) -> list[Any]:
        self.alive = []
        tasks = []
        for number in processes:
            process, runtime = self.cluster.client(f"client{number}")
            setting = replace(self._setting(runtime), stall=self._stall(process))
            client = Client(setting, self.recorder, calls, number, self.count)
            self.alive.append(client)
            tasks.append(process.run(client.work(is_over, pause), name=f"client {number}"))
        return tasks

    def _transaction_clients(
        self, roles: list[transactions.Role], is_over: Callable[[], bool]
    ) -> tuple[list[TransactionClient], list[Any]]:
        clients, tasks = [], []
        for role in roles:
            process, runtime = self.cluster.client(f"transactions{role.process}")
            setting = replace(self._setting(runtime), stall=self._stall(process))
            client = TransactionClient(setting, self.recorder, role)
            clients.append(client)
            pause = process.random.expovariate
            work = client.work(is_over, lambda pause=pause: pause(self.calls_per_second / 2))  # type: ignore[misc]
            tasks.append(process.run(work, name=f"transactions {role.process}"))
        return clients, tasks

    def _queue_clients(self, calls: QueueCalls) -> list[Any]:
        tasks = []
        limits = sharing.limits(self.drawn.settings)
        for number in range(sharing.FIRST_PROCESS, sharing.FIRST_PROCESS + sharing.CLIENTS):
            process, runtime = self.cluster.client(f"queue{number}")
            client = ShareClient(self._setting(runtime), self.recorder, calls, number, limits)
            work = client.work(lambda: False, partial(client.rest, process.random, _QUEUE_CALLS_PER_SECOND))
            tasks.append(process.run(work, name=f"queue {number}"))
        return tasks

    def _topic_admins(self, is_over: Callable[[], bool]) -> list[Any]:
        calls = TopicCalls(self.chance.randrange(1 << 30), topics=_TOPICS, nodes=self.cluster.brokers)
        tasks = []
        for number in range(_TOPIC_CLIENTS):
            process, runtime = self.cluster.client(f"topics{number}")
            client = TopicAdmin(self._setting(runtime), self.recorder, calls, FIRST_PROCESS + number, _TOPIC_CLIENTS)
            pause = process.random.expovariate
            work = client.work(is_over, lambda pause=pause: pause(1 / _TOPIC_PAUSE_SECONDS))  # type: ignore[misc]
            tasks.append(process.run(work, name=f"topics {number}"))
        return tasks

    def _putting_clients(self, is_over: Callable[[], bool]) -> list[Any]:
        process, runtime = self.cluster.client("puts")
        setting = replace(self._setting(runtime), topic_settings=compacted.SETTINGS, partitions=compacted.PARTITIONS)
        calls = compacted.PutCalls(self.chance.randrange(1 << 30))
        client = Client(setting, self.recorder, calls, compacted.FIRST_PROCESS, 1)
        pause = process.random.expovariate
        work = client.work(is_over, lambda: pause(self.calls_per_second))
        return [process.run(work, name="puts")]

    def _bundling_clients(self, is_over: Callable[[], bool]) -> list[Any]:
        tasks, values = [], bundles.values()
        for number in range(bundles.CLIENTS):
            process, runtime = self.cluster.client(f"bundles{number}")
            client = bundles.BundlingClient(self._setting(runtime), self.recorder, number, values)
            pause = process.random.expovariate
            work = client.work(is_over, lambda pause=pause: pause(self.calls_per_second))  # type: ignore[misc]
            tasks.append(process.run(work, name=f"bundles {number}"))
        return tasks

    def _pipelining_clients(self, is_over: Callable[[], bool]) -> list[Any]:
        tasks, values = [], pipelines.values()
        for number in range(pipelines.CLIENTS):
            process, runtime = self.cluster.client(f"pipeline{number}")
            client = pipelines.PipeliningClient(self._setting(runtime), self.recorder, process.random, number, values)
            pause = process.random.expovariate
            rate = min(self.calls_per_second, _MOST_BURSTS_PER_SECOND)
            work = client.work(is_over, lambda pause=pause, rate=rate: pause(rate))  # type: ignore[misc]
            tasks.append(process.run(work, name=f"pipeline {number}"))
        return tasks

    def _hostile_client(self, is_over: Callable[[], bool]) -> list[Any]:
        process, runtime = self.cluster.client(hostile.NAME)
        brokers = [(f"node{number}", CLIENT_PORT) for number in self.cluster.brokers]
        voters = [(f"node{number}", CONTROLLER_PORT) for number in self.cluster.voters]
        client = hostile.HostileClient(
            self._setting(runtime), process.random, brokers=brokers, voters=voters, ids=list(self.cluster.brokers)
        )
        work = client.work(is_over, lambda: process.random.expovariate(1 / hostile.PAUSE_SECONDS))
        return [process.run(work, name=hostile.NAME)]

    def _security_clients(self, is_over: Callable[[], bool]) -> list[Any]:
        process, runtime = self.cluster.client(security.ADMINISTRATOR)
        pause = process.random.expovariate
        administrator = security.Administrator(self._setting(runtime), self.recorder, process.random, self.protected)
        work = administrator.work(is_over, lambda pause=pause: pause(1 / security.ADMINISTRATOR_PAUSE_SECONDS))  # type: ignore[misc]
        tasks = [process.run(work, name=security.ADMINISTRATOR)]
        for user, first in security.FIRST_PROCESSES.items():
            process, intruder = self._intruder(user, first)
            pause = process.random.expovariate
            work = intruder.work(is_over, lambda pause=pause: pause(1 / security.INTRUDER_PAUSE_SECONDS))  # type: ignore[misc]
            tasks.append(process.run(work, name=user))
        process, self.holder = self._holder(tokens.FIRST_PROCESS)
        work = self.holder.work(is_over, lambda: process.random.expovariate(1 / tokens.PAUSE_SECONDS))
        tasks.append(process.run(work, name=tokens.HOLDER))
        return [*tasks, *self._rated_clients(is_over)]

    def _rated_clients(self, is_over: Callable[[], bool]) -> list[Any]:
        tasks = []
        for user, first in rates.FIRST_PROCESSES.items():
            process, runtime = self.cluster.client(user)
            setting = self._setting(runtime)
            if user == rates.GREEDY:
                setting_quotas = rates.set_quotas(setting, self.recorder, first - 1_000, is_over)
                tasks.append(process.run(setting_quotas, name="quotas"))
            for number, broker in enumerate(self._secure_listeners()):
                sender = rates.Sender(setting, self.recorder, user, broker, first + 10_000 * number)
                tasks.append(process.run(sender.work(is_over), name=f"{user} at {broker[0]}"))
        for address, first in arrivals.FIRST_PROCESSES.items():
            process, runtime = self.cluster.client(f"caller {address}", address)
            for number, broker in enumerate(self._secure_listeners()):
                caller = arrivals.Caller(
                    self._setting(runtime), self.recorder, address, broker, first + 10_000 * number
                )
                tasks.append(process.run(caller.work(is_over), name=f"{address} at {broker[0]}"))
        return tasks

    def _holder(self, first: int) -> tuple[Process, tokens.Holder]:
        process, runtime = self.cluster.client(tokens.HOLDER)
        brokers = self._secure_listeners()
        return process, tokens.Holder(self._setting(runtime), self.recorder, process.random, brokers, first)

    def _intruder(self, user: str, first: int) -> tuple[Process, security.Intruder]:
        process, runtime = self.cluster.client(user, security.HOSTS[user])
        setting, brokers = self._setting(runtime), self._secure_listeners()
        intruder = security.Intruder(
            setting, self.recorder, process.random, self.protected, user=user, process=first, brokers=brokers
        )
        return process, intruder

    def _audit(self) -> None:
        process, runtime = self.cluster.client("auditor")
        audit = security.audit(self._setting(runtime), self.recorder, self.protected)
        self._wait([process.run(audit, name="audit")], "the last survey of rights did not finish")
        for user, first in security.LAST_PROCESSES.items():
            process, intruder = self._intruder(user, first)
            probes = security.probe(intruder, self.protected, self._secure_listeners())
            self._wait([process.run(probes, name=f"{user} probes")], "brokers do not answer the last probes of rights")
        process, holder = self._holder(tokens.LAST_PROCESS)
        logins = tokens.final_logins(holder, self._secure_listeners(), self.holder.tokens)
        self._wait([process.run(logins, name="last tokens")], "brokers do not answer the last logins with tokens")
        brokers = self._secure_listeners()
        for users in rates.AT_ONCE:
            tasks = []
            for user in users:
                process, runtime = self.cluster.client(user)
                first = rates.LAST_PROCESSES[user]
                sends = rates.final_sends(self._setting(runtime), self.recorder, user, brokers, first)
                tasks.append(process.run(sends, name=f"last of {user}"))
            self._wait(tasks, "the last requests under quotas do not end")
        for address, first in arrivals.LAST_PROCESSES.items():
            process, runtime = self.cluster.client(f"last caller {address}", address)
            calls = arrivals.final_arrivals(self._setting(runtime), self.recorder, address, brokers, first)
            self._wait([process.run(calls, name=f"last of {address}")], "the last connections under quotas do not end")

    def _secure_listeners(self) -> list[tuple[str, int]]:
        return [(f"node{number}", SECURE_PORT) for number in self.cluster.brokers]

    def _read_compacted(self) -> None:
        process, runtime = self.cluster.client("compacted")
        reading = compacted.read_compacted(self._setting(runtime), self.recorder, compacted.FIRST_PROCESS - 1)
        self._wait([process.run(reading, name="compacted")], "the compacted topic cannot be read")

    def _setting(self, runtime: SimulatedRuntime) -> Setting:
        return Setting(
            bootstrap_servers=self.cluster.bootstrap_servers,
            runtime=runtime,
            now_ns=self.now_ns,
            replication_factor=min(3, self.drawn.brokers),
            topic_settings=self.drawn.topic_settings,
            group_protocol=self.drawn.group_protocol,
            fetch_max_wait_ms=self.drawn.fetch_max_wait_ms,
            isolation_level="read_committed" if self.drawn.with_transactions else "read_uncommitted",
        )

    def _wait(self, tasks: list[Any], problem: str) -> bool:
        """Give the tasks this long to end; return True if they did. A task that hangs or fails is a problem of the
        run."""

        def is_done() -> bool:
            return all(task.done() for task in tasks)

        self.run_until(lambda: is_done() or self._spins_on(), at_most_seconds=_FINAL_SECONDS)
        if not is_done():
            self.outcome.problems.append(problem)
        for task in tasks:
            if task.done() and task.exception() is not None:
                self.outcome.problems.append(f"a client failed: {task.exception()!r}")
        return is_done()

    def _spins_on(self) -> bool:
        """Return True if a process spins all the time: that is a finding already, and there is no use in waiting
        further."""
        return len(self.cluster.loop.spins) > _MOST_SPINS

    # --- faults ---

    def _harm(self) -> None:
        process, _ = self.cluster.client(NEMESIS)
        began = self.cluster.loop.time()

        async def sleep_until_ms(at_ms: int) -> None:
            await asyncio.sleep(max(0.0, began + at_ms / 1000 - self.cluster.loop.time()))

        carried_out = nemesis.run(self.world, self.outcome.faults, self.chance, self._note, sleep_until_ms)
        task = process.run(carried_out, name=NEMESIS)
        self.run_for(self.minutes * 60)
        self._wait([task], "the nemesis hangs")

    def _note(self, f: str, value: dict[str, Any]) -> None:
        self.recorder.note(self.now_ns(), NEMESIS, f, value)
        if self.watch is not None:
            self.watch.nemesis(f, value)

    def schedule(self) -> list[Fault]:
        """Draw the seed's faults."""

        def ms(*usual: int) -> tuple[int, int]:
            return round(usual[0] / self.drawn.tempo), round(usual[1] / self.drawn.tempo)

        plan = Plan(
            pause_ms=ms(2_000, 15_000),
            lasts_ms=ms(1_000, 15_000),
            kinds=tuple(sorted(self.world.abilities.intersection(self.drawn.kinds))),
            several=self.drawn.several,
            duration_ms=int(self.minutes * 60_000),
            partitions=("t0-0", "t0-1", *(("x0-0", "out-0") if self.drawn.with_transactions else ("t1-0",))),
            groups=tuple(self.coordinated),
            is_synced=self.drawn.is_synced,
            most_harms=_MOST_HARMS,
        )
        return schedule(Random(f"faults {self.outcome.seed}").randrange(1 << 30), plan)

    def _heal(self) -> None:
        process, _ = self.cluster.client("healer")
        self._wait([process.run(self.world.heal_all(), name="healer")], "healing hangs")
        if not self.wait_ready():
            late = [node.host for node in self.cluster.nodes.values() if not node.is_ready]
            self.outcome.problems.append(f"not ready after healing: {', '.join(late)}")
