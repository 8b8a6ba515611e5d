"""The cost of a stream's triggers: ours, Spark's own Kafka connector's, and those of Python sources that do nothing.

    python -m bench.spark_triggers [--quick] [--directory DIR] [--output FILE]

Writes bench/SPARK_TRIGGERS.md. Needs a JDK and Maven, which fetches the connector. All sources run in turn in one
session of `local[2]`, which shares its cores with the broker; only ratios of one run mean anything, because everything
else depends on what else the machine does. The empty sources bound from below what any Python source costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from bench import machine
from bench.brokers import ours
from bench.spark_read import load

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "compat")]

from spark_jars import connector  # noqa: E402

RESULTS = Path(__file__).with_name("SPARK_TRIGGERS.md")
PARTITIONS = 4
PARTS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")
SCHEMA = "value binary, partition int"
_FIRST = 5
"""The triggers of a run that do not count: they start and warm up what the others use."""
_BOUND_S = 600.0
_EMPTY = ("bench_empty", "bench_simple")
_TASKS = {"prefetchRecords": "0", "maxPartitions": "1000000"}
"""Options with which every batch has its tasks, as all had before small ones were read by the planner."""
_NAMES = {
    "kafka": "Spark's connector",
    "kraftpy": "kraftpy",
    "tasks": "kraftpy, a task for each partition",
    "bench_empty": "an empty stream reader, 4 tasks",
    "bench_simple": "an empty simple stream reader",
}

_WHOSE = [
    "## Where a trigger's time goes",
    "",
    "| part | whose | what is around it |",
    "|---|---|---|",
    "| `walCommit`, `commitOffsets` | Spark's, with any source (MicroBatchExecution.scala, HDFSMetadataLog.scala): a "
    "file each is written beside the checkpoint, checksummed and renamed | nothing in a source; a checkpoint on a "
    "faster disk |",
    "| `addBatch`: tasks in Python | Spark's, with any Python source (PythonStreamingPartitionReaderFactory.scala, "
    "pyspark/worker.py): each task sends the pickled reader to a worker, and streams Arrow back. It is the difference "
    "between the two empty readers | few tasks, and for small batches none: their rows come with the plan, as those of "
    "a simple reader (PythonMicroBatchStream.scala, `kraftpy/spark/prefetch.py`) |",
    "| `addBatch`: rows | ours and Spark's: the planner's reading, and the copy of rows into a block in the JVM "
    "(PythonStreamingSourceRunner.scala) | larger batches are read by tasks, whose columns are not copied |",
    "| `latestOffset`, `getBatch`, `queryPlanning` | ours and Spark's: one question to the planner, over a socket; "
    "with `availableNow` brokers are not asked again | |",
]

Lines = list[str]
Progress = Mapping[str, Any]


def _one_row(number: int) -> pa.RecordBatch:
    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
    return pa.RecordBatch.from_pydict({"value": [b"row"], "partition": [number]}, schema=schema)


class Empty(DataSource):
    """A row a partition and trigger, from nowhere; option `triggers`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_empty"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader."""
        return EmptyReader(int(self.options["triggers"]))


class EmptyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts its triggers."""

    def __init__(self, triggers: int) -> None:
        """Create a reader of so many triggers."""
        self._triggers = triggers

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first offset."""
        return {"trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the end is fixed."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the next offset."""
        return {"trigger": min(start["trigger"] + 1, self._triggers)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return as many partitions as the topics here have."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a row."""
        yield _one_row(partition.value)


class EmptySimple(DataSource):
    """Four rows a trigger, prefetched where the stream is planned; option `triggers`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_simple"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        """Return a reader."""
        return EmptySimpleReader(int(self.options["triggers"]))


class EmptySimpleReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts its triggers."""

    def __init__(self, triggers: int) -> None:
        """Create a reader of so many triggers."""
        self._triggers = triggers

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first offset."""
        return {"trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the end is fixed."""

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        """Return the rows of a trigger and the next offset."""
        if start["trigger"] >= self._triggers:
            return iter([]), start
        return iter([(b"row", number) for number in range(PARTITIONS)]), {"trigger": start["trigger"] + 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:  # noqa: N802
        """Return the rows again."""
        return iter([(b"row", number) for number in range(PARTITIONS)])


class Bench:
    """A session, a broker, and the measurements on them."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, *, quick: bool, runs: int) -> None:
        """Measure each so many times; `quick` measures less of it."""
        self.spark, self.bootstrap, self.directory, self.quick = spark, bootstrap, directory, quick
        self.runs = runs
        for each in (Empty, EmptySimple):
            spark.dataSource.register(each)

    def triggers(self) -> Lines:
        """Measure a trigger besides its rows, and split it into Spark's own parts."""
        count = 15 if self.quick else 40
        topic = self.filled(count * PARTITIONS, size=10)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in _NAMES}
        for _ in range(self.runs):
            for name in _NAMES:
                progress = self.drain(name, topic, count, PARTITIONS)[1]
                parts = [each["durationMs"] for each in progress[_FIRST:]]
                found[name].append({part: statistics.median(each.get(part, 0) for each in parts) for part in PARTS})
        lines = [
            "## A trigger of four rows",
            "",
            f"Milliseconds by Spark's own clocks (`durationMs`), medians of {count - _FIRST} triggers and {self.runs} "
            "runs; four partitions, a row each, `availableNow`, into `noop`. The ratio is the median of the runs'.",
            "",
            f"| source | {' | '.join(PARTS)} | of the connector's |",
            f"|---|{'--:|' * (len(PARTS) + 1)}",
        ]
        for name, label in _NAMES.items():
            medians = [statistics.median(run[part] for run in found[name]) for part in PARTS]
            ratio = _ratio(
                [run["triggerExecution"] for run in found[name]], [r["triggerExecution"] for r in found["kafka"]]
            )
            lines.append(f"| {label} | {' | '.join(f'{each:.0f}' for each in medians)} | {ratio:.2f} |")
        whole = statistics.median(run["triggerExecution"] for run in found["kafka"])
        logs = statistics.median(run["walCommit"] + run["commitOffsets"] for run in found["kafka"])
        bound = [
            "",
            f"Spark's two logs take {logs / whole:.0%} of the connector's trigger. A source that took no time at all "
            f"would therefore have {whole / logs:.1f} of its rate in such triggers.",
            "",
        ]
        return [*lines, *bound, *_WHOSE]

    def rates(self) -> Lines:
        """Measure whole streams, from `start()` to their end."""
        lines = [
            "## Streams of 8 and of 100 triggers",
            "",
            "Rows a second from `start()` to the end of the stream, into `noop`, all seven columns; the ratio is the "
            "median of pairs that ran one after the other.",
            "",
            "| triggers | rows of each | bytes | kraftpy | Spark's connector | of the connector's rate | "
            "with a task for each partition |",
            "|--:|--:|--:|--:|--:|--:|--:|",
        ]
        cases = [(8, 250_000, 100), (8, 25_000, 1024), (100, 10_000, 100), (100, 2_000, 1024)]
        for count, rows, size in cases:
            rows = rows // 10 if self.quick else rows
            topic = self.filled(count * rows, size=size)
            seconds: dict[str, list[float]] = {"kraftpy": [], "kafka": [], "tasks": []}
            for run in range(self.runs + 1):
                for name in seconds:
                    took, progress = self.drain(name, topic, count, rows)
                    if len(progress) != count:
                        raise RuntimeError(f"{name}: {len(progress)} triggers in place of {count}")
                    if run:
                        seconds[name].append(took)
            ratio, before = (_ratio(seconds["kafka"], seconds[name]) for name in ("kraftpy", "tasks"))
            mine, theirs = (count * rows / statistics.median(seconds[name]) for name in ("kraftpy", "kafka"))
            lines.append(
                f"| {count} | {rows:,} | {size:,} | {mine:,.0f} | {theirs:,.0f} | {ratio:.2f} | {before:.2f} |"
            )
        return lines

    def latency(self) -> Lines:
        """Measure one record, from its acknowledgement to a finished micro-batch, and the rest after it."""
        count = 8 if self.quick else 30
        delays = {name: self.delays(name, count) for name in ("kraftpy", "kafka")}
        resting = {name: self.resting(name) for name in ("kraftpy", "kafka")}
        lines = [
            "## One record; a stream that rests",
            "",
            f"From a record's acknowledgement to its finished micro-batch, default trigger, {count} records. The "
            "processor time is that of everything below the driver, the JVM included, while nothing comes.",
            "",
            "| source | median | 90 % within | a resting stream, of a core |",
            "|---|--:|--:|--:|",
        ]
        for name, found in delays.items():
            late = sorted(found)[int(len(found) * 0.9)]
            lines.append(
                f"| {_NAMES[name]} | {statistics.median(found) * 1000:.0f} ms | {late * 1000:.0f} ms | "
                f"{resting[name]:.1%} |"
            )
        ratio = statistics.median(delays["kraftpy"]) / statistics.median(delays["kafka"])
        return [*lines, "", f"The median is {ratio:.2f} of the connector's."]

    def planning(self) -> Lines:
        """Measure the planning of a query over very many partitions."""
        partitions = 1_000 if self.quick else 10_000
        warm, topic = (self.filled(2 * count, size=10, partitions=count) for count in (PARTITIONS, partitions))
        lines = [
            f"## {partitions:,} partitions in one query",
            "",
            f"Two triggers over {partitions:,} partitions, a record of each; milliseconds. Ours reads with "
            "`maxPartitions` = 8.",
            "",
            "| source | trigger | latestOffset | getBatch | queryPlanning | sum of these |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        self.drain("kraftpy", warm, 2, PARTITIONS)
        progress = self.drain("kraftpy", topic, 2, partitions, {"maxPartitions": "8"})[1]
        for number, each in enumerate(progress):
            parts = [each["durationMs"].get(part, 0) for part in ("latestOffset", "getBatch", "queryPlanning")]
            lines.append(f"| kraftpy | {number + 1} | {' | '.join(map(str, parts))} | {sum(parts)} |")
        return lines

    def drain(
        self, name: str, topic: str, count: int, rows: int, more: Mapping[str, str] | None = None
    ) -> tuple[float, list[Progress]]:
        """Return the seconds that a new stream takes for so many triggers of `rows` rows, and their progress."""
        options = {"triggers": str(count)} if name in _EMPTY else {**self.source(topic), **(more or {})}
        if name == "tasks":
            name, options = "kraftpy", {**options, **_TASKS}
        if name not in _EMPTY:
            options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows)}
        with tempfile.TemporaryDirectory(dir=self.directory) as kept:
            started = time.perf_counter()
            stream = self.spark.readStream.format(name).options(**options).load()
            writer = stream.writeStream.format("noop").option("checkpointLocation", kept)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(int(_BOUND_S)):
                raise RuntimeError("the stream did not end")
            seconds = time.perf_counter() - started
            progress = [each for each in query.recentProgress if int(each["numInputRows"])]
        expected = count * (PARTITIONS if name in _EMPTY else rows)
        if sum(int(each["numInputRows"]) for each in progress) != expected:
            raise RuntimeError(f"{name}: not {expected} rows")
        return seconds, progress

    def delays(self, name: str, count: int) -> list[float]:
        """Return the seconds of one record after another; the first few do not count."""
        from confluent_kafka import Producer

        topic = self.filled(0, size=1, partitions=1)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        found: list[float] = []

        def step(query: Any) -> None:
            for number in range(count + _FIRST):
                producer.produce(topic, b"row")
                producer.flush(30)
                sent = time.perf_counter()
                _wait(lambda number=number: query.lastProgress and _rows_of(query) > number)
                if number >= _FIRST:
                    found.append(time.perf_counter() - sent)
                time.sleep(0.05 * (number % 7))  # not in step with anything

        self.running(name, topic, step)
        return found

    def resting(self, name: str) -> float:
        """Return the share of a core that a stream with nothing to read takes."""
        seconds = 5 if self.quick else 30
        topic = self.filled(4, size=1)
        used: list[float] = []

        def rest(query: Any) -> None:
            _wait(lambda: _rows_of(query) == 4)
            time.sleep(3)
            before, started = _processor_s(), time.perf_counter()
            time.sleep(seconds)
            used.append((_processor_s() - before) / (time.perf_counter() - started))

        self.running(name, topic, rest)
        return used[0]

    def running(self, name: str, topic: str, step: Callable[[Any], None]) -> None:
        """Have a step done beside a query with the default trigger."""
        with tempfile.TemporaryDirectory(dir=self.directory) as kept:
            options = {**self.source(topic), "startingOffsets": "earliest"}
            stream = self.spark.readStream.format(name).options(**options).load()
            query = stream.writeStream.format("noop").option("checkpointLocation", kept).start()
            try:
                step(query)
            finally:
                query.stop()

    def filled(self, rows: int, *, size: int, partitions: int = PARTITIONS) -> str:
        """Create a topic with records."""
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        load(self.bootstrap, topic, rows, size=size, partitions=partitions)
        return topic

    def source(self, topic: str) -> dict[str, str]:
        """Return the options of a reader of the topic."""
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}


def _ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, theirs, strict=True))


def _rows_of(query: Any) -> int:
    return sum(int(each["numInputRows"]) for each in query.recentProgress)


def _wait(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _BOUND_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("a row was not seen")
        time.sleep(0.005)


def _processor_s() -> float:
    """Return the processor time of everything below this process, without the broker."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if "kraftpy" not in child.cmdline():
                times = child.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


def main() -> int:
    """Run everything and write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_triggers", description="The cost of a stream's triggers"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--runs", type=int, default=5, help="of each, besides one that does not count")
    parser.add_argument(
        "--only", choices=["triggers", "rates", "latency", "planning"], help="one section, printed only"
    )
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    load_before, started = machine.load_average(), time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch, ours(arguments.directory) as broker:
        version, jars = connector(Path(scratch))
        settings = {
            "spark.jars": ",".join(path.resolve().as_uri() for path in jars),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
        }
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        lines: Lines = []
        try:
            bench = Bench(spark, broker.bootstrap, arguments.directory, quick=arguments.quick, runs=arguments.runs)
            for section in (bench.triggers, bench.rates, bench.latency, bench.planning):
                if arguments.only in (None, section.__name__):
                    found = section()
                    print("\n".join(found), file=sys.stderr, flush=True)
                    lines += ["", *found]
        finally:
            spark.stop()
    head = [
        "# The triggers of Spark's streams",
        "",
        "Written by `make bench-spark-triggers` (`python -m bench.spark_triggers`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(arguments.directory)),
        f"- Spark's own Kafka connector {version}",
        f"- load average {load_before:.1f} before, {(time.monotonic() - started) / 60:.0f} minutes",
        "",
        "One broker and `local[2]` on the same two cores, beside other work: only the ratios of one run mean anything.",
    ]
    if arguments.only is None:
        arguments.output.write_text("\n".join([*head, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
