"""The windows of delays: as the output topic has them, as the pipeline's table has them, and as they should be.

A window is one hour of one airport. It is told once the watermark has passed its end: the newest event's time less
`WATERMARK_MS`. So what should be told can be computed from silver alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

WINDOW_MS = 3_600_000
WATERMARK_MS = 3_600_000
"""Both as in transformations/counts.sql."""
LATE_MINUTES = 15
"""As the U.S. Department of Transportation counts."""
_COLUMNS = ("origin", "start", "flights", "departed", "late", "delay")


class Window(NamedTuple):
    """An hour (UTC) of one airport: flights, those that left, those that left late, all their minutes of delay."""

    origin: str
    start_ms: int
    flights: int
    departed: int
    late: int
    delay: int


def from_topic(bootstrap: str, topic: str) -> list[Window]:
    """What a reader of committed transactions finds. Raises KafkaError, ValueError for a record that is no window."""
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
    """A record's value as a window. Raises ValueError."""
    try:
        row = json.loads(value)
        start = datetime.fromisoformat(row["start"])
        return Window(row["origin"], round(start.timestamp() * 1000), *(int(row[name]) for name in _COLUMNS[2:]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no window: {value[:200]!r}") from error


def from_table(counts: Path) -> list[Window]:
    """What the pipeline's own table holds."""
    import pyarrow.parquet as pq

    if not has_rows(counts):
        return []
    return _as_windows(pq.read_table(counts, columns=list(_COLUMNS)))


def from_silver(silver: Path) -> tuple[list[Window], int]:
    """The windows that should have been told, computed from the events alone; and the events of those still open."""
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
    """Whether a table has files: one that nothing was written to may have none, and no columns then."""
    return any(table.glob("*.parquet"))


def same(windows: Iterable[Window], others: Iterable[Window]) -> int:
    """How many different windows are in both, with the same numbers."""
    return len(set(windows) & set(others))


def milliseconds(times: Any) -> Any:
    """A column of times as milliseconds since the epoch."""
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
