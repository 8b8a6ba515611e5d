"""A consumer reads from the replica in its rack (KIP-392), as librdkafka does it, and from the leader once that replica
is gone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster

BOUND_SECONDS = 30.0
RACKS = ["north", "east", "south"]
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(racks=RACKS, settings={"replica.selector.class": SELECTOR}, can_partition=False) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("far", num_partitions=1, replication_factor=3)])["far"].result(BOUND_SECONDS)
        made.wait_in_sync()
        yield made


def produce(cluster: Cluster, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce("far", value, partition=0)
    assert producer.flush(BOUND_SECONDS) == 0


def end_offset(cluster: Cluster) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "end", "log_level": 0})
    end: int = consumer.get_watermark_offsets(TopicPartition("far", 0), timeout=BOUND_SECONDS)[1]
    consumer.close()
    return end


class Reader:
    """A consumer in a rack, and how many Fetch requests it has sent to each node."""

    def __init__(self, cluster: Cluster, rack: str | None) -> None:
        self.fetches: Counter[int] = Counter()
        settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "statistics.interval.ms": 50,
            "stats_cb": self._told,
            "log_level": 0,
        }
        self.consumer = Consumer(settings | ({} if rack is None else {"client.rack": rack}))
        self.consumer.assign([TopicPartition("far", 0, 0)])

    def _told(self, text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            if broker["nodeid"] > 0:
                self.fetches[broker["nodeid"]] = broker["req"].get("Fetch", 0)

    def read(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(values) < count and time.monotonic() < deadline:
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        return values

    def fetches_from(self, node: int, since: Counter[int], least: int = 3) -> Counter[int]:
        """Fetches since then, once that node has had some."""
        deadline = time.monotonic() + BOUND_SECONDS
        while (self.fetches - since)[node] < least and time.monotonic() < deadline:
            self.consumer.poll(0.05)
        return self.fetches - since


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster) -> None:
    values = [b"%d" % number for number in range(500)]
    produce(cluster, values)
    leader = cluster.leader_of("far")
    assert leader is not None
    others = end_offset(cluster) - len(values)
    for node, rack in zip((1, 2, 3), RACKS, strict=True):
        reader = Reader(cluster, rack)
        assert set(values) <= set(reader.read(len(values) + others))
        reader.fetches_from(node, Counter())  # it was redirected, and has followed
        settled = reader.fetches.copy()
        assert set(reader.fetches_from(node, settled)) == {node}, f"rack {rack}"
        reader.consumer.close()
    unplaced = Reader(cluster, None)
    assert set(values) <= set(unplaced.read(len(values) + others))
    assert set(unplaced.fetches_from(leader, Counter())) == {leader}
    unplaced.consumer.close()


def test_it_goes_back_to_the_leader_when_that_replica_is_gone(cluster: Cluster) -> None:
    leader = cluster.leader_of("far")
    node = 3 if leader != 3 else 2
    produce(cluster, [b"before"])
    reader = Reader(cluster, RACKS[node - 1])
    assert len(reader.read(1)) == 1
    assert reader.fetches_from(node, Counter())[node]
    cluster.kill(node)
    produce(cluster, [b"after the death of the nearest"])
    deadline = time.monotonic() + BOUND_SECONDS
    while b"after the death of the nearest" not in reader.read(1):
        assert time.monotonic() < deadline
    reader.consumer.close()
    cluster.start(node)
    cluster.wait_in_sync()
