"""Spark writes to topics of a real broker: batches and streams, at least once and exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import udf
from sink_rows_of_tests import records_in
from waiting import eventually

from kraftpy.audit import topic as audit_topic
from kraftpy.spark.load import LoadOptions, SparkTasks, load
from kraftpy.spark.load_parquet import ParquetTable
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),  # a session that starts on a busy machine takes its time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

Filler = Callable[..., str]


@pytest.fixture
def save(kraftpy_server: EmbeddedBroker) -> Callable[..., None]:
    """`save(frame, mode=..., **options)`; dots in option names are written as two underscores."""

    def write(frame: Any, mode: str = "append", **options: object) -> None:
        writer = frame.write.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.mode(mode).save()

    return write


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_batch_write(
    delivery: str, spark: Any, save: Callable[..., None], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    topic = topic_of([], partitions=3)
    frame = spark.range(0, 5000, numPartitions=3).selectExpr(
        "cast(id % 7 as string) key",
        "cast(id as string) value",
        "if(id % 1000 = 0, array(struct('h' as key, cast('x' as binary) as value)), null) headers",
    )
    save(frame, topic=topic, delivery=delivery, includeHeaders="true", kafka__compression__type="lz4")
    save(frame.limit(10), topic=topic, delivery=delivery)
    found = records_in(kraftpy_server.bootstrap, topic, isolation_level="read_committed")
    assert len(found) == 5010, "another write is another write"
    assert {int(value or b"") for _, _, value, _ in found} == set(range(5000))
    assert {tuple(headers) for _, _, value, headers in found if int(value or b"") == 1000} == {(("h", b"x"),)}


def test_spark_keeps_the_line_of_a_batch_write(spark: Any, save: Callable[..., None], topic_of: Filler) -> None:
    """Spark starts its Python workers without a configuration of logging, which has warnings written only."""
    kept, line = (
        "spark.sql.pyspark.worker.logging.enabled",
        "write: 30 rows written by 3 tasks, 0 had been written before",
    )
    spark.conf.set(kept, "true")
    try:
        save(spark.range(0, 30, numPartitions=3).selectExpr("cast(id as string) value"), topic=topic_of([]))
        logged = spark.sql("select level, msg from python_worker_logs() where logger = 'kraftpy.spark'")
        eventually(lambda: ("INFO", line) in {tuple(row) for row in logged.collect()}, "Spark has the line")
    finally:
        spark.conf.unset(kept)


def test_what_the_reader_yields_can_be_written(
    spark: Any, save: Callable[..., None], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    records = [{"key": b"k", "value": f"{n}".encode(), "partition": n % 2, "headers": [("h", b"1")]} for n in range(20)]
    source, target = topic_of(records, partitions=2), topic_of([], partitions=2)
    frame = (
        spark.read.format("kraftpy")
        .option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        .option("subscribe", source)
        .option("includeHeaders", "true")
        .load()
    )
    save(frame, topic=target)
    assert records_in(kraftpy_server.bootstrap, target) == records_in(kraftpy_server.bootstrap, source)


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("append", {"topik": "t"}, "unknown option 'topik'; did you mean 'topic'?"),
        ("append", {}, "a topic is required: option topic, or a column 'topic'"),
        ("overwrite", {"topic": "t"}, "cannot overwrite a topic"),
    ],
)
def test_writes_that_are_refused(
    mode: str, options: dict[str, str], message: str, spark: Any, save: Callable[..., None]
) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        save(spark.range(1).selectExpr("cast(id as string) value"), mode, **options)
    assert message in str(raised.value)


def test_a_load_whose_tasks_run_on_spark(
    spark: Any, topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = topic_of([{"value": f"{n}".encode(), "partition": n % 3} for n in range(30)], partitions=3)
    options = LoadOptions(bootstrap_servers=kraftpy_server.bootstrap, topics=(topic,))
    [batch] = load(options, ParquetTable(tmp_path / "table", "l"), run_tasks=SparkTasks(spark))
    assert (batch.rows, len(batch.files)) == (30, 3)
    rows = spark.read.parquet(str(tmp_path / "table")).selectExpr("int(string(value)) n", "topic").collect()
    assert sorted(row["n"] for row in rows) == list(range(30))
    assert {row["topic"] for row in rows} == {topic}


def test_a_stream_that_fails_within_a_batch_writes_each_row_once(
    spark: Any, topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    """One task of the second batch fails near its end, while the other's may be committed; the batch comes again."""
    topic = topic_of([], partitions=2)
    source, checkpoint, healed = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "healed"
    source.mkdir()
    for batch in range(3):
        lines = [json.dumps({"n": batch * 1000 + n}) for n in range(1000)]
        (source / f"{batch}.json").write_text("\n".join(lines))

    @udf("string", useArrow=False)
    def as_text(n: int) -> str:
        if n == 1999 and not healed.exists():
            raise RuntimeError("this task fails near its end")
        return str(n)

    def start() -> Any:
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))
        rows = frame.repartition(2, "n").select(as_text("n").alias("value"))
        writer = rows.writeStream.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        writer = writer.option("topic", topic).option("delivery", "exactly_once")
        writer = writer.option("auditTopic", f"{topic}-audit")
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    failing = start()
    with pytest.raises(Exception, match="fails near its end"):
        failing.awaitTermination(240)
    healed.touch()
    query = start()
    assert query.awaitTermination(240)
    assert query.id == failing.id
    found = records_in(kraftpy_server.bootstrap, topic, isolation_level="read_committed")
    assert sorted(int(value or b"") for _, _, value, _ in found) == list(range(3000))
    told, _ = audit_topic.read(kraftpy_server.bootstrap, f"{topic}-audit")
    assert sum(tally.count for tally in told) == 3000
