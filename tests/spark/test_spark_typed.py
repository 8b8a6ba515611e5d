"""Readers whose values have a type, driven as Spark drives them, without Spark, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from driving import Query
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kraftpy.spark.offsets import OptionError
from kraftpy.spark.source import BatchReader, default_schema
from kraftpy.spark.typed import MalformedValue, check_typed_schema
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]
BAD = StructField("_bad", StructType([StructField("value", BinaryType()), StructField("error", StringType())]))
ORDER = StructType(
    [StructField("id", LongType()), StructField("item", StringType()), StructField("_offset", LongType())]
)
NAMED = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


@pytest.fixture
def read(kraftpy_server: EmbeddedBroker) -> Callable[..., list[dict[str, Any]]]:
    """`read(topic, schema, **options)`: the rows of a stream, by offset."""

    def all_of(topic: str, schema: StructType = ORDER, **options: str) -> list[dict[str, Any]]:
        named = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "startingOffsets": "earliest", "subscribe": topic}
        dotted = {name.replace("__", "."): value for name, value in options.items()}
        query = Query({**named, "value.format": "json", **dotted}, schema)
        query.run()
        return query.rows()

    return all_of


def orders(*values: bytes | None, **more: Any) -> list[dict[str, Any]]:
    return [{"value": value, **more} for value in values]


GOOD = b'{"id": 1, "item": "tea"}'


def test_fields_are_columns_beside_kafka_s_own(read: Callable[..., Any], topic_of: Filler) -> None:
    fields = [
        StructField("_TOPIC", StringType()),
        StructField("item", StringType()),
        StructField("_key", BinaryType()),
        StructField("_timestamp", TimestampType()),
        StructField("_partition", IntegerType()),
        StructField("_value", BinaryType()),
        BAD,
    ]
    topic = topic_of(orders(GOOD, key=b"k", timestamp=1000))
    [row] = read(topic, StructType(fields))
    assert list(row) == ["_TOPIC", "item", "_key", "_timestamp", "_partition", "_value", "_bad"]
    assert row["_timestamp"].timestamp() == 1.0
    del row["_timestamp"]
    assert list(row.values()) == [topic, "tea", b"k", 0, GOOD, None]


def test_a_malformed_value_is_kept_in_a_column_of_its_own(
    read: Callable[..., Any], topic_of: Filler, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(orders(GOOD, b"{oops", None, b'{"id": "x"}'))
    rows = read(topic, StructType([*ORDER.fields, BAD]))
    assert [(row["id"], row["_offset"]) for row in rows] == [(1, 0), (None, 1), (None, 2), (None, 3)]
    assert [row["_bad"] and row["_bad"]["value"] for row in rows] == [None, b"{oops", None, b'{"id": "x"}']
    assert "not JSON" in rows[1]["_bad"]["error"]
    assert "malformed" not in caplog.text
    assert len(read(topic)) == 4
    assert "2 malformed values" in caplog.text  # no column contained them


def test_malformed_values_can_be_dropped(
    read: Callable[..., Any], topic_of: Filler, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(orders(GOOD, b"{oops", None, b"{oops again"))
    rows = read(topic, mode="DROPMALFORMED")
    assert [(row["id"], row["_offset"]) for row in rows] == [(1, 0), (None, 2)]
    assert f"2 malformed values; the first is in {topic}-0, offset 1: not JSON" in caplog.text
    assert read(topic_of(orders(b"x", b"y")), mode="dropmalformed") == []


def test_the_first_malformed_value_can_end_the_query(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(orders(GOOD, b"{oops"))
    with pytest.raises(MalformedValue, match=f"malformed value in {topic}-0, offset 1: not JSON"):
        read(topic, mode="failfast")


def test_malformed_values_go_to_a_topic(
    read: Callable[..., Any], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    dead = topic_of([])
    records = [{"value": GOOD}, {"value": b"{oops", "key": b"k", "timestamp": 1234, "headers": [("a", b"b")]}]
    topic = topic_of([*records, {"value": b""}])
    rows = read(topic, mode="dropmalformed", deadLetterTopic=dead)
    assert [row["id"] for row in rows] == [1]
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    schema = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("timestamp", TimestampType()),
            StructField("headers", ArrayType(header)),
        ]
    )
    options = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "startingOffsets": "earliest", "subscribe": dead}
    letters = Query(options, schema)
    letters.run()
    first, second = letters.rows()
    assert (first["key"], first["value"], first["timestamp"].timestamp()) == (b"k", b"{oops", 1.234)
    told = {each["key"]: each["value"] for each in first["headers"]}
    assert b"not JSON" in told.pop("kraftpy.error")
    assert told == {
        "a": b"b",
        "kraftpy.topic": topic.encode(),
        "kraftpy.partition": b"0",
        "kraftpy.offset": b"1",
    }
    assert (second["key"], second["value"]) == (None, b"")


def test_a_batch_reads_typed_values_too(topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(orders(GOOD, GOOD))
    options = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "subscribe": topic, "value.format": "json"}
    reader = BatchReader(options, ORDER)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [{"id": 1, "item": "tea", "_offset": 0}, {"id": 1, "item": "tea", "_offset": 1}]


# Options and schemas -------------------------------------------------------------------------------------------------


def test_the_columns_of_a_query_that_names_none() -> None:
    options = {**NAMED, "value.format": "json", "value.schema": "id bigint, item string"}
    assert default_schema(options) == (
        "id bigint, item string, _key binary, _topic string, _partition int, _offset bigint, _timestamp timestamp, "
        "_timestampType int, _bad struct<value:binary,error:string>"
    )
    assert "_headers array" in default_schema({**options, "includeHeaders": "true"})
    avro = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    columns = default_schema({**NAMED, "value.format": "avro", "value.schema": json.dumps(avro)})
    assert columns.startswith("`id` bigint, _key binary")
    with pytest.raises(OptionError, match=r"^value\.schema: the value.s fields are not known"):
        default_schema({**NAMED, "value.format": "json"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value.format": "xml"}, r"^value\.format: 'xml' is not one of json, avro, msgpack"),
        ({"value.format": "avro"}, r"^value\.schema: Avro needs the schema"),
        ({"value.format": "avro", "value.schema": "{}"}, r"^value\.schema: an Avro schema of a record is required"),
        ({"value.format": "json", "value.schema": " "}, r"^value\.schema: the schema is empty"),
        ({"value.format": "json", "mode": "lenient"}, r"^mode: 'lenient' is not one of permissive"),
        ({"value.format": "json", "mode": "failfast", "deadLetterTopic": "d"}, "^deadLetterTopic: with mode=failfast"),
        ({"value.format": "json", "deadLetterTopic": ""}, "^deadLetterTopic: a topic's name cannot be empty"),
        ({"mode": "failfast"}, r"^mode has no effect without value\.format"),
        ({"value.schema": "a int"}, r"^value\.schema has no effect without value\.format"),
        ({"deadLetterTopic": "d"}, r"^deadLetterTopic has no effect without value\.format"),
    ],
)
def test_options_of_values_that_are_wrong(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        default_schema({**NAMED, **options})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([StructField("id", LongType(), nullable=False)], "'id' is null for a malformed record"),
        ([StructField("id", LongType()), StructField("ID", LongType())], "there are two columns 'id'"),
        ([StructField("_offset", LongType())], "none of its columns is a field of the value"),
        ([StructField("_offset", IntegerType())], "column '_offset' is bigint, not int"),
        ([StructField("_ofset", LongType())], r"there is no column '_ofset'; did you mean '_offset'\?"),
        ([StructField("_bad", StringType())], "column '_bad' is struct<value:binary,error:string>, not string"),
    ],
)
def test_schemas_of_values_that_cannot_be_served(fields: list[StructField], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_typed_schema(StructType(fields))


def test_a_column_that_cannot_be_read_is_refused_before_anything_is_read() -> None:
    from pyspark.sql.types import DayTimeIntervalType

    schema = StructType([StructField("took", DayTimeIntervalType())])
    with pytest.raises(OptionError, match="column 'took' has a type that values cannot be read as"):
        BatchReader({**NAMED, "value.format": "json"}, schema)
