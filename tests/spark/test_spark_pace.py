"""Batches are read in few tasks while they are quick."""

from __future__ import annotations

import pytest

from kraftpy.spark.offsets import OffsetRange
from kraftpy.spark.pace import MOST_LEFT_OUT, RECORDS_PER_MS, SLOW_MS, Pace, few_tasks


def of(records: int) -> list[OffsetRange]:
    return [OffsetRange(topic="t", partition=0, start=5, end=5 + records)]


def run(pace: Pace, took_ms: int, *, records: int = 100) -> bool:
    """A batch that takes so long; whether it was read in few tasks."""
    few = pace.planned(of(records), 0)
    pace.asked(took_ms)
    return few


def test_quick_batches_stay_in_few_tasks() -> None:
    pace = Pace()
    assert [run(pace, SLOW_MS) for _ in range(5)] == [True] * 5


def test_a_slow_batch_is_followed_by_one_in_all_its_tasks() -> None:
    """However long that one takes; then few are tried again."""
    pace = Pace()
    assert [run(pace, took) for took in (SLOW_MS + 1, 60_000, 10, 10, SLOW_MS + 1, 10, 10)] == [
        True, False, True, True, True, False, True,
    ]  # fmt: skip


def test_a_query_that_is_always_slow_in_few_tasks_is_tried_ever_less_often() -> None:
    pace = Pace()
    tried = [number for number in range(5_000) if run(pace, SLOW_MS + 1)]
    assert tried[:5] == [0, 2, 5, 10, 19]
    assert tried[-1] - tried[-2] == MOST_LEFT_OUT + 1


@pytest.mark.parametrize(("more_ms", "again"), [(0, True), (1, False)])
def test_many_records_may_take_longer(more_ms: int, again: bool) -> None:
    pace = Pace()
    run(pace, SLOW_MS + 1_000_000 // RECORDS_PER_MS + more_ms, records=1_000_000)
    assert run(pace, 0) is again


def test_the_start_of_a_run_is_not_the_end_of_a_batch() -> None:
    pace = Pace()
    pace.asked(10**9)
    assert run(pace, 0)


def test_few_tasks() -> None:
    assert [few_tasks(of(records)) for records in (0, 1, 249_999, 250_000, 1_000_000)] == [1, 1, 1, 2, 8]
