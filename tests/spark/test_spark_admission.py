"""How much of a backlog a batch takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.spark.admission import Delay, backlogs, share_bytes, share_rows
from kraftpy.types import TopicPartition

A, B, C = (TopicPartition("t", index) for index in range(3))
BACKLOGS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 10**12), min_size=1)


def test_only_what_is_behind_has_a_backlog() -> None:
    assert backlogs({A: 5, B: 7, C: 9}, {A: 8, B: 7, C: 8}) == {A: 3}


def test_a_limit_is_shared_in_proportion() -> None:
    assert share_rows({A: 900, B: 100}, 100) == {A: 90, B: 10}
    assert share_rows({A: 3, B: 4}, 7) == {A: 3, B: 4}


def test_a_small_backlog_gets_one_offset() -> None:
    assert share_rows({A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


@given(BACKLOGS, st.integers(1, 10**9))
def test_rows_stay_within_the_limit_but_for_one_a_partition(backlog: dict[TopicPartition, int], limit: int) -> None:
    taken = share_rows(backlog, limit)
    assert all(1 <= taken[where] <= size for where, size in backlog.items())
    assert sum(taken.values()) <= limit + len(backlog)
    assert sum(taken.values()) >= min(limit, sum(backlog.values())) - len(backlog)


def test_bytes_are_shared_in_proportion_to_bytes() -> None:
    assert share_bytes({A: 100, B: 100}, 10_000, {A: 900.0, B: 100.0}) == {A: 10, B: 10}
    assert share_bytes({A: 100, B: 10}, 10_000, {A: 10.0, B: 10.0}) == {A: 100, B: 10}


@given(BACKLOGS, st.integers(1, 10**9), st.floats(0.5, 1e6))
def test_bytes_always_let_something_through(backlog: dict[TopicPartition, int], limit: int, size: float) -> None:
    taken = share_bytes(backlog, limit, dict.fromkeys(backlog, size))
    assert all(1 <= taken[where] <= count for where, count in backlog.items())
    assert (sum(taken.values()) - len(backlog)) * size <= limit * 1.001


@pytest.mark.parametrize("first", [0, 12_345_678])
def test_a_batch_waits_for_enough_or_for_its_time(first: int) -> None:
    delay = Delay(min_offsets=10, max_delay_ms=1000)
    assert delay.holds({}, first)
    assert not delay.holds({A: 1}, first)
    assert delay.holds({A: 5, B: 4}, first + 999)
    assert not delay.holds({A: 5, B: 5}, first + 999)
    assert delay.holds({A: 9}, first + 1998)
    assert not delay.holds({A: 9}, first + 1999)
