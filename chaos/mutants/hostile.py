"""Mutants that let a hostile client have its way."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import Mutant, replaced, rounds, set_to, three
from chaos.nemesis import Kind
from chaos.workloads import hostile
from kraftpy.broker.handlers import replica_fetch


class _AnyBroker:
    """An identity that equals any other, so every request counts as sent by the broker it names."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


async def _whoever_it_says(*_: Any) -> _AnyBroker:
    return _AnyBroker()


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="posing-follower-believed",
        breaks="a client's Fetch as a replica counts as that replica's acknowledgement (CVE-2018-1288)",
        rule="49",
        shows=frozenset({"inconsistent-offsets", "lost-write", "unseen", "lost-on-node"}),
        directed=three(
            controllers=3,
            workload="log",
            load=2.0,
            with_hostile=True,
            settings={"replica.lag.time.max.ms": "30000", "controller.quorum.fetch.timeout.ms": "8000"},
        ),
        # A follower stands still, and a stranger fetches in its name; then the two others end, and it leads.
        faults=rounds(
            (0, Kind.PAUSE, "node c", 5_000, {}),
            (4_200, Kind.KILL, "node a", 5_000, {}),
            (4_250, Kind.KILL, "node b", 5_000, {}),
            nodes="abc",
            every_ms=14_000,
        ),
        patches=(
            replaced(replica_fetch, "who_asks", _whoever_it_says),
            set_to(hostile, "ATTACKS", (hostile.pose_as_follower,)),
            set_to(hostile, "PAUSE_SECONDS", 0.05),
        ),
    ),
)
