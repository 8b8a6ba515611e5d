"""Aborted transactions take few bytes each, for as long as the segment with their marker is there."""

from __future__ import annotations

import tracemalloc

from kraftpy.log.aborted_transactions import AbortedTransactions, EndedTransaction, decode

ABORTS = 50_000
MOST_BYTES_EACH = 64
"""32, and what an array keeps free to grow; objects would take more than 200."""


def ended(number: int) -> EndedTransaction:
    offset = (1 << 40) + 2 * number
    return EndedTransaction((1 << 50) + number, offset, offset + 1, offset + 2)


def test_an_abort_costs_some_tens_of_bytes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        aborted = AbortedTransactions(ended(number) for number in range(ABORTS))
        held = tracemalloc.get_traced_memory()[0] - before
        assert held < ABORTS * MOST_BYTES_EACH
        aborted.forget_before(ended(ABORTS - 10).first_offset)
        assert len(aborted) == 10
        assert tracemalloc.get_traced_memory()[0] - before < held / 10, "what retention lets go is given back"
    finally:
        tracemalloc.stop()


def test_what_is_kept_is_what_was_added() -> None:
    every = [ended(number) for number in range(10)]
    aborted = AbortedTransactions(every)
    assert list(aborted) == every
    assert aborted.between(every[2].last_offset, every[5].first_offset) == every[2:5]
    assert decode(aborted.encode(every[3].first_offset, every[7].first_offset)) == every[3:7]
    aborted.forget({every[4].last_offset})
    aborted.truncate(every[8].first_offset)
    aborted.forget_before(every[1].first_offset)
    assert list(aborted) == [each for number, each in enumerate(every) if number in (1, 2, 3, 5, 6, 7)]
    assert aborted.ranges()[every[1].producer_id] == [(every[1].first_offset, every[1].last_offset)]
