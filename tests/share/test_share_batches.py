"""Merging share batches takes time that grows with their number, not with how much they overlap."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_costs_of_share_partitions import lines

from kraftpy.share import batches as share_batches
from kraftpy.share.batches import TELLABLE, DeliveryState, StateBatch, combine, merge

BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 30),
        st.integers(-2, 30),
        st.sampled_from(TELLABLE),
        st.integers(0, 3),
    ),
    max_size=12,
)


def slowly(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Offset by offset: the furthest of all batches that hold it."""
    combined: list[StateBatch] = []
    for offset in range(start_offset, 70):
        holding = [each for each in batches if each.first_offset <= offset <= each.last_offset]
        if not holding:
            continue
        furthest = max(holding, key=lambda each: each.progress)
        last = combined[-1] if combined else None
        if last is not None and last.last_offset == offset - 1 and last.progress == furthest.progress:
            combined[-1] = last._replace(last_offset=offset)
        else:
            combined.append(furthest._replace(first_offset=offset, last_offset=offset))
    return combined


@given(BATCHES, BATCHES, st.integers(0, 40))
@example(known=[], said=[StateBatch(1, 0, DeliveryState.AVAILABLE, 0)], start_offset=0)
def test_of_two_batches_the_one_that_is_further_on_holds(
    known: list[StateBatch], said: list[StateBatch], start_offset: int
) -> None:
    assert combine(known, said, start_offset) == slowly([*known, *said], start_offset)


def test_nested_batches_are_each_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    progress = StateBatch.progress.fget  # type: ignore[attr-defined]

    def counted(batch: StateBatch) -> tuple[bool, int, int]:
        nonlocal looked_at
        looked_at += 1
        found: tuple[bool, int, int] = progress(batch)
        return found

    monkeypatch.setattr(StateBatch, "progress", property(counted))
    count = 2_000
    nested = [StateBatch(n, 3 * count - n, DeliveryState.AVAILABLE, n % 5) for n in range(count)]
    assert combine((), nested)
    assert looked_at <= 10 * count


@pytest.mark.parametrize("few", [1, 8])
@given(BATCHES, BATCHES, st.integers(0, 40), st.integers(0, 40))
def test_merging_comes_to_the_same_as_combining(
    few: int, known: list[StateBatch], said: list[StateBatch], known_from: int, start_offset: int
) -> None:
    before, more = combine((), known, known_from), combine((), said)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(share_batches, "_FEW", few)  # 1: those that are said are inserted one by one more often
        assert list(merge(before, more, start_offset)) == combine(before, more, start_offset)


def test_a_few_batches_are_merged_into_thousands_without_looking_at_all_of_them() -> None:
    known = combine((), [StateBatch(2 * n, 2 * n, DeliveryState.AVAILABLE, 1) for n in range(5_000)])
    said = combine((), [StateBatch(2 * n, 2 * n, DeliveryState.ACKNOWLEDGED, 1) for n in (10, 2_500, 4_990)])
    assert lines(lambda: merge(known, said)) < 500
