"""The outcomes of records as ranges of offsets: the form in which leaders report them, and how reports add up.

Within one state epoch the state of an offset only moves forward: from available to a later delivery, and from there to
acknowledged or archived, which are final; to archived perhaps through archiving. If two reports disagree about an
offset, the one further on wins, regardless of the order of arrival: `combine` is associative, commutative and
idempotent. A duplicate or late write changes nothing.

Offsets that no batch mentions are available and were never delivered. The start offset is the first offset that is not
done; nothing is kept for offsets before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

_FIRST = itemgetter(0)
_LAST = itemgetter(1)
_FEW = 8
"""New batches are inserted one by one if there are this many times more known ones."""


class DeliveryState(IntEnum):
    """The progress of a record through a group; log records and requests use the same numbers."""

    AVAILABLE = 0  # the next fetch may take it
    ACQUIRED = 1  # locked for one member; never reported to the coordinator
    ACKNOWLEDGED = 2  # processed
    ARCHIVING = 3  # given up, and still to be written to the dead letter queue (KIP-1191)
    ARCHIVED = 4  # rejected, delivered too often, or not there at all


DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
"""The final states."""

MAX_OFFSET: Final = (1 << 63) - 1
"""No record has this offset, so that one past the last offset still fits an int64."""
MAX_INT32: Final = (1 << 31) - 1

TELLABLE = (DeliveryState.AVAILABLE, DeliveryState.ARCHIVING, *DONE)
"""The states that may be reported to a coordinator."""


class StateBatch(NamedTuple):
    """A range of offsets that are all in the same state; both ends are included."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int

    @property
    def is_done(self) -> bool:
        """True if these offsets will never be delivered again."""
        return self.state in DONE

    @property
    def progress(self) -> tuple[bool, int, int]:
        """How far along the batch is; compare two batches by it."""
        return self.is_done, self.delivery_count, self.state

    @property
    def size(self) -> int:
        """The number of offsets in the batch."""
        return self.last_offset - self.first_offset + 1


def combine(known: Iterable[StateBatch], said: Iterable[StateBatch], start_offset: int = 0) -> list[StateBatch]:
    """Merge both from the start offset on: sorted and disjoint, and equal neighbours joined.

    O(n log n) for n batches, however they overlap; much faster if they are in order and none overlap.
    """
    batches = [each for each in (*known, *said) if each.last_offset >= max(each.first_offset, start_offset)]
    if all(before.last_offset < after.first_offset for before, after in pairwise(batches)):
        return _joined(batches, start_offset)
    edges = {max(each.first_offset, start_offset) for each in batches} | {each.last_offset + 1 for each in batches}
    ends = iter(sorted(edges))
    waiting = sorted(batches, key=lambda each: each.first_offset)
    open_now: list[tuple[tuple[int, int, int], int, StateBatch]] = []  # a heap with the furthest progress on top
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


def merge(known: Sequence[StateBatch], said: Sequence[StateBatch], start_offset: int = 0) -> tuple[StateBatch, ...]:
    """Return `combine(known, said, start_offset)` for two that are combined already.

    Looks only at what `said` overlaps or touches; the rest of `known`, which may be long, is copied.
    """
    start = bisect_left(known, start_offset, key=_LAST)
    if start < len(known) and known[start].first_offset < start_offset:
        known = (known[start]._replace(first_offset=start_offset), *known[start + 1 :])
        start = 0
    if len(said) > len(known) // _FEW:
        return tuple(combine(known[start:], said, start_offset))
    merged: list[StateBatch] = []
    place, number = start, 0
    while number < len(said):
        # Batches that touch the same batches of `known`, or each other, are combined together.
        low = high = bisect_left(known, said[number].first_offset - 1, lo=place, key=_LAST)
        first, end = number, -1
        while number < len(said) and (end < 0 or said[number].first_offset <= end + 1):
            high = bisect_right(known, said[number].last_offset + 1, lo=high, key=_FIRST)
            end = max(said[number].last_offset, known[high - 1].last_offset if high > low else -1)
            number += 1
        merged += known[place:low]
        merged += combine(known[low:high], said[first:number], start_offset)
        place = high
    return (*merged, *known[place:])


def _joined(batches: list[StateBatch], start_offset: int) -> list[StateBatch]:
    """Join equal neighbours of batches that are in order and do not overlap."""
    joined: list[StateBatch] = []
    for each in batches:
        is_cut = each.first_offset < start_offset
        _add(joined, each._replace(first_offset=start_offset) if is_cut else each)
    return joined


def _add(batches: list[StateBatch], batch: StateBatch) -> None:
    last = batches[-1] if batches else None
    if last is not None and last.last_offset + 1 == batch.first_offset and last.progress == batch.progress:
        batches[-1] = last._replace(last_offset=batch.last_offset)
    else:
        batches.append(batch)


def advance(start_offset: int, batches: Sequence[StateBatch]) -> tuple[int, list[StateBatch]]:
    """Move the start offset past what is done; return it with the remaining batches. `batches` are combined."""
    place = 0
    while place < len(batches) and batches[place].is_done and batches[place].first_offset <= start_offset:
        start_offset = max(start_offset, batches[place].last_offset + 1)
        place += 1
    return start_offset, list(batches[place:])


def count_done(batches: Iterable[StateBatch]) -> int:
    """Count the offsets that are done, up to the largest int32."""
    return min(MAX_INT32, sum(each.size for each in batches if each.is_done))
