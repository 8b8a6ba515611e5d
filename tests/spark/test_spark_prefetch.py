"""Small micro-batches are read where the stream is planned, and large ones, or those that cannot be, by tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from driving import PLAIN, Query, is_simple
from pyspark.sql.types import BinaryType, StructField, StructType

from kraftpy.spark import pace, prefetch
from kraftpy.spark.offsets import DataLossError
from kraftpy.spark.stream import StreamReader
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]


@pytest.fixture
def query_of(kraftpy_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Query]:
    monkeypatch.setattr(pace, "SLOW_MS", 600_000)  # a machine may be slow

    def make(topic: str, schema: StructType = PLAIN, **options: str) -> Query:
        named = {
            "kafka.bootstrap.servers": kraftpy_server.bootstrap,
            "startingOffsets": "earliest",
            "subscribe": topic,
        }
        return Query({**named, **{name.replace("__", "."): value for name, value in options.items()}}, schema)

    return make


def numbered(count: int, *, partitions: int = 3, size: int = 0) -> list[dict[str, Any]]:
    return [{"value": str(n).encode().zfill(size), "partition": n % partitions} for n in range(count)]


def test_the_planner_reads_small_batches_and_tasks_the_large_ones(
    query_of: Callable[..., Query], topic_of: Filler
) -> None:
    """In every one of them the rows are the same; `Query` compares both ways."""
    topic = topic_of(numbered(63), partitions=3)
    for most, handed_over in (("21", [True] * 3), ("20", [False] * 3), ("0", [False] * 3)):
        query = query_of(topic, maxOffsetsPerTrigger="21", prefetchRecords=most)
        query.run()
        assert query.handed_over == handed_over
        assert sorted(int(row["value"]) for row in query.rows()) == list(range(63))


def test_a_planner_passes_for_a_simple_reader_only_to_hand_over_rows(
    query_of: Callable[..., Query], topic_of: Filler
) -> None:
    """Otherwise Spark would not ask it for the lag, and take its limits for another's."""
    query = query_of(topic_of(numbered(6), partitions=3))
    query.run()
    start, end = map(json.loads, query.checkpoint)
    planner = StreamReader(query.options, PLAIN)
    assert not is_simple(planner)
    planner.partitions(start, end)
    assert is_simple(planner)
    rows = planner.getCache(start, end)
    assert rows is not None
    assert sum(batch.num_rows for batch in rows) == 6
    assert not is_simple(planner)
    assert planner.getCache(start, end) is None
    planner.partitions(start, end)
    assert planner.partitions(end, end) == []
    assert not is_simple(planner)
    planner.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"minPartitions": "2"},
        {"maxRecordsPerPartition": "5"},
        {
            "value__format": "json",
            "value__schema": "id int",
            "deadLetterTopic": "dead",
        },
    ],
    ids=["minPartitions", "maxRecordsPerPartition", "deadLetterTopic"],
)
def test_tasks_read_what_has_to_be_read_by_tasks(
    query_of: Callable[..., Query], topic_of: Filler, options: dict[str, str]
) -> None:
    topic = topic_of([{"value": b'{"id": %d}' % n} for n in range(6)])
    schema = StructType(
        [StructField("_offset", PLAIN["offset"].dataType), StructField("id", PLAIN["partition"].dataType)]
    )
    query = query_of(topic, schema if "value__format" in options else PLAIN, **options)
    query.run()
    assert len(query.rows()) == 6
    assert query.handed_over == [False]


def test_tasks_read_if_spark_would_see_another_schema_in_the_rows(
    query_of: Callable[..., Query], topic_of: Filler
) -> None:
    commented = StructType([StructField("value", BinaryType(), metadata={"comment": "the value"})])
    query = query_of(topic_of(numbered(3), partitions=3), commented)
    query.run()
    assert query.handed_over == [False]
    assert len(query.rows()) == 3


def test_a_batch_of_more_bytes_than_may_be_kept_is_left_to_tasks(
    query_of: Callable[..., Query], topic_of: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "MOST_BYTES", 10_000)
    query = query_of(topic_of(numbered(42, size=1_000), partitions=3), maxOffsetsPerTrigger="21")
    query.run()
    assert query.handed_over == [False, False]
    assert len(query.rows()) == 42


def test_what_a_planner_cannot_read_a_task_reports(
    query_of: Callable[..., Query], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    """A batch from the checkpoint whose records have been deleted fails in a task, not in the planner."""
    topic = topic_of(numbered(10, partitions=1))
    query = query_of(topic)
    query.run()
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    admin.delete_records([Place(topic, 0, 5)])[Place(topic, 0, 5)].result(30)
    start, end = map(json.loads, query.checkpoint)
    planner = StreamReader(query.options, PLAIN)
    (partition,) = planner.partitions(start, end)
    assert not is_simple(planner)
    planner.stop()
    with pytest.raises(DataLossError, match="have been deleted"):
        list(planner.read(partition))
