"""Which columns a sink takes, and which partition a row goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, VarcharType
from sink_rows_of_tests import HEADERS, columns_of, frame, with_servers

from kraftpy.client.producer.partitioner import murmur2
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.sink_options import parse_write_options
from kraftpy.spark.sink_rows import RowError, RowPartitioner, check_columns

ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


def last_or_too_far(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    return partitions if value == b"too far" else partitions - 1


def split_rows(batch: pa.RecordBatch, partitions: int = 3, **options: str) -> dict[tuple[str, int], list[Any]]:
    partitioner = RowPartitioner(
        columns_of(batch, **options), parse_write_options(with_servers(options)), lambda _: partitions
    )
    return {tuple(each.partition): each.rows.values.to_pylist() for each in partitioner.split(batch)}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"key": ["k"]}, {"topic": "t"}, r"column 'value' is required"),
        ({"value": ["v"]}, {}, r"a topic is required: option topic, or a column 'topic'"),
        ({"value": [1]}, {"topic": "t"}, r"column 'value' must be string or binary, not bigint"),
        ({"value": ["v"], "partition": [1]}, {"topic": "t"}, r"column 'partition' must be int, not bigint"),
        ({"value": ["v"], "topic": [b"t"]}, {}, r"column 'topic' must be string, not binary"),
        ({"value": ["v"]}, {"topic": "t", "includeHeaders": "true"}, r"there is no column 'headers'"),
        ({"value": ["v"], "VALUE": ["w"]}, {"topic": "t"}, r"column 'value' occurs twice"),
    ],
)
def test_columns_that_cannot_be_written(
    columns: dict[str, Sequence[Any]], options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        columns_of(frame(**columns), **options)


def test_what_is_no_column_of_a_record_is_not_written() -> None:
    schema = StructType([StructField("Value", StringType()), StructField("offset", LongType())])
    columns = check_columns(schema, parse_write_options(with_servers({"topic": "t"})))
    assert (columns.value, columns.key, columns.topic, columns.ignored) == (0, None, None, ("offset",))


def test_varchar_is_a_string() -> None:
    schema = StructType([StructField("value", VarcharType(5))])
    assert check_columns(schema, parse_write_options(with_servers({"topic": "t"}))).value == 0


def test_headers_are_left_out_where_the_option_says_so() -> None:
    batch = frame(value=["v"], headers=pa.array([[{"key": "h", "value": b"1"}]], HEADERS))
    assert columns_of(batch, topic="t").headers == 1
    assert columns_of(batch, topic="t", includeHeaders="false").headers is None


def test_a_key_has_one_partition_with_all_clients() -> None:
    keys = [f"key {n}" for n in range(50)]
    found = split_rows(frame(key=keys, value=keys), partitions=7, topic="t")
    for (_, partition), values in found.items():
        assert {(murmur2(value) & 0x7FFFFFFF) % 7 for value in values} == {partition}
    assert sum(map(len, found.values())) == 50


def test_rows_keep_their_order_within_a_partition() -> None:
    keys = [f"{n % 5}" for n in range(500)]
    found = split_rows(frame(key=keys, value=[f"{n:03}" for n in range(500)]), topic="t")
    assert all(values == sorted(values) for values in found.values())


def test_rows_without_a_key_stick_to_a_partition() -> None:
    batch = frame(value=["x" * 68] * 90)  # 100 bytes each, with what a record needs beside
    found = split_rows(batch, topic="t", kafka__batch__size="3000")
    assert sorted(map(len, found.values())) == [30, 30, 30]
    assert len(split_rows(batch, topic="t")) == 1


def test_keys_that_are_null_or_ignored_stick_too() -> None:
    batch = frame(key=["a", None, "a", None], value=["1", "2", "3", "4"])
    found = split_rows(batch, partitions=100, topic="t")
    keyed = ("t", (murmur2(b"a") & 0x7FFFFFFF) % 100)
    assert set(found[keyed]) >= {b"1", b"3"}
    assert len(split_rows(batch, partitions=100, topic="t", kafka__partitioner__ignore__keys="true")) == 1


def test_topics_and_partitions_from_columns() -> None:
    batch = frame(value=["a", "b", "c", "d"], topic=["t", "u", "t", "u"], partition=pa.array([2, 0, 2, 1], pa.int32()))
    assert split_rows(batch) == {("t", 2): [b"a", b"c"], ("u", 0): [b"b"], ("u", 1): [b"d"]}
    assert split_rows(batch, topic="all") == {("all", 0): [b"b"], ("all", 1): [b"d"], ("all", 2): [b"a", b"c"]}


def test_a_null_partition_is_the_partitioners() -> None:
    batch = frame(key=["a", "a"], value=["1", "2"], partition=pa.array([None, 1], pa.int32()))
    by_key = (murmur2(b"a") & 0x7FFFFFFF) % 3
    found = split_rows(batch, topic="t")
    assert b"1" in found["t", by_key]
    assert b"2" in found["t", 1]


def test_round_robin() -> None:
    found = split_rows(frame(key=["k"] * 9, value=["v"] * 9), topic="t", kafka__partitioner__class=ROUND_ROBIN)
    assert {where: len(values) for where, values in found.items()} == {("t", 0): 3, ("t", 1): 3, ("t", 2): 3}


def test_a_partitioner_of_ones_own() -> None:
    name = f"{__name__}.last_or_too_far"
    assert split_rows(frame(value=["v"]), topic="t", kafka__partitioner__class=name) == {("t", 2): [b"v"]}
    with pytest.raises(RowError, match=r"the partitioner chose 3; topic 't' has partitions 0 to 2"):
        split_rows(frame(value=["too far"]), topic="t", kafka__partitioner__class=name)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (frame(value=["a", "b"], topic=["t", None]), r"column 'topic' is null"),
        (frame(value=["a"], topic=["t"], partition=pa.array([3], pa.int32())), r"partitions 0 to 2, not 3"),
        (frame(value=["a"], topic=["t"], partition=pa.array([-1], pa.int32())), r"partitions 0 to 2, not -1"),
        (
            frame(value=["a"], topic=["t"], headers=pa.array([[{"key": None, "value": b""}]], HEADERS)),
            r"column 'headers': a header's key is null",
        ),
    ],
)
def test_rows_that_cannot_be_written(batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(RowError, match=message):
        split_rows(batch)


def test_no_rows_go_nowhere() -> None:
    assert split_rows(frame(value=pa.array([], pa.string())), topic="t") == {}
