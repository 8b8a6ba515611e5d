"""Violations of real time: a number that falls between two readings, and a read that is staler than allowed.

One operation is later than another if it was asked for after the other was complete. A note, which has no invocation,
happened at its own place in the history.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from chaos.history import History, Op


def asked_at(history: History, op: Op) -> int:
    """Return the place in the history where the operation began."""
    return history.invocation(op).index if op.is_client else op.index


class Decrease(NamedTuple):
    """A number of `what` that was `high` in an earlier reading and `low` in a later one."""

    what: Hashable
    earlier: Op
    high: int
    later: Op
    low: int


def falls(history: History, readings: Iterable[tuple[Op, Hashable, int]]) -> Iterator[Decrease]:
    """Find readings (operation, what is read, number) that are lower than one before them in real time."""
    events: list[tuple[int, int, Op, Hashable, int]] = []
    for op, what, number in readings:
        events.append((asked_at(history, op), 0, op, what, number))
        events.append((op.index, 1, op, what, number))
    events.sort(key=lambda event: event[:2])
    highest: dict[Hashable, tuple[int, Op]] = {}
    floor: dict[tuple[int, Hashable], tuple[int, Op]] = {}
    for _, complete, op, what, number in events:
        if not complete:
            if what in highest:
                floor[op.index, what] = highest[what]
            continue
        before = floor.pop((op.index, what), None)
        if before is not None and number < before[0]:
            yield Decrease(what, before[1], before[0], op, number)
        if what not in highest or number > highest[what][0]:
            highest[what] = (number, op)


@dataclass(slots=True)
class Write:
    """A write to a register, from its invocation to its completion (None: perhaps never)."""

    op: Op
    asked_at: int
    complete_at: int | None
    value: object


class Register:
    """Says which values a read may return. Several writes may have the same value; reads need not all agree.

    A write is overwritten for a read if another began after it was complete and was complete before the read began. A
    read may return any write that began before the read was complete and is not overwritten. (Regular, not atomic:
    two reads may disagree on two writes that were made at the same time.)
    """

    def __init__(self, writes: Iterable[Write]) -> None:
        self._by_value: dict[object, list[Write]] = {}
        done: list[Write] = []
        for write in writes:
            self._by_value.setdefault(write.value, []).append(write)
            if write.complete_at is not None:
                done.append(write)
        done.sort(key=lambda write: write.complete_at or 0)
        self._complete_at = [write.complete_at or 0 for write in done]
        self._latest: list[Write] = []
        for write in done:
            newest = self._latest[-1] if self._latest else write
            self._latest.append(write if write.asked_at > newest.asked_at else newest)

    def overwriting(self, asked_at: int) -> Write | None:
        """Return the last-begun write among those complete before a read began."""
        place = bisect.bisect_left(self._complete_at, asked_at)
        return self._latest[place - 1] if place else None

    def allows(self, value: object, asked_at: int, complete_at: int) -> bool:
        """Return True if a read with these bounds may return the value. The first value is None, written before
        everything."""
        newest = self.overwriting(asked_at)
        if value is None and newest is None:
            return True
        floor = newest.asked_at if newest is not None else -1
        return any(
            write.asked_at < complete_at and (write.complete_at is None or write.complete_at >= floor)
            for write in self._by_value.get(value, ())
        )

    def written(self, value: object) -> bool:
        """Return True if the value was ever written."""
        return value in self._by_value
