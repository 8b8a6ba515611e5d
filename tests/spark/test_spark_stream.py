"""Spark reads streams of a real broker, filled by confluent-kafka."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client.blocking.facade import BlockingAdmin
from kraftpy.spark.pace import SLOW_MS
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),  # a session that starts on a busy machine takes its time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

Filler = Callable[..., str]


class Stream:
    """One query over a topic into memory, started as often as wanted on the same checkpoint."""

    def __init__(self, spark: Any, options: dict[str, str], checkpoint: Path, schema: str | None) -> None:
        self.spark = spark
        reader = spark.readStream.format("kraftpy").options(**options)
        self.frame = (reader if schema is None else reader.schema(schema)).load()
        self.checkpoint = checkpoint
        self.batches: list[list[Any]] = []

    def start(self, **trigger: Any) -> Any:
        def take(frame: Any, number: int) -> None:
            rows = frame.collect()
            if number < len(self.batches):  # a batch that is done again, after a failure
                assert sorted(map(repr, rows)) == sorted(map(repr, self.batches.pop(number)))
            self.batches.insert(number, rows)

        writer = self.frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self) -> list[dict[str, Any]]:
        """The progress of every batch of a run with Trigger.AvailableNow."""
        query = self.start(availableNow=True)
        query.awaitTermination(120)
        assert query.exception() is None
        assert not query.isActive
        return [json.loads(progress.json) for progress in query.recentProgress]

    def values(self) -> list[int]:
        return sorted(int(bytes(row["value"])) for batch in self.batches for row in batch)


@pytest.fixture
def stream_of(spark: Any, kraftpy_server: EmbeddedBroker, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    def make(topic: str, *, schema: str | None = None, **options: str) -> Stream:
        named = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "subscribe": topic}
        named |= {"startingOffsets": "earliest", **{name.replace("__", "."): value for name, value in options.items()}}
        return Stream(spark, named, tmp_path / uuid.uuid4().hex, schema)

    yield make
    for query in spark.streams.active:
        query.stop()


def numbered(count: int, *, partitions: int = 1, start: int = 0) -> list[dict[str, Any]]:
    return [{"value": str(n).encode(), "partition": n % partitions} for n in range(start, start + count)]


def next_batch_was_asked_for_soon(batch: dict[str, Any], following: dict[str, Any]) -> bool:
    """Whether the reader saw a quick batch for certain, by Spark's own times."""
    begun, next_begun = (datetime.fromisoformat(each["timestamp"]) for each in (batch, following))
    asked = next_begun + timedelta(milliseconds=following["durationMs"]["latestOffset"])
    return asked - begun <= timedelta(milliseconds=SLOW_MS)


def wait_for(query: Any, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("most", ["1000", "0"])
def test_a_small_batch_comes_with_its_plan_in_one_task(
    stream_of: Callable[..., Stream], topic_of: Filler, most: str
) -> None:
    """Spark reads the planner's rows, all columns of them, or has a task for all partitions.

    Only behind a batch that was slow may it have a task for each.
    """
    headers = [("name", b"value"), ("none", None)]
    topic = topic_of([{**each, "headers": headers} for each in numbered(30, partitions=3)], partitions=3)
    stream = stream_of(topic, prefetchRecords=most, includeHeaders="true", maxOffsetsPerTrigger="15")
    stream.frame = stream.frame.selectExpr("*", "spark_partition_id() as task")
    progress = stream.drain()
    assert stream.values() == list(range(30))
    assert len(stream.batches) == len(progress) == 2
    for batch, was_quick in zip(stream.batches, (True, next_batch_was_asked_for_soon(*progress)), strict=True):
        tasks = {row["task"] for row in batch}
        assert tasks == {0} or (not was_quick and tasks == {0, 1, 2})
        assert {row["partition"] for row in batch} == {0, 1, 2}
        assert [[tuple(each) for each in row["headers"]] for row in batch] == [headers] * 15
    assert progress[0]["sources"][0]["latestOffset"][topic] == {"0": 10, "1": 10, "2": 10}
    assert sum(each["numInputRows"] for each in progress) == 30


def test_available_now_drains_within_limits_and_shows_its_lag(
    stream_of: Callable[..., Stream], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    topic = topic_of(numbered(100, partitions=2), partitions=2)
    stream = stream_of(topic, maxOffsetsPerTrigger="40", commitGroupId=f"{topic}-g")
    progress = stream.drain()
    assert [len(batch) for batch in stream.batches] == [40, 40, 20]
    assert stream.values() == list(range(100))
    first = next(each for each in progress if each["batchId"] == 0)["sources"][0]
    assert first["endOffset"][topic] == {"0": 20, "1": 20}
    assert first["latestOffset"][topic] == {"0": 50, "1": 50}
    assert first["numInputRows"] == 40
    with BlockingAdmin(bootstrap_servers=kraftpy_server.bootstrap) as admin:
        committed = admin.list_group_offsets(f"{topic}-g")
    assert {each.partition: at.offset for each, at in committed.items()} == {0: 50, 1: 50}


def test_a_stream_follows_its_topic(
    stream_of: Callable[..., Stream], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    from confluent_kafka import Producer

    topic = topic_of(numbered(10))
    stream = stream_of(topic, schema="value binary")
    query = stream.start()
    producer = Producer({"bootstrap.servers": kraftpy_server.bootstrap})
    for more in range(10, 40, 10):
        wait_for(query, lambda more=more: stream.values() == list(range(more)))
        for record in numbered(10, start=more):
            producer.produce(topic, **record)
        assert producer.flush(30) == 0
    wait_for(query, lambda: len(stream.values()) == 40)
    query.stop()
    assert stream.values() == list(range(40))
    assert stream.frame.columns == ["value"]


def test_a_query_that_failed_goes_on_where_it_was(
    stream_of: Callable[..., Stream], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    topic = topic_of(numbered(20))
    stream = stream_of(topic, maxOffsetsPerTrigger="10")
    failing = stream.frame.writeStream.option("checkpointLocation", str(stream.checkpoint))
    query = failing.foreachBatch(lambda frame, number: 1 / 0 if number else stream.batches.append(frame.collect()))
    started = query.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="division by zero"):
        started.awaitTermination(120)
    stream.drain()  # the second batch is in the checkpoint, and was not done
    assert [len(batch) for batch in stream.batches] == [10, 10]
    assert stream.values() == list(range(20))


def test_a_first_batch_that_failed_is_read_again(
    stream_of: Callable[..., Stream], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    """Spark asks again where the query would start: later now. The batch begins where it began all the same."""
    from confluent_kafka import Producer

    topic = topic_of(numbered(3))
    stream = stream_of(topic, startingOffsets="latest")
    producer, sent = Producer({"bootstrap.servers": kraftpy_server.bootstrap}), itertools.count(3)

    def produce(count: int) -> None:
        for record in numbered(count, start=next(sent)):
            producer.produce(topic, **record)
        assert producer.flush(30) == 0

    def fail(frame: Any, number: int) -> None:
        rows = frame.collect()
        stream.batches.append(rows)
        if rows:  # without records for half a second, Spark does an empty batch first
            raise ArithmeticError

    query = stream.frame.writeStream.option("checkpointLocation", str(stream.checkpoint)).foreachBatch(fail).start()
    with pytest.raises(Exception, match="ArithmeticError"):  # noqa: PT012
        while query.isActive:
            produce(1)
        query.awaitTermination(120)
    assert stream.values()
    produce(1)
    stream.drain()  # its `take` compares the first batch with what had been read of it
    assert stream.values() == list(range(stream.values()[0], next(sent)))


def test_options_of_streams_are_checked(stream_of: Callable[..., Stream]) -> None:
    with pytest.raises(Exception, match=r"unknown option 'maxoffsetpertrigger'; did you mean 'maxOffsetsPerTrigger'\?"):
        stream_of("t", maxOffsetPerTrigger="3")
    stream = stream_of("t", endingOffsets="latest")
    with pytest.raises(Exception, match="'endingOffsets' is not supported: a stream has no end"):
        stream.start(availableNow=True).awaitTermination(120)


def test_values_of_a_type_are_columns(stream_of: Callable[..., Stream], topic_of: Filler) -> None:
    good = {"id": 1, "at": "2013-07-04T12:00:00Z", "tags": {"a": 2}, "price": 1.5, "stops": [{"to": "JFK"}]}
    topic = topic_of([{"value": json.dumps(good).encode(), "key": b"k"}, {"value": b"{oops"}])
    stream = stream_of(
        topic,
        value__format="json",
        value__schema="id bigint, at timestamp, tags map<string,int>, price decimal(9,2), "
        "stops array<struct<to:string>>",
    )
    assert stream.frame.columns[:5] == ["id", "at", "tags", "price", "stops"]
    stream.frame = stream.frame.selectExpr(
        "id",
        "unix_millis(at)",
        "tags['a']",
        "cast(price as string)",
        "stops[0].to",
        "_offset",
        "cast(_bad.value as string)",
    )
    stream.drain()
    [batch] = stream.batches
    assert sorted(map(tuple, batch), key=lambda row: row[5]) == [
        (1, 1372939200000, 2, "1.50", "JFK", 0, None),
        (None, None, None, None, None, 1, "{oops"),
    ]


def test_values_in_avro_and_messagepack(stream_of: Callable[..., Stream], topic_of: Filler) -> None:
    import io

    import fastavro
    import msgpack

    day = {"type": "int", "logicalType": "date"}
    fields = [{"name": "id", "type": "long"}, {"name": "day", "type": ["null", day]}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, {"id": 7, "day": date(2013, 7, 4)})
    of_avro = stream_of(
        topic_of([{"value": written.getvalue()}]), value__format="avro", value__schema=json.dumps(schema)
    )
    of_avro.drain()
    assert [(row["id"], row["day"], row["_bad"]) for row in of_avro.batches[0]] == [(7, date(2013, 7, 4), None)]
    packed = msgpack.packb({"id": 8, "day": "2013-07-05"})
    of_msgpack = stream_of(topic_of([{"value": packed}]), schema="day date, id bigint", value__format="msgpack")
    of_msgpack.drain()
    assert [tuple(row) for row in of_msgpack.batches[0]] == [(date(2013, 7, 5), 8)]
