"""The records in flight in a share partition: a gapless, ordered list of runs, each a range of offsets in one state.

A run is split if part of it changes state, and joined with its neighbour when both are alike again. A batch that is
fetched and acknowledged as a whole is one run; a thousand records with different outcomes are a thousand runs.

Invariant: every offset from the first run's first to the last run's last is in exactly one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from operator import attrgetter

from kraftpy.share.batches import DONE, DeliveryState, StateBatch
from kraftpy.types import Millis

NOBODY = ""
_FIRST = attrgetter("first")
NEVER = Millis(1 << 62)


class GivenUp(Enum):
    """The reason for which a record was given up, with Kafka's text for dead letters."""

    REJECTED = "Offset rejected by client."
    DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."


class Run:
    """A range of offsets, both ends included, and the state they share."""

    __slots__ = (
        "cause",
        "count",
        "deadline",
        "first",
        "is_gap",
        "is_sent",
        "last",
        "member_id",
        "state",
        "target",
        "told",
        "write",
    )

    def __init__(self, first: int, last: int, state: DeliveryState, count: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        """How often the records were delivered, including the current delivery."""
        self.member_id = NOBODY
        """The member that holds them, while they are acquired."""
        self.deadline = NEVER
        """When the lock expires."""
        self.target: DeliveryState | None = None
        """The state they take once a write succeeds; until then no other member may touch them."""
        self.write = 0
        """The number of that write."""
        self.is_gap = False
        """True if no records exist here: they were compacted away, or are markers, or were aborted."""
        self.cause: GivenUp | None = None
        """Why they are given up: set while they are archiving, or about to."""
        self.told = 0
        """While they are archiving: the number of the write that reports it to the coordinator; 0 once that is done."""
        self.is_sent = False
        """True if they are on their way to the dead letter queue."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"{self.first}-{self.last} {self.state.name} {self.count}"

    @property
    def is_done(self) -> bool:
        """True if the run is acknowledged or archived; if that had to be written, the write has succeeded."""
        return self.state in DONE

    @property
    def is_available(self) -> bool:
        """True if the run can be acquired."""
        return self.state is DeliveryState.AVAILABLE

    @property
    def is_locked(self) -> bool:
        """True if a member holds it and has not acknowledged it."""
        return self.state is DeliveryState.ACQUIRED and self.target is None

    @property
    def is_archiving(self) -> bool:
        """True if the records are given up, but not written to the dead letter queue yet."""
        return self.state is DeliveryState.ARCHIVING

    def become(self, state: DeliveryState, count: int, cause: GivenUp | None = None) -> None:
        """Change the state; no member holds the run afterwards."""
        self.state, self.count, self.cause = state, count, cause
        self.member_id, self.deadline = NOBODY, NEVER
        self.target, self.write = None, 0
        self.told, self.is_sent = 0, False

    def is_like(self, other: Run) -> bool:
        """Return whether the two differ only in their offsets."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.target is other.target
            and self.write == other.write
            and self.member_id == other.member_id
            and self.deadline == other.deadline
            and self.is_gap == other.is_gap
            and self.cause is other.cause
            and self.told == other.told
            and self.is_sent == other.is_sent
        )

    def split_at(self, offset: int) -> Run:
        """Shorten the run to end before `offset`, and return the rest."""
        rest = Run(offset, self.last, self.state, self.count)
        rest.member_id, rest.deadline = self.member_id, self.deadline
        rest.target, rest.write, rest.is_gap = self.target, self.write, self.is_gap
        rest.cause, rest.told, rest.is_sent = self.cause, self.told, self.is_sent
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
        """The number of records between the first that is not done and the last that was read, without gaps."""
        return sum(len(run) for run in self._runs if not run.is_gap)

    @property
    def start_offset(self) -> int:
        """The first offset that is not done; if all are, the offset of the next record."""
        return self._runs[0].first if self._runs else self._empty_at

    @property
    def end_offset(self) -> int:
        """One past the last offset that was read."""
        return self._runs[-1].last + 1 if self._runs else self._empty_at

    def fill(self, batches: list[StateBatch]) -> None:
        """Restore a coordinator's state; offsets it does not mention are available and were never delivered."""
        for batch in batches:
            if batch.first_offset > self.end_offset:
                self.append(batch.first_offset - 1, DeliveryState.AVAILABLE, 0)
            self.append(batch.last_offset, batch.state, batch.delivery_count)

    def append(self, last: int, state: DeliveryState, count: int) -> Run:
        """Add a run from the current end up to and including `last`."""
        run = Run(self.end_offset, last, state, count)
        self._runs.append(run)
        return run

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs that overlap this range, unsplit."""
        place = max(0, bisect_right(self._runs, first, key=_FIRST) - 1)
        found = []
        while place < len(self._runs) and (run := self._runs[place]).first <= last:
            if run.last >= first:
                found.append(run)
            place += 1
        return found

    def split_out(self, first: int, last: int) -> list[Run]:
        """Split runs at both ends of the range, and return those that cover exactly these offsets."""
        runs = self._runs
        place = self._split(first)
        found = []
        while place < len(runs) and (run := runs[place]).first <= last:
            if run.last > last:
                runs.insert(place + 1, run.split_at(last + 1))
            found.append(run)
            place += 1
        return found

    def _split(self, offset: int) -> int:
        """Split a run at the offset, if one holds it; return the place of the first run that does not end before it."""
        place = bisect_right(self._runs, offset, key=_FIRST) - 1
        if place < 0 or (run := self._runs[place]).first == offset:
            return max(place, 0)
        if offset <= run.last:
            self._runs.insert(place + 1, run.split_at(offset))
        return place + 1

    def consolidate(self) -> None:
        """Join runs that are alike, and drop those that are done at the front: the start offset moves past them."""
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
        """Drop everything before an offset, done or not."""
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
            assert run.is_archiving or not (run.told or run.is_sent), run
            assert run.cause is None or DeliveryState.ARCHIVING in (run.state, run.target), run
        assert not self._runs or not self._runs[0].is_done, self._runs
