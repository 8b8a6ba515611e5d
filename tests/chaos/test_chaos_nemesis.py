"""Faults: data there and back, targets in words, cuts of each shape, schedules from a seed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from chaos.nemesis import (
    HARMS_DATA,
    Action,
    ClusterState,
    Cut,
    Fault,
    FaultUnsupported,
    Kind,
    NoSuchTarget,
    Plan,
    World,
    breaks,
    carry_out,
    cuts,
    from_value,
    resolve,
    run,
    schedule,
    timeline,
)

THREE = ClusterState(
    nodes=(1, 2, 3),
    controller=2,
    leaders={"t0-0": 1, "t0-1": 3},
    replicas={"t0-0": (1, 2, 3)},
    coordinators={"g": 3},
)
FIVE = ClusterState(nodes=(1, 2, 3, 4, 5))
CHANCE = random.Random(1)
EVERYTHING = Plan(kinds=tuple(Kind), duration_ms=600_000, partitions=("t0-0", "t0-1"), groups=("g",))


@pytest.mark.parametrize(
    ("target", "state", "count"),
    [
        *[("one", THREE, 1), ("minority", THREE, 1), ("majority", THREE, 2), ("all", THREE, 3)],
        *[("one", FIVE, 1), ("minority", FIVE, 2), ("majority", FIVE, 3), ("all", FIVE, 5)],
        ("minority", ClusterState(nodes=(7,)), 1),
    ],
)
def test_so_many_are_hit(target: str, state: ClusterState, count: int) -> None:
    hit = resolve(target, state, random.Random(5))
    assert len(hit) == len(set(hit)) == count
    assert set(hit) <= set(state.nodes)
    assert list(hit) == sorted(hit)


@pytest.mark.parametrize(
    ("target", "nodes"),
    [
        *[("controller", (2,)), ("leader of t0-1", (3,)), ("followers of t0-0", (2, 3)), ("coordinator of g", (3,))],
        ("node 2", (2,)),
    ],
)
def test_words_mean_nodes(target: str, nodes: tuple[int, ...]) -> None:
    assert resolve(target, THREE, CHANCE) == nodes


def test_any_leader_leads_something() -> None:
    assert {resolve("any leader", THREE, random.Random(seed)) for seed in range(20)} == {(1,), (3,)}


@pytest.mark.parametrize(
    "target", ["leader of t9-0", "followers of t0-1", "coordinator of h", "node 4", "node x", "somebody", ""]
)
def test_nobody_is_meant(target: str) -> None:
    with pytest.raises(NoSuchTarget):
        resolve(target, THREE, CHANCE)
    with pytest.raises(NoSuchTarget):
        resolve("controller", FIVE, CHANCE)


def hears(state: ClusterState, links: Sequence[Cut]) -> dict[int, set[int]]:
    return {node: {other for other in state.nodes if (other, node) not in links} for node in state.nodes}


def parts(state: ClusterState, links: Sequence[Cut]) -> list[int]:
    """Sizes of the sets of nodes that hear exactly each other."""
    heard = hears(state, links)
    return sorted(len(group) for group in {frozenset(of) for of in heard.values()})


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("state", [THREE, FIVE])
def test_partitions_have_their_shape(state: ClusterState, seed: int) -> None:
    chance = random.Random(seed)
    nodes, majority = len(state.nodes), len(state.nodes) // 2 + 1
    assert parts(state, cuts("one", state, (), chance)) == [1, nodes - 1]
    assert parts(state, cuts("halves", state, (), chance)) == sorted([nodes // 2, nodes - nodes // 2])
    assert parts(state, cuts("target", state, (1, 2), chance)) == sorted([2, nodes - 2])
    one_way = hears(state, cuts("one-way", state, (1,), chance))
    assert one_way[1] == set(state.nodes)
    assert all(heard == set(state.nodes) - {1} for node, heard in one_way.items() if node != 1)
    assert cuts("one-way", state, (1,), chance, (3,)) == ((1, 3),)
    ring = hears(state, cuts("majorities-ring", state, (), chance))
    assert all(node in heard and len(heard) == majority for node, heard in ring.items())
    assert len({frozenset(heard) for heard in ring.values()}) == nodes, "no two hear the same"
    bridge = hears(state, cuts("bridge", state, (), chance))
    (joins,) = [node for node, heard in bridge.items() if heard == set(state.nodes)]
    halves = {frozenset(heard - {joins}) for node, heard in bridge.items() if node != joins}
    assert sorted(map(len, halves)) == sorted([(nodes - 1) // 2, nodes - 1 - (nodes - 1) // 2])


def test_a_shape_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="triangle"):
        cuts("triangle", THREE, (), CHANCE)


class Recorded:
    """A world that records its actions, and is broken by those that were not healed."""

    abilities = frozenset(Kind)

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.wrong: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in dir(World):
            raise AttributeError(name)

        async def method(*arguments: Any, **named: Any) -> None:
            self.calls.append((name, arguments, named))
            self._follow(name, arguments, named)

        return method

    def _follow(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        match name, arguments:
            case ("kill" | "stop" | "lose_unsynced" | "lose_disk", (node,)):
                self.wrong.add(("down", node))
            case ("start", (node,)):
                self.wrong.discard(("down", node))
            case ("pause" | "resume", (node,)):
                self._switch(("paused", node), name == "pause")
            case ("cut" | "mend", (links,)):
                for link in links:
                    self._switch(link, name == "cut")
            case ("degrade", (node, *how)):
                self._switch(("links", node), any(how))
            case ("set_clock", (node, skew)):
                self._switch(("clock", node), skew != 0)
            case ("disk", (node,)):
                self._switch(("disk", node), named["full"] or named["fsync_delay_ms"] > 0)
            case ("set_voter", (node, voter)):
                self._switch(("voter", node), not voter)

    def _switch(self, what: Any, on: bool) -> None:
        if on:
            self.wrong.add(what)
        else:
            self.wrong.discard(what)


NOTHING_STAYS = {Kind.FSYNC_ERROR, Kind.CORRUPTION, Kind.ROLLING_RESTART, Kind.CLOCK_STROBE}
NO_NODE = {Kind.MOVE_LEADER, Kind.REASSIGN, Kind.CREATE_TOPIC, Kind.DELETE_TOPIC}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SEVERAL])
async def test_what_breaks_is_healed(kind: Kind) -> None:
    faults = schedule(3, Plan(kinds=(Kind.CREATE_TOPIC, kind), duration_ms=400_000, several=0))
    fault = next(fault for fault in faults if fault.kind is kind)
    broken = breaks(fault, THREE, random.Random(1))
    world = Recorded()
    await carry_out(world, broken.begin)  # type: ignore[arg-type]  # its methods are made when they are called
    assert world.calls
    assert bool(world.wrong) is (kind not in NOTHING_STAYS | NO_NODE)
    assert bool(broken.nodes) is (kind not in NO_NODE)
    await carry_out(world, broken.end)  # type: ignore[arg-type]
    assert world.wrong == set()


async def test_several_at_once_are_undone_in_reverse() -> None:
    kill = Fault(id=1, kind=Kind.KILL, target="node 1")
    cut = Fault(id=1, kind=Kind.PARTITION, target="node 2", settings={"shape": "target"})
    broken = breaks(Fault(id=1, kind=Kind.SEVERAL, settings={"parts": (kill, cut)}), THREE, CHANCE)
    assert broken.nodes == (1, 2)
    assert [action.method for action in (*broken.begin, *broken.end)] == ["kill", "cut", "mend", "start"]
    assert broken.begin[0] == Action(method="kill", arguments=(1,))


async def test_of_several_what_waits_for_other_nodes_ends_last() -> None:
    """A node that is to get its vote back has to catch up: while it is paused it cannot (seed 64, half a minute)."""
    pause = Fault(id=1, kind=Kind.PAUSE, target="node 2")
    lose = Fault(id=1, kind=Kind.LOSE_DISK, target="node 1")
    vote = Fault(id=1, kind=Kind.REMOVE_VOTER, target="node 2")
    broken = breaks(Fault(id=1, kind=Kind.SEVERAL, settings={"parts": (pause, lose, vote)}), THREE, CHANCE)
    assert [action.method for action in broken.end] == ["resume", "start", "set_voter"]


class Time:
    """Virtual: what is noted, and when."""

    def __init__(self) -> None:
        self.now = 0
        self.notes: list[tuple[int, str, int]] = []

    async def sleep_until_ms(self, at: int) -> None:
        assert at >= self.now
        self.now = at

    def note(self, f: str, value: dict[str, Any]) -> None:
        json.dumps(value)
        self.notes.append((self.now, f, value["id"]))


class Three(Recorded):
    async def state(self) -> ClusterState:
        return THREE

    async def heal_all(self) -> None:
        self.calls.append(("heal_all", (), {}))
        self.wrong.clear()


async def test_a_schedule_is_carried_out_and_noted_and_the_world_healed() -> None:
    faults = [
        Fault(id=0, kind=Kind.KILL, target="leader of t0-0", at_ms=100, lasts_ms=50),
        Fault(id=1, kind=Kind.KILL, target="leader of t9-9", at_ms=200, lasts_ms=50),
        Fault(id=2, kind=Kind.PAUSE, target="controller", at_ms=300, lasts_ms=50),
    ]
    world, time = Three(), Time()
    await run(world, faults, CHANCE, time.note, time.sleep_until_ms)  # type: ignore[arg-type]
    assert [(name, arguments) for name, arguments, _ in world.calls] == [
        *[("kill", (1,)), ("start", (1,)), ("pause", (2,)), ("resume", (2,)), ("heal_all", ())]
    ]
    assert time.notes == [
        *[(100, "fault", 0), (150, "heal", 0), (200, "skipped", 1), (300, "fault", 2), (350, "heal", 2)]
    ]


async def test_faults_may_overlap() -> None:
    faults = [
        Fault(id=0, kind=Kind.PAUSE, target="node 2", at_ms=100, lasts_ms=300),
        Fault(id=1, kind=Kind.KILL, target="node 1", at_ms=150, lasts_ms=50),
        Fault(id=2, kind=Kind.KILL, target="leader of t9-9", at_ms=350, lasts_ms=500),
        Fault(id=3, kind=Kind.KILL, target="node 3", at_ms=360, lasts_ms=0),
    ]
    world, time = Three(), Time()
    await run(world, faults, CHANCE, time.note, time.sleep_until_ms)  # type: ignore[arg-type]
    assert [(name, arguments) for name, arguments, _ in world.calls] == [
        *[("pause", (2,)), ("kill", (1,)), ("start", (1,)), ("kill", (3,)), ("start", (3,)), ("resume", (2,))],
        ("heal_all", ()),
    ]
    assert time.now == 400, "nobody waits for the end of a fault that hit nobody"


async def test_replicas_may_be_named() -> None:
    world = Recorded()
    settings = {"partition": "t0-1", "replicas": [3, 1]}
    for kind in (Kind.MOVE_LEADER, Kind.REASSIGN):
        broken = breaks(Fault(id=0, kind=kind, settings=settings), THREE, CHANCE)
        await carry_out(world, broken.begin)  # type: ignore[arg-type]
    assert [(name, arguments[0], named) for name, arguments, named in world.calls] == [
        *[("move_leader", "t0-1", {"replicas": (3, 1)}), ("reassign", "t0-1", {"replicas": (3, 1)})]
    ]


async def test_a_world_is_healed_when_something_goes_wrong() -> None:
    async def interrupted(at: int) -> None:
        if at == 150:
            raise ConnectionError

    world, time = Three(), Time()
    faults = [Fault(id=0, kind=Kind.KILL, target="one", at_ms=100, lasts_ms=50)]
    with pytest.raises(ConnectionError):
        await run(world, faults, CHANCE, time.note, interrupted)  # type: ignore[arg-type]
    assert world.calls[-1][0] == "heal_all"


async def test_what_a_world_cannot_do_is_not_begun() -> None:
    world, time = Three(), Time()
    world.abilities = frozenset({Kind.KILL})  # type: ignore[misc]
    with pytest.raises(FaultUnsupported, match="pause"):
        await run(world, [Fault(id=0, kind=Kind.PAUSE)], CHANCE, time.note, time.sleep_until_ms)  # type: ignore[arg-type]
    assert world.calls == []


def test_a_schedule_is_its_seed_s() -> None:
    assert schedule(7, EVERYTHING) == schedule(7, EVERYTHING)
    assert schedule(7, EVERYTHING) != schedule(8, EVERYTHING)


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_keeps_its_promises(seed: int) -> None:
    faults = schedule(seed, EVERYTHING)
    assert len(faults) > 15
    assert [fault.id for fault in faults] == list(range(len(faults)))
    assert faults[0].at_ms >= EVERYTHING.quiet_start_ms
    for fault, following in itertools.pairwise(faults):
        pause = following.at_ms - fault.at_ms - fault.lasts_ms
        assert pause >= EVERYTHING.pause_ms[0]
    assert faults[-1].at_ms + faults[-1].lasts_ms <= EVERYTHING.duration_ms, "healed in the end"
    single = [part for fault in faults for part in fault.settings.get("parts", (fault,))]
    harmful = [fault for fault in single if fault.kind in HARMS_DATA]
    assert len(harmful) <= 1
    assert all(fault.target == "one" for fault in harmful)
    made: set[str] = set()
    for fault in single:
        if fault.kind is Kind.CREATE_TOPIC:
            made.add(fault.settings["topic"])
        elif fault.kind is Kind.DELETE_TOPIC:
            made.remove(fault.settings["topic"])


def test_every_kind_is_scheduled_some_time_and_none_that_is_not_wanted() -> None:
    kinds = {
        part.kind
        for seed in range(30)
        for f in schedule(seed, EVERYTHING)
        for part in (f, *f.settings.get("parts", ()))
    }
    assert kinds == set(Kind)
    only = {fault.kind for fault in schedule(1, Plan(kinds=(Kind.KILL,), duration_ms=600_000, several=0))}
    assert only == {Kind.KILL}


def test_a_schedule_ends_when_all_that_may_come_would_harm_data_once_too_often() -> None:
    plan = Plan(kinds=(Kind.CORRUPTION, Kind.LOSE_DISK), duration_ms=600_000, several=0, most_harms=3)
    faults = schedule(7, plan)
    assert len(faults) == 3
    assert {fault.kind for fault in faults} <= {Kind.CORRUPTION, Kind.LOSE_DISK}


@pytest.mark.parametrize("seed", range(5))
def test_faults_go_through_json(seed: int) -> None:
    faults = schedule(seed, EVERYTHING)
    assert [from_value(json.loads(json.dumps(fault.as_value()))) for fault in faults] == faults


def test_a_timeline_ends_before_it_begins() -> None:
    faults = [Fault(id=0, kind=Kind.KILL, at_ms=0, lasts_ms=5), Fault(id=1, kind=Kind.KILL, at_ms=5, lasts_ms=5)]
    assert [(at, begins, fault.id) for at, begins, fault in timeline(faults)] == [
        *[(0, True, 0), (5, False, 0), (5, True, 1), (10, False, 1)]
    ]
