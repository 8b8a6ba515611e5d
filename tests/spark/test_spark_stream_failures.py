"""Streams that live through brokers that are away, leaders that move and logs that are compacted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from driving import Query

from kraftpy.spark.stream import StreamReader
from kraftpy.testing import Cluster
from kraftpy.testing.cluster import EmbeddedBroker

BrokerFactory = Callable[..., EmbeddedBroker]


def create(bootstrap: str, topic: str, *, replicas: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=1, replication_factor=replicas, config=config)
    admin.create_topics([new])[topic].result(60)


def produce(bootstrap: str, topic: str, values: list[tuple[bytes | None, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for key, value in values:
        producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(60) == 0


def query_of(bootstrap: str, topic: str, **options: str) -> Query:
    named = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return Query({**named, **{name.replace("__", "."): value for name, value in options.items()}})


def numbers(query: Query) -> list[int]:
    return [int(row["value"]) for row in query.rows()]


def test_a_broker_that_comes_back_is_waited_for(start_broker: BrokerFactory) -> None:
    broker = start_broker()
    create(broker.bootstrap, "t")
    produce(broker.bootstrap, "t", [(None, b"%d" % n) for n in range(5)])
    query = query_of(
        broker.bootstrap,
        "t",
        commitGroupId="g",
        kafka__default__api__timeout__ms="1000",
        fetchOffset__numRetries="60",
        fetchOffset__retryIntervalMs="100",
    )
    planner = StreamReader(query.options, query.schema)
    limit = planner.getDefaultReadLimit()
    start = planner.initialOffset()
    broker.kill()
    back = threading.Timer(2, broker.start)
    back.start()
    end = planner.latestOffset(start, limit)  # asked while no broker is there
    assert end["t"] == {"0": 5}
    back.join()
    broker.kill()
    back = threading.Timer(2, broker.start)
    back.start()
    query.read(planner, json.dumps(start), json.dumps(end))
    back.join()
    assert numbers(query) == list(range(5))
    planner.stop()


def test_a_wrong_address_is_told_when_a_query_starts() -> None:
    query = query_of("127.0.0.1:9", "t", kafka__default__api__timeout__ms="300")
    with pytest.raises(ConnectionError, match=r"no broker answered at 127\.0\.0\.1:9"):
        query.run(available_now=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"broker.heartbeat.interval.ms": "200", "broker.session.timeout.ms": "1500"}) as running:
        yield running


@pytest.mark.timeout(300)
def test_leaders_that_move_are_followed(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap_servers
    create(bootstrap, "t", replicas=3, **{"min.insync.replicas": "2"})
    produce(bootstrap, "t", [(None, b"%d" % n) for n in range(100)])
    query = query_of(bootstrap, "t", maxOffsetsPerTrigger="30", commitGroupId="g")
    planner = StreamReader(query.options, query.schema)
    limit = planner.getDefaultReadLimit()
    offsets = [planner.initialOffset()]
    for step in range(4):
        end = planner.latestOffset(offsets[-1], limit)
        if step in (1, 2):  # planned by one leader, read from another
            leader = cluster.leader_of("t")
            assert leader is not None
            fault = cluster.kill(leader)
            query.read(planner, json.dumps(offsets[-1]), json.dumps(end))
            fault.heal()
            cluster.wait_in_sync()
        else:
            query.read(planner, json.dumps(offsets[-1]), json.dumps(end))
        offsets.append(end)
    assert offsets[-1]["t"] == {"0": 100}
    assert numbers(query) == list(range(100))
    planner.stop()


def test_compaction_is_no_loss(start_broker: BrokerFactory) -> None:
    cleaner = {"log.cleaner.backoff.ms": "50", "log.cleaner.min.cleanable.ratio": "0.01"}
    broker = start_broker(settings=cleaner)
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    create(broker.bootstrap, "t", **config)
    for n in range(20):  # each in a batch of its own; three fill a segment
        produce(broker.bootstrap, "t", [(b"k%d" % (n % 2), b"%d" % n + b" " * 300_000)])
    left = rows_left(broker)
    query = query_of(broker.bootstrap, "t", maxOffsetsPerTrigger="3")
    query.is_compacted = True
    query.run()
    assert json.loads(query.checkpoint[-1])["t"] == {"0": 20}
    assert len(query.batches) == 7
    assert query.batches[0] == []
    assert {18, 19} <= set(numbers(query)) <= left


def rows_left(broker: EmbeddedBroker) -> set[int]:
    """The records in the topic once its first ones are gone."""
    deadline = time.monotonic() + 60
    while True:
        query = query_of(broker.bootstrap, "t")
        query.is_compacted = True
        query.run()
        found: list[Any] = numbers(query)
        if found[0] > 0 and len(found) < 15:
            return set(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
