"""Disks that are slow, that hang, that are full and that fail, under clients that are not ours.

A test that ends a node, or waits for lagging followers, has its own cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kraftpy.client import BlockingAdmin, NewTopic
from kraftpy.testing import Cluster, EmbeddedBroker

BOUND_SECONDS = 20.0
DURABLE = {"flush.messages": "1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert "Traceback" not in running.log_text


def create(bootstrap: str, topic: str, config: dict[str, str], replicas: list[int]) -> None:
    with BlockingAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name=topic, replica_assignment={0: replicas}, config=config)])


class Writer:
    """A producer of librdkafka's, and what became of its records."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.done: list[object] = []
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=0, on_delivery=lambda error, _: self.done.append(error or value))
        self._producer.poll(0)

    def flush(self, seconds: float = BOUND_SECONDS) -> int:
        left: int = self._producer.flush(seconds)
        return left


def test_no_acknowledgement_comes_before_a_held_fsync_is_released(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap, "durable", DURABLE, [1])
    create(broker.bootstrap, "quick", {}, [1])
    writer, other = Writer(broker.bootstrap), Writer(broker.bootstrap)
    with broker.hold_fsync(topic="durable") as fault:
        writer.send("durable", b"0")
        fault.wait()
        assert all("/durable-0/" in hit.what for hit in fault.hits)
        other.send("quick", b"1")
        assert other.flush() == 0, "the topic that is not flushed is acknowledged"
        assert writer.flush(0.3) == 1
        assert writer.done == []
    assert writer.flush() == 0
    assert writer.done == [b"0"]


def test_a_follower_s_fsync_counts_too_where_the_topic_says_so() -> None:
    with Cluster(settings={"replica.lag.time.max.ms": "60000"}) as cluster:
        durable = {"kraftpy.flush.before.ack": "true", "min.insync.replicas": "3"}
        create(cluster.bootstrap_servers, "durable", durable, [1, 2, 3])
        cluster.wait_in_sync()
        writer = Writer(cluster.bootstrap_servers)
        writer.send("durable", b"0")
        assert writer.flush() == 0
        with cluster.hold_fsync(3, topic="durable") as fault:
            writer.send("durable", b"1")
            fault.wait()
            assert {hit.node for hit in fault.hits} == {3}
            assert writer.flush(0.3) == 1
        assert writer.flush() == 0
        assert writer.done == [b"0", b"1"]


def test_a_slow_disk_is_as_slow_as_was_asked(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap, "slow", DURABLE, [1])
    writer = Writer(broker.bootstrap)
    with broker.slow_disk(seconds=0.1, topic="slow") as fault:
        for number in range(3):
            began = time.monotonic()
            writer.send("slow", b"%d" % number)
            assert writer.flush() == 0
            assert time.monotonic() - began >= 0.1
        assert len(fault.hits) >= 3
    with broker.slow_disk(seconds=10 * BOUND_SECONDS, topic="slow") as fault:
        writer.send("slow", b"3")
        fault.wait()
    assert writer.flush() == 0, "a sync that is under way does not outlast its fault"


def test_a_full_disk_refuses_and_serves_again(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap, "full", {}, [1])
    writer = Writer(broker.bootstrap, **{"message.timeout.ms": 1000})
    writer.send("full", b"0")
    assert writer.flush() == 0
    with broker.disk_full() as fault:
        writer.send("full", b"1")
        fault.wait()
        assert writer.flush() == 0
        assert isinstance(writer.done[-1], confluent_kafka.KafkaError)
    writer = Writer(broker.bootstrap)
    writer.send("full", b"2")
    assert writer.flush() == 0
    assert writer.done == [b"2"]


def test_a_node_whose_disk_fails_ends_and_the_others_go_on() -> None:
    with Cluster(controllers=1) as cluster:
        create(cluster.bootstrap_servers, "events", DURABLE | {"min.insync.replicas": "2"}, [1, 2, 3])
        cluster.wait_in_sync()
        writer = Writer(cluster.bootstrap_servers, **{"enable.idempotence": True})
        with cluster.fail_fsync(1, topic="events") as fault:
            writer.send("events", b"0")
            fault.wait()
            assert cluster.wait_ended(1) == 1
            assert writer.flush() == 0, "by the other two"
            assert writer.done == [b"0"]
        assert "Input/output error" in cluster.logs(1)
        cluster.start(1)
        cluster.wait_in_sync()


def test_a_fault_is_there_again_when_its_node_is(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        create(broker.bootstrap, "durable", DURABLE, [1])
        fault = broker.hold_fsync(topic="durable")
        broker.kill()
        broker.start()
        writer = Writer(broker.bootstrap)
        writer.send("durable", b"0")
        fault.wait()
        assert writer.flush(0.2) == 1
        fault.heal()
        assert writer.flush() == 0
        assert fault.hits
