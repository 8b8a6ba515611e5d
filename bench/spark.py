"""Spark on topics: reading, streaming, the latency of a row, writing; compared with Spark's own ceiling in one session.

    python -m bench.spark [--quick] [--runs N] [--directory DIR] [--output FILE]

Writes bench/SPARK.md. `local[2]` shares two cores with the broker. The ceiling is a Python source that gives Spark the
same columns from memory, without a broker: the fastest that Spark can read from a Python source. It takes turns with
the reader, so that a disturbance of the machine affects both. One MB is 10^6 bytes of values.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench import machine
from bench.brokers import ours
from bench.spark_read import load
from kraftpy.spark.arrow import default_schema_ddl

RESULTS = Path(__file__).with_name("SPARK.md")
TARGET_ROWS_PER_S = 1.5e6
TRIGGER_ROWS = 250_000
_BOUND_S = 600.0
_TOY_ROWS = 10_000

Lines = list[str]


class Toy(DataSource):
    """The reader's columns from memory: options `rows`, `size` and `partitions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_toy"

    def schema(self) -> str:
        """Return the seven columns."""
        return default_schema_ddl(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return a reader that makes its batch once per task."""
        options = {name: int(self.options[name]) for name in ("rows", "size", "partitions")}
        return ToyReader(schema, **options)


class ToyReader(DataSourceReader):
    """Returns the same batch again and again."""

    def __init__(self, schema: Any, *, rows: int, size: int, partitions: int) -> None:
        """Create a reader of `rows` rows in all, with values of `size` bytes."""
        self._schema, self._rows, self._size, self._partitions = schema, rows, size, partitions

    def partitions(self) -> list[InputPartition]:
        """Return as many partitions as the options say."""
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield its share of the rows."""
        from pyspark.sql.pandas.types import to_arrow_schema

        random = os.urandom(self._size * _TOY_ROWS)
        size = self._size
        columns = {
            "key": pa.array([b"12345678"] * _TOY_ROWS, pa.binary()),
            "value": pa.array([random[at : at + size] for at in range(0, len(random), size)], pa.binary()),
            "topic": pa.array(["bench"] * _TOY_ROWS),
            "partition": pa.array([partition.value] * _TOY_ROWS, pa.int32()),
            "offset": pa.array(range(_TOY_ROWS), pa.int64()),
            "timestamp": pa.array([0] * _TOY_ROWS, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * _TOY_ROWS, pa.int32()),
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        left = self._rows // self._partitions + (partition.value < self._rows % self._partitions)
        while left:
            some = batch.slice(0, min(left, _TOY_ROWS))
            yield some
            left -= some.num_rows


class Bench:
    """A session, a broker, and the measurements on them."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, *, records: int, runs: int) -> None:
        """Measure with `records` records of 100 bytes, `runs` times each."""
        self.spark, self.bootstrap, self.directory, self.records, self.runs = spark, bootstrap, directory, records, runs
        spark.dataSource.register(Toy)

    def reading(self) -> Lines:
        """Measure batches: the reader in turn with the ceiling, and the growth of cost with partitions."""
        lines = [
            "## Batch reads",
            "",
            "| read into `noop` | rows | rows/s, median | best | MB/s of values | of the ceiling, median | target |",
            "|---|--:|--:|--:|--:|--:|---|",
        ]
        for name, size, partitions, schema in [
            ("all seven columns", 100, 4, None),
            ("value only", 100, 4, "value binary"),
            ("all seven columns, 1 KB", 1024, 4, None),
            ("all seven columns", 100, 1, None),
            ("all seven columns", 100, 16, None),
            ("all seven columns", 100, 64, None),
        ]:
            rows = self.records if size == 100 else self.records // 10
            topic = self.filled(rows, size=size, partitions=partitions)
            reader = self.spark.read.format("kraftpy").options(**self.source(topic))
            toy = self.spark.read.format("bench_toy").options(rows=rows, size=size, partitions=partitions)
            if schema is not None:
                reader, toy = reader.schema(schema), toy.schema(schema)
            _same(reader.load().count(), rows)
            _same(toy.load().count(), rows)
            ours_s, ceiling_s = self.in_turn(lambda r=reader: _noop(r.load()), lambda t=toy: _noop(t.load()))
            median, best = statistics.median(ours_s), min(ours_s)
            ratio = statistics.median(theirs / mine for mine, theirs in zip(ours_s, ceiling_s, strict=True))
            is_target = (size, partitions) == (100, 4) and schema is None
            target = f"1.5 M rows/s: {'met' if rows / median >= TARGET_ROWS_PER_S else 'missed'}" if is_target else ""
            lines.append(
                f"| {name}, {partitions} partition{'s' * (partitions > 1)} | {rows:,} | {rows / median:,.0f} | "
                f"{rows / best:,.0f} | {rows * size / median / 1e6:,.0f} | {ratio:.2f} | {target} |"
            )
        return lines

    def streaming(self) -> Lines:
        """Measure a stream that takes 250,000 rows per trigger, until all are read; and the latency of single rows."""
        rows = self.records // 2
        topic = self.filled(rows, size=100, partitions=4)
        seconds = [self.drain(topic, rows) for _ in range(self.runs)]
        median, best = statistics.median(seconds), min(seconds)
        delays = self.delays()
        return [
            "## Streams",
            "",
            f"| | {self.runs} runs |",
            "|---|--:|",
            f"| {rows:,} rows, {TRIGGER_ROWS:,} a trigger, `availableNow`, into `noop`: rows/s, median | "
            f"{rows / median:,.0f} |",
            f"| best | {rows / best:,.0f} |",
            f"| one row, from before it is produced to a finished batch, default trigger, median of {len(delays)} | "
            f"{statistics.median(delays):.2f} s |",
            f"| the slowest of them | {max(delays):.2f} s |",
        ]

    def writing(self) -> Lines:
        """Measure the sink, at least once and exactly once, in turn."""
        rows = self.records // 2
        toy = self.spark.read.format("bench_toy").options(rows=rows, size=100, partitions=4)
        frame = toy.schema("key binary, value binary").load()

        def write(delivery: str) -> None:
            topic = self.created(4)
            options = {"kafka.bootstrap.servers": self.bootstrap, "topic": topic, "delivery": delivery}
            frame.write.format("kraftpy").mode("append").options(**options).save()

        once, exactly = self.in_turn(lambda: write("at_least_once"), lambda: write("exactly_once"))
        lines = [
            "## Batch writes",
            "",
            "| 100 B values, 8 B keys | rows | rows/s, median | best |",
            "|---|--:|--:|--:|",
        ]
        for name, seconds in (("at least once", once), ("exactly once", exactly)):
            lines.append(
                f"| {name} | {rows:,} | {rows / statistics.median(seconds):,.0f} | {rows / min(seconds):,.0f} |"
            )
        return lines

    def drain(self, topic: str, rows: int) -> float:
        """Return the seconds that a new stream takes to read a topic."""
        with tempfile.TemporaryDirectory(dir=self.directory) as progress:
            options = {**self.source(topic), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(TRIGGER_ROWS)}
            started = time.perf_counter()
            stream = self.spark.readStream.format("kraftpy").options(**options).load()
            writer = stream.writeStream.format("noop").option("checkpointLocation", progress)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(int(_BOUND_S)):
                raise RuntimeError("the stream did not end")
            seconds = time.perf_counter() - started
            _same(sum(int(each["numInputRows"]) for each in query.recentProgress), rows)
        return seconds

    def delays(self) -> list[float]:
        """Return the seconds from before a row is produced until its batch is finished, row by row."""
        from confluent_kafka import Producer

        topic = self.created(1)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        found: list[float] = []
        with tempfile.TemporaryDirectory(dir=self.directory) as progress:
            options = {**self.source(topic), "startingOffsets": "earliest"}
            stream = self.spark.readStream.format("kraftpy").options(**options).load()
            query = stream.writeStream.format("noop").option("checkpointLocation", progress).start()
            try:
                for number in range(self.runs + 2):
                    sent = time.perf_counter()
                    producer.produce(topic, b"row")
                    producer.flush(30)
                    while _rows_of(query) <= number:
                        if time.perf_counter() - sent > _BOUND_S:
                            raise RuntimeError("a row was not seen")
                        time.sleep(0.005)
                    if number >= 2:  # the first batches start Spark's workers
                        found.append(time.perf_counter() - sent)
            finally:
                query.stop()
        return found

    def in_turn(self, first: Callable[[], None], second: Callable[[], None]) -> tuple[list[float], list[float]]:
        """Return the seconds of both, run in turn; the first run of each does not count."""
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(self.runs + 1):
            for kept, work in zip(seconds, (first, second), strict=True):
                started = time.perf_counter()
                work()
                kept.append(time.perf_counter() - started)
        return seconds[0][1:], seconds[1][1:]

    def filled(self, rows: int, *, size: int, partitions: int) -> str:
        """Create a topic with records."""
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        load(self.bootstrap, topic, rows, size=size, partitions=partitions)
        return topic

    def created(self, partitions: int) -> str:
        """Create a topic."""
        return self.filled(0, size=1, partitions=partitions)

    def source(self, topic: str) -> dict[str, str]:
        """Return the options of a reader of the topic."""
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _rows_of(query: Any) -> int:
    return sum(int(each["numInputRows"]) for each in query.recentProgress)


def _same(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} rows were read of {wanted}")


def main() -> int:
    """Run everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="Spark on topics, into bench/SPARK.md")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one run of each")
    parser.add_argument("--runs", type=int, default=5, help="of each, besides one that does not count")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    records, runs = (400_000, 1) if arguments.quick else (4_000_000, arguments.runs)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    here = str(Path(__file__).resolve().parent.parent)  # the tasks import the toy source
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    load_before, started = machine.load_average(), time.monotonic()
    with ours(arguments.directory) as broker:
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            bench = Bench(spark, broker.bootstrap, arguments.directory, records=records, runs=runs)
            lines: Lines = []
            for section in (bench.reading, bench.streaming, bench.writing):
                found = section()
                print("\n".join(found), file=sys.stderr, flush=True)
                lines += ["", *found]
        finally:
            spark.stop()
    head = [
        "# Spark on topics",
        "",
        "Written by `make bench-spark` (`python -m bench.spark`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(arguments.directory)),
        f"- load average {load_before:.1f} before, {(time.monotonic() - started) / 60:.0f} minutes",
        "",
        "One broker and `local[2]` on the same machine. The ceiling is a Python source that hands Spark the same "
        "columns out of memory, run in turn with the reader.",
    ]
    arguments.output.write_text("\n".join([*head, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
