"""The records under way in a share partition: runs of offsets that are in the same state, in order and without holes.

A run is split where a part of it becomes different, and joined with its neighbour when both are alike again. So a batch
that is fetched whole and acknowledged whole is one run, and a thousand records that fare differently are a thousand.

Invariants: from the first run's first offset to the last run's last one every offset is in exactly one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from kraftpy.share.batches import DONE, DeliveryState, StateBatch
from kraftpy.types import Millis

NOBODY = ""
NEVER = Millis(1 << 62)


class Run:
    """Offsets from the first to the last, and what they have in common."""

    __slots__ = ("count", "deadline", "first", "is_gap", "last", "member_id", "state", "target", "write")

    def __init__(self, first: int, last: int, state: DeliveryState, count: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        """How often it was delivered, the present time included."""
        self.member_id = NOBODY
        """Who has it, while it is acquired."""
        self.deadline = NEVER
        """When the lock runs out."""
        self.target: DeliveryState | None = None
        """What it becomes once that is written; until then nobody else touches it."""
        self.write = 0
        """The number of that write."""
        self.is_gap = False
        """There are no records here: compacted away, markers, aborted."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"{self.first}-{self.last} {self.state.name} {self.count}"

    @property
    def is_done(self) -> bool:
        """Whether it is acknowledged or archived, durably where that matters."""
        return self.state in DONE

    @property
    def is_available(self) -> bool:
        """Whether it can be acquired."""
        return self.state is DeliveryState.AVAILABLE

    @property
    def is_locked(self) -> bool:
        """Whether a member has it and has not said what became of it."""
        return self.state is DeliveryState.ACQUIRED and self.target is None

    def become(self, state: DeliveryState, count: int) -> None:
        """Be in another state that is no member's."""
        self.state, self.count = state, count
        self.member_id, self.deadline = NOBODY, NEVER
        self.target, self.write = None, 0

    def is_like(self, other: Run) -> bool:
        """Whether nothing but the offsets tells them apart."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.target is other.target
            and self.write == other.write
            and self.member_id == other.member_id
            and self.deadline == other.deadline
            and self.is_gap == other.is_gap
        )

    def cut(self, offset: int) -> Run:
        """Give up what begins at that offset."""
        rest = Run(offset, self.last, self.state, self.count)
        rest.member_id, rest.deadline = self.member_id, self.deadline
        rest.target, rest.write, rest.is_gap = self.target, self.write, self.is_gap
        self.last = offset - 1
        return rest


class InFlight:
    """The runs of one share partition, from `start_offset` to `end_offset`."""

    def __init__(self, start_offset: int) -> None:
        self._runs: list[Run] = []
        self._empty_at = start_offset

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs))

    def __len__(self) -> int:
        """How many records are between the first that is not done and the last that was read, gaps apart."""
        return sum(len(run) for run in self._runs if not run.is_gap)

    @property
    def start_offset(self) -> int:
        """The first offset that is not done; where the next record will be, if all are."""
        return self._runs[0].first if self._runs else self._empty_at

    @property
    def end_offset(self) -> int:
        """One past the last that was read."""
        return self._runs[-1].last + 1 if self._runs else self._empty_at

    def fill(self, batches: list[StateBatch]) -> None:
        """What a coordinator knew: what it does not mention is available, and was never delivered."""
        for batch in batches:
            if batch.first_offset > self.end_offset:
                self.append(batch.first_offset - 1, DeliveryState.AVAILABLE, 0)
            self.append(batch.last_offset, batch.state, batch.delivery_count)

    def append(self, last: int, state: DeliveryState, count: int) -> Run:
        """What comes behind all others, up to that offset."""
        run = Run(self.end_offset, last, state, count)
        self._runs.append(run)
        return run

    def between(self, first: int, last: int) -> list[Run]:
        """The runs that have offsets of these, as they are."""
        place = max(0, bisect_right(self._runs, first, key=lambda run: run.first) - 1)
        found = []
        for run in self._runs[place:]:
            if run.first > last:
                break
            if run.last >= first:
                found.append(run)
        return found

    def cut_out(self, first: int, last: int) -> list[Run]:
        """The runs that have these offsets and no others."""
        self._split(first)
        self._split(last + 1)
        return self.between(first, last)

    def _split(self, offset: int) -> None:
        place = bisect_right(self._runs, offset, key=lambda run: run.first) - 1
        if place >= 0 and self._runs[place].first < offset <= self._runs[place].last:
            self._runs.insert(place + 1, self._runs[place].cut(offset))

    def settle(self) -> None:
        """Join what is alike, and leave behind what is done: the start offset moves to the first that is not."""
        kept: list[Run] = []
        for run in self._runs:
            if not kept and run.is_done:
                self._empty_at = run.last + 1
            elif kept and kept[-1].is_like(run):
                kept[-1].last = run.last
            else:
                kept.append(run)
        self._runs = kept

    def drop_before(self, offset: int) -> None:
        """Leave behind whatever is before an offset, done or not."""
        self._split(offset)
        self._empty_at = max(self.end_offset, offset)
        self._runs = [run for run in self._runs if run.first >= offset]

    def validate(self) -> None:
        """Assert the invariants."""
        for before, after in pairwise(self._runs):
            assert before.last + 1 == after.first, self._runs
        for run in self._runs:
            assert run.first <= run.last, run
            assert (run.state is DeliveryState.ACQUIRED) == (run.member_id != NOBODY), run
            assert (run.target is None) == (run.write == 0), run
            assert run.target is None or run.state is DeliveryState.ACQUIRED, run
        assert not self._runs or not self._runs[0].is_done, self._runs
