"""The sink's producer with a real broker: what it writes, what it does when the broker fails."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from sink_rows_of_tests import HEADERS, columns_of, frame, records_in, with_servers

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.sink import write_rows
from kraftpy.spark.sink_options import parse_write_options
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]


def write(bootstrap: str, batches: list[pa.RecordBatch], **options: str) -> int:
    named = parse_write_options(with_servers(options, bootstrap))
    return write_rows(iter(batches), columns_of(batches[0], **options), named).rows


def test_another_client_reads_what_was_written(kraftpy_server: EmbeddedBroker, topic_of: Filler) -> None:
    topic = topic_of([])
    batch = frame(
        key=["k", None, ""],
        value=["v", None, ""],
        headers=pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], HEADERS),
    )
    before = time.time() * 1000
    assert write(kraftpy_server.bootstrap, [batch], topic=topic) == 3
    consumer = Consumer({"bootstrap.servers": kraftpy_server.bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages: list[Any] = consumer.consume(3, timeout=30)
    finally:
        consumer.close()
    assert [(m.key(), m.value(), m.headers()) for m in messages] == [
        (b"k", b"v", [("h", b"1"), ("h", None)]),
        (None, None, None),
        (b"", b"", None),
    ]
    assert all(before - 1 <= m.timestamp()[1] <= time.time() * 1000 + 1 for m in messages)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_of_many_batches(codec: str, kraftpy_server: EmbeddedBroker, topic_of: Filler) -> None:
    topic = topic_of([], partitions=3)
    batches = [frame(key=[f"{n % 11}"] * 1, value=[f"{n}"]) for n in range(3)]
    batches += [
        frame(key=[f"{n % 11}" for n in range(start, start + 400)], value=[f"{n}" for n in range(start, start + 400)])
        for start in range(3, 2003, 400)
    ]
    options = {"topic": topic, "kafka__compression__type": codec, "kafka__batch__size": "3000"}
    assert write(kraftpy_server.bootstrap, batches, **options) == 2003
    found = records_in(kraftpy_server.bootstrap, topic)
    assert sorted(int(value or b"") for _, _, value, _ in found) == list(range(2003))
    for key in {key for _, key, _, _ in found}:
        of_key = [int(value or b"") for _, each, value, _ in found if each == key]
        assert of_key == sorted(of_key), "records of a key keep their order"


def test_a_batch_too_large_for_its_topic_is_halved(kraftpy_server: EmbeddedBroker, topic_of: Filler) -> None:
    topic = topic_of([], config={"max.message.bytes": "2000"})
    batch = frame(value=[f"{n:0500}" for n in range(40)])
    assert write(kraftpy_server.bootstrap, [batch], topic=topic) == 40
    assert [value for _, _, value, _ in records_in(kraftpy_server.bootstrap, topic)] == [
        f"{n:0500}".encode() for n in range(40)
    ]


def test_a_record_too_large_for_its_topic_is_an_error(kraftpy_server: EmbeddedBroker, topic_of: Filler) -> None:
    topic = topic_of([], config={"max.message.bytes": "2000"})
    with pytest.raises(KafkaError, match=rf"{topic}-0") as raised:
        write(kraftpy_server.bootstrap, [frame(value=["x", "y" * 3000])], topic=topic)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError, match=r"exceeds kafka.max.request.size=1000"):
        write(kraftpy_server.bootstrap, [frame(value=["y" * 3000])], topic=topic, kafka__max__request__size="1000")


def test_a_topic_that_is_not_there_is_created(kraftpy_server: EmbeddedBroker) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    assert write(kraftpy_server.bootstrap, [frame(value=["x"])], topic=topic) == 1
    assert [value for _, _, value, _ in records_in(kraftpy_server.bootstrap, topic)] == [b"x"]


def test_a_topic_that_may_not_be_created_is_an_error(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker(settings={"auto.create.topics.enable": "false"})
    with pytest.raises(KafkaError, match=r"topic 'nowhere'") as raised:
        write(broker.bootstrap, [frame(value=["x"])], topic="nowhere", kafka__max__block__ms="300")
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_nobody_answers() -> None:
    with pytest.raises(KafkaError, match=r"cannot connect to 127.0.0.1:1"):
        write("127.0.0.1:1", [frame(value=["x"])], topic="t", kafka__max__block__ms="300")


@pytest.mark.parametrize("acks", ["all", "1"])
def test_a_broker_that_dies_and_returns(acks: str, start_broker: Callable[..., EmbeddedBroker]) -> None:
    """With idempotence (acks=all) nothing is written twice, however often it was sent."""
    broker = start_broker()
    values = [f"{n}" for n in range(4000)]
    restarts = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal restarts
        for start in range(0, 4000, 500):
            if start in (1000, 3000):
                broker.kill()
                restarter = threading.Thread(target=broker.start)
                restarter.start()
                restarting.append(restarter)
                restarts += 1
            yield frame(value=values[start : start + 500])

    restarting: list[threading.Thread] = []
    named = parse_write_options(
        with_servers({"topic": "t", "kafka__acks": acks, "kafka__batch__size": "2000"}, broker.bootstrap)
    )
    from kraftpy.spark import sink

    whole, sink.CHUNK_ROWS = sink.CHUNK_ROWS, 500
    try:
        written = write_rows(rows(), columns_of(frame(value=["x"]), topic="t"), named).rows
    finally:
        sink.CHUNK_ROWS = whole
        for each in restarting:
            each.join()
    found = [int(value or b"") for _, _, value, _ in records_in(broker.bootstrap, "t")]
    assert (written, restarts) == (4000, 2)
    assert sorted(set(found)) == list(range(4000))
    if acks == "all":
        assert len(found) == 4000
