"""What became of records, as ranges of offsets: how it is told to the share coordinator, and how what is told adds up.

Within one state epoch the state of an offset only ever moves on: from available to another delivery, and from there to
acknowledged or archived, which are final. So of two things that are said of an offset the one that is further on holds,
in whatever order they come: `combine` is associative, commutative and idempotent. A write that comes twice, or late,
changes nothing.

Offsets that no batch mentions are available and were never delivered. The start offset is the first that is not done;
nothing is kept of what is before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple


class DeliveryState(IntEnum):
    """Where a record is on its way through a group; the numbers are those of the records and of the requests."""

    AVAILABLE = 0  # for whoever fetches next
    ACQUIRED = 1  # locked for one member; never told to the coordinator
    ACKNOWLEDGED = 2  # processed
    ARCHIVED = 4  # rejected, delivered too often, or not there at all


DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
"""What a record stays once it is."""

TELLABLE = (DeliveryState.AVAILABLE, *DONE)
"""What a coordinator may be told."""


class StateBatch(NamedTuple):
    """Offsets from the first to the last that are all in the same state."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int

    @property
    def is_done(self) -> bool:
        """Whether these will never be delivered again."""
        return self.state in DONE

    @property
    def progress(self) -> tuple[bool, int, int]:
        """How far on it is, to compare two by."""
        return self.is_done, self.delivery_count, self.state

    @property
    def size(self) -> int:
        """How many offsets these are."""
        return self.last_offset - self.first_offset + 1


def combine(known: Iterable[StateBatch], said: Iterable[StateBatch], start_offset: int = 0) -> list[StateBatch]:
    """Both together, from the start offset on: sorted, disjoint, and of neighbours that differ. O(n log n) for n batches,
    however they overlap."""
    batches = [each for each in (*known, *said) if each.last_offset >= start_offset]
    edges = {max(each.first_offset, start_offset) for each in batches} | {each.last_offset + 1 for each in batches}
    ends = iter(sorted(edges))
    waiting = sorted(batches, key=lambda each: each.first_offset)
    open_now: list[tuple[tuple[int, int, int], int, StateBatch]] = []  # a heap, the one that is furthest on first
    combined: list[StateBatch] = []
    first, place = next(ends, 0), 0
    for end in ends:
        while place < len(waiting) and waiting[place].first_offset <= first:
            is_done, delivery_count, state = waiting[place].progress
            heappush(open_now, ((-is_done, -delivery_count, -state), place, waiting[place]))
            place += 1
        while open_now and open_now[0][2].last_offset < first:
            heappop(open_now)
        if open_now:
            _add(combined, open_now[0][2]._replace(first_offset=first, last_offset=end - 1))
        first = end
    return combined


def _add(batches: list[StateBatch], batch: StateBatch) -> None:
    last = batches[-1] if batches else None
    if last is not None and last.last_offset + 1 == batch.first_offset and last.progress == batch.progress:
        batches[-1] = last._replace(last_offset=batch.last_offset)
    else:
        batches.append(batch)


def advance(start_offset: int, batches: Sequence[StateBatch]) -> tuple[int, list[StateBatch]]:
    """Where a start offset comes to when it moves past what is done, and what is left behind it of combined batches."""
    place = 0
    while place < len(batches) and batches[place].is_done and batches[place].first_offset <= start_offset:
        start_offset = max(start_offset, batches[place].last_offset + 1)
        place += 1
    return start_offset, list(batches[place:])


def count_done(batches: Iterable[StateBatch]) -> int:
    """How many offsets are done."""
    return sum(each.size for each in batches if each.is_done)
