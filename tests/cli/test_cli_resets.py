"""The offsets that each kind of reset gives a group."""

from __future__ import annotations

import pytest

from kraftpy.client.admin.resets import Ends, Move, Reset, Target, plan
from kraftpy.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = {P1: Ends(0, 10), P0: Ends(5, 20)}
COMMITTED = {P0: 7}


@pytest.mark.parametrize(
    ("reset", "offsets"),
    [
        (Reset(target=Target.EARLIEST), [5, 0]),
        (Reset(target=Target.LATEST), [20, 10]),
        (Reset(target=Target.CURRENT), [7, 10]),
        (Reset(target=Target.OFFSET, number=8), [8, 8]),
        (Reset(target=Target.OFFSET, number=15), [15, 10]),
        (Reset(target=Target.OFFSET, number=2), [5, 2]),
        (Reset(target=Target.TIME, number=1), [9, 10]),
    ],
)
def test_every_partition_gets_an_offset_within_its_log(reset: Reset, offsets: list[int]) -> None:
    moves = plan(reset, ENDS, COMMITTED, {P0: 9})
    assert [move.partition for move in moves] == [P0, P1]
    assert [move.offset for move in moves] == offsets
    assert [move.committed for move in moves] == [7, None]


@pytest.mark.parametrize(("by", "offset", "clamped"), [(3, 10, False), (-2, 5, False), (-3, 5, True), (14, 20, True)])
def test_a_shift_starts_at_what_is_committed_and_stays_in_the_log(by: int, offset: int, clamped: bool) -> None:
    moves = plan(Reset(target=Target.SHIFT, number=by), {P0: ENDS[P0]}, COMMITTED, {})
    assert moves == [Move(P0, 7, offset, clamped)]


def test_without_a_committed_offset_there_is_nothing_to_shift() -> None:
    with pytest.raises(ValueError, match="t-1 has no committed offset to shift"):
        plan(Reset(target=Target.SHIFT, number=1), ENDS, COMMITTED, {})
