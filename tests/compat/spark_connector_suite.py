"""The same queries through Spark's own Kafka connector and through `format("kraftpy")`: the same schemas and rows.

    python tests/compat/spark_connector_suite.py     exit status 1 if anything differs that is not documented

Needs a JDK, Maven and a repository that has the connector (spark-sql-kafka-0-10): that of the installed PySpark or,
if there is none, `spark_jars.BEFORE` in the same Spark; which one it was is printed. One broker holds topics that
librdkafka filled (`spark_topics.py`). In one session each batch query is asked both ways, each stream runs twice on its
checkpoint with changes in between, the ends of its batches compared too, and each write goes to topics of either's own,
which librdkafka reads; queries change hands. Differences by design (docs/how-to/spark.md) must be as documented. Part
of `make compat`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "spark")]

from compat.spark_jars import connector  # noqa: E402
from compat.spark_topics import CODECS, DELETED_BEFORE, QUICK, Topics, numbered  # noqa: E402
from session_of_tests import spark_session  # noqa: E402

from kraftpy.spark.checkpoints import release  # noqa: E402
from kraftpy.spark.java import find_java  # noqa: E402
from kraftpy.spark.offsets import STARTED_AT, TOPIC_IDS  # noqa: E402
from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402

FORMATS = ("kafka", "kraftpy")
BOUND_SECONDS = 180
EARLIEST = {"startingOffsets": "earliest"}
COMMITTED = {"kafka.isolation.level": "read_committed"}

Options = Mapping[str, object]


def offsets(topic: str, *each: int) -> str:
    """Encode the offsets of a topic's partitions in the JSON that both understand."""
    return json.dumps({topic: {str(index): offset for index, offset in enumerate(each)}})


BATCH: dict[str, Options] = {
    "subscribe": {"subscribe": "plain"},
    "subscribe, two topics": {"subscribe": "plain,odd"},
    "subscribePattern": {"subscribePattern": r"codec\..*"},
    "assign": {"assign": '{"plain": [0, 2], "odd": [1]}'},
    "earliest to latest": {"subscribe": "plain", **EARLIEST, "endingOffsets": "latest"},
    "from offsets": {"subscribe": "plain", "startingOffsets": offsets("plain", 10, -2, 99)},
    "to offsets": {"subscribe": "plain", "endingOffsets": offsets("plain", 5, -1, 0)},
    "from offsets to offsets": {
        "subscribe": "plain",
        "startingOffsets": offsets("plain", 10, 20, 30),
        "endingOffsets": offsets("plain", 11, 60, 30),
    },
    "from the end": {"subscribe": "plain", "startingOffsets": offsets("plain", 100, 100, 0)},
    "startingTimestamp": {"subscribe": "plain", "startingTimestamp": 150_002},
    "startingTimestamp over offsets": {
        "subscribe": "plain",
        "startingTimestamp": 150_002,
        "startingOffsetsByTimestamp": offsets("plain", 0, 0, 0),
        "startingOffsets": offsets("plain", 0, 0, 0),
    },
    "startingOffsetsByTimestamp": {
        "subscribe": "plain",
        "startingOffsetsByTimestamp": offsets("plain", 0, 150_001, 298_000),
    },
    "startingTimestamp after all, latest": {
        "subscribe": "plain",
        "startingTimestamp": 297_500,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "endingTimestamp": {"subscribe": "plain", "endingTimestamp": 150_001},
    "endingTimestamp after all": {"subscribe": "plain", "endingTimestamp": 297_500},
    "endingOffsetsByTimestamp": {"subscribe": "plain", "endingOffsetsByTimestamp": offsets("plain", 0, 30_000, 10**12)},
    "between timestamps": {"subscribe": "plain", "startingTimestamp": 50_000, "endingTimestamp": 150_000},
    "timestamps that do not ascend": {"subscribe": "odd", "startingTimestamp": 1_000_000_030_000},
    "nulls, no headers asked for": {"subscribe": "odd"},
    "nulls and headers": {"subscribe": "odd", "includeHeaders": "true"},
    "headers where there are none": {"subscribe": "plain", "includeHeaders": "true"},
    "no records": {"subscribe": "empty"},
    "LogAppendTime": {"subscribe": "appended"},
    **{f"codec {codec}": {"subscribe": f"codec.{codec}"} for codec in CODECS},
    "minPartitions": {"subscribe": "plain", "minPartitions": 7},
    "maxRecordsPerPartition": {"subscribe": "plain", "maxRecordsPerPartition": 17},
    "compacted": {"subscribe": "compacted"},
    "compacted, from a gap": {"subscribe": "compacted", "startingOffsets": offsets("compacted", 501)},
    "compacted, to a gap, in parts": {
        "subscribe": "compacted",
        "endingOffsets": offsets("compacted", 990),
        "minPartitions": 9,
    },
    "transactions, uncommitted": {"subscribe": "transactions"},
    "transactions, committed": {"subscribe": "transactions", **COMMITTED},
    "transactions, committed, in parts": {"subscribe": "transactions", **COMMITTED, "minPartitions": 11},
    "transactions, committed, from offsets to offsets": {
        "subscribe": "transactions",
        **COMMITTED,
        "startingOffsets": offsets("transactions", 7, 6),
        "endingOffsets": offsets("transactions", 41, 11),
    },
    "deleted records": {"subscribe": "shortened"},
    "deleted records, asked for, allowed": {
        "subscribe": "shortened",
        "startingOffsets": offsets("shortened", DELETED_BEFORE - 5),
        "failOnDataLoss": "false",
    },
}
REFUSED: dict[str, Options] = {
    "no topics": {},
    "two ways to name them": {"subscribe": "plain", "subscribePattern": "p.*"},
    "an unknown topic": {"subscribe": "nowhere"},
    "from latest": {"subscribe": "plain", "startingOffsets": "latest"},
    "from latest (-1)": {"subscribe": "plain", "startingOffsets": offsets("plain", 0, 0, -1)},
    "to earliest": {"subscribe": "plain", "endingOffsets": "earliest"},
    "to earliest (-2)": {"subscribe": "plain", "endingOffsets": offsets("plain", 9, 9, -2)},
    "a partition is not named": {"subscribe": "plain", "startingOffsets": offsets("plain", 0, 0)},
    "a partition that is not there": {"subscribe": "plain", "startingOffsets": offsets("plain", 0, 0, 0, 0)},
    "a time after all": {"subscribe": "plain", "startingTimestamp": 400_000},
    "a time after all, of one": {"subscribe": "plain", "startingOffsetsByTimestamp": offsets("plain", 0, 0, 10**12)},
    "deleted records": {"subscribe": "shortened", "startingOffsets": offsets("shortened", DELETED_BEFORE - 5)},
    "no number": {"subscribe": "plain", "minPartitions": "some"},
    "auto.offset.reset": {"subscribe": "plain", "kafka.auto.offset.reset": "earliest"},
    "a deserializer": {"subscribe": "plain", "kafka.value.deserializer": "org.example.Text"},
}
STREAMS: dict[str, Options] = {
    "availableNow": {"subscribe": "stream.a", **EARLIEST},
    "maxOffsetsPerTrigger": {"subscribe": "stream.a", **EARLIEST, "maxOffsetsPerTrigger": 40},
    "maxOffsetsPerTrigger, uneven": {
        "subscribePattern": r"stream\..*",
        "startingOffsets": offsets("stream.a", 70, 1),
        "maxOffsetsPerTrigger": 7,
    },
    "latest": {"subscribe": "stream.a", "startingOffsets": "latest"},
    "assign, headers": {"assign": '{"stream.a": [1]}', **EARLIEST, "includeHeaders": "true"},
    "startingTimestamp": {"subscribe": "stream.a", "startingTimestamp": 60_000, "maxOffsetsPerTrigger": 33},
    "compacted": {"subscribe": "compacted", **EARLIEST, "maxOffsetsPerTrigger": 100},
    "read_committed": {"subscribe": "transactions", **EARLIEST, **COMMITTED, "maxOffsetsPerTrigger": 25},
    "read_uncommitted": {"subscribe": "transactions", **EARLIEST, "maxOffsetsPerTrigger": 25},
}
SINK = "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, topic string"
WRITES: dict[str, tuple[str, ...]] = {
    "value": ("cast('one' as string) value", "0 partition"),
    "text, by key": ("cast(value as string) value", "cast(key as string) key"),
    "binary, by key": ("key", "value"),
    "by key and by partition": ("key", "value", "if(length(value) % 2 = 0, partition, null) partition"),
    "nulls, headers, partitions": ("nullif(key, key) key", "nullif(value, binary('4')) value", "headers", "partition"),
    "topics": ("key", "value", "partition", "topic"),
}
BAD_WRITES: dict[str, tuple[str, ...]] = {
    "no value": ("key",),
    "a value that is a number": ("1 value",),
    "a key that is a number": ("1 key", "value"),
    "headers of another type": ("value", "map('a', 1) headers"),
    "a partition of another type": ("value", "'1' partition"),
    "a partition that is not there": ("value", "77 partition"),
}


@dataclass
class Found:
    """The result of a query, asked either way."""

    schema: str = ""
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    """The offsets at which each of a stream's batches ended."""
    error: str = ""


class Suite:
    """A session, a broker, and what was found."""

    def __init__(self, spark: SparkSession, topics: Topics, bootstrap: str, scratch: Path) -> None:
        self.spark, self.topics, self.bootstrap, self.scratch = spark, topics, bootstrap, scratch
        self.differences: list[str] = []

    def compare(self, kind: str, name: str, of: Callable[[str], Found], *, refused: bool = False) -> None:
        """Ask both ways, and print a line."""
        theirs, ours = (attempt(lambda each=each: of(each)) for each in FORMATS)
        problems = [
            f"{what}: {first} and {second}"
            for what, first, second in (
                ("schema", theirs.schema, ours.schema),
                ("rows", len(theirs.rows), len(ours.rows)),
                ("batches", theirs.batches, ours.batches),
            )
            if first != second
        ]
        if theirs.rows != ours.rows and len(theirs.rows) == len(ours.rows):
            differing = next(pair for pair in zip(theirs.rows, ours.rows, strict=True) if pair[0] != pair[1])
            problems.append(f"row: {differing[0]} and {differing[1]}")
        problems += [
            f"{each} {'takes it' if refused else found.error}"
            for each, found in zip(FORMATS, (theirs, ours), strict=True)
            if bool(found.error) != refused
        ]
        batches = f" in {len(ours.batches)} batches" if ours.batches else ""
        outcome = "refused" if refused else f"{len(theirs.rows):>5}{batches}"
        print(f"{kind:<8} {name:<50} {outcome:<22} {'; '.join(problems) or 'the same'}", flush=True)
        self.differences += [f"{kind} {name}: {each}" for each in problems]

    def design(self, name: str, holds: bool) -> None:
        """A difference that the documentation lists."""
        print(f"{'design':<8} {name:<73} {'as documented' if holds else 'NOT as documented'}", flush=True)
        if not holds:
            self.differences.append(f"not as docs/how-to/spark.md says: {name}")

    # --- batches --------------------------------------------------------------------------------------------------

    def frame(self, kind: str, options: Options) -> DataFrame:
        reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**options).load()  # type: ignore[arg-type]

    def batch(self, kind: str, options: Options) -> Found:
        return found_in(self.frame(kind, options))

    def batches(self) -> None:
        for name, options in BATCH.items():
            self.compare("batch", name, lambda kind, options=options: self.batch(kind, options))
        for name, options in REFUSED.items():
            self.compare("batch", name, lambda kind, options=options: self.batch(kind, options), refused=True)

        def joined(kind: str) -> Found:
            plain, odd = (self.frame(kind, {"subscribe": topic}) for topic in ("plain", "odd"))
            query = (
                plain.where("offset < 30")
                .groupBy("partition")
                .count()
                .join(odd.groupBy("partition").count(), "partition")
            )
            found = found_in(query)
            return Found(schema=found.schema, rows=sorted(found.rows))

        self.compare("batch", "two sources, filtered, grouped, joined", joined)

    # --- streams --------------------------------------------------------------------------------------------------

    def run(self, kind: str, name: str, options: Options, *, once: bool = False) -> None:
        """One run of a stream, from its checkpoint to what is there."""
        home = self.scratch / "streams" / name / kind
        reader = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        writer = reader.options(**options).load().writeStream.format("parquet")  # type: ignore[arg-type]
        writer = writer.option("path", str(home / "rows")).option("checkpointLocation", str(home / "checkpoint"))
        query = (writer.trigger(once=True) if once else writer.trigger(availableNow=True)).start()
        if not query.awaitTermination(BOUND_SECONDS):
            query.stop()
            raise SystemExit(f"the stream {name} of {kind} did not end")

    def streamed(self, kind: str, name: str) -> Found:
        """Return the rows of all runs, and the offsets at which each batch ended."""
        home = self.scratch / "streams" / name / kind
        found = found_in(self.spark.read.parquet(str(home / "rows")))
        found.rows.sort(key=lambda row: row[2:5])
        files = sorted((home / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        ends = [json.loads(path.read_text().splitlines()[2]) for path in files]
        for end in ends:
            end.pop(TOPIC_IDS, None)
            end.pop(STARTED_AT, None)
        found.batches = [json.dumps(end, sort_keys=True) for end in ends]
        return found

    def streams(self) -> None:
        """Each in two runs; in between there are more records, a new partition and a new topic."""
        self.topics.fill(self.topics.create("stream.a", 2), numbered(0, 160, partitions=2))
        self.run_all()
        self.topics.add_partitions("stream.a", 3)
        self.topics.fill("stream.a", numbered(160, 240))
        self.topics.fill(self.topics.create("stream.b", 1), numbered(0, 30, partitions=1))
        self.run_all()
        for name in (*STREAMS, "once"):
            self.compare("stream", name, lambda kind, name=name: self.streamed(kind, name))

    def run_all(self) -> None:
        for kind in FORMATS:
            for name, options in STREAMS.items():
                self.run(kind, name, options)
            options = {"subscribe": "stream.a", **EARLIEST, "maxOffsetsPerTrigger": 10}
            self.run(kind, "once", options, once=True)

    # --- checkpoints that change hands ------------------------------------------------------------------------------

    def handovers(self) -> None:
        """A query is continued by the other, and by the first again; also after a crash in the middle of a batch."""
        for first, second in (FORMATS, FORMATS[::-1]):
            for crashes in (False, True):
                name = f"handover.{first}{'.crash' * crashes}"
                self.topics.create(name, 2)
                checkpoint = self.scratch / name
                rows: dict[int, list[int]] = {}
                for number, kind in enumerate((first, second, first)):
                    self.topics.fill(name, numbered(number * 50, number * 50 + 50, partitions=2))
                    if number and crashes:
                        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
                        last.unlink()
                        last.with_name(f".{last.name}.crc").unlink()
                    if number and kind == "kafka":
                        release(checkpoint)
                    self.run_into(rows, kind, name, checkpoint)
                found = sorted(value for batch in rows.values() for value in batch)
                right = found == list(range(150))
                print(
                    f"{'handover':<8} {name:<50} {len(found):>5} rows{'' if right else ': lost or doubled'}", flush=True
                )
                if not right:
                    self.differences.append(f"{name}: {found}")

    def run_into(self, rows: dict[int, list[int]], kind: str, topic: str, checkpoint: Path) -> None:
        """One run of a query, whose batches replace those of the same number."""

        def take(frame: DataFrame, number: int) -> None:
            rows[number] = [int(row.value) for row in frame.select("value").collect()]

        reader = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        stream = reader.options(subscribe=topic, maxOffsetsPerTrigger=20, **EARLIEST).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(BOUND_SECONDS):
            raise SystemExit(f"the stream of {topic} through {kind} did not end")

    # --- sinks ----------------------------------------------------------------------------------------------------

    def rows(self, kind: str) -> DataFrame:
        """The rows to write, in one task so that their order is fixed."""
        made = [
            (
                b"key %d" % (number % 23),
                b"%d" % number,
                [Row(key="h", value=b"%d" % number), Row(key="h", value=None)][: number % 3] or None,
                number % 3,
                f"sink.{kind}.{number % 2}",
            )
            for number in range(120)
        ]
        return self.spark.createDataFrame(made, SINK).coalesce(1)

    def write(self, kind: str, name: str, columns: Sequence[str]) -> Found:
        names = [f"sink.{kind}.{number}" for number in range(2)]
        options: dict[str, Any] = {"kafka.bootstrap.servers": self.bootstrap, "kafka.max.block.ms": 3_000}
        if "topic" not in columns:
            names = [f"sink.{kind}.{name.replace(' ', '-').replace(',', '')}"]
            options["topic"] = names[0]
        for each in names:
            self.topics.create(each, 4)
        frame = self.rows(kind).selectExpr(*columns)
        frame.write.format(kind).mode("append").options(**options).save()
        counts = [120 // len(names)] * len(names)
        return Found(
            rows=[row for each, count in zip(names, counts, strict=True) for row in self.topics.written(each, count)]
        )

    def write_stream(self, kind: str) -> Found:
        """From a stream with its headers and partitions, in two runs."""
        topic = self.topics.create(f"sink.{kind}.stream", 2)
        stream = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        stream = stream.options(subscribe="odd", includeHeaders="true", maxOffsetsPerTrigger=20, **EARLIEST)
        writer = stream.load().select("key", "value", "headers", "partition").writeStream.format(kind)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).option("topic", topic)
        writer = writer.option("checkpointLocation", str(self.scratch / f"sink-{kind}")).trigger(availableNow=True)
        for _ in range(2):
            query = writer.start()
            if not query.awaitTermination(BOUND_SECONDS):
                raise SystemExit(f"the stream into {topic} did not end")
        return Found(rows=self.topics.written(topic, 64))

    def sinks(self) -> None:
        for name, columns in WRITES.items():
            self.compare("sink", name, lambda kind, name=name, columns=columns: self.write(kind, name, columns))
        for name, columns in BAD_WRITES.items():
            self.compare(
                "sink", name, lambda kind, name=name, columns=columns: self.write(kind, name, columns), refused=True
            )
        self.compare("sink", "a stream with headers and partitions", self.write_stream)

    # --- what differs by design -----------------------------------------------------------------------------------

    def designs(self) -> None:
        """Each is a line of "Comparison with Spark's own source" in docs/how-to/spark.md."""

        def refusals(work: Callable[[str], object]) -> dict[str, bool]:
            return {kind: bool(attempt(lambda kind=kind: work(kind) and Found()).error) for kind in FORMATS}

        misspelt = refusals(lambda kind: self.batch(kind, {"subscribe": "plain", "startingOffset": "latest"}))
        self.design("an unknown option is an error", misspelt == {"kafka": False, "kraftpy": True})

        def narrowed(kind: str) -> object:
            reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
            return reader.option("subscribe", "plain").schema("value binary").load().collect()

        self.design("a schema chooses columns", refusals(narrowed) == {"kafka": True, "kraftpy": False})

        def plainly(kind: str) -> object:
            writer = self.rows(kind).select("value").write.format(kind).option("topic", "empty")
            return writer.option("kafka.bootstrap.servers", self.bootstrap).save() or True

        self.design("mode('append') has to be said", refusals(plainly) == {"kafka": False, "kraftpy": True})


def attempt(work: Callable[[], Found]) -> Found:
    """Return the work's result, or the first line of its error."""
    try:
        return work()
    except Py4JJavaError as error:
        return Found(error=f"fails: {error.java_exception.toString().splitlines()[0][:200]}")
    except PySparkException as error:
        return Found(error=f"fails: {str(error).splitlines()[0][:200]}")


def found_in(frame: DataFrame) -> Found:
    """Its schema and rows; those of a topic's partition stay in the order they came."""
    rows = [tuple(map(plain, row)) for row in frame.collect()]
    where = [frame.columns.index(name) for name in ("topic", "partition") if name in frame.columns]
    return Found(schema=frame.schema.json(), rows=sorted(rows, key=lambda row: [row[index] for index in where]))


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [tuple(map(plain, each)) for each in value]
    return value


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kraftpy-connector-") as directory:
        scratch = Path(directory)
        version, jars = connector(scratch)
        print(f"Spark {pyspark.__version__}, its Kafka connector {version}: {', '.join(path.name for path in jars)}")
        with EmbeddedBroker(scratch / "broker", settings=QUICK) as broker:
            topics = Topics(broker.bootstrap)
            topics.fill_all(scratch / "broker" / "logs")
            with spark_session(find_java(os.environ, scratch), scratch / "spark", jars=jars) as spark:
                suite = Suite(spark, topics, broker.bootstrap, scratch)
                for part in (suite.batches, suite.streams, suite.handovers, suite.sinks, suite.designs):
                    part()
            topics.close()
    for line in suite.differences:
        print(line, file=sys.stderr)
    print(f"{len(suite.differences)} differences that are not documented")
    return 1 if suite.differences else 0


if __name__ == "__main__":
    sys.exit(main())
