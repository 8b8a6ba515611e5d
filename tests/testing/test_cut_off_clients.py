"""Cuts between nodes and between nodes and clients, both ways and one way, as clients that are not ours see them.

A test with other settings or fewer nodes has its own cluster.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from kraftpy.client import BlockingAdmin, NewTopic
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.testing import Cluster
from kraftpy.testing.asking import ask
from kraftpy.testing.nodes import CLIENTS

BOUND_SECONDS = 30.0
QUICK = {
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "1000",
}


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    with Cluster(settings=QUICK) as running:
        yield running


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    yield running_cluster
    running_cluster.heal()
    running_cluster.wait_in_sync()


def create(cluster: Cluster, topic: str, replicas: list[int], **config: str) -> None:
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, replica_assignment={0: replicas}, config=config)])
    cluster.wait_in_sync()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def read_all(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers.split(","), auto_offset_reset="earliest")
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, found
            found += [record.value for batch in consumer.poll(100).values() for record in batch]
        return found
    finally:
        consumer.close()


def producer_of(cluster: Cluster, done: list[Any]) -> Callable[[str, bytes], confluent_kafka.Producer]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "retry.backoff.ms": 20,
            "socket.timeout.ms": 1500,  # a node that is cut off sends nothing: the client has to time out
            "request.timeout.ms": 1000,
        }
    )

    def send(topic: str, value: bytes) -> confluent_kafka.Producer:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: done.append(error or value))
        producer.poll(0)
        return producer

    return send


def test_clients_cut_off_from_the_leader_are_silent_until_it_is_healed(cluster: Cluster) -> None:
    create(cluster, "silent", [1, 2, 3])
    done: list[Any] = []
    send = producer_of(cluster, done)
    assert send("silent", b"0").flush(BOUND_SECONDS) == 0
    with cluster.partition(CLIENTS, 1):
        producer = send("silent", b"1")
        assert producer.flush(0.3) == 1
        assert cluster.leader_of("silent") == 1, "the nodes hear each other, and nothing is elected"
        assert cluster.leader_of("silent", ask=1) == 1, "what the test asks is answered"
    assert producer.flush(BOUND_SECONDS) == 0
    assert done == [b"0", b"1"]
    assert read_all(cluster, "silent") == [b"0", b"1"]


def test_answers_alone_are_held_back(cluster: Cluster) -> None:
    create(cluster, "one-way", [2, 3, 1])
    done: list[Any] = []
    send = producer_of(cluster, done)
    assert send("one-way", b"0").flush(BOUND_SECONDS) == 0
    with cluster.partition(2, CLIENTS, one_way=True):
        producer = send("one-way", b"1")
        wait_until(lambda: cluster_end(cluster, "one-way", 2) == 2, "the record is written")
        assert producer.flush(0.2) == 1
        assert done == [b"0"]
    assert producer.flush(BOUND_SECONDS) == 0
    assert read_all(cluster, "one-way") == [b"0", b"1"]


def cluster_end(cluster: Cluster, topic: str, node: int) -> int:
    """The end of partition 0 by the leader's own word."""
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    host, _, port = cluster.address(node).rpartition(":")
    request = ListOffsetsRequest(replica_id=-1, topics=[wanted])
    answer = ask((host, int(port)), ApiKey.LIST_OFFSETS, 5, request, timeout=BOUND_SECONDS)
    return int(answer.topics[0].partitions[0].offset)


def test_what_a_client_sent_arrives_late_though_it_has_given_up(cluster: Cluster) -> None:
    host, _, port = cluster.address(1).rpartition(":")
    wanted = CreatableTopic(name="late", num_partitions=1, replication_factor=1)
    request = encode_request(
        ApiKey.CREATE_TOPICS, 5, 1, "gone", CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
    )
    fault = cluster.partition([1], "clients")
    with socket.create_connection((host, int(port)), BOUND_SECONDS) as connection:
        connection.sendall(request)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert cluster.leader_of("late") is None
    fault.heal()
    wait_until(lambda: cluster.leader_of("late") is not None, "it arrives")


def test_a_leader_that_hears_and_is_not_heard_is_replaced(cluster: Cluster) -> None:
    """Messages from it are lost; messages to it arrive. The others elect another leader, and no record is lost."""
    create(cluster, "not-heard", [3, 1, 2], **{"min.insync.replicas": "2"})
    done: list[Any] = []
    send = producer_of(cluster, done)
    assert send("not-heard", b"0").flush(BOUND_SECONDS) == 0
    with cluster.partition(3, [1, 2], one_way=True), cluster.partition(3, CLIENTS, one_way=True):
        wait_until(lambda: cluster.leader_of("not-heard", ask=1) in (1, 2), "another is elected")
        assert send("not-heard", b"1").flush(BOUND_SECONDS) == 0
    cluster.wait_in_sync()
    assert done == [b"0", b"1"]
    assert read_all(cluster, "not-heard") == [b"0", b"1"]


def test_each_cut_is_healed_by_itself(cluster: Cluster) -> None:
    create(cluster, "two-cuts", [1, 2, 3])
    first, second = cluster.partition(1, 2), cluster.partition([1], [2, 3])
    first.heal()
    assert first.is_over
    done: list[Any] = []
    wait_until(lambda: cluster.leader_of("two-cuts", ask=2) in (2, 3), "the second cut still holds")
    second.heal()  # before that, node 1 may still take itself for the leader, and what a client sends it waits there
    assert producer_of(cluster, done)("two-cuts", b"0").flush(BOUND_SECONDS) == 0
    cluster.wait_in_sync()


async def test_as_coroutines() -> None:
    async with Cluster(brokers=1) as cluster:  # noqa: SIM117 - the second needs the first
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("events", b"0", partition=0)
            async with cluster.partition(CLIENTS, 1) as fault:
                sent = await producer.send("events", b"1", partition=0)
                await fault.wait()
                assert not sent.done()
            assert (await sent).offset == 1


def test_what_makes_no_sense_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="node 1 cannot be cut off from itself"):
        cluster.partition(1, [1, 2])
    with pytest.raises(ValueError, match="unknown node 9"):
        cluster.partition(CLIENTS, 9)
    with pytest.raises(ValueError, match="'clients' are not nodes"):
        cluster.partition(CLIENTS, CLIENTS)
    with Cluster(brokers=1, controllers=1, can_partition=False) as other:
        with pytest.raises(ValueError, match="can_partition=False"):
            other.partition(1, 2)
        with pytest.raises(ValueError, match="node 2 serves no clients"):
            other.partition(CLIENTS, 2)
        with other.partition(CLIENTS, 1):
            pass


def test_followers_that_get_no_answer_hold_up_who_waits_for_them() -> None:
    with Cluster(settings={"replica.lag.time.max.ms": "60000"}) as cluster:
        create(cluster, "not-fetched", [1, 2, 3])
        done: list[Any] = []
        send = producer_of(cluster, done)
        assert send("not-fetched", b"0").flush(BOUND_SECONDS) == 0
        with cluster.hold("Fetch", 1, sender="brokers") as fault:
            wait_until(lambda: len({hit.client_id for hit in fault.hits}) == 2, "both followers have asked")
            producer = send("not-fetched", b"1")
            assert producer.flush(0.5) == 1
            assert cluster_end(cluster, "not-fetched", 1) == 1, "nobody else has it"
        assert producer.flush(BOUND_SECONDS) == 0
        assert done == [b"0", b"1"]
