"""One seed, one history: a simulated cluster under load and faults, judged.

The seed draws the workload, the number of clients, the settings of the cluster and every fault. Safety phase: faults
and load for `minutes` of virtual time. Liveness phase: everything is healed; each node must be ready, each client must
get on, and everything that was acknowledged must be readable.

A seed repeats a run only with the same hashes of strings: `PYTHONHASHSEED=0`, which `python -m chaos sim` sees to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from chaos import checkers
from chaos.checkers.verdict import Options, Verdict
from chaos.generator import Calls, FinalPolls, GroupCalls, GroupOptions, LogCalls, LogOptions, Offsets
from chaos.history import FAULT, HEAL, NEMESIS, History, Op, Recorder
from chaos.nemesis import Broken, Fault, NoSuchTarget, Plan, breaks, carry_out, schedule, timeline
from chaos.workloads.clients import Client, Setting
from chaos.worlds.loop import collect_quietly
from chaos.worlds.simulated import SimulatedCluster, SimulatedWorld, simulated_cluster

_READY_SECONDS: Final = 60.0
_HEAL_SECONDS: Final = 30.0
_FINAL_SECONDS: Final = 300.0


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    ops: list[Op] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong besides anomalies: nodes that ended, clients that hang."""
    virtual_seconds: float = 0.0
    callbacks: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and all(verdict.valid for verdict in self.verdicts)


def run(seed: int, minutes: float = 5.0, *, calls_per_second: float = 6.0) -> Outcome:
    """Simulate a seed; each client makes so many calls at most.

    Nothing is logged meanwhile: that nodes die and complain is the plan.
    """
    chance = Random(f"settings {seed}")
    is_synced = chance.random() < 0.3
    settings = {"kraftpy.flush.before.ack": "true"} if is_synced else {}
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with simulated_cluster(seed, settings=settings) as cluster:
            outcome = _Run(cluster, seed, minutes, calls_per_second, is_synced=is_synced).run()
        del cluster
        collect_quietly()
    finally:
        logging.disable(disabled)
    return outcome


class _Run:
    def __init__(
        self, cluster: SimulatedCluster, seed: int, minutes: float, calls_per_second: float, *, is_synced: bool
    ) -> None:
        self.cluster = cluster
        self.chance = Random(f"run {seed}")
        self.outcome = Outcome(seed)
        self.recorder = Recorder(self.outcome.ops.append)
        self.minutes = minutes
        self.calls_per_second = calls_per_second
        self.count = self.chance.choice([2, 3, 5])
        self.processes: list[int] = []
        self.is_synced = is_synced
        self.world = SimulatedWorld(cluster, self.chance)

    def now_ns(self) -> int:
        return int(self.cluster.loop.time() * 1e9)

    def run(self) -> Outcome:
        cluster, outcome = self.cluster, self.outcome
        for node in cluster.nodes.values():
            node.start()
        if not cluster.wait_ready(_READY_SECONDS):
            outcome.problems.append("the nodes did not become ready at first")
        else:
            self._work()
        for node in cluster.nodes.values():
            outcome.problems += [f"{node.host} ended: {why}" for why in node.exits]
        outcome.problems += [f"unhandled: {each}" for each in cluster.loop.unhandled]
        outcome.virtual_seconds = cluster.loop.time()
        outcome.callbacks = cluster.loop.callbacks
        outcome.verdicts = checkers.check(History(outcome.ops), Options())
        return outcome

    def _calls(self) -> Calls:
        seed = self.chance.randrange(1 << 30)
        if self.chance.random() < 0.3:
            return GroupCalls(seed, GroupOptions(clients=self.count, members=(self.count + 1) // 2, crash_chance=0.002))
        via = self.chance.choice(["assign", "assign", "subscribe"])
        return LogCalls(seed, LogOptions(via=via, keys=6, crash_chance=0.002))

    def _work(self) -> None:
        calls = self._calls()
        is_over = False
        clients = self._clients(
            calls, list(range(self.count)), lambda: is_over, lambda: self.chance.expovariate(self.calls_per_second)
        )
        self._harm()
        self._heal()
        self.cluster.loop.run_for(_HEAL_SECONDS)
        is_over = True
        self._wait(clients, "a client hangs")
        processes = sorted(client.process for client in self.alive)
        offsets = Offsets()
        for op in self.outcome.ops:
            offsets.observe(op)
        readers = self._clients(FinalPolls(offsets.highest(), processes), processes, lambda: False, lambda: 0.01)
        self._wait(readers, "a client cannot read all")

    def _clients(
        self, calls: Calls, processes: list[int], is_over: Callable[[], bool], pause: Callable[[], float]
    ) -> list[Any]:
        self.alive = []
        tasks = []
        for number in processes:
            process, runtime = self.cluster.client(f"client{number}")
            setting = Setting(bootstrap_servers=self.cluster.bootstrap_servers, runtime=runtime, now_ns=self.now_ns)
            client = Client(setting, self.recorder, calls, number, self.count)
            self.alive.append(client)
            tasks.append(process.run(client.work(is_over, pause), name=f"client {number}"))
        return tasks

    def _wait(self, tasks: list[Any], problem: str) -> None:
        if not self.cluster.loop.run_until(lambda: all(task.done() for task in tasks), at_most_seconds=_FINAL_SECONDS):
            self.outcome.problems.append(problem)
        for task in tasks:
            if task.done() and task.exception() is not None:
                self.outcome.problems.append(f"a client failed: {task.exception()!r}")

    # --- faults ---

    async def _nemesis(self, faults: list[Fault]) -> None:
        """Begin and end each fault in its time."""
        world, loop = self.world, self.cluster.loop
        began = loop.time()
        broken: dict[int, Broken] = {}
        for at_ms, is_begin, fault in timeline(faults):
            await asyncio.sleep(max(0.0, began + at_ms / 1000 - loop.time()))
            if is_begin:
                try:
                    this = breaks(fault, await world.state(), self.chance)
                except NoSuchTarget:
                    continue
                broken[fault.id] = this
                self.recorder.note(self.now_ns(), NEMESIS, FAULT, {**fault.as_value(), "nodes": list(this.nodes)})
                await carry_out(world, this.begin)
            elif fault.id in broken:
                await carry_out(world, broken.pop(fault.id).end)
                self.recorder.note(self.now_ns(), NEMESIS, HEAL, {"id": fault.id})

    async def _power_cuts(self, until: float) -> None:
        """Every machine at once, now and then: nothing that was synced before it was acknowledged may be lost."""
        while True:
            await asyncio.sleep(self.chance.uniform(10.0, 60.0))
            if self.cluster.loop.time() > until:
                return
            nodes = sorted(self.cluster.nodes)
            self.recorder.note(self.now_ns(), NEMESIS, "power-cut", {"nodes": nodes})
            for node in nodes:
                await self.world.lose_unsynced(node)
            await asyncio.sleep(self.chance.uniform(0.1, 3.0))
            for node in nodes:
                await self.world.start(node)

    def _harm(self) -> None:
        plan = Plan(kinds=tuple(sorted(self.world.abilities)), duration_ms=int(self.minutes * 60_000))
        faults = schedule(self.chance.randrange(1 << 30), plan)
        process, _ = self.cluster.client(NEMESIS)
        tasks = [process.run(self._nemesis(faults), name=NEMESIS)]
        until = self.cluster.loop.time() + self.minutes * 60
        if self.is_synced:
            tasks.append(process.run(self._power_cuts(until), name="power cuts"))
        self.cluster.loop.run_for(self.minutes * 60)
        self._wait(tasks, "the nemesis hangs")

    def _heal(self) -> None:
        process, _ = self.cluster.client("healer")
        self._wait([process.run(self.world.heal_all(), name="healer")], "healing hangs")
        if not self.cluster.wait_ready(_READY_SECONDS):
            late = [node.host for node in self.cluster.nodes.values() if not node.is_ready]
            self.outcome.problems.append(f"not ready after healing: {', '.join(late)}")
