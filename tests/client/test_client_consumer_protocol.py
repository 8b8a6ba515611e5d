"""Our consumer with `group_protocol="consumer"` (KIP-848) against our own broker, and beside librdkafka.

The test that kills a node has its own cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import confluent_kafka
import pytest

from kraftpy.client import Admin, Consumer, ErrorCode, KafkaError, NewTopic, Producer, RebalanceListener, TopicPartition
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.nodes import Cluster

QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
}
BOUND_SECONDS = 40.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(settings=QUICK) as broker:
        yield broker.bootstrap
        assert "Traceback" not in broker.log_text, broker.log_text


class Readers:
    """Members of one group, each read by a task of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.seen: list[bytes] = []
        self.members: dict[Consumer, asyncio.Task[None]] = {}

    async def join(self, listener: RebalanceListener | None = None, **options: object) -> Consumer:
        consumer = Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=f"group-{self.topic}",
            group_protocol="consumer",
            auto_offset_reset="earliest",
            **options,
        )
        consumer.subscribe([self.topic], listener=listener)
        await consumer.__aenter__()
        self.members[consumer] = asyncio.create_task(self._read(consumer))
        return consumer

    async def _read(self, consumer: Consumer) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                self.seen += [bytes(record.value or b"") for record in records]

    async def leave(self, consumer: Consumer) -> None:
        task = self.members.pop(consumer)
        task.cancel()
        await asyncio.wait([task])
        await consumer.__aexit__(None, None, None)

    def sizes(self) -> list[int]:
        return sorted(len(consumer.assignment()) for consumer in self.members)

    async def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while not until():
            assert time.monotonic() < deadline, (self.sizes(), len(self.seen))
            for task in self.members.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)
            owned = [each for consumer in self.members for each in consumer.assignment()]
            assert len(owned) == len(set(owned)), owned


@pytest.fixture
async def readers(bootstrap: str) -> AsyncIterator[Readers]:
    topic = f"t{time.time_ns()}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=topic, num_partitions=6)])
    readers = Readers(bootstrap, topic)
    yield readers
    for consumer in list(readers.members):
        await readers.leave(consumer)


async def fill(bootstrap: str, topic: str, numbers: range) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % 6)


async def test_members_share_come_and_go(bootstrap: str, readers: Readers) -> None:
    await fill(bootstrap, readers.topic, range(300))
    first = await readers.join()
    await readers.wait(lambda: readers.sizes() == [6] and len(readers.seen) == 300)
    await readers.join()
    await readers.join()
    await readers.wait(lambda: readers.sizes() == [2, 2, 2])
    await fill(bootstrap, readers.topic, range(300, 600))
    await readers.wait(lambda: len(readers.seen) >= 600)
    await readers.leave(first)
    await readers.wait(lambda: readers.sizes() == [3, 3])
    async with Admin(bootstrap_servers=bootstrap) as admin:
        group = f"group-{readers.topic}"
        described = (await admin.describe_groups([group]))[group]
        assert (described.group_type, described.state, len(described.members)) == ("consumer", "Stable", 2)
        assert sorted(len(member.partitions) for member in described.members) == [3, 3]
        await admin.create_partitions({readers.topic: 8})
        await readers.wait(lambda: readers.sizes() == [4, 4])
    assert sorted(map(int, readers.seen)) == list(range(600)), "who gives up a partition commits it first"
    for consumer in list(readers.members):
        await readers.leave(consumer)
    await fill(bootstrap, readers.topic, range(600, 660))
    await readers.join(group_remote_assignor="range")
    await readers.wait(lambda: len(readers.seen) >= 660)
    assert sorted(map(int, readers.seen)) == list(range(660))


async def test_a_member_shares_with_librdkafka(bootstrap: str, readers: Readers) -> None:
    await readers.join()
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"group-{readers.topic}", "group.protocol": "consumer"}
    )
    other.subscribe([readers.topic])

    def shared() -> bool:
        other.poll(0)
        return readers.sizes() == [3] and len(other.assignment()) == 3

    await readers.wait(shared)
    await asyncio.to_thread(other.close)
    await readers.wait(lambda: readers.sizes() == [6])


async def test_a_static_member_comes_back_to_its_partitions(bootstrap: str, readers: Readers) -> None:
    first = await readers.join(group_instance_id="i1")
    second = await readers.join(group_instance_id="i2")
    await readers.wait(lambda: readers.sizes() == [3, 3])
    had, others = set(first.assignment()), set(second.assignment())
    await readers.leave(first)
    again = await readers.join(group_instance_id="i1")
    await readers.wait(lambda: readers.sizes() == [3, 3])
    assert set(again.assignment()) == had
    assert set(second.assignment()) == others


async def test_a_member_that_asks_for_nothing_leaves_and_comes_back(bootstrap: str, readers: Readers) -> None:
    lost: list[TopicPartition] = []

    class Listener(RebalanceListener):
        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            lost.extend(partitions)

    slow = await readers.join(Listener(), max_poll_interval_ms=1_000)
    await readers.join()
    await readers.wait(lambda: readers.sizes() == [3, 3])
    task = readers.members.pop(slow)
    task.cancel()
    await asyncio.wait([task])
    await readers.wait(lambda: readers.sizes() == [6])
    back = asyncio.create_task(readers._read(slow))
    await readers.wait(lambda: len(lost) == 3)  # which it notices when it asks again
    readers.members[slow] = back
    await readers.wait(lambda: readers.sizes() == [3, 3])


async def test_what_no_retry_helps_is_raised(bootstrap: str, readers: Readers) -> None:
    async with AsyncExitStack() as stack:
        consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=f"group-{readers.topic}",
            group_protocol="consumer",
            group_remote_assignor="sticky",
        )
        consumer.subscribe([readers.topic])
        await stack.enter_async_context(consumer)
        with pytest.raises(KafkaError) as raised:
            await asyncio.wait_for(readers._read(consumer), BOUND_SECONDS)
        assert raised.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


async def test_a_group_lives_through_the_death_of_its_coordinator() -> None:
    settings = {**QUICK, "offsets.topic.replication.factor": "3", "group.consumer.session.timeout.ms": "20000"}
    cluster = Cluster(3, settings=settings)
    await asyncio.to_thread(cluster.open)
    try:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(name="t", num_partitions=6, replication_factor=3)])
        readers = Readers(cluster.bootstrap_servers, "t")
        for _ in range(2):
            await readers.join()
        await readers.wait(lambda: readers.sizes() == [3, 3])
        before = [set(consumer.assignment()) for consumer in readers.members]
        coordinator = await asyncio.to_thread(cluster.coordinator_of, "group-t")
        assert coordinator is not None
        await asyncio.to_thread(cluster.kill, coordinator)
        await fill(cluster.bootstrap_servers, "t", range(300))
        await readers.wait(lambda: len(readers.seen) >= 300)
        assert [set(consumer.assignment()) for consumer in readers.members] == before
        for consumer in list(readers.members):
            await readers.leave(consumer)
        assert sorted(map(int, readers.seen)) == list(range(300))
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            committed = await admin.list_group_offsets("group-t")
        offsets = {name: place.offset for name, place in committed.items()}
        assert offsets == {TopicPartition("t", number): 50 for number in range(6)}
    finally:
        await asyncio.to_thread(cluster.close)
