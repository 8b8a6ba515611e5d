"""Groups of public clients: members come and go, every record is read, no two members share a partition."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from compat.clients import CONFLUENT, Message
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PARTITIONS = 6
BOUND_SECONDS = 40.0
_names = itertools.count()


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    name = f"groups-{next(_names)}-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    return name


class ConfluentMember:
    """A member of a group through librdkafka."""

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                **settings,
            }
        )
        self.consumer.subscribe([topic])
        self.values: list[bytes] = []

    def poll(self) -> None:
        for message in self.consumer.consume(500, 0.05):
            assert message.error() is None, message.error()
            self.values.append(message.value())

    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class KafkaPythonMember:
    """A member of a group through kafka-python, polled by a thread of its own.

    A poll() that ends before the group has formed drops the answers that come after it, and the next one rejoins;
    members polled in turn would keep each other from ever settling.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            **settings,
        )
        self.values: list[bytes] = []
        self.closing = threading.Event()
        self.polling = threading.Thread(target=self._poll, name="kafka-python member")
        self.polling.start()

    def _poll(self) -> None:
        while not self.closing.is_set():
            for records in self.consumer.poll(timeout_ms=500).values():
                self.values.extend(record.value for record in records)

    def poll(self) -> None:
        self.closing.wait(0.02)

    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    def close(self) -> None:
        self.closing.set()
        self.polling.join(BOUND_SECONDS)
        assert not self.polling.is_alive(), "the last poll does not end"
        self.consumer.close()


class AioKafkaMember:
    """A member of a group through aiokafka, with a loop and a thread of its own: its heartbeats never wait."""

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self.values: list[bytes] = []
        self.consumer: aiokafka.AIOKafkaConsumer | None = None
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(bootstrap, topic, group, settings))
        self.thread.start()

    def _run(self, *arguments: Any) -> None:
        try:
            asyncio.run(self._consume(*arguments))
        except BaseException as failure:
            self.failure = failure

    async def _consume(self, bootstrap: str, topic: str, group: str, settings: dict[str, Any]) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            **settings,
        )
        try:
            await consumer.start()
            self.consumer = consumer
            while not self.stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    self.values.extend(record.value for record in records)
        finally:
            await consumer.stop()

    def poll(self) -> None:
        time.sleep(0.02)  # the thread polls; the caller looks again
        if self.failure is not None:
            raise self.failure

    def partitions(self) -> set[int]:
        return set() if self.consumer is None else {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        self.stopping.set()
        self.thread.join(BOUND_SECONDS)
        assert not self.thread.is_alive()


MEMBERS: dict[str, Callable[..., Any]] = {
    "confluent-range": lambda *a, **k: ConfluentMember(*a, **{"partition.assignment.strategy": "range", **k}),
    "confluent-cooperative": lambda *a, **k: ConfluentMember(
        *a, **{"partition.assignment.strategy": "cooperative-sticky", **k}
    ),
    "kafka-python": KafkaPythonMember,
    "kafka-python-cooperative": lambda *a, **k: KafkaPythonMember(
        *a, partition_assignment_strategy=[CooperativeStickyAssignor], **k
    ),
    "aiokafka": AioKafkaMember,
    "aiokafka-sticky": lambda *a, **k: AioKafkaMember(*a, partition_assignment_strategy=[StickyPartitionAssignor], **k),
}


DYING_MEMBER = """
import sys, time, kafka
bootstrap, topic, group, seconds = sys.argv[1:]
deadline = time.monotonic() + float(seconds)
consumer = kafka.KafkaConsumer(
    topic, bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=6000, heartbeat_interval_ms=200
)
while not consumer.assignment():
    assert time.monotonic() < deadline, "no partitions"
    consumer.poll(timeout_ms=500)
print("joined", flush=True)
while True:
    consumer.poll(timeout_ms=500)
"""


def poll_until(members: list[Any], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        for member in members:
            member.poll()


def shared_out(members: list[Any]) -> bool:
    owned = [member.partitions() for member in members]
    return all(owned) and sorted(itertools.chain(*owned)) == list(range(PARTITIONS))


@pytest.mark.parametrize("kind", sorted(MEMBERS))
def test_members_come_and_go(kraftpy_server: EmbeddedBroker, topic: str, kind: str) -> None:
    bootstrap, group = kraftpy_server.bootstrap, f"group-{topic}"
    with ExitStack() as stack:
        members: list[Any] = []

        def join() -> None:
            members.append(MEMBERS[kind](bootstrap, topic, group))

        stack.callback(lambda: [member.close() for member in members])
        join()
        poll_until(members, lambda: shared_out(members), "one member has everything")
        join()
        poll_until(members, lambda: shared_out(members), "two members share")
        join()
        poll_until(members, lambda: shared_out(members), "three members share")
        CONFLUENT.produce(bootstrap, topic, [Message(b"%d" % i, partition=i % PARTITIONS) for i in range(600)])
        poll_until(members, lambda: sum(len(member.values) for member in members) >= 600, "everything is read")
        read = sorted(int(value) for member in members for value in member.values)
        assert read == list(range(600)), "nothing twice, nothing lost"
        members.pop(0).close()
        poll_until(members, lambda: shared_out(members), "the partitions of who left are taken over")


def test_a_member_that_dies_is_noticed(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    group = f"group-{topic}"
    # A process of its own, so that it can die without a word: no LeaveGroup, no heartbeat.
    words = [kraftpy_server.bootstrap, topic, group, str(BOUND_SECONDS)]
    dying = subprocess.Popen([sys.executable, "-c", DYING_MEMBER, *words], stdout=-1)
    try:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"joined\n"
        survivor = ConfluentMember(
            kraftpy_server.bootstrap, topic, group, **{"partition.assignment.strategy": "range,roundrobin"}
        )
        poll_until([survivor], lambda: 0 < len(survivor.partitions()) < PARTITIONS, "two different clients share")
    finally:
        dying.kill()
        dying.wait()
        dying.stdout.close()
    poll_until([survivor], lambda: shared_out([survivor]), "the session of who died has run out")
    survivor.close()


def test_static_members_keep_their_partitions(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    group = f"group-{topic}"

    def member(name: str) -> ConfluentMember:
        return ConfluentMember(
            kraftpy_server.bootstrap,
            topic,
            group,
            **{"group.instance.id": name, "session.timeout.ms": 30_000, "partition.assignment.strategy": "range"},
        )

    first, second = member("a"), member("b")
    poll_until([first, second], lambda: shared_out([first, second]), "two static members share")
    before = second.partitions()
    kept = first.partitions()
    second.close()  # a static member that closes does not leave
    again = member("b")
    poll_until([first, again], lambda: bool(again.partitions()), "it is back")
    assert again.partitions() == before
    assert first.partitions() == kept
    first.close()
    again.close()


def test_committed_offsets_are_read_back(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    group = f"group-{topic}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kraftpy_server.bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, i, 10 + i, metadata=f"note {i}") for i in range(3)]
    for committed in consumer.commit(offsets=wanted, asynchronous=False):
        assert committed.error is None
    found = consumer.committed([confluent_kafka.TopicPartition(topic, i) for i in range(4)], timeout=20)
    assert [(p.partition, p.offset) for p in found] == [(0, 10), (1, 11), (2, 12), (3, confluent_kafka.OFFSET_INVALID)]
    assert [p.metadata for p in found[:3]] == ["note 0", "note 1", "note 2"]
    consumer.close()
