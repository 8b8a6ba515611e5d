"""The windows of delays: from the output topic, from the pipeline's table, and as computed from silver.

A window is one hour of one airport. It is published once the watermark, the newest event's time minus `WATERMARK_MS`,
has passed its end. The expected windows can therefore be computed from silver alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

WINDOW_MS = 3_600_000
WATERMARK_MS = 3_600_000
"""Both are as in transformations/counts.sql."""
LATE_MINUTES = 15
"""The definition of the U.S. Department of Transportation."""
_COLUMNS = ("origin", "start", "flights", "departed", "late", "delay")


class Window(NamedTuple):
    """One hour (UTC) of one airport: all flights, those that left, those that left late, total minutes of delay."""

    origin: str
    start_ms: int
    flights: int
    departed: int
    late: int
    delay: int


def from_topic(bootstrap: str, topic: str) -> list[Window]:
    """Read the windows under read_committed. Raises KafkaError, and ValueError for a record that is not a window."""
    from kraftpy.audit.counting import read_columns
    from kraftpy.client import RangeReader, TopicPartition

    found = []
    with RangeReader(bootstrap, isolation_level="read_committed") as broker:
        partitions = [TopicPartition(topic, each.partition) for each in broker.topics([topic])[topic].partitions]
        starts, ends = broker.earliest(partitions), broker.latest(partitions)
        for where in partitions:
            for records in read_columns(broker, where, starts[where], ends[where]):
                bounds = zip(records.value_starts.tolist(), records.value_ends.tolist(), strict=True)
                found += [parse(bytes(records.data[start:end])) for start, end in bounds]
    return found


def parse(value: bytes) -> Window:
    """Parse a record's value. Raises ValueError."""
    try:
        row = json.loads(value)
        start = datetime.fromisoformat(row["start"])
        return Window(row["origin"], round(start.timestamp() * 1000), *(int(row[name]) for name in _COLUMNS[2:]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a window: {value[:200]!r}") from error


def from_table(counts: Path) -> list[Window]:
    """Read the windows from the pipeline's own table."""
    import pyarrow.parquet as pq

    if not has_rows(counts):
        return []
    return _as_windows(pq.read_table(counts, columns=list(_COLUMNS)))


def from_silver(silver: Path) -> tuple[list[Window], int]:
    """Compute the windows to be expected from the events alone, and the number of events in windows still open."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if not has_rows(silver):
        return [], 0
    rows = pq.read_table(silver, columns=["origin", "timestamp", "dep_delay"])
    times = milliseconds(rows["timestamp"]).to_numpy()
    late = pc.cast(pc.greater_equal(rows["dep_delay"], LATE_MINUTES), "int64")
    columns = {"origin": rows["origin"], "start": pa.array(times - times % WINDOW_MS), "late": late}
    table = pa.table({**columns, "dep_delay": pc.cast(rows["dep_delay"], "int64")})
    grouped = table.group_by(["origin", "start"]).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("late", "sum"), ("dep_delay", "sum")]
    )
    named = {
        "origin": grouped["origin"],
        "start": pc.cast(grouped["start"], pa.timestamp("ms")),
        "flights": grouped["count_all"],
        "departed": grouped["dep_delay_count"],
        "late": pc.fill_null(grouped["late_sum"], 0),
        "delay": pc.fill_null(grouped["dep_delay_sum"], 0),
    }
    watermark_ms = int(times.max()) - WATERMARK_MS
    windows = _as_windows(pa.table(named))
    closed = [each for each in windows if each.start_ms + WINDOW_MS <= watermark_ms]
    return closed, len(times) - sum(each.flights for each in closed)


def has_rows(table: Path) -> bool:
    """Return whether a table has rows: one that was never written to may have no files, and then no columns."""
    return any(table.glob("*.parquet"))


def same(windows: Iterable[Window], others: Iterable[Window]) -> int:
    """Count the different windows that are in both, with equal numbers."""
    return len(set(windows) & set(others))


def milliseconds(times: Any) -> Any:
    """Convert a column of times to milliseconds since the epoch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.cast(pc.cast(times, pa.timestamp("ms", _zone(times)), safe=False), "int64")


def _zone(times: Any) -> str | None:
    zone: str | None = times.type.tz
    return zone


def _as_windows(table: Any) -> list[Window]:
    starts = milliseconds(table["start"]).to_pylist()
    numbers = [table[name].to_pylist() for name in _COLUMNS[2:]]
    return [Window(*row) for row in zip(table["origin"].to_pylist(), starts, *numbers, strict=True)]
