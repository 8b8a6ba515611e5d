"""`RangeReader.wait_beyond`: woken by a record, by an error, or by time."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client.ranges import cluster
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

LONG_MS = 60_000


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    name = f"wait-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])[name].result(30)
    return name


@pytest.fixture
def produce(kraftpy_server: EmbeddedBroker, topic: str) -> Callable[[int], None]:
    def send(partition: int) -> None:
        producer = Producer({"bootstrap.servers": kraftpy_server.bootstrap})
        producer.produce(topic, b"value", partition=partition)
        assert producer.flush(30) == 0

    return send


def ends(topic: str, *offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, index): offset for index, offset in enumerate(offsets)}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_record_in_any_partition_ends_the_wait(
    kraftpy_server: EmbeddedBroker, topic: str, produce: Callable[[int], None], isolation: str
) -> None:
    with RangeReader(kraftpy_server.bootstrap, isolation_level=isolation) as reader:
        assert not reader.wait_beyond(ends(topic, 0, 0, 0), 50)
        later = threading.Timer(0.3, produce, [2])
        later.start()
        deadline = time.monotonic() + 30
        while not reader.wait_beyond(ends(topic, 0, 0, 0), LONG_MS):
            assert time.monotonic() < deadline
        later.join()
        assert reader.latest(ends(topic, 0, 0, 0)) == ends(topic, 0, 0, 1)
        assert reader.wait_beyond(ends(topic, 0, 0, 0), LONG_MS)  # it is there already


def test_waits_that_bring_nothing_open_no_connections(
    kraftpy_server: EmbeddedBroker,
    topic: str,
    produce: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    class Counted(BlockingConnection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append(arguments)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(cluster, "BlockingConnection", Counted)
    with RangeReader(kraftpy_server.bootstrap) as reader:
        for _ in range(10):
            assert not reader.wait_beyond(ends(topic, 0, 0, 0), 20)
            reader.latest(ends(topic, 0, 0, 0))  # beside a request that may still wait
        produce(1)
        while not reader.wait_beyond(ends(topic, 0, 0, 0), LONG_MS):
            pass  # the answer to the request before
        assert len(opened) <= 2


def test_an_error_ends_the_wait(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    with RangeReader(kraftpy_server.bootstrap) as reader:
        with pytest.raises(KafkaError):
            reader.wait_beyond(ends(topic, 0, 7, 0), LONG_MS)  # beyond the end of its log
        assert not reader.wait_beyond(ends(topic, 0, 0, 0), 50)
