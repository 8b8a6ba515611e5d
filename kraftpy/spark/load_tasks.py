"""One task of a load: read a range of one topic partition into Parquet files, split by the records' time.

The columns are those of the Spark reader, and one for the time partition: `event_day` (a date) or `event_hour` (text
such as 2013-07-04-17, in UTC), which tables with directories keep in the directory's name. Files preserve row order.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kraftpy.audit.counting import read_columns, windows_of
from kraftpy.client.ranges.columns import Columns
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.spark.arrow import column_builder, cuts
from kraftpy.types import TopicPartition

MAX_OPEN_FILES = 32
"""How many files a task has open at once; records from more hours or days at a time make smaller files."""
NO_TIME = "none"

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class TimeUnit(Enum):
    """How finely files are split by time. The value is the name of the column."""

    DAY = "event_day"
    HOUR = "event_hour"

    @property
    def milliseconds(self) -> int:
        """The length of the unit."""
        return 86_400_000 if self is TimeUnit.DAY else 3_600_000

    def text(self, number: int) -> str:
        """Name the `number`th unit since the epoch: 2013-07-04 or 2013-07-04-17, in UTC."""
        moment = datetime.fromtimestamp(number * self.milliseconds / 1000, UTC)
        return moment.strftime("%Y-%m-%d" if self is TimeUnit.DAY else "%Y-%m-%d-%H")


def record_schema() -> pa.Schema:
    """Return the columns of a record."""
    return _SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """The range to read, and where to write it."""

    bootstrap_servers: str
    security: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    isolation_level: str
    topic: str
    partition: int
    start: int
    end: int
    directory: str
    attempt_id: str
    time_unit: TimeUnit
    window_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A written file. `event_time` is its time partition, None for records without a time."""

    path: str
    rows: int
    size_bytes: int
    event_time: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRange:
    """The files a task has written, and its record counts by audit window (start in ms, -1 for no time)."""

    topic: str
    files: tuple[DataFile, ...]
    counts: tuple[tuple[int, int], ...]


def load_range(task: LoadTask) -> LoadedRange:
    """Run a task. Raises KafkaError, CorruptBatch, OSError."""
    where = TopicPartition(task.topic, task.partition)
    counts: dict[int, int] = {}
    with (
        RangeReader(
            task.bootstrap_servers,
            isolation_level=task.isolation_level,
            default_api_timeout_ms=task.timeout_ms,
            **dict(task.security),
        ) as broker,
        _Files(task) as files,
    ):
        for records in read_columns(broker, where, task.start, task.end):
            for start, count in windows_of(records, task.window_ms).items():
                counts[start] = counts.get(start, 0) + count
            _write(records, where, task.time_unit, files)
    return LoadedRange(topic=task.topic, files=tuple(files.written), counts=tuple(sorted(counts.items())))


def _write(records: Columns, where: TopicPartition, unit: TimeUnit, files: _Files) -> None:
    builders = [column_builder(field.name, field.type, where) for field in _SCHEMA]
    for start, stop in cuts(records):
        rows = records.slice(start, stop)
        columns = [build(rows) for build in builders]
        place = _SCHEMA.get_field_index("timestamp")
        untimed = rows.timestamps < 0
        if untimed.any():
            columns[place] = pa.array(rows.timestamps * 1000, pa.timestamp("us", tz="UTC"), mask=untimed)
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        numbers = np.where(untimed, -1, rows.timestamps // unit.milliseconds)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            part = batch if mine.all() else batch.filter(pa.array(mine))
            files.write(unit.text(number) if number >= 0 else None, part)


class _Files:
    """The files of one task: one for each time partition, or more if one had to be closed early."""

    def __init__(self, task: LoadTask) -> None:
        self.written: list[DataFile] = []
        self._task = task
        self._open: OrderedDict[str | None, tuple[Path, Any, int]] = OrderedDict()
        self._number = 0

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self._open:
            self._close_oldest()
        if kind is not None:
            for each in self.written:
                Path(each.path).unlink(missing_ok=True)

    def write(self, event_time: str | None, rows: pa.RecordBatch) -> None:
        """Add rows of one time partition."""
        path, writer, count = self._open.pop(event_time, (None, None, 0))
        if path is None or writer is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close_oldest()
            path = self._new_path(event_time)
            writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        self._open[event_time] = (path, writer, count + rows.num_rows)
        writer.write_batch(rows)

    def _new_path(self, event_time: str | None) -> Path:
        task = self._task
        directory = Path(task.directory) / f"{task.time_unit.value}={event_time or NO_TIME}"
        directory.mkdir(parents=True, exist_ok=True)
        self._number += 1
        name = f"{task.topic}-{task.partition}-{task.start:020}-{task.attempt_id}-{self._number:05}.parquet"
        return directory / name

    def _close_oldest(self) -> None:
        event_time, (path, writer, rows) = self._open.popitem(last=False)
        writer.close()
        size = path.stat().st_size
        self.written.append(DataFile(path=str(path), rows=rows, size_bytes=size, event_time=event_time))
