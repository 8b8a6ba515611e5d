"""Consumers read from the replica in their rack (KIP-392), librdkafka's and ours, and from the leader once that replica
is gone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client import BlockingConsumer
from kraftpy.client.metrics import Metrics
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition as Partition

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


def produce(cluster: Cluster, values: list[bytes], topic: str = "far") -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 5, "log_level": 0}
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, partition=0)
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


# --- our own readers --------------------------------------------------------------------------------------------------

COUNT, SIZE = 300, 10_000
Read = Callable[[Cluster, str], Iterator[tuple[int, Metrics]]]


def consume(cluster: Cluster, rack: str) -> Iterator[tuple[int, Metrics]]:
    """Read with a consumer; yield how many records have come, and its metrics."""
    with BlockingConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        client_rack=rack,
        max_partition_fetch_bytes=5 * SIZE,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign([Partition("wide", 0)])
        have = 0
        while True:
            have += sum(map(len, consumer.getmany(timeout_ms=200, max_records=5).values()))
            yield have, consumer.metrics()


def read_range(cluster: Cluster, rack: str) -> Iterator[tuple[int, Metrics]]:
    """Read a range of offsets; yield how many records have come, and the reader's metrics."""
    with RangeReader(
        cluster.bootstrap_servers, client_rack=rack, client_id=rack, max_partition_fetch_bytes=5 * SIZE
    ) as reader:
        for chunk in reader.read(Partition("wide", 0), 0, COUNT):
            yield chunk.end_offset, reader.metrics()


def bytes_by_node(cluster: Cluster, metrics: Metrics) -> dict[int, float]:
    """The bytes received from each node."""
    addresses = cluster.bootstrap_servers.split(",")
    found: dict[int, float] = {}
    for name, value in metrics.items():
        if name.name == "incoming-byte-total" and "node-id" in dict(name.tags):
            node = dict(name.tags)["node-id"].removeprefix("node-")
            found[addresses.index(node) + 1 if node in addresses else int(node)] = value
    return found


@pytest.fixture(scope="module")
def wide(cluster: Cluster) -> int:
    """A topic with some large records; its leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("wide", num_partitions=1, replication_factor=3)])["wide"].result(BOUND_SECONDS)
    cluster.wait_in_sync()
    produce(cluster, [b"%d" % number * (SIZE // 3) for number in range(100, 100 + COUNT)], "wide")
    leader = cluster.leader_of("wide")
    assert leader is not None
    return leader


@pytest.mark.parametrize("read", [consume, read_range])
def test_our_readers_read_from_the_replica_in_their_rack(cluster: Cluster, wide: int, read: Read) -> None:
    near = 3 if wide != 3 else 2
    deadline = time.monotonic() + BOUND_SECONDS
    received: dict[int, float] = {}
    for have, metrics in read(cluster, RACKS[near - 1]):
        assert time.monotonic() < deadline, have
        if have >= COUNT:
            received = bytes_by_node(cluster, metrics)
            break
    assert received[near] > 0.9 * COUNT * SIZE
    assert received[wide] < 0.1 * COUNT * SIZE


@pytest.mark.parametrize("read", [consume, read_range])
def test_our_readers_go_on_at_the_leader_when_that_replica_is_gone(cluster: Cluster, wide: int, read: Read) -> None:
    near = 3 if wide != 3 else 2
    deadline = time.monotonic() + BOUND_SECONDS
    is_killed, received, from_leader = False, 0.0, 0.0
    for have, metrics in read(cluster, RACKS[near - 1]):
        assert time.monotonic() < deadline, have
        if have and not is_killed:
            received = bytes_by_node(cluster, metrics)[near]
            cluster.kill(near)
            is_killed = True
        if have >= COUNT:
            from_leader = bytes_by_node(cluster, metrics)[wide]
            break
    cluster.start(near)
    cluster.wait_in_sync()
    assert 0 < received < 0.5 * COUNT * SIZE, "it was killed while it was read from"
    assert from_leader > 0.4 * COUNT * SIZE
