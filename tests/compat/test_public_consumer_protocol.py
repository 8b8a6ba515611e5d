"""confluent-kafka with `group.protocol=consumer` (KIP-848): members come and go, topics grow, brokers die.

The test in which brokers die has its own cluster.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.nodes import Cluster

BrokerFactory = Callable[..., EmbeddedBroker]

BOUND_SECONDS = 60.0
QUICK = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
}


MEMBER = """
import confluent_kafka, sys
member = confluent_kafka.Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "group.protocol": "consumer"})
member.subscribe(["t"])
while True:
    member.poll(0.1)
"""


class Group:
    """The members of one group in this process, polled in turn."""

    def __init__(self, bootstrap: str, group: str = "g") -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.members: list[Any] = []
        self.seen: list[bytes] = []
        self.producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.sent = 0

    def join(self, *topics: str, **settings: Any) -> Any:
        member = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        member.subscribe(list(topics))
        self.members.append(member)
        return member

    def send(self, topic: str, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.producer.produce(topic, b"%d" % number)
        self.sent += count
        assert self.producer.flush(BOUND_SECONDS) == 0

    def owned(self) -> list[list[tuple[str, int]]]:
        return [sorted((each.topic, each.partition) for each in member.assignment()) for member in self.members]

    def sizes(self) -> list[int]:
        return sorted(len(each) for each in self.owned())

    def wait(self, until: Callable[[], bool]) -> None:
        """Poll all of them until that is so; no partition has two owners meanwhile."""
        deadline = time.monotonic() + BOUND_SECONDS
        while not until():
            assert time.monotonic() < deadline, (self.owned(), len(self.seen), self.sent)
            for member in self.members:
                for message in member.consume(500, 0.05):
                    assert message.error() is None, message.error()
                    self.seen.append(message.value())
            owned = [each for of_member in self.owned() for each in of_member]
            assert len(owned) == len(set(owned)), self.owned()

    def has_all(self) -> bool:
        return len(set(self.seen)) == self.sent

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.members.clear()


@pytest.fixture
def closing() -> Iterator[list[Group]]:
    groups: list[Group] = []
    yield groups
    for group in groups:
        group.close()


def test_members_come_and_go_and_topics_grow(start_broker: BrokerFactory, closing: list[Group]) -> None:
    broker = start_broker(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 6, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    group.send("t", 600)
    group.join("t")
    group.wait(lambda: group.sizes() == [6] and group.has_all())
    group.join("t")
    group.wait(lambda: group.sizes() == [3, 3])
    group.join("^t.*")
    group.wait(lambda: group.sizes() == [2, 2, 2])

    (listed,) = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(20).valid
    assert (listed.group_id, listed.type, listed.state) == ("g", ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    described = admin.describe_consumer_groups(["g"])["g"].result(20)
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert described.partition_assignor == "uniform"
    for member in described.members:
        assert len(member.assignment.topic_partitions) == 2
        assert member.assignment.topic_partitions == member.target_assignment.topic_partitions

    admin.create_partitions([NewPartitions("t", 9)])["t"].result(20)
    group.wait(lambda: group.sizes() == [3, 3, 3])
    admin.create_topics([NewTopic("t2", 3, 1)])["t2"].result(20)
    group.wait(lambda: sum(group.sizes()) == 12)
    group.send("t", 90)
    group.send("t2", 90)
    group.wait(group.has_all)
    assert len(group.seen) == group.sent, "nothing was read twice: who gives up a partition commits it first"

    group.members.pop().close()
    group.wait(lambda: group.sizes() == [4, 5])
    group.close()
    assert admin.describe_consumer_groups(["g"])["g"].result(20).state == ConsumerGroupState.EMPTY

    # Later members resume at the group's offsets, even with the other protocol: the group is empty.
    group.send("t", 60)
    group.join("t", **{"group.protocol": "classic", "session.timeout.ms": 6000})
    group.wait(group.has_all)
    assert len(group.seen) == group.sent
    group.close()
    group.send("t", 60)
    group.join("t")
    group.wait(group.has_all)
    assert len(group.seen) == group.sent
    group.close()
    admin.delete_consumer_groups(["g"])["g"].result(20)
    assert admin.list_consumer_groups().result(20).valid == []


def test_a_static_member_that_restarts_has_its_partitions_again_and_nobody_else_moves(
    start_broker: BrokerFactory, closing: list[Group]
) -> None:
    broker = start_broker(settings={**QUICK, "group.consumer.session.timeout.ms": "30000"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 6, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    for number in range(3):
        group.join("t", **{"group.instance.id": f"i{number}"})
    group.wait(lambda: group.sizes() == [2, 2, 2])
    before = group.owned()
    group.members.pop(0).close()
    group.send("t", 60)
    group.join("t", **{"group.instance.id": "i0"})
    group.wait(lambda: group.sizes() == [2, 2, 2] and group.has_all())
    assert [*group.owned()[-1:], *group.owned()[:-1]] == before


def test_a_member_that_dies_is_missed_after_its_session(start_broker: BrokerFactory, closing: list[Group]) -> None:
    broker = start_broker(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 4, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    group.join("t")
    with subprocess.Popen([sys.executable, "-c", MEMBER, broker.bootstrap]) as other:
        try:
            group.wait(lambda: group.sizes() == [2])
        finally:
            other.kill()
    group.wait(lambda: group.sizes() == [4])


def test_a_group_lives_through_the_deaths_of_its_coordinator(closing: list[Group]) -> None:
    settings = {**QUICK, "offsets.topic.replication.factor": "3", "group.consumer.session.timeout.ms": "20000"}
    with Cluster(3, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 6, 3)])["t"].result(30)
        group = Group(cluster.bootstrap_servers)
        for _ in range(3):
            group.join("t")
        group.send("t", 300)
        group.wait(lambda: group.sizes() == [2, 2, 2] and group.has_all())
        before = group.owned()
        for _ in range(3):
            coordinator = cluster.coordinator_of("g")
            assert coordinator is not None
            cluster.kill(coordinator)
            group.send("t", 300)
            group.wait(lambda dead=coordinator: group.has_all() and cluster.coordinator_of("g") not in (None, dead))
            cluster.start(coordinator)
            cluster.wait_in_sync()
        assert group.owned() == before, "a coordinator that dies is no reason to rebalance"
        described = admin.describe_consumer_groups(["g"])["g"].result(30)
        assert (described.state, len(described.members)) == (ConsumerGroupState.STABLE, 3)
        # The new coordinator continues from the state that the old one had stored.
        group.members.pop().close()
        group.wait(lambda: group.sizes() == [3, 3])
        group.close()
