"""The events by day at each tier: as the producers told the audit topic, as the log has them, as bronze has them.

What the producers counted is read from the audit topic; the log is read and counted; bronze's files are. A record is of
the day (UTC) of its own time at every tier, so the three can be held against each other (docs/how-to/audit.md).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from kraftpy.audit.books import Books, Verdict, keep_books
from kraftpy.audit.counts import Tally, tallies_of
from kraftpy.audit.topic import read
from kraftpy.client import RangeReader
from kraftpy.demo.windows import has_rows, milliseconds

DAY_MS = 86_400_000
TIERS = ("producer", "log", "bronze")


class Rows(NamedTuple):
    """A table's rows, and how many different records of the topic they are of."""

    rows: int
    distinct: int


def rows_of(*tables: Path) -> Rows:
    """The rows of all these tables together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [pq.read_table(table, columns=["partition", "offset"]) for table in tables if has_rows(table)]
    if not places:
        return Rows(0, 0)
    together = pa.concat_tables(places)
    return Rows(together.num_rows, together.group_by(["partition", "offset"]).aggregate([]).num_rows)


def books(bootstrap: str, topic: str, bronze: Path) -> Books:
    """The three tiers' counts of `topic` by day. Raises KafkaError."""
    from kraftpy.audit.counting import count_log
    from kraftpy.audit.topic import DEFAULT_TOPIC

    now_ms = time.time_ns() // 1_000_000
    told, _ = read(bootstrap, DEFAULT_TOPIC)
    with RangeReader(bootstrap) as broker:
        log = count_log(broker, [topic], tier="log", window_ms=DAY_MS, now_ms=now_ms)
    tallies = [*told, *log, *_bronze_tallies(topic, bronze, now_ms)]
    return keep_books(tallies, now_ms=now_ms, window_ms=DAY_MS, tiers=TIERS, topics=[topic], grace_ms=0)


def _bronze_tallies(topic: str, bronze: Path, now_ms: int) -> list[Tally]:
    import numpy as np
    import pyarrow.parquet as pq

    if not has_rows(bronze):
        return []
    times = milliseconds(pq.read_table(bronze, columns=["timestamp"])["timestamp"]).to_numpy()
    days, counts = np.unique(times - times % DAY_MS, return_counts=True)
    by_window = {(topic, day): count for day, count in zip(days.tolist(), counts.tolist(), strict=True)}
    return tallies_of(by_window, tier="bronze", source=str(bronze), window_ms=DAY_MS, now_ms=now_ms)


def records_at(books: Books, tier: str) -> int:
    """All that a tier counted."""
    return sum(standing.records for standing in books.standings if standing.tier == tier)


def days(books: Books) -> tuple[int, int]:
    """How many days there are, and on how many of them all tiers that should have counted did, and agree."""
    entries = dict.fromkeys({entry.start_ms for entry in books.entries}, 0)
    for entry in books.entries:
        entries[entry.start_ms] += entry.verdict is Verdict.BALANCED
    return len(entries), sum(balanced == len(TIERS) for balanced in entries.values())
