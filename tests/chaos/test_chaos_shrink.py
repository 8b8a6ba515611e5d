"""Shrinking a schedule: what is left fails still, nothing of it can go, and the runs are counted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from chaos.nemesis import Fault, Kind
from chaos.shrink import shrink


def faults(count: int) -> list[Fault]:
    return [Fault(id=number, kind=Kind.KILL, at_ms=1000 * number, lasts_ms=900) for number in range(count)]


def ids(schedule: Sequence[Fault]) -> set[int]:
    return {fault.id for fault in schedule}


@pytest.mark.parametrize("needed", [{3}, {0, 11}, {2, 5, 6}, set(range(12)), set()])
def test_what_is_needed_stays_and_nothing_else(needed: set[int]) -> None:
    shrunk = shrink(faults(12), lambda these: needed <= ids(these), most_runs=500)
    assert ids(shrunk.faults) == needed
    assert shrunk.is_minimal


def test_none_can_be_left_out_where_several_reasons_are_possible() -> None:
    chance = random.Random(5)
    for _ in range(50):
        reasons = [set(chance.sample(range(10), k=chance.randint(1, 4))) for _ in range(3)]

        def fails(these: Sequence[Fault], reasons: list[set[int]] = reasons) -> bool:
            return any(reason <= ids(these) for reason in reasons)

        shrunk = shrink(faults(10), fails, most_runs=500)
        assert fails(shrunk.faults)
        for fault in shrunk.faults:
            assert not fails([other for other in shrunk.faults if other is not fault])


def test_the_order_of_time_stays() -> None:
    shrunk = shrink(faults(12), lambda these: {1, 7, 9} <= ids(these), most_runs=500)
    assert [fault.at_ms for fault in shrunk.faults] == [1000, 7000, 9000]


def test_runs_are_bounded_and_what_is_given_back_has_failed() -> None:
    tried: list[set[int]] = []

    def fails(these: Sequence[Fault]) -> bool:
        tried.append(ids(these))
        return {2, 9} <= ids(these)

    shrunk = shrink(faults(12), fails, most_runs=4)
    assert len(tried) == shrunk.runs == 4
    assert not shrunk.is_minimal
    assert {2, 9} <= ids(shrunk.faults)


def test_of_several_at_once_only_the_needed_stays_and_lasts_no_longer_than_needed() -> None:
    parts = tuple(
        Fault(id=1, kind=kind, target=target, at_ms=5000, lasts_ms=8000)
        for kind, target in ((Kind.KILL, "one"), (Kind.PAUSE, "node 2"), (Kind.SLOW, "all"))
    )
    several = Fault(
        id=1, kind=Kind.SEVERAL, target="one and node 2 and all", at_ms=5000, lasts_ms=8000, settings={"parts": parts}
    )

    def kinds(these: Sequence[Fault]) -> list[tuple[Kind, int]]:
        return [
            (part.kind, fault.lasts_ms)
            for fault in these
            for part in (fault.settings["parts"] if fault.kind is Kind.SEVERAL else [fault])
        ]

    shrunk = shrink(
        [several], lambda these: any(kind is Kind.PAUSE and ms >= 1500 for kind, ms in kinds(these)), most_runs=100
    )
    (left,) = shrunk.faults
    assert (left.kind, left.target, left.at_ms, left.lasts_ms) == (Kind.PAUSE, "node 2", 5000, 2000)


def test_two_of_three_at_once_stay_two() -> None:
    parts = tuple(Fault(id=0, kind=kind, lasts_ms=300) for kind in (Kind.KILL, Kind.PAUSE, Kind.SLOW))
    several = Fault(id=0, kind=Kind.SEVERAL, lasts_ms=300, settings={"parts": parts})

    def fails(these: Sequence[Fault]) -> bool:
        there = {part.kind for fault in these for part in fault.settings.get("parts", [fault])}
        return {Kind.KILL, Kind.SLOW} <= there

    (left,) = shrink([several], fails, most_runs=100).faults
    assert left.kind is Kind.SEVERAL
    assert [part.kind for part in left.settings["parts"]] == [Kind.KILL, Kind.SLOW]
