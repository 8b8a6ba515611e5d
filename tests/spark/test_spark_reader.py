"""The batch reader driven as Spark drives it, without Spark: plan, pickle, read."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType
from transactional_topics import ENDINGS, write_ending

from kraftpy.spark import arrow
from kraftpy.spark.offsets import DataLossError, OptionError, UnknownTopicError
from kraftpy.spark.source import BatchReader
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]
OFFSET_AND_VALUE = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


@pytest.fixture
def reader_of(kraftpy_server: EmbeddedBroker) -> Callable[..., BatchReader]:
    def make(topic: str, schema: StructType = OFFSET_AND_VALUE, **options: str) -> BatchReader:
        named = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "subscribe": topic, **options}
        reader: BatchReader = pickle.loads(pickle.dumps(BatchReader(named, schema)))
        return reader

    return make


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"value": str(n).encode()} for n in range(count)]


def rows(reader: BatchReader, partitions: Any) -> list[tuple[Any, ...]]:
    found = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in reader.read(partition):
            batch.validate(full=True)
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(30)


def test_a_plan_is_read_from_offsets_alone(reader_of: Callable[..., BatchReader], topic_of: Filler) -> None:
    topic = topic_of(numbered(50))
    reader = reader_of(topic, minPartitions="3")
    planned = reader.partitions()
    topic_of(numbered(50), name=f"{topic}-other")
    assert len(planned) == 3
    assert rows(reader, planned) == [(n, str(n).encode()) for n in range(50)]
    assert rows(reader, planned) == rows(reader, planned)


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_transactional_topic_is_read_to_its_end(
    reader_of: Callable[..., BatchReader], topic_of: Filler, kraftpy_server: EmbeddedBroker, ending: str
) -> None:
    topic = topic_of([])
    values = write_ending(kraftpy_server.bootstrap, topic, ending)
    committed = {"kafka.isolation.level": "read_committed"}
    for reader in (reader_of(topic, **committed), reader_of(topic, minPartitions="4", **committed)):
        assert [value.decode() for _, value in rows(reader, reader.partitions())] == values


def test_merged_ranges_are_read_one_after_the_other(reader_of: Callable[..., BatchReader], topic_of: Filler) -> None:
    topic = topic_of([{"value": b"x", "partition": n % 4} for n in range(40)], partitions=4)
    schema = StructType([StructField("partition", IntegerType()), StructField("topic", StringType())])
    reader = reader_of(topic, schema, maxPartitions="1")
    [planned] = reader.partitions()
    assert rows(reader, [planned]) == [(n // 10, topic) for n in range(40)]


def test_records_deleted_between_planning_and_reading(
    reader_of: Callable[..., BatchReader],
    topic_of: Filler,
    kraftpy_server: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topic_of(numbered(20))
    strict, lenient = reader_of(topic), reader_of(topic, failOnDataLoss="false")
    planned, planned_leniently = strict.partitions(), lenient.partitions()
    delete_before(kraftpy_server.bootstrap, topic, 12)
    with pytest.raises(DataLossError, match=rf"{topic}-0: offsets from 0 have been deleted; the log holds \[12, 20\)"):
        rows(strict, planned)
    with caplog.at_level(logging.WARNING, logger="kraftpy.spark"):
        assert [offset for offset, _ in rows(lenient, planned_leniently)] == list(range(12, 20))
    assert "have been deleted" in caplog.text


def test_a_partition_without_ranges_reads_nothing(reader_of: Callable[..., BatchReader], topic_of: Filler) -> None:
    reader = reader_of(topic_of([]))
    assert rows(reader, reader.partitions()) == []


def test_all_missing_topics_are_named(reader_of: Callable[..., BatchReader], topic_of: Filler) -> None:
    topic = topic_of([])
    with pytest.raises(UnknownTopicError, match=r"^unknown topics: gone-a, gone-b$"):
        reader_of(f"gone-b,{topic},gone-a").partitions()


def test_large_records_make_small_batches(reader_of: Callable[..., BatchReader], topic_of: Filler) -> None:
    topic = topic_of([{"key": b"k" * 200_000, "value": bytes([n]) * 700_000} for n in range(24)], linger_ms="100")
    reader = reader_of(topic)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in batches) == 24
    assert all(batch.nbytes <= arrow.BYTES_PER_BATCH for batch in batches)
    assert [value[0] for batch in batches for value in batch["value"].to_pylist()] == list(range(24))


def test_warnings_about_options_are_logged(
    reader_of: Callable[..., BatchReader], topic_of: Filler, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kraftpy.spark"):
        reader_of(topic_of([]), maxOffsetsPerTrigger="3").partitions()
    assert "maxOffsetsPerTrigger has no effect on a batch query" in caplog.text


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("body", BinaryType()), r"there is no column 'body'"),
        (StructField("offsets", LongType()), r"did you mean 'offset'\?"),
        (StructField("value", StringType()), r"column 'value' is binary, not string"),
        (StructField("key", BinaryType(), nullable=False), r"column 'key' may be null"),
    ],
)
def test_schemas_that_cannot_be_served(field: StructField, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        arrow.check_schema(StructType([field]))


def test_a_schema_without_columns() -> None:
    with pytest.raises(OptionError, match="it has no columns"):
        arrow.check_schema(StructType([]))
