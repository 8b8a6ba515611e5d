"""Spark reads topics of a real broker, filled by confluent-kafka."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),  # a session that starts on a busy machine takes its time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

Filler = Callable[..., str]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def read(spark: Any, kraftpy_server: EmbeddedBroker) -> Callable[..., Any]:
    """`read(topic, schema=None, **options)`: a data frame; dots in option names are written as two underscores."""

    def load(topic: str | None, *, schema: str | None = None, **options: object) -> Any:
        reader = spark.read.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def numbered(count: int, *, partitions: int = 1) -> list[dict[str, Any]]:
    """Records whose value is their number, dealt to the partitions in turn, one a second from the epoch on."""
    return [{"value": str(n).encode(), "partition": n % partitions, "timestamp": 1 + n * 1000} for n in range(count)]


def values(frame: Any) -> list[int]:
    return sorted(int(bytes(row["value"])) for row in frame.select("value").collect())


def offsets(topic: str, **partitions: int) -> str:
    return json.dumps({topic: {name.removeprefix("p"): offset for name, offset in partitions.items()}})


def failure(frame: Callable[[], Any]) -> str:
    """The message Spark raises for a read that must fail."""
    with pytest.raises(Exception, match=r".") as raised:
        frame().collect()
    return str(raised.value)


def test_the_columns_of_sparks_own_kafka_source(read: Callable[..., Any], topic_of: Filler) -> None:
    moment = datetime(2013, 7, 4, 12, 30, 0, 123_000, tzinfo=UTC)
    millis = round(moment.timestamp() * 1000)
    topic = topic_of(
        [
            {"key": b"k", "value": b"v", "timestamp": millis},
            {"key": None, "value": b"", "timestamp": millis + 1},
            {"key": b"", "value": None, "timestamp": millis + 2},
        ]
    )
    frame = read(topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = [
        tuple(row)
        for row in frame.selectExpr("*", "unix_millis(timestamp) ms").drop("timestamp").orderBy("offset").collect()
    ]
    assert rows == [
        (b"k", b"v", topic, 0, 0, 0, millis),
        (None, b"", topic, 0, 1, 0, millis + 1),
        (b"", None, topic, 0, 2, 0, millis + 2),
    ]


def test_headers_where_they_are_asked_for(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(
        [
            {"value": b"0", "headers": [("a", b"1"), ("a", None), ("é", b"")]},
            {"value": b"1"},
        ]
    )
    frame = read(topic, includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    found = [
        None if row.headers is None else [(each.key, each.value) for each in row.headers]
        for row in frame.orderBy("offset").collect()
    ]
    assert found == [[("a", b"1"), ("a", None), ("é", b"")], None]


def test_only_the_columns_asked_for_in_their_order(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(5))
    frame = read(topic, schema="offset bigint, VALUE binary")
    assert frame.columns == ["offset", "VALUE"]
    assert sorted(tuple(row) for row in frame.collect()) == [(n, str(n).encode()) for n in range(5)]
    assert read(topic, schema="headers array<struct<key:string,value:binary>>").count() == 5
    assert read(topic, schema="partition int").count() == 5


def test_a_schema_that_does_not_fit_is_refused(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(1))
    assert "no column 'valu'; did you mean 'value'?" in failure(lambda: read(topic, schema="valu binary"))
    assert "column 'offset' is bigint, not int" in failure(lambda: read(topic, schema="offset int"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(read: Callable[..., Any], topic_of: Filler, codec: str) -> None:
    topic = topic_of(numbered(3000, partitions=3), partitions=3, compression_type=codec, linger_ms="50")
    assert values(read(topic)) == list(range(3000))


def test_batches_of_one_record(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(700), batch_num_messages="1")
    assert values(read(topic)) == list(range(700))


def test_a_topic_without_records(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of([], partitions=2)
    assert read(topic).count() == 0
    assert read(topic).collect() == []


def test_offsets_per_partition(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(20, partitions=2), partitions=2)
    frame = read(topic, startingOffsets=offsets(topic, p0=3, p1=-2), endingOffsets=offsets(topic, p0=-1, p1=4))
    assert values(frame) == sorted([*range(6, 20, 2), 1, 3, 5, 7])


def test_offsets_in_the_middle_of_batches(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(1000), linger_ms="200", compression_type="zstd")
    frame = read(topic, startingOffsets=offsets(topic, p0=333), endingOffsets=offsets(topic, p0=777))
    assert values(frame) == list(range(333, 777))


def test_timestamps(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(20, partitions=2), partitions=2)
    assert values(read(topic, startingTimestamp=5001, endingTimestamp=9001)) == [5, 6, 7, 8]
    each = json.dumps({topic: {"0": 10_000, "1": 18_500}})
    assert values(read(topic, startingOffsetsByTimestamp=each)) == [10, 12, 14, 16, 18, 19]
    assert values(read(topic, endingOffsetsByTimestamp=each)) == sorted([*range(0, 10, 2), *range(1, 19, 2)])


def test_a_timestamp_after_the_last_record(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(4))
    assert "no record at or after the timestamp" in failure(lambda: read(topic, startingTimestamp=99_000))
    assert values(read(topic, startingTimestamp=99_000, startingOffsetsByTimestampStrategy="latest")) == []


def test_splitting_and_merging(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(900, partitions=3), partitions=3)

    def tasks(**limits: int) -> int:
        frame = read(topic, **limits)
        assert values(frame) == list(range(900))
        return int(frame.rdd.getNumPartitions())

    assert tasks() == 3
    assert tasks(minPartitions=7) == 7
    assert tasks(maxRecordsPerPartition=100) == 9
    assert tasks(maxPartitions=2) == 2


def test_assigned_partitions_and_patterns(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(9, partitions=3), partitions=3)
    assert values(read(None, assign=json.dumps({topic: [0, 2]}))) == [0, 2, 3, 5, 6, 8]
    assert values(read(None, subscribePattern=re.escape(topic)[:-1] + ".")) == list(range(9))


def test_several_topics(read: Callable[..., Any], topic_of: Filler) -> None:
    first, second = topic_of(numbered(3)), topic_of(numbered(4))
    counts = read(f"{first},{second}").groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in counts} == {first: 3, second: 4}


def test_the_time_the_broker_appended(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(3), config={"message.timestamp.type": "LogAppendTime"})
    rows = (
        read(topic, schema="timestamp timestamp, timestampType int")
        .selectExpr("unix_millis(timestamp) ms", "timestampType")
        .collect()
    )
    assert {row.timestampType for row in rows} == {1}
    assert all(timedelta(milliseconds=row.ms) > datetime(2025, 1, 1, tzinfo=UTC) - EPOCH for row in rows)


def test_from_sql(spark: Any, kraftpy_server: EmbeddedBroker, topic_of: Filler) -> None:
    topic = topic_of(numbered(6))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW numbers USING kraftpy OPTIONS "
        f"(`kafka.bootstrap.servers` '{kraftpy_server.bootstrap}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT sum(CAST(CAST(value AS string) AS int)) total FROM numbers").collect()[0].total == 15


def test_records_that_retention_deleted(
    read: Callable[..., Any], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = topic_of(numbered(10))
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result(30)
    asked = {"startingOffsets": offsets(topic, p0=0), "endingOffsets": offsets(topic, p0=9)}
    message = failure(lambda: read(topic, **asked))
    assert f"{topic}-0: asked for [0, 9), the log holds [4, 10)" in message
    assert "failOnDataLoss=false" in message
    assert values(read(topic, failOnDataLoss="false", **asked)) == [4, 5, 6, 7, 8]
    assert values(read(topic)) == [4, 5, 6, 7, 8, 9]


def test_an_unknown_topic_is_named(read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(1))
    assert "unknown topic: no-such-topic" in failure(lambda: read(f"{topic},no-such-topic"))
    assert f"unknown partition: {topic}-5" in failure(lambda: read(None, assign=json.dumps({topic: [0, 5]})))
    assert "no topic matches subscribePattern 'no-such-.*'" in failure(
        lambda: read(None, subscribePattern="no-such-.*")
    )


def test_asking_for_an_unknown_topic_does_not_create_it(
    read: Callable[..., Any], kraftpy_server: EmbeddedBroker
) -> None:
    from confluent_kafka.admin import AdminClient

    failure(lambda: read("spark-never-created"))
    topics = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap}).list_topics(timeout=10).topics
    assert "spark-never-created" not in topics


def test_a_broker_that_is_not_there_is_named(spark: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = {"kafka.bootstrap.servers": address, "subscribe": "t", "kafka.default.api.timeout.ms": "1000"}
        message = failure(lambda: spark.read.format("kraftpy").options(**options).load())
    assert f"no broker answered at {address}" in message


def test_a_bad_option_is_named_when_the_query_is_written(read: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"unknown option 'startingoffset'; did you mean 'startingOffsets'\?"):
        read("t", startingOffset="earliest")
    with pytest.raises(Exception, match="failOnDataLoss: 'perhaps' is neither true nor false"):
        read("t", failOnDataLoss="perhaps")


def test_filters_limit_what_is_read(spark: Any, read: Callable[..., Any], topic_of: Filler) -> None:
    topic = topic_of(numbered(40, partitions=4), partitions=4)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        some = read(topic, pushdown="true").where("partition = 2 and offset >= 4 and offset < 7")
        assert some.rdd.getNumPartitions() == 1
        assert values(some) == [18, 22, 26]
        late = read(topic, pushdown="true").where("timestamp >= timestamp_millis(30001)")
        assert values(late) == list(range(30, 40))
        mixed = "partition != 1 and value is not null and (offset = 0 or partition = 3) and offset in (0, 9)"
        assert values(read(topic, pushdown="true").where(mixed)) == [0, 2, 3, 39]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_keeps_the_filters_it_pushed_with_the_frame(
    spark: Any, read: Callable[..., Any], topic_of: Filler
) -> None:
    """The reason that `pushdown` is off by default. If this fails, Spark has mended it, and it can be on."""
    frame = read(topic_of(numbered(8, partitions=2), partitions=2), pushdown="true")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert frame.where("partition = 0").count() == 4
        assert frame.count() == 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
