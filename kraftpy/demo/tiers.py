"""Count the events by day at each tier: the producers' counts in the audit topic, the log, and the table bronze.

The log is read and counted, and so are bronze's files. Every tier assigns a record to the day (UTC) of its own time, so
the three can be compared (docs/how-to/audit.md).
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
    """The number of a table's rows, and of the different topic records they come from."""

    rows: int
    distinct: int


def rows_of(*tables: Path) -> Rows:
    """Count the rows of all these tables together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [pq.read_table(table, columns=["partition", "offset"]) for table in tables if has_rows(table)]
    if not places:
        return Rows(0, 0)
    together = pa.concat_tables(places)
    return Rows(together.num_rows, together.group_by(["partition", "offset"]).aggregate([]).num_rows)


def books(bootstrap: str, topic: str, bronze: Path) -> Books:
    """Return the three tiers' counts of `topic` by day. Raises KafkaError."""
    from kraftpy.audit.counting import count_log
    from kraftpy.audit.topic import DEFAULT_TOPIC

    now_ms = time.time_ns() // 1_000_000
    reported, _ = read(bootstrap, DEFAULT_TOPIC)
    with RangeReader(bootstrap) as broker:
        log = count_log(broker, [topic], tier="log", window_ms=DAY_MS, now_ms=now_ms)
    tallies = [*reported, *log, *_bronze_tallies(topic, bronze, now_ms)]
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
    """Sum up what a tier counted."""
    return sum(each.records for each in books.totals if each.tier == tier)


def days(books: Books) -> tuple[int, int]:
    """Return how many days there are, and on how many of them every tier counted and all agree."""
    entries = dict.fromkeys({entry.start_ms for entry in books.entries}, 0)
    for entry in books.entries:
        entries[entry.start_ms] += entry.verdict is Verdict.BALANCED
    return len(entries), sum(balanced == len(TIERS) for balanced in entries.values())
