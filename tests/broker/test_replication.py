"""Replication among three real processes: acknowledged records stay if any is killed, stopped or restarted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from broker_wire import read_all
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.testing.asking import ask
from kraftpy.testing.nodes import Cluster
from tests.waiting import eventually

BOUND_SECONDS = 30.0
SETTINGS = {
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "200",
    "unclean.leader.election.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS, keep_on_failure=True) as cluster:
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node), cluster.logs(node)


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The cluster that all tests here share, whole again after each of them."""
    yield shared
    for node in shared.nodes:
        if not shared.is_running(node):
            shared.start(node, wait=False)
    shared.wait_ready()


def client(cluster: Cluster, **settings: object) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def create(cluster: Cluster, name: str, *assignments: list[int], **configs: str) -> None:
    """A topic whose partitions have these replicas, the first of each leading."""
    admin = AdminClient(client(cluster))
    topic = NewTopic(
        name,
        len(assignments),
        replica_assignment=list(assignments),
        config={key.replace("_", "."): value for key, value in configs.items()},
    )
    admin.create_topics([topic], operation_timeout=BOUND_SECONDS)[name].result(BOUND_SECONDS)
    eventually(lambda: cluster.leader_of(name) == assignments[0][0], f"{name} is led")


def in_sync(cluster: Cluster, topic: str) -> set[int]:
    found = AdminClient(client(cluster)).list_topics(topic, timeout=BOUND_SECONDS).topics[topic]
    return set(found.partitions[0].isrs) if found.partitions else set()


def produce(
    cluster: Cluster, topic: str, *values: bytes, **settings: object
) -> list[confluent_kafka.KafkaError | None]:
    """Send records one by one, each in a batch of its own; what became of each."""
    outcomes: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(client(cluster, **{"acks": "all", **settings}))
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(BOUND_SECONDS) == 0
    return outcomes


def log_bytes(cluster: Cluster, node: int, topic: str) -> bytes:
    """Everything in a node's log of the topic's first partition, as it is on its disk."""
    (directory,) = cluster.node_directory(node).rglob(f"{topic}-0")
    return b"".join(path.read_bytes() for path in sorted(Path(directory).glob("*.log")))


def agree(cluster: Cluster, topic: str, nodes: tuple[int, ...] = (1, 2, 3)) -> None:
    """Wait until the logs of these nodes are equal, byte for byte."""
    eventually(lambda: len({log_bytes(cluster, node, topic) for node in nodes}) == 1, f"the logs of {topic} are equal")
    assert log_bytes(cluster, nodes[0], topic)


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Every record there is, as the leader has it."""
    leader = cluster.leader_of(topic)
    assert leader is not None
    return [value for _, value in read_all(cluster.address(leader), topic)]


def test_what_is_acknowledged_is_in_every_log_byte_for_byte(cluster: Cluster) -> None:
    create(cluster, "copied", [1, 2, 3])
    sent = [b"%d" % number for number in range(200)]
    assert produce(cluster, "copied", *sent) == [None] * len(sent)
    agree(cluster, "copied")
    assert values(cluster, "copied") == sent


def test_a_follower_that_was_killed_catches_up(cluster: Cluster) -> None:
    create(cluster, "caught-up", [1, 2, 3])
    assert produce(cluster, "caught-up", b"before") == [None]
    cluster.kill(3)
    eventually(lambda: in_sync(cluster, "caught-up") == {1, 2}, "it leaves the in-sync replicas")
    assert produce(cluster, "caught-up", b"meanwhile") == [None]
    cluster.start(3)
    eventually(lambda: in_sync(cluster, "caught-up") == {1, 2, 3}, "it is in sync again")
    agree(cluster, "caught-up")
    assert values(cluster, "caught-up") == [b"before", b"meanwhile"]


def test_a_leader_that_is_killed_takes_nothing_acknowledged_with_it(cluster: Cluster) -> None:
    """With an idempotent producer nothing comes twice either, and the order stays."""
    create(cluster, "survives", [2, 3, 1])
    acknowledged: list[bytes] = []
    is_over = threading.Event()

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value = message.value()
        if error is None and isinstance(value, bytes):
            acknowledged.append(value)

    def send() -> None:
        producer = confluent_kafka.Producer(client(cluster, enable_idempotence=True, linger_ms=1))
        number = 0
        while not is_over.is_set():
            producer.produce("survives", b"%d" % number, partition=0, on_delivery=delivered)
            number += 1
            producer.poll(0.001)
        assert producer.flush(BOUND_SECONDS) == 0

    sending = threading.Thread(target=send)
    sending.start()
    try:
        eventually(lambda: len(acknowledged) > 200, "records are acknowledged")
        cluster.kill(2)
        before = len(acknowledged)
        eventually(lambda: cluster.leader_of("survives") not in (2, None), "another leads")
        eventually(lambda: len(acknowledged) > before + 200, "records are acknowledged by the next leader")
    finally:
        is_over.set()
        sending.join()
    cluster.start(2)
    eventually(lambda: in_sync(cluster, "survives") == {1, 2, 3}, "it is in sync again")
    agree(cluster, "survives")
    found = values(cluster, "survives")
    assert found == [b"%d" % number for number in range(len(found))], "in order, each once"
    assert set(acknowledged) <= set(found)


def test_what_only_a_leader_had_that_is_no_more_is_cut(cluster: Cluster) -> None:
    create(cluster, "unclean", [1, 2], unclean_leader_election_enable="true")
    assert produce(cluster, "unclean", b"both") == [None]
    agree(cluster, "unclean", (1, 2))
    cluster.kill(2)
    eventually(lambda: in_sync(cluster, "unclean") == {1}, "the follower leaves the in-sync replicas")
    assert produce(cluster, "unclean", b"one alone", b"had these") == [None, None]
    cluster.kill(1)
    cluster.start(2)
    eventually(lambda: cluster.leader_of("unclean") == 2, "the other is elected, though it lacks records")
    assert produce(cluster, "unclean", b"kept") == [None]
    cluster.start(1)
    eventually(lambda: in_sync(cluster, "unclean") == {1, 2}, "the first follows")
    agree(cluster, "unclean", (1, 2))
    assert values(cluster, "unclean") == [b"both", b"kept"]


def test_a_follower_that_stands_still_leaves_the_in_sync_replicas_and_comes_back(cluster: Cluster) -> None:
    create(cluster, "paused", [1, 2, 3])
    assert produce(cluster, "paused", b"one") == [None]
    cluster.pause(3)
    try:
        assert produce(cluster, "paused", b"two") == [None], "once it has left, the others are enough"
        assert in_sync(cluster, "paused") == {1, 2}
    finally:
        cluster.resume(3)
    eventually(lambda: in_sync(cluster, "paused") == {1, 2, 3}, "it is in sync again")
    agree(cluster, "paused")


def test_too_few_in_sync(cluster: Cluster) -> None:
    create(cluster, "strict", [1, 3], min_insync_replicas="2")
    assert produce(cluster, "strict", b"one") == [None]
    cluster.kill(3)
    eventually(lambda: in_sync(cluster, "strict") == {1}, "it leaves the in-sync replicas")
    (error,) = produce(cluster, "strict", b"two", retries=0)
    assert error is not None
    assert error.name() in ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
    cluster.start(3)
    eventually(lambda: in_sync(cluster, "strict") == {1, 3}, "it is in sync again")
    assert produce(cluster, "strict", b"three") == [None]


def test_committed_offsets_survive_their_coordinator(cluster: Cluster) -> None:
    create(cluster, "read", [1, 2, 3])
    assert produce(cluster, "read", b"one", b"two") == [None, None]

    def consumer() -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(client(cluster, group_id="survivors", auto_offset_reset="earliest"))

    position = confluent_kafka.TopicPartition("read", 0, 2)
    committing = consumer()
    try:
        committing.commit(offsets=[position], asynchronous=False)
    finally:
        committing.close()
    admin = AdminClient(client(cluster))
    partitions = admin.list_topics("__consumer_offsets", timeout=BOUND_SECONDS).topics["__consumer_offsets"].partitions
    described = admin.describe_consumer_groups(["survivors"])["survivors"].result(BOUND_SECONDS)
    coordinator = described.coordinator.id
    assert all(len(partition.replicas) == 3 for partition in partitions.values())
    cluster.kill(coordinator)
    asking = consumer()
    try:
        (found,) = asking.committed([confluent_kafka.TopicPartition("read", 0)], timeout=BOUND_SECONDS)
        assert found.error is None
        assert found.offset == 2
        asking.commit(offsets=[confluent_kafka.TopicPartition("read", 0, 1)], asynchronous=False)
    finally:
        asking.close()


def test_an_epoch_is_judged_before_the_role(cluster: Cluster) -> None:
    """As in Kafka: any replica tells a client with old metadata that they are old."""
    create(cluster, "epochs", [1, 2])
    cluster.kill(1)
    eventually(lambda: cluster.leader_of("epochs") == 2, "the other one leads")
    cluster.start(1)
    eventually(lambda: in_sync(cluster, "epochs") == {1, 2}, "the first follows")

    def error(epoch: int, replica_id: int = -1) -> ErrorCode:
        partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
        topic = ListOffsetsTopic(name="epochs", partitions=[partition])
        request = ListOffsetsRequest(replica_id=replica_id, isolation_level=0, topics=[topic])
        host, _, port = cluster.address(1).rpartition(":")
        answer = ask((host, int(port)), ApiKey.LIST_OFFSETS, 5, request, timeout=BOUND_SECONDS)
        found = answer.topics[0].partitions[0]
        return ErrorCode.of(found.error_code)

    eventually(lambda: error(0) == ErrorCode.FENCED_LEADER_EPOCH, "it knows of the new epoch")
    assert error(7) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(-1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error(-1, replica_id=-2) == ErrorCode.NONE, "a tool that looks at any replica"
