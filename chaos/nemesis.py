"""Faults as data, with targets in words; a schedule of them from a seed; the interface that a world implements.

A `Fault` says what breaks, which nodes it hits and for how long. Its target is words ("minority", "leader of t0-1"),
which `resolve` turns into nodes based on what is known of the cluster when the fault begins, and `breaks` turns into
the primitive actions that a `World` carries out. `heals` undoes them.

    kill             the process dies at once, and is started again at the end
    stop             it is asked to stop, and started again at the end
    pause            it is stopped by a signal and resumes at the end
    partition        links are cut: `shape` says which
    slow, lossy      links from and to the nodes have a delay, or lose a share of what they carry
    clock-skew       the clock is wrong by so much, until the end
    clock-strobe     it jumps to and fro
    disk-full        writes fail with ENOSPC
    fsync-error      fsync fails once with EIO
    slow-disk        fsync takes long
    corruption       a byte of a file is changed: `of` says of which (active segment, sealed segment, quorum journal)
    lose-unsynced    the process dies, and loses what it had written and not synced
    lose-disk        the process dies, its disk is emptied, and it is started again
    rolling-restart  each node is stopped and started, one after the other
    remove-voter     a node leaves the quorum, and comes back at the end
    move-leader      a partition is led by another of its replicas
    reassign         a partition gets other replicas
    create-topic, delete-topic     beside the workload's own
    several          more than one of these at once

Partitions' shapes: `one` (from all others), `halves`, `majorities-ring` (each node hears a majority, no two the
same), `bridge` (two halves that share one node), `target` (the target's nodes from the rest), `one-way` (what the
target's nodes send, to those that `to` names if it is there, is lost; what is sent to them arrives).

Invariants: the same seed gives the same schedule; a schedule ends with everything healed; what harms data on disk
hits one node, once in a run or as often as the world spares the last copy, and nothing ends other nodes meanwhile.
If everything is synced before it is acknowledged (`Plan.is_synced`), the loss of unsynced data may hit all of them.

Left out: hardware clocks. A world lists in `abilities` what it can do; other kinds are never scheduled for it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from chaos.history import FAULT, HEAL

NodeId = int

SKIPPED = "skipped"
"""The nemesis left a fault out because its target matched no node."""
SPARED = "spared"
"""The world left an action of a fault out, because nothing could have restored what it harms."""


class Kind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    PARTITION = "partition"
    SLOW = "slow"
    LOSSY = "lossy"
    CLOCK_SKEW = "clock-skew"
    CLOCK_STROBE = "clock-strobe"
    DISK_FULL = "disk-full"
    FSYNC_ERROR = "fsync-error"
    SLOW_DISK = "slow-disk"
    CORRUPTION = "corruption"
    LOSE_UNSYNCED = "lose-unsynced"
    LOSE_DISK = "lose-disk"
    ROLLING_RESTART = "rolling-restart"
    REMOVE_VOTER = "remove-voter"
    MOVE_LEADER = "move-leader"
    REASSIGN = "reassign"
    CREATE_TOPIC = "create-topic"
    DELETE_TOPIC = "delete-topic"
    SEVERAL = "several"


HARMS_DATA = frozenset({Kind.CORRUPTION, Kind.LOSE_DISK, Kind.LOSE_UNSYNCED, Kind.FSYNC_ERROR})
"""A minority may lose data unnoticed; if a majority does, the cluster has nothing to restore it from."""

WITH_HARM = frozenset({Kind.PARTITION, Kind.PAUSE, Kind.SLOW, Kind.LOSSY, Kind.CLOCK_SKEW, Kind.CLOCK_STROBE})
"""Kinds that may overlap with harm to data. Other nodes must not end meanwhile: a node that ends uncleanly does not
count as having everything until it has caught up (KIP-966), and neither does the harmed node."""

SHAPES = ("one", "halves", "majorities-ring", "bridge", "target", "one-way")
CORRUPTIBLE = ("active segment", "sealed segment", "quorum journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to carry out, as data."""

    id: int
    kind: Kind
    target: str = "one"
    at_ms: int = 0
    """Milliseconds since the run began."""
    lasts_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`shape`, `delay_ms`, `jitter_ms`, `loss`, `skew_ms`, `period_ms`, `of`, `parts`, `partition`, `replicas`,
    `topic`."""

    def as_value(self) -> dict[str, Any]:
        """Return the fault as data, for the history and for a file."""
        return {**asdict(self), "kind": str(self.kind), "settings": _plain(dict(self.settings))}


def _plain(what: Any) -> Any:
    match what:
        case Fault():
            return what.as_value()
        case dict():
            return {name: _plain(of) for name, of in what.items()}
        case list() | tuple():
            return [_plain(of) for of in what]
        case _:
            return what


def from_value(value: Mapping[str, Any]) -> Fault:
    """Return the fault that `as_value` described."""
    settings = dict(value["settings"])
    if "parts" in settings:
        settings["parts"] = tuple(from_value(part) for part in settings["parts"])
    known = {name: value[name] for name in ("id", "target", "at_ms", "lasts_ms")}
    return Fault(kind=Kind(value["kind"]), settings=settings, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The known state of the cluster when a fault begins. Unknown facts are absent."""

    nodes: tuple[NodeId, ...]
    controller: NodeId | None = None
    leaders: Mapping[str, NodeId] = field(default_factory=dict)
    """Leaders of partitions such as "t0-1"."""
    replicas: Mapping[str, tuple[NodeId, ...]] = field(default_factory=dict)
    coordinators: Mapping[str, NodeId] = field(default_factory=dict)
    """Coordinators of groups."""


class NoSuchTarget(Exception):
    """The target matches no node: the partition has no leader, or the words are no target."""


def resolve(target: str, state: ClusterState, chance: random.Random) -> tuple[NodeId, ...]:
    """Return the nodes that the words mean now, in order.

    one, minority, majority, all · node N · controller · leader of P · followers of P · coordinator of G · any leader
    """
    nodes = sorted(state.nodes)
    majority = len(nodes) // 2 + 1
    match target.split(" "):
        case ["one"]:
            return (chance.choice(nodes),)
        case ["minority"]:
            return _some(chance, nodes, max(1, len(nodes) - majority))
        case ["majority"]:
            return _some(chance, nodes, majority)
        case ["all"]:
            return tuple(nodes)
        case ["node", number] if number.isdigit() and int(number) in nodes:
            return (int(number),)
        case ["controller"] if state.controller is not None:
            return (state.controller,)
        case ["leader", "of", partition] if partition in state.leaders:
            return (state.leaders[partition],)
        case ["followers", "of", partition] if partition in state.leaders and partition in state.replicas:
            followers = sorted(set(state.replicas[partition]) - {state.leaders[partition]})
            if followers:
                return tuple(followers)
        case ["any", "leader"] if state.leaders:
            return (state.leaders[chance.choice(sorted(state.leaders))],)
        case ["coordinator", "of", group] if group in state.coordinators:
            return (state.coordinators[group],)
    raise NoSuchTarget(target)


def _some(chance: random.Random, nodes: Sequence[NodeId], count: int) -> tuple[NodeId, ...]:
    return tuple(sorted(chance.sample(nodes, k=count)))


Cut = tuple[NodeId, NodeId]
"""A link that is cut: bytes from the first node to the second are lost."""


def cuts(
    shape: str, state: ClusterState, hit: Sequence[NodeId], chance: random.Random, to: Sequence[NodeId] = ()
) -> tuple[Cut, ...]:
    """Return the links that a partition of this shape cuts, in order, one for each direction; `to` as in the module."""
    nodes = sorted(state.nodes)
    match shape:
        case "one":
            return between((chance.choice(nodes),), nodes)
        case "halves":
            return between(_some(chance, nodes, len(nodes) // 2), nodes)
        case "target":
            return between(hit, nodes)
        case "one-way":
            return tuple((node, other) for node in sorted(hit) for other in to or nodes if other not in hit)
        case "bridge":
            shuffled = chance.sample(nodes, k=len(nodes))
            bridge, rest = shuffled[0], shuffled[1:]
            return between(rest[: len(rest) // 2], [node for node in nodes if node != bridge])
        case "majorities-ring":
            ring = chance.sample(nodes, k=len(nodes))
            seen = {node: _majority_around(ring, place) for place, node in enumerate(ring)}
            return tuple((a, b) for a in nodes for b in nodes if a not in seen[b])
        case _:
            raise ValueError(f"no shape of a partition: {shape!r}")


def _majority_around(ring: Sequence[NodeId], place: int) -> set[NodeId]:
    """Return a majority of the ring made of a node and its neighbours."""
    majority = len(ring) // 2 + 1
    return {ring[(place - majority // 2 + step) % len(ring)] for step in range(majority)}


def between(part: Sequence[NodeId], nodes: Sequence[NodeId]) -> tuple[Cut, ...]:
    """Return every link between the part and the rest, both ways."""
    rest = [node for node in nodes if node not in part]
    return tuple(sorted([(a, b) for a in part for b in rest] + [(b, a) for a in part for b in rest]))


class FaultSkipped(Exception):
    """The world left an action out because nothing could have restored what it would have harmed."""


class World(Protocol):
    """Carries faults out. A method may take its time; its counterpart undoes its effect, and so does `heal_all`."""

    @property
    def abilities(self) -> frozenset[Kind]:
        """The kinds this world supports. Nothing else is asked of it."""

    async def state(self) -> ClusterState:
        """Return what is known of the cluster now."""

    async def kill(self, node: NodeId) -> None:
        """End the process without warning."""

    async def stop(self, node: NodeId) -> None:
        """Ask the process to end, and wait until it has."""

    async def start(self, node: NodeId) -> None:
        """Start the process; do nothing if it runs."""

    async def pause(self, node: NodeId) -> None:
        """Stop the process in its tracks."""

    async def resume(self, node: NodeId) -> None:
        """Let the process continue."""

    async def cut(self, links: Sequence[Cut]) -> None:
        """Lose all bytes from the first of each pair to the second."""

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Make the node's links slow and lossy; zeros make them good again."""

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Make the node's clock wrong by this much; 0 makes it right."""

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Set how the node's disk behaves from now on."""

    async def fail_fsync(self, node: NodeId) -> None:
        """Let the next fsync fail."""

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Change one byte of a file of this sort; return False if there is none."""

    async def lose_unsynced(self, node: NodeId) -> None:
        """Kill the process and forget what it did not sync."""

    async def lose_disk(self, node: NodeId) -> None:
        """Kill the process and empty its disk."""

    async def set_voter(self, node: NodeId, voter: bool) -> None:
        """Remove the node from the quorum, or add it."""

    async def move_leader(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Let another in-sync replica lead: the first of `replicas`, if given."""

    async def reassign(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Give the partition other replicas: `replicas`, if given."""

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic beside the workload's."""

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic that `create_topic` made."""

    async def heal_all(self) -> None:
        """Mend, resume, start and correct everything that is not healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One call of a method of a `World`."""

    method: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


async def carry_out(
    world: World, actions: Sequence[Action], spared: Callable[[Action, FaultSkipped], object] = lambda *_: None
) -> None:
    """Carry actions out one after the other; `spared` is called with those the world left out."""
    for action in actions:
        try:
            await getattr(world, action.method)(*action.arguments, **action.named)
        except FaultSkipped as why:
            spared(action, why)


class FaultUnsupported(Exception):
    """A world was given a fault that is not among its abilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A fault that has begun: the nodes it hit, the actions to take, and those that undo them."""

    fault: Fault
    nodes: tuple[NodeId, ...]
    begin: tuple[Action, ...]
    end: tuple[Action, ...]


_NEEDS_THE_OTHERS = {"start": 1, "set_voter": 2}
"""Undoing actions that wait for nodes which another fault of the same `several` may have silenced; they run last."""


def breaks(fault: Fault, state: ClusterState, chance: random.Random) -> Broken:
    """Turn the fault into actions on this cluster. Raises `NoSuchTarget` if its target matches no node."""
    if fault.kind is Kind.SEVERAL:
        parts = [breaks(part, state, chance) for part in fault.settings["parts"]]
        nodes = tuple(sorted({node for part in parts for node in part.nodes}))
        begin = tuple(action for part in parts for action in part.begin)
        end = [action for part in reversed(parts) for action in part.end]
        end.sort(key=lambda action: _NEEDS_THE_OTHERS.get(action.method, 0))
        return Broken(fault=fault, nodes=nodes, begin=begin, end=tuple(end))
    whole = fault.kind in (Kind.MOVE_LEADER, Kind.REASSIGN, Kind.CREATE_TOPIC, Kind.DELETE_TOPIC)
    nodes = () if whole else resolve(fault.target, state, chance)
    first, last = _actions(fault, state, nodes, chance)
    return Broken(fault=fault, nodes=nodes, begin=tuple(first), end=tuple(last))


def _each(method: str, nodes: Sequence[NodeId], *arguments: Any, **named: Any) -> list[Action]:
    return [Action(method=method, arguments=(node, *arguments), named=named) for node in nodes]


def _actions(
    fault: Fault, state: ClusterState, nodes: tuple[NodeId, ...], chance: random.Random
) -> tuple[list[Action], list[Action]]:
    settings = fault.settings
    match fault.kind:
        case Kind.KILL | Kind.LOSE_UNSYNCED | Kind.LOSE_DISK | Kind.STOP:
            return _each(fault.kind.replace("-", "_"), nodes), _each("start", nodes)
        case Kind.PAUSE:
            return _each("pause", nodes), _each("resume", nodes)
        case Kind.PARTITION:
            links = cuts(settings["shape"], state, nodes, chance, settings.get("to", ()))
            return [Action(method="cut", arguments=(links,))], [Action(method="mend", arguments=(links,))]
        case Kind.SLOW:
            slow = (settings["delay_ms"], settings["jitter_ms"], 0.0)
            return _each("degrade", nodes, *slow), _each("degrade", nodes, 0, 0, 0.0)
        case Kind.LOSSY:
            return _each("degrade", nodes, 0, 0, settings["loss"]), _each("degrade", nodes, 0, 0, 0.0)
        case Kind.CLOCK_SKEW:
            return _each("set_clock", nodes, settings["skew_ms"]), _each("set_clock", nodes, 0)
        case Kind.CLOCK_STROBE:
            jumps = [a for skew in (settings["skew_ms"], 0) * 3 for a in _each("set_clock", nodes, skew)]
            return jumps, _each("set_clock", nodes, 0)
        case Kind.DISK_FULL:
            good = _each("disk", nodes, full=False, fsync_delay_ms=0)
            return _each("disk", nodes, full=True, fsync_delay_ms=0), good
        case Kind.SLOW_DISK:
            good = _each("disk", nodes, full=False, fsync_delay_ms=0)
            return _each("disk", nodes, full=False, fsync_delay_ms=settings["delay_ms"]), good
        case Kind.FSYNC_ERROR:
            return _each("fail_fsync", nodes), _each("start", nodes)
        case Kind.CORRUPTION:
            return _each("corrupt", nodes, settings["of"], chance.getrandbits(32)), _each("start", nodes)
        case Kind.ROLLING_RESTART:
            return [a for node in nodes for a in (*_each("stop", [node]), *_each("start", [node]))], []
        case Kind.REMOVE_VOTER:
            return _each("set_voter", nodes, False), _each("set_voter", nodes, True)
        case Kind.MOVE_LEADER | Kind.REASSIGN:
            partition = settings.get("partition") or _any_partition(state, chance)
            method = fault.kind.replace("-", "_")
            named = {"replicas": tuple(settings["replicas"])} if "replicas" in settings else {}
            return [Action(method=method, arguments=(partition, chance.getrandbits(32)), named=named)], []
        case Kind.CREATE_TOPIC:
            return [Action(method="create_topic", arguments=(settings["topic"], chance.randint(1, 4)))], []
        case Kind.DELETE_TOPIC:
            return [Action(method="delete_topic", arguments=(settings["topic"],))], []
        case Kind.SEVERAL:
            raise AssertionError("its parts are broken one by one")


def _any_partition(state: ClusterState, chance: random.Random) -> str:
    if not state.leaders:
        raise NoSuchTarget("a partition")
    return chance.choice(sorted(state.leaders))


async def run(
    world: World,
    faults: Sequence[Fault],
    chance: random.Random,
    note: Callable[[str, dict[str, Any]], object],
    sleep_until_ms: Callable[[int], Awaitable[None]],
) -> None:
    """Carry a schedule out, and note in the history when each fault begins and ends. Faults may overlap.

    A fault whose target matches no node at its time is noted as `skipped`. The world is always healed in the end. Each
    fault has its own random numbers, so that the remainder of a shortened schedule still draws the same.
    """
    dice = chance.getrandbits(64)
    for fault in faults:
        for part in fault.settings.get("parts", (fault,)):
            if part.kind not in world.abilities:
                raise FaultUnsupported(part.kind)
    begun: dict[int, Broken] = {}
    try:
        for at_ms, begins, fault in timeline(faults):
            if not begins:
                if (ending := begun.pop(fault.id, None)) is not None:
                    await sleep_until_ms(at_ms)
                    await carry_out(world, ending.end)
                    note(HEAL, {"id": fault.id})
                continue
            await sleep_until_ms(at_ms)
            try:
                broken = breaks(fault, await world.state(), random.Random(f"{dice} {fault.id}"))
            except NoSuchTarget as nobody:
                note(SKIPPED, {"id": fault.id, "target": str(nobody)})
                continue
            note(FAULT, {**fault.as_value(), "nodes": list(broken.nodes)})

            def spared(action: Action, why: FaultSkipped, number: int = fault.id) -> None:
                note(SPARED, {"id": number, "method": action.method, "why": str(why)})

            await carry_out(world, broken.begin, spared)
            begun[fault.id] = broken
    finally:
        await world.heal_all()


# Schedules.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters for drawing a schedule."""

    kinds: tuple[Kind, ...]
    duration_ms: int
    partitions: tuple[str, ...] = ()
    """Partitions that targets may name."""
    groups: tuple[str, ...] = ()
    quiet_start_ms: int = 5_000
    pause_ms: tuple[int, int] = (2_000, 15_000)
    """The pause between a fault's end and the next one's start."""
    lasts_ms: tuple[int, int] = (1_000, 15_000)
    several: float = 0.2
    """The chance of two or three at once."""
    calm: float = 0.1
    """The chance of a longer pause instead of a fault."""
    is_synced: bool = False
    """Acknowledged records were synced before: any nodes may lose unsynced data, as often as they like."""
    most_harms: int = 1
    """How often data on disk may be harmed. More than once needs a world that spares the last copy (`FaultSkipped`)."""


def schedule(seed: int, plan: Plan) -> list[Fault]:
    """Draw faults in order of time, none starting before the previous one has ended; the last ends within the duration.

    They end sooner if no kind is left to draw: all of them harm data, and that happened often enough.
    """
    chance = random.Random(seed)
    planner = _Planner(chance, plan)
    faults: list[Fault] = []
    now = plan.quiet_start_ms
    while True:
        if chance.random() < plan.calm:
            now += plan.pause_ms[1]
        lasts = chance.randint(*plan.lasts_ms)
        if now + lasts > plan.duration_ms or not planner.is_any_possible:
            return faults
        faults.append(planner.fault(len(faults), now, lasts))
        now += lasts + chance.randint(*plan.pause_ms)


class _Planner:
    def __init__(self, chance: random.Random, plan: Plan) -> None:
        self._chance = chance
        self._plan = plan
        self._topics: list[str] = []
        self._made = 0
        self._harms_left = plan.most_harms

    @property
    def is_any_possible(self) -> bool:
        """Return True if a fault is left to draw; if not, there never will be again."""
        return bool(self._possible([]))

    def fault(self, number: int, at_ms: int, lasts_ms: int) -> Fault:
        if self._chance.random() < self._plan.several:
            parts: list[Fault] = []
            for _ in range(self._chance.randint(2, 3)):
                if self._possible([part.kind for part in parts]):
                    parts.append(self._single(number, at_ms, lasts_ms, parts))
            return Fault(
                id=number,
                kind=Kind.SEVERAL,
                target=" and ".join(part.target for part in parts),
                at_ms=at_ms,
                lasts_ms=lasts_ms,
                settings={"parts": tuple(parts)},
            )
        return self._single(number, at_ms, lasts_ms)

    def _single(self, number: int, at_ms: int, lasts_ms: int, beside: Sequence[Fault] = ()) -> Fault:
        chance = self._chance
        kind = chance.choice(self._possible([fault.kind for fault in beside]))
        fault = Fault(id=number, kind=kind, target=self._target(kind), at_ms=at_ms, lasts_ms=lasts_ms)
        self._harms_left -= self._harms(kind)
        return replace(fault, settings=self._settings(kind))

    def _possible(self, beside: Sequence[Kind]) -> list[Kind]:
        return [kind for kind in self._plan.kinds if kind is not Kind.SEVERAL and self._may(kind, beside)]

    def _may(self, kind: Kind, beside: Sequence[Kind]) -> bool:
        if any(self._harms(other) for other in beside) and kind not in WITH_HARM:
            return False
        if kind is Kind.DELETE_TOPIC:
            return bool(self._topics)
        return not self._harms(kind) or (self._harms_left > 0 and WITH_HARM.issuperset(beside))

    def _harms(self, kind: Kind) -> bool:
        only_unsynced = kind in (Kind.LOSE_UNSYNCED, Kind.FSYNC_ERROR)
        return kind in HARMS_DATA and not (only_unsynced and self._plan.is_synced)

    def _target(self, kind: Kind) -> str:
        chance, plan = self._chance, self._plan
        if kind is Kind.LOSE_UNSYNCED and plan.is_synced:
            return chance.choice(["one", "minority", "majority", "all", "all"])
        if kind in HARMS_DATA or kind in (Kind.FSYNC_ERROR, Kind.REMOVE_VOTER):
            return "one"
        if kind is Kind.ROLLING_RESTART:
            return "all"
        targets = ["one", "minority", "controller", "any leader"]
        if kind not in (Kind.PARTITION, Kind.DISK_FULL):
            targets += ["majority", "all"]
        targets += [f"leader of {partition}" for partition in plan.partitions[:3]]
        targets += [f"coordinator of {group}" for group in plan.groups[:2]]
        return chance.choice(targets)

    def _settings(self, kind: Kind) -> dict[str, Any]:
        chance = self._chance
        match kind:
            case Kind.PARTITION:
                return {"shape": chance.choice(SHAPES)}
            case Kind.SLOW:
                return {"delay_ms": chance.choice([20, 50, 100, 500]), "jitter_ms": chance.choice([5, 10, 50])}
            case Kind.LOSSY:
                return {"loss": chance.choice([0.01, 0.05, 0.2])}
            case Kind.CLOCK_SKEW | Kind.CLOCK_STROBE:
                return {"skew_ms": round(1.5 ** chance.randint(6, 31)) * chance.choice([-1, 1])}
            case Kind.SLOW_DISK:
                return {"delay_ms": chance.choice([50, 200, 1000])}
            case Kind.CORRUPTION:
                return {"of": chance.choice(CORRUPTIBLE)}
            case Kind.CREATE_TOPIC:
                self._made += 1
                self._topics.append(f"nemesis-{self._made}")
                return {"topic": self._topics[-1]}
            case Kind.DELETE_TOPIC:
                return {"topic": self._topics.pop(chance.randrange(len(self._topics)))}
            case _:
                return {}


def timeline(faults: Sequence[Fault]) -> Iterator[tuple[int, bool, Fault]]:
    """Yield starts (True) and ends (False) by time; at equal times ends first, except of faults without duration."""
    events = [(fault.at_ms, True, fault) for fault in faults]
    events += [(fault.at_ms + fault.lasts_ms, False, fault) for fault in faults]
    yield from sorted(
        events, key=lambda event: (event[0], event[1] or not event[2].lasts_ms, event[2].id, not event[1])
    )
