"""Incremental loads of topics into tables: load what is new since the last load, each record exactly once.

A load plans a range of offsets for each topic partition, from the position stored in the table to the end of the log.
Each range is a task: it reads from offsets alone, splits records by their own time and writes Parquet files that no
reader of the table sees yet. One commit of the table then adds the files together with the next offsets and the batch
number. A load that dies before the commit leaves only unreferenced files; one that dies after it is complete. A load
can therefore be restarted after any failure, and a task can be run again without harm. This is the offline load of the
Kafka paper (2011): data and offsets are stored together, once everything is done.

`Table` is the interface of a table; the implementations are `load_parquet`, `load_delta` and `load_iceberg`.

Left out: file systems that are not mounted (object stores); parsing of values, which are loaded as they are. A record
without a time goes to the partition for no time. Unreferenced files are left to the maintenance of the table.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kraftpy.client.ranges.reader import RangeReader
from kraftpy.spark.load_tasks import DataFile, LoadedRange, LoadTask, TimeUnit, load_range
from kraftpy.spark.offsets import DataLossError
from kraftpy.types import TopicPartition

NextOffsets = Mapping[TopicPartition, int]
RunTasks = Callable[[Callable[[LoadTask], LoadedRange], Sequence[LoadTask]], Iterable[LoadedRange]]
"""Runs a function on every task: `in_threads` in this process, `SparkTasks` on a cluster."""


class LoadConflict(RuntimeError):
    """Another load of the same name has committed in the meantime; this one added nothing to the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A load's state in the table: the number of its last batch (-1: none) and where the next one starts."""

    batch_id: int
    next_offsets: NextOffsets
    counts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The last batch's records by topic and audit window."""
    window_ms: int = 600_000
    """The length of those windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The contents of one commit. `next_offsets` has every partition that the load has ever read."""

    batch_id: int
    next_offsets: NextOffsets
    files: tuple[DataFile, ...]
    counts: Mapping[tuple[str, int], int]
    window_ms: int

    @property
    def rows(self) -> int:
        """The number of records."""
        return sum(each.rows for each in self.files)


class Table(Protocol):
    """The destination of a load. One object belongs to one load."""

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """Return the load's stored state, for these partitions and any others it has read."""
        ...

    def directory(self) -> Path:
        """The absolute directory where a batch's tasks may write files; uncommitted files there are ignored."""
        ...

    def commit(self, batch: Batch) -> None:
        """Add the whole batch, or nothing. Raises LoadConflict."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The topics to load, and how. `window_ms` is the audit's window."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The client options for TLS and SASL. Each task reads the files that they name again."""
    isolation_level: str = "read_committed"
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    time_unit: TimeUnit = TimeUnit.DAY
    window_ms: int = 600_000
    timeout_ms: int = 60_000


def load(
    options: LoadOptions,
    table: Table,
    *,
    run_tasks: RunTasks | None = None,
    on_loaded: Callable[[Loaded], None] | None = None,
) -> list[Batch]:
    """Load everything up to now, in one or more batches; return those that were committed.

    `on_loaded` is called for the last batch before this load and for each of its own, at least once each: a load may
    die between a commit and the call. Raises DataLossError, LoadConflict, KafkaError.
    """
    with RangeReader(
        options.bootstrap_servers,
        isolation_level=options.isolation_level,
        default_api_timeout_ms=options.timeout_ms,
        **options.security,
    ) as broker:
        found = broker.topics(options.topics)
        partitions = [TopicPartition(name, each.partition) for name in sorted(found) for each in found[name].partitions]
        starts, ends = broker.earliest(partitions), broker.latest(partitions)
    before = table.loaded(partitions)
    if on_loaded is not None and before.batch_id >= 0:
        on_loaded(before)
    batches: list[Batch] = []
    while True:
        ranges = plan(options, before.next_offsets, starts, ends)
        if not ranges:
            return batches
        batch = _load_batch(options, table, before, ranges, run_tasks or in_threads)
        table.commit(batch)
        batches.append(batch)
        before = Loaded(
            batch_id=batch.batch_id, next_offsets=batch.next_offsets, counts=batch.counts, window_ms=batch.window_ms
        )
        if on_loaded is not None:
            on_loaded(before)


def plan(
    options: LoadOptions, done: NextOffsets, starts: NextOffsets, ends: NextOffsets
) -> list[tuple[TopicPartition, int, int]]:
    """Return the partitions, starts and ends that the next batch reads. Raises DataLossError."""
    ranges = []
    for partition, end in ends.items():
        start = done.get(partition, starts[partition])
        if not starts[partition] <= start <= end:
            lost = f"{partition} was loaded up to {start}; its log now holds {starts[partition]} to {end}"
            if options.fail_on_data_loss:
                raise DataLossError(f"{lost}. With fail_on_data_loss=False the load continues where the log begins")
            start = starts[partition]
        if options.max_records_per_partition is not None:
            end = min(end, start + options.max_records_per_partition)
        if start < end:
            ranges.append((partition, start, end))
    return ranges


def _load_batch(
    options: LoadOptions,
    table: Table,
    before: Loaded,
    ranges: Sequence[tuple[TopicPartition, int, int]],
    run_tasks: RunTasks,
) -> Batch:
    directory = table.directory()
    tasks = [
        LoadTask(
            bootstrap_servers=options.bootstrap_servers,
            security=tuple(options.security.items()),
            isolation_level=options.isolation_level,
            topic=partition.topic,
            partition=partition.partition,
            start=start,
            end=end,
            directory=str(directory),
            attempt_id=uuid.uuid4().hex[:8],
            time_unit=options.time_unit,
            window_ms=options.window_ms,
            timeout_ms=options.timeout_ms,
        )
        for partition, start, end in ranges
    ]
    counts: dict[tuple[str, int], int] = {}
    files: list[DataFile] = []
    for loaded in run_tasks(load_range, tasks):
        files += loaded.files
        for window, count in loaded.counts:
            counts[loaded.topic, window] = counts.get((loaded.topic, window), 0) + count
    next_offsets = {**before.next_offsets, **{partition: end for partition, _, end in ranges}}
    return Batch(
        batch_id=before.batch_id + 1,
        next_offsets=next_offsets,
        files=tuple(files),
        counts=counts,
        window_ms=options.window_ms,
    )


def in_threads(work: Callable[[LoadTask], LoadedRange], tasks: Sequence[LoadTask]) -> Iterator[LoadedRange]:
    """Run four tasks at a time in this process; Arrow and numpy release the interpreter most of the time."""
    with ThreadPoolExecutor(4, "load") as pool:
        yield from pool.map(work, tasks)


class SparkTasks:
    """Runs tasks on a Spark cluster, one partition each; the table's file system must be mounted on its executors."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext

    def __call__(self, work: Callable[[LoadTask], LoadedRange], tasks: Sequence[LoadTask]) -> list[LoadedRange]:
        """Run all tasks and return their results."""
        return self._context.parallelize(tasks, len(tasks)).map(work).collect()  # type: ignore[no-any-return]


# --- state as JSON ----------------------------------------------------------------------------------------------------


def offsets_to_json(offsets: NextOffsets) -> dict[str, dict[str, int]]:
    """Return `{"topic": {"0": 23}}`, sorted by topic and partition."""
    listed: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        listed.setdefault(topic, {})[str(partition)] = offset
    return listed


def offsets_from_json(listed: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Reverse `offsets_to_json`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in listed.items()
        for partition, offset in partitions.items()
    }


def counts_to_json(counts: Mapping[tuple[str, int], int]) -> list[list[str | int]]:
    """Return `[[topic, start of the window in ms, count]]`."""
    return [[topic, start, count] for (topic, start), count in sorted(counts.items())]


def counts_from_json(listed: Iterable[Sequence[Any]]) -> dict[tuple[str, int], int]:
    """Reverse `counts_to_json`."""
    return {(topic, start): count for topic, start, count in listed}


def now_ms() -> int:
    """Return wall-clock milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
