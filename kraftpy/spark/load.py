"""Incremental loads of topics into tables: what is new since the last load, each record once.

A load plans a range of offsets for each topic partition, from where the table says it was loaded up to, to the end of
the log. Each range is a task: it reads from offsets alone, splits by the records' own time and writes Parquet files
that no reader of the table sees yet. Then one commit of the table adds the files, together with the next offsets and
the batch's number. A load that dies before that leaves nothing but files nobody refers to; one that dies after it is
done. So a load is started again whatever happened, and a task that is run again does no harm: this is the offline load
of the Kafka paper (2011), data and offsets stored only when all is through.

What a table must be able to do is `Table`; those there are: `load_parquet`, `load_delta`, `load_iceberg`.

Left out: file systems that are not mounted (object stores); values are loaded as they are, not parsed. A record without
a time goes to the partition of no time. Files nobody refers to are for the maintenance of the table.
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
"""Runs a function on every task, anywhere; `in_threads` here, `SparkTasks` on a cluster."""


class LoadConflict(RuntimeError):
    """Another load of the same name has committed meanwhile; nothing of this one is in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a table says of a load: its last batch's number (-1: none) and where the next one starts."""

    batch_id: int
    next_offsets: NextOffsets
    counts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Records of the last batch by topic and window of the audit."""
    window_ms: int = 600_000
    """How long those windows are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one commit adds. `next_offsets` names every partition the load has ever read."""

    batch_id: int
    next_offsets: NextOffsets
    files: tuple[DataFile, ...]
    counts: Mapping[tuple[str, int], int]
    window_ms: int

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return sum(each.rows for each in self.files)


class Table(Protocol):
    """Where records go. One object is one load's view of it."""

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """What the table itself says of this load, as far as it concerns these partitions and others it has read."""
        ...

    def directory(self) -> Path:
        """Where the tasks of a batch may write files; absolute. Those that are not committed mean nothing."""
        ...

    def commit(self, batch: Batch) -> None:
        """Add all of the batch, or nothing. Raises LoadConflict."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What to load, and how. `window_ms` is the audit's."""

    bootstrap_servers: str
    topics: tuple[str, ...]
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
    """Load what there is up to now, in one batch or several; those that were committed.

    `on_loaded` is told of the last batch before this load and of each of its own: at least once each, for a load may
    die between a commit and telling. Raises DataLossError, LoadConflict, KafkaError.
    """
    with RangeReader(
        options.bootstrap_servers, isolation_level=options.isolation_level, default_api_timeout_ms=options.timeout_ms
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
    """Partition, start and end of what the next batch reads. Raises DataLossError."""
    ranges = []
    for partition, end in ends.items():
        start = done.get(partition, starts[partition])
        if not starts[partition] <= start <= end:
            lost = f"{partition} was loaded up to {start}; its log now holds {starts[partition]} to {end}"
            if options.fail_on_data_loss:
                raise DataLossError(f"{lost}. With fail_on_data_loss=False the load goes on where the log begins")
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
    """Four tasks at a time in this process: Arrow and numpy leave the interpreter to the others most of the time."""
    with ThreadPoolExecutor(4, "load") as pool:
        yield from pool.map(work, tasks)


class SparkTasks:
    """Runs tasks on a Spark cluster, one partition each; its executors need the table's file system mounted."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext

    def __call__(self, work: Callable[[LoadTask], LoadedRange], tasks: Sequence[LoadTask]) -> list[LoadedRange]:
        """All their results."""
        return self._context.parallelize(tasks, len(tasks)).map(work).collect()  # type: ignore[no-any-return]


# --- what tables keep as text -----------------------------------------------------------------------------------------


def offsets_to_json(offsets: NextOffsets) -> dict[str, dict[str, int]]:
    """`{"topic": {"0": 23}}`, in the order of topics and partitions."""
    listed: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        listed.setdefault(topic, {})[str(partition)] = offset
    return listed


def offsets_from_json(listed: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The reverse."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in listed.items()
        for partition, offset in partitions.items()
    }


def counts_to_json(counts: Mapping[tuple[str, int], int]) -> list[list[str | int]]:
    """`[[topic, window's start in ms, count]]`."""
    return [[topic, start, count] for (topic, start), count in sorted(counts.items())]


def counts_from_json(listed: Iterable[Sequence[Any]]) -> dict[tuple[str, int], int]:
    """The reverse."""
    return {(topic, start): count for topic, start, count in listed}


def now_ms() -> int:
    """Wall-clock milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
