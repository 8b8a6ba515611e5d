"""confluent-kafka's ShareConsumer (KIP-932): members share partitions, join, leave and die; topics grow; brokers die.

Its share consumer is a preview, and logs that when it is made. It has no requests of administrators for share groups:
those go through our command.

The test in which brokers die has its own cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.nodes import Cluster

BrokerFactory = Callable[..., EmbeddedBroker]

BOUND_SECONDS = 90.0
QUICK = {
    "group.share.heartbeat.interval.ms": "300",
    "group.share.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}

MEMBER = """
import confluent_kafka, sys, time
member = confluent_kafka.ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": "g"})
member.subscribe(["t"])
deadline, count = time.monotonic() + float(sys.argv[2]), 0
while True:
    for message in member.poll(0.1):
        print(message.value().decode(), flush=True)
        count += 1
    assert count or time.monotonic() < deadline, "no records"
"""


class Group:
    """The members of one share group in this process, polled in turn."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members: list[Any] = []
        self.seen: Counter[int] = Counter()
        self.by_member: Counter[int] = Counter()
        self.producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.sent = 0

    def earliest(self) -> None:
        """Let the group begin with the records already there."""
        command(self.bootstrap, "group", "alter", "g", "--config", "share.auto.offset.reset=earliest")

    def join(self, *topics: str) -> None:
        member = confluent_kafka.ShareConsumer({"bootstrap.servers": self.bootstrap, "group.id": "g"})
        member.subscribe(list(topics))
        self.members.append(member)

    def send(self, topic: str, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.producer.produce(topic, b"%d" % number)
        self.sent += count
        assert self.producer.flush(BOUND_SECONDS) == 0

    def poll(self) -> None:
        for place, member in enumerate(self.members):
            for message in member.poll(0.1):
                assert message.error() is None, message.error()
                self.seen[int(message.value())] += 1
                self.by_member[place] += 1

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while not until():
            missing = sorted(set(range(self.sent)) - self.seen.keys())
            assert time.monotonic() < deadline, (len(missing), missing[:10], self.described())
            self.poll()

    def has_all(self) -> bool:
        return len(self.seen) == self.sent

    def finished_records(self) -> int:
        """Count the records that the group will not be given again."""
        offsets = rows(self.bootstrap, "group", "describe", "g")
        return sum(each["start_offset"] for each in offsets if each["end_offset"])

    def described(self) -> list[dict[str, Any]]:
        """The members' assignments according to the coordinator."""
        return rows(self.bootstrap, "group", "describe", "g", "--members")

    def is_read_by(self, count: int, partitions: int) -> bool:
        """Return whether there are `count` members, each has a partition, and together they have all of them."""
        members = self.described()
        read = {each for member in members for each in member["partitions"]}
        return len(members) == count and len(read) == partitions and all(member["partitions"] for member in members)

    def leave(self) -> None:
        """Let the newest member leave. The last records that it received are acknowledged only by this commit."""
        member = self.members.pop()
        outcome = member.commit_sync(BOUND_SECONDS)
        assert not any(outcome.values()), outcome
        member.close()

    def close(self) -> None:
        while self.members:
            self.leave()


def command(bootstrap: str, *words: str) -> str:
    asked = [sys.executable, "-m", "kraftpy", *words, "--bootstrap-server", bootstrap]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(bootstrap: str, *words: str) -> list[dict[str, Any]]:
    lines = command(bootstrap, *words, "--format", "json").splitlines()
    return [json.loads(line) for line in lines]


def assert_all_is_done_with(offsets: list[dict[str, Any]], sent: int) -> None:
    """Check that the group has nothing left to do. A partition that never had a record need not have a start offset."""
    used = [each for each in offsets if each["end_offset"]]
    assert sum(each["start_offset"] for each in used) == sent, offsets
    assert [each["lag"] for each in used] == [0] * len(used), offsets


@pytest.fixture
def closing() -> Iterator[list[Group]]:
    groups: list[Group] = []
    yield groups
    for group in groups:
        for member in group.members:
            member.close()


def test_members_share_partitions_come_and_go_and_topics_grow(
    start_broker: BrokerFactory, closing: list[Group]
) -> None:
    broker = start_broker(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    group.earliest()
    group.send("t", 300)
    group.join("t")
    group.wait(lambda: group.is_read_by(1, 2))
    group.join("t")
    group.join("t")
    group.wait(lambda: group.is_read_by(3, 2))
    group.send("t", 300)
    group.wait(group.has_all)
    (listed,) = rows(broker.bootstrap, "group", "list")
    assert listed == {"group": "g", "state": "Stable", "protocol_type": "share", "type": "share"}

    admin.create_partitions([NewPartitions("t", 5)])["t"].result(20)
    group.wait(lambda: group.is_read_by(3, 5))
    group.send("t", 300)
    group.wait(group.has_all)

    group.leave()
    group.wait(lambda: group.is_read_by(2, 5))
    group.send("t", 300)
    group.wait(group.has_all)
    assert set(group.seen.values()) == {1}, "no record was handed out twice: all were acknowledged in time"

    group.close()
    (described,) = rows(broker.bootstrap, "group", "describe", "g", "--state")
    assert (described["state"], described["members"]) == ("Empty", 0)
    assert_all_is_done_with(rows(broker.bootstrap, "group", "describe", "g"), group.sent)

    # A later member resumes after the records that they finished.
    group.send("t", 50)
    group.join("t")
    group.wait(group.has_all)
    assert set(group.seen.values()) == {1}


def test_start_offsets_are_moved_and_a_group_is_deleted(start_broker: BrokerFactory, closing: list[Group]) -> None:
    broker = start_broker(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    group.earliest()
    group.send("t", 100)
    group.join("t")
    group.wait(group.has_all)
    group.close()

    moving = ("group", "reset-offsets", "g", "--topic", "t", "--to-offset", "40", "--execute")
    command(broker.bootstrap, *moving)
    (described,) = rows(broker.bootstrap, "group", "describe", "g")
    assert (described["start_offset"], described["end_offset"], described["lag"]) == (40, 100, 60)
    group.join("t")
    group.wait(lambda: sum(group.seen.values()) == 160)
    assert [number for number, times in sorted(group.seen.items()) if times == 2] == list(range(40, 100))
    group.close()

    command(broker.bootstrap, "group", "delete", "g", "--yes")
    assert rows(broker.bootstrap, "group", "list") == []
    group.join("t")  # with the group all it knew is gone; the settings are not
    group.wait(lambda: sum(group.seen.values()) == 260)


def test_what_a_member_that_dies_held_goes_to_another(start_broker: BrokerFactory, closing: list[Group]) -> None:
    broker = start_broker(settings={**QUICK, "group.share.min.record.lock.duration.ms": "1000"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
    group = Group(broker.bootstrap)
    closing.append(group)
    group.earliest()
    command(broker.bootstrap, "group", "alter", "g", "--config", "share.record.lock.duration.ms=2000")
    group.send("t", 200)
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.bootstrap, str(BOUND_SECONDS)], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline()  # it holds some
        finally:
            other.kill()
    group.join("t")
    group.send("t", 50)
    before = set(range(200, 250))
    group.wait(lambda: group.is_read_by(1, 1) and before <= group.seen.keys())
    offsets: list[dict[str, Any]] = []

    def is_done() -> bool:
        offsets[:] = rows(broker.bootstrap, "group", "describe", "g")
        return offsets[0]["start_offset"] == 250

    group.wait(is_done)
    assert offsets[0]["lag"] == 0


def test_a_group_lives_through_the_deaths_of_brokers(closing: list[Group]) -> None:
    settings = {
        **QUICK,
        "group.share.session.timeout.ms": "30000",
        "offsets.topic.replication.factor": "3",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
    }
    with Cluster(3, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 6, 3, config={"min.insync.replicas": "2"})])["t"].result(30)
        group = Group(cluster.bootstrap_servers)
        closing.append(group)
        group.earliest()
        for _ in range(3):
            group.join("t")
        group.send("t", 300)
        group.wait(lambda: group.is_read_by(3, 6) and group.has_all())
        for _ in range(2):
            coordinator = cluster.coordinator_of("g")
            assert coordinator is not None
            cluster.kill(coordinator)
            group.send("t", 300)
            group.wait(lambda dead=coordinator: group.has_all() and cluster.coordinator_of("g") not in (None, dead))
            cluster.start(coordinator)
            cluster.wait_in_sync()
        group.wait(lambda: group.is_read_by(3, 6))
        group.leave()
        group.wait(lambda: group.is_read_by(2, 6))
        group.send("t", 300)
        # Acknowledgements to a broker that died are lost: such records are delivered again by the next leader.
        group.wait(lambda: group.has_all() and group.finished_records() == group.sent)
        group.close()
        assert_all_is_done_with(rows(cluster.bootstrap_servers, "group", "describe", "g"), group.sent)
