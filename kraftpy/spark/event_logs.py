"""Spark's event log, as far as it tells of streams: finished batches, their tasks, and how runs ended.

The log is that of `spark.eventLog.enabled`: JSON lines, in one file or in a directory of files that roll
(`eventlog_v2_*/events_1_*`), plain or compressed by zstd, Spark's default. An event that an application has not
finished writing, because it still runs or was killed, is left out with a note. Everything else that is not of this form
is one EventLogError.

Memory is bounded: lines by `LONGEST_LINE`, and of each query the last `MOST_BATCHES` are kept. Other events are not
parsed. Left out: logs compressed by lz4, lzf or snappy, for which Spark has formats of its own.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kraftpy.spark.batches import Batch, batch_of, whole
from kraftpy.types import TopicPartition

LONGEST_LINE = 64 << 20
MOST_BATCHES = 20_000
MOST_STAGES = 20_000
"""How many stages are remembered as belonging to a batch."""
MOST_QUERIES = 1_000
_CHUNK = 1 << 20
_ROLLED = re.compile(r"events_(\d+)_.*")
_BYTES_RETURNED = "data returned from Python workers"
_SQL = "org.apache.spark.sql.streaming.StreamingQueryListener$"
_WANTED = ("SparkListenerJobStart", "SparkListenerTaskEnd", f"{_SQL}QueryProgressEvent", f"{_SQL}QueryTerminatedEvent")


class EventLogError(ValueError):
    """It is no event log, or one that cannot be read; the message says where and why."""


@dataclass(slots=True)
class Tasks:
    """The tasks of a batch."""

    count: int = 0
    failed: int = 0
    run_ms: int = 0
    """Their time in executors, summed up."""
    python_bytes: int = 0
    """The size of what Python workers returned to Spark, as Arrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A finished batch, without its partitions; names and units are those of `Batch`."""

    number: int
    started_ms: int
    duration_ms: int
    parts: Mapping[str, int]
    rows: int | None
    lag: int | None
    delay_ms: int | None
    retries: int | None
    """Those of the planner, up to this batch in its run."""
    observed_bytes: int | None


@dataclass(slots=True)
class QueryHistory:
    """A query's batches over all its runs in a log, or in a checkpoint."""

    query_id: str
    name: str | None = None
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=MOST_BATCHES))
    total: int = 0
    """How many batches there were, with those that are not kept."""
    last: Batch | None = None
    rows_by_partition: dict[TopicPartition, int] = field(default_factory=dict)
    """Over all batches, as far as they are known."""
    tasks: dict[int, Tasks] = field(default_factory=dict)
    """By the number of the batch."""
    failures: list[str] = field(default_factory=list)
    """Errors with which runs ended."""

    def add(self, batch: Batch) -> None:
        """Add a finished batch that has a duration."""
        assert batch.duration_ms is not None
        self.name = batch.name if batch.name is not None else self.name
        self.total += 1
        self.last = batch
        for each in batch.partitions:
            if each.rows is not None:
                self.rows_by_partition[each.where] = self.rows_by_partition.get(each.where, 0) + each.rows
        self.points.append(
            Point(
                number=batch.number,
                started_ms=batch.started_ms,
                duration_ms=batch.duration_ms,
                parts=batch.parts,
                rows=batch.rows,
                lag=batch.lag,
                delay_ms=batch.delay_ms,
                retries=batch.reader.get("retries"),
                observed_bytes=batch.observed.get("bytes"),
            )
        )


@dataclass(slots=True)
class Recorded:
    """The queries in a log or a checkpoint."""

    queries: dict[str, QueryHistory] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_event_log(path: Path) -> Recorded:
    """Read a log: a file, the directory of one, or the directory of logs if it has a single one.

    Raises EventLogError, also if there is no batch of a stream in it; OSError.
    """
    files = log_files(path)
    reading = _Reading()
    for file in files:
        for number, line, is_last in _lines(file):
            try:
                reading.take(line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                if is_last and file == files[-1] and not line.endswith(b"\n"):
                    reading.recorded.notes.append("The log ends within an event: its application runs, or was killed.")
                    break
                said = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise EventLogError(f"{file}, line {number}: not an event of Spark's: {said[:200]}") from None
    if not any(query.points for query in reading.recorded.queries.values()):
        raise EventLogError(f"{path}: the log has no finished batch of a stream")
    return reading.recorded


def log_files(path: Path) -> list[Path]:
    """Return a log's files in their order. Raises EventLogError."""
    if not path.is_dir():
        return [path]
    rolled: dict[int, Path] = {}
    for file in path.iterdir():
        found = _ROLLED.fullmatch(file.name)
        if found is not None:
            rolled[int(found[1])] = file
    if rolled:
        compacted = [number for number, file in rolled.items() if file.name.endswith(".compact")]
        first = max(compacted, default=0)  # it stands for all before it
        return [file for number, file in sorted(rolled.items()) if number >= first]
    logs = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    if len(logs) != 1 or (logs[0].is_dir() and not logs[0].name.startswith("eventlog_v2_")):
        raise EventLogError(
            f"{path} is neither a checkpoint nor an event log"
            + (f"; of its {len(logs)} entries, name the one to read" if len(logs) > 1 else "")
        )
    return log_files(logs[0])


class _Reading:
    """Takes the lines of a log, one after another."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        self._stages: dict[int, tuple[str, int]] = {}

    def take(self, line: bytes) -> None:
        """Raises ValueError and its like if the line is no event."""
        if not line.startswith(b'{"Event":"'):
            raise ValueError(f"it begins with {line[:40]!r}")
        name = line[10:200].split(b'"', 1)[0].decode("ascii", "replace")
        if name not in _WANTED:
            if not line.rstrip().endswith(b"}"):
                raise ValueError("it ends in the middle")
            return
        event = json.loads(line)
        match name.rpartition("$")[2]:
            case "SparkListenerJobStart":
                self._job(event)
            case "SparkListenerTaskEnd":
                self._task(event)
            case "QueryProgressEvent":
                self._progress(event["progress"])
            case _:
                self._terminated(event)

    def _query(self, query_id: str) -> QueryHistory:
        if query_id not in self.recorded.queries and len(self.recorded.queries) >= MOST_QUERIES:
            raise ValueError(f"more than {MOST_QUERIES} queries")
        return self.recorded.queries.setdefault(query_id, QueryHistory(query_id))

    def _job(self, event: Mapping[str, Any]) -> None:
        properties = event.get("Properties") or {}
        query, batch = properties.get("sql.streaming.queryId"), properties.get("streaming.sql.batchId")
        if query is None or batch is None:
            return
        for stage in event["Stage IDs"]:
            self._stages[whole(stage)] = (str(query), int(batch))
        while len(self._stages) > MOST_STAGES:
            del self._stages[next(iter(self._stages))]

    def _task(self, event: Mapping[str, Any]) -> None:
        where = self._stages.get(whole(event["Stage ID"]))
        if where is None:
            return
        query, batch = where
        history = self._query(query)
        tasks = history.tasks.setdefault(batch, Tasks())
        while len(history.tasks) > MOST_BATCHES:
            del history.tasks[next(iter(history.tasks))]
        info = event["Task Info"]
        tasks.count += 1
        tasks.failed += info.get("Failed") is True
        metrics = event.get("Task Metrics") or {}
        tasks.run_ms += whole(metrics.get("Executor Run Time", 0))
        for each in info.get("Accumulables", ()):
            if each.get("Name") == _BYTES_RETURNED:
                tasks.python_bytes += int(each.get("Update", 0))

    def _progress(self, progress: Mapping[str, Any]) -> None:
        batch = batch_of(progress)
        if batch.duration_ms is None or not (batch.rows or batch.parts.get("addBatch")):
            return  # an event of a query that waits, which is no batch
        self._query(batch.query_id).add(batch)

    def _terminated(self, event: Mapping[str, Any]) -> None:
        said = event.get("exception")
        if said is not None:
            failures = self._query(str(event["id"])).failures
            failures.append(str(said)[:2_000])
            del failures[:-20]


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield lines with their numbers, and whether each is the file's last. Raises EventLogError."""
    held = b""
    number = 0
    for chunk in _chunks(path):
        *whole_lines, held = (held + chunk).split(b"\n")
        for line in whole_lines:
            number += 1
            if line:
                yield number, line + b"\n", False
        if len(held) > LONGEST_LINE:
            raise EventLogError(f"{path}, line {number + 1}: longer than {LONGEST_LINE} bytes")
    if held:
        yield number + 1, held, True


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's text in pieces. Raises EventLogError."""
    name = path.name.removesuffix(".inprogress").removesuffix(".compact")
    codec = next((each for each in ("zstd", "lz4", "lzf", "snappy") if name.endswith("." + each)), None)
    if codec is None:
        with path.open("rb") as plain:
            while chunk := plain.read(_CHUNK):
                yield chunk
    elif codec == "zstd":
        yield from _unpacked(path)
    else:
        raise EventLogError(f"{path}: compressed by {codec}; only zstd can be read (spark.eventLog.compression.codec)")


def _unpacked(path: Path) -> Iterator[bytes]:
    """Yield what a file packed by zstd holds, to its last byte even if its last frame is cut short.

    Arrow gives nothing of a read that meets the end of such a frame; smaller reads get what comes before it.
    """
    import pyarrow as pa

    done = 0
    for size in (_CHUNK, _CHUNK >> 8, _CHUNK >> 16, 1):
        with path.open("rb") as raw, pa.CompressedInputStream(raw, "zstd") as file:
            try:
                skipped = 0
                while skipped < done:
                    skipped += len(file.read(min(_CHUNK >> 16, done - skipped)))
                while chunk := file.read(size):
                    done += len(chunk)
                    yield bytes(chunk)
            except OSError as error:
                if "Truncated" not in str(error):
                    raise EventLogError(f"{path}: cannot be read: {error}") from None
            else:
                return
