"""The books: compare each tier's count of a topic and window with the count of the tier before it.

Tiers are ordered along the pipeline. For each window, the difference from the previous tier shows where records were
lost or duplicated. A tier that may still catch up is not blamed for a difference: if it has counted nothing of later
windows, and the window ended less than `grace_ms` ago, it is late. A tier that has counted nothing of a topic at all is
left out of that topic.

Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kraftpy.audit.counts import Tally

DEFAULT_GRACE_MS = 1_800_000
"""How long after a window's end a tier may still be late: half an hour."""

USUAL_ORDER = ("producer", "log", "consumer", "sink", "load")
"""The default order of tiers; others follow by name."""


class Verdict(Enum):
    """The verdict on a tier's count of a window."""

    BALANCED = "balanced"
    LATE = "late"  # it differs, but may still catch up
    LOST = "lost"  # records of the previous tier are missing
    DUPLICATED = "duplicated"  # it has more records than the previous tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tier's count of one window, compared with the previous tier."""

    topic: str
    start_ms: int
    window_ms: int
    tier: str
    count: int
    before: str
    expected: int
    verdict: Verdict

    @property
    def difference(self) -> int:
        """How many records are missing (negative) or too many (positive)."""
        return self.count - self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTotals:
    """A tier's totals for a topic. `lag_ms` is how far its newest window is behind the first tier's."""

    topic: str
    tier: str
    records: int
    lost: int
    duplicated: int
    late: int
    lag_ms: int

    @property
    def balances(self) -> bool:
        """True if no record was lost or duplicated."""
        return not self.lost and not self.duplicated


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All entries by topic, window and tier, and each tier's totals."""

    tiers: tuple[str, ...]
    entries: tuple[Entry, ...]
    totals: tuple[TierTotals, ...]

    @property
    def balance(self) -> bool:
        """True if no record was lost or duplicated anywhere."""
        return all(each.balances for each in self.totals)


def order_of(tallies: Iterable[Tally]) -> tuple[str, ...]:
    """Return the tiers that occur, in the usual order."""
    found = {tally.tier for tally in tallies}
    return (*(tier for tier in USUAL_ORDER if tier in found), *sorted(found.difference(USUAL_ORDER)))


def keep_books(
    tallies: Sequence[Tally],
    *,
    now_ms: int,
    window_ms: int,
    tiers: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    grace_ms: int = DEFAULT_GRACE_MS,
) -> Books:
    """Compare tallies of windows of `window_ms`; they must be the `latest` of each source, topic and window."""
    order = tuple(tiers) if tiers is not None else order_of(tallies)
    counts: dict[str, dict[str, dict[int, int]]] = {}  # topic, tier, window's start
    for tally in tallies:
        if tally.window_ms == window_ms and tally.tier in order and (topics is None or tally.topic in topics):
            windows = counts.setdefault(tally.topic, {}).setdefault(tally.tier, {})
            windows[tally.start_ms] = windows.get(tally.start_ms, 0) + tally.count
    entries: list[Entry] = []
    totals: list[TierTotals] = []
    for topic in sorted(counts):
        present = [tier for tier in order if tier in counts[topic]]
        found = _entries(topic, counts[topic], present, window_ms, now_ms - grace_ms)
        entries += found
        first_newest = max(counts[topic][present[0]])
        for tier in present:
            mine = [entry for entry in found if entry.tier == tier]
            totals.append(
                TierTotals(
                    topic=topic,
                    tier=tier,
                    records=sum(counts[topic][tier].values()),
                    lost=sum(-entry.difference for entry in mine if entry.verdict is Verdict.LOST),
                    duplicated=sum(entry.difference for entry in mine if entry.verdict is Verdict.DUPLICATED),
                    late=sum(abs(entry.difference) for entry in mine if entry.verdict is Verdict.LATE),
                    lag_ms=max(0, first_newest - max(counts[topic][tier])),
                )
            )
    return Books(tiers=order, entries=tuple(entries), totals=tuple(totals))


def _entries(
    topic: str, counts: dict[str, dict[int, int]], present: Sequence[str], window_ms: int, late_from_ms: int
) -> list[Entry]:
    entries = []
    for start in sorted({start for windows in counts.values() for start in windows}):
        for place, tier in enumerate(present):
            before = present[max(place - 1, 0)]
            count, expected = counts[tier].get(start, 0), counts[before].get(start, 0)
            is_recent = start + window_ms > late_from_ms
            behind = tier if count < expected else before
            is_behind = max(counts[behind]) <= start
            if count == expected:
                verdict = Verdict.BALANCED
            elif is_recent and is_behind:
                verdict = Verdict.LATE
            else:
                verdict = Verdict.LOST if count < expected else Verdict.DUPLICATED
            entries.append(
                Entry(
                    topic=topic,
                    start_ms=start,
                    window_ms=window_ms,
                    tier=tier,
                    count=count,
                    before=before,
                    expected=expected,
                    verdict=verdict,
                )
            )
    return entries
