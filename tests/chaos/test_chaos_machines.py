"""The faults that real worlds with disks skip, so that every loss is a bug."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.nemesis import FaultSkipped, NodeId
from chaos.worlds import machines
from chaos.worlds.machines import Machines

NODES = (1, 2, 3)


class Told(Machines):
    """A world that only answers questions, with what `told` holds for each node."""

    def __init__(self, told: dict[NodeId, list[tuple[Sequence[NodeId], Sequence[NodeId]]]]) -> None:
        super().__init__(Path("nowhere"), NODES, None)
        self.told = told
        self.asked = 0
        self.voting: list[NodeId] | None = [*NODES]

    async def _metadata(self, node: NodeId) -> Any:
        self.asked += 1
        if node not in self.told:
            raise ConnectionRefusedError
        parts = [
            SimpleNamespace(partition_index=number, replica_nodes=list(replicas), isr_nodes=list(in_sync))
            for number, (replicas, in_sync) in enumerate(self.told[node])
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=parts)])

    async def voters(self) -> list[NodeId] | None:
        return self.voting

    def disk_of(self, node: NodeId) -> Any:
        raise AssertionError(f"the disk of node {node} is touched")


Told.__abstractmethods__ = frozenset()

HARMS = [
    lambda world: world.lose_unsynced(3),
    lambda world: world.lose_disk(3),
    lambda world: world.corrupt(3, "active segment", 1),
]


@pytest.fixture(autouse=True)
def _not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_COPIES_SECONDS", 0.0)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({1: [((1, 3), (3,))], 2: [((1, 3), (3,))]}, "node 1 sees nobody but node 3 in sync for t-0"),
        ({1: [((1, 3), (1, 3))], 2: [((1, 3), (3,))]}, "node 2 sees nobody but node 3 in sync for t-0"),
        ({1: [((1, 2, 3), (1, 2, 3)), ((3,), (3,))], 2: []}, "node 1 sees nobody but node 3 in sync for t-1"),
        ({1: [((1, 2, 3), (1, 2, 3))]}, "node 2 does not answer"),
    ],
)
async def test_the_last_copy_is_spared(harm: Any, told: Any, why: str) -> None:
    with pytest.raises(FaultSkipped, match=why):
        await harm(Told(told))


@pytest.mark.parametrize("harm", HARMS)
async def test_whoever_is_not_alone_may_lose_what_it_has(harm: Any) -> None:
    fine = [((1, 2, 3), (2, 3)), ((1, 2), (1,)), ((3, 1), (1,))]
    world = Told({1: fine, 2: fine})
    world.kill = _done  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="the disk of node 3 is touched"):
        await harm(world)


@pytest.mark.parametrize(
    "harm", [lambda world: world.lose_disk(3), lambda world: world.corrupt(3, "quorum journal", 1)]
)
@pytest.mark.parametrize(
    ("voting", "forgot", "why"),
    [
        ([1, 2, 3], set(), None),
        ([1, 2], set(), None),
        ([2, 3], set(), r"without node 3 there are too few voters: \[2, 3\]"),
        ([1, 2, 3], {1}, r"without node 3 there are too few voters: \[1, 2, 3\]"),
        (None, set(), "nobody says who votes"),
    ],
)
async def test_the_quorum_keeps_its_majority(
    harm: Any, voting: list[NodeId] | None, forgot: set[NodeId], why: str | None
) -> None:
    fine = [((1, 2, 3), (1, 2, 3))]
    world = Told({1: fine, 2: fine})
    world.kill = _done  # type: ignore[method-assign]
    world.voting = voting
    world._forgot |= forgot
    with pytest.raises(AssertionError if why is None else FaultSkipped, match=why or "the disk of node 3 is touched"):
        await harm(world)


async def test_a_copy_that_is_being_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_COPIES_SECONDS", 60.0)
    world = Told({1: [((1, 3), (3,))], 2: []})

    async def metadata(node: NodeId, ask: Any = world._metadata) -> Any:
        if world.asked > 4:
            world.told[1] = [((1, 3), (3, 1))]
        return await ask(node)

    world._metadata = metadata  # type: ignore[method-assign]
    await world._spare_the_last_copy(3)
    assert world.asked > 4


@pytest.mark.parametrize(
    ("status", "is_fresh", "problem"),
    [
        (0, False, None),
        (-signal.SIGTERM, True, None),
        (128 + signal.SIGTERM, True, None),
        (-signal.SIGTERM, False, "node 3 stopped with status -15: its last words"),
        (1, True, "node 3 stopped with status 1: its last words"),
        (-signal.SIGSEGV, True, "node 3 stopped with status -11: its last words"),
        (None, True, "node 3 did not stop within 120 s: its last words"),
    ],
)
async def test_only_a_node_that_was_just_started_may_end_by_the_signal(
    status: int | None, is_fresh: bool, problem: str | None
) -> None:
    """It may have no handler yet, and has begun nothing then."""
    world = Told({})

    async def end(_: NodeId) -> int | None:
        return status

    world.end = end  # type: ignore[method-assign]
    world.is_running = lambda _: True  # type: ignore[method-assign]
    world.last_words = lambda _: "its last words"  # type: ignore[method-assign]
    if is_fresh:
        world._began(3)
    await world.stop(3)
    assert world.problems() == ([] if problem is None else [problem])


async def _done(_: NodeId) -> None:
    return None
