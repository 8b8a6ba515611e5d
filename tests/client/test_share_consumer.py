"""Share consumers (KIP-932) against our own broker."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kraftpy.client import (
    AcknowledgeType,
    Admin,
    BlockingShareConsumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
    ResourceType,
    ShareConsumer,
    ShareRecord,
    TopicPartition,
)
from kraftpy.client.share import fetcher as fetching
from kraftpy.client.share.session import ShareSession
from kraftpy.protocol.messages.share_fetch import PartitionData, ShareFetchableTopicResponse, ShareFetchResponse
from kraftpy.testing.cluster import EmbeddedBroker

SETTINGS = {
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.record.lock.duration.ms": 30_000,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 200,
}


@pytest.fixture(scope="module")
def share_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker whose share groups have quick heartbeats: assignments come with the second."""
    with EmbeddedBroker(tmp_path_factory.mktemp("share"), settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def bootstrap(share_server: EmbeddedBroker) -> str:
    return share_server.bootstrap


def new_group() -> str:
    return f"share-{uuid.uuid4().hex[:8]}"


async def make(bootstrap: str, group_id: str, partitions: int = 2, **settings: str) -> str:
    """A topic, and a group that begins at its first record."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=partitions)])
        wanted = {"share.auto.offset.reset": "earliest", **settings}
        await admin.alter_configs({(ResourceType.GROUP, group_id): wanted})
    return name


async def fill(bootstrap: str, topic: str, count: int, partitions: int = 2) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(count):
            await producer.send(topic, b"%d" % n, partition=n % partitions)


async def read(consumer: ShareConsumer, count: int, *, seconds: float = 30) -> list[ShareRecord]:
    records: list[ShareRecord] = []
    async with asyncio.timeout(seconds):
        while len(records) < count:
            records += await consumer.getmany(timeout_ms=1_000, max_records=count - len(records))
    return records


def numbers(records: list[ShareRecord]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


async def test_asking_for_more_accepts_what_was_handed_out(bootstrap: str) -> None:
    group_id = new_group()
    topic = await make(bootstrap, group_id)
    await fill(bootstrap, topic, 100)
    told: list[tuple[int, int]] = []

    def on_outcome(partition: TopicPartition, offsets: tuple[int, ...], error: KafkaError | None) -> None:
        assert error is None
        told.extend((partition.partition, offset) for offset in offsets)

    seen = []
    async with ShareConsumer(
        topic, group_id=group_id, bootstrap_servers=bootstrap, acknowledgement_commit_callback=on_outcome
    ) as consumer:
        async with asyncio.timeout(30):
            async for record in consumer:
                assert record.delivery_count == 1
                seen.append(record)
                if len(seen) == 100:
                    break
        assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert consumer.acquisition_lock_timeout_ms == 30_000
        assert set((await consumer.commit_sync()).values()) <= {None}
        assert await consumer.getmany(timeout_ms=300) == []
    assert numbers(seen) == list(range(100))
    assert sorted(told) == [(n % 2, n // 2) for n in sorted(range(100), key=lambda n: (n % 2, n))]
    async with ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap) as consumer:
        await fill(bootstrap, topic, 2)
        assert numbers(await read(consumer, 2)) == [0, 1]  # nothing of before


async def test_each_record_goes_to_one_member_of_many(bootstrap: str) -> None:
    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    seen: list[list[ShareRecord]] = [[], [], []]
    started = [asyncio.Event() for _ in seen]
    all_sent = asyncio.Event()
    sent = 0

    async def work(place: int) -> None:
        options = {"bootstrap_servers": bootstrap, "max_poll_records": 5, "share_acquire_mode": "record_limit"}
        async with ShareConsumer(topic, group_id=group_id, **options) as consumer:
            while not all_sent.is_set() or sum(map(len, seen)) < sent:
                seen[place] += await consumer.getmany(timeout_ms=100)
                if seen[place]:
                    started[place].set()
                await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for place in range(3):
            tasks.create_task(work(place))
        while sent < 400 or not all(event.is_set() for event in started):  # one partition feeds all three
            await fill(bootstrap, topic, 20, partitions=1)
            sent += 20
        all_sent.set()
    counted = Counter(record.offset for records in seen for record in records)
    assert set(counted.values()) == {1}
    assert len(counted) == sent


async def test_what_is_released_comes_again_and_what_is_rejected_does_not(bootstrap: str) -> None:
    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    await fill(bootstrap, topic, 12, partitions=1)
    options = {"bootstrap_servers": bootstrap, "share_acknowledgement_mode": "explicit"}
    async with ShareConsumer(topic, group_id=group_id, **options) as consumer:
        records = await read(consumer, 12)
        for record in records:  # neither in order nor in one piece: what comes again lies in parts of a batch
            kind = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)[record.offset % 3]
            consumer.acknowledge(record, kind)
        with pytest.raises(ValueError, match="not in hand"):
            consumer.acknowledge(records[0])
        assert await consumer.commit_sync() == {TopicPartition(topic, 0): None}
        again = await read(consumer, 4)
        assert [(record.offset, record.delivery_count) for record in again] == [(1, 2), (4, 2), (7, 2), (10, 2)]
        for record in again[:2]:
            consumer.acknowledge(record)
        consumer.commit_async()
        assert await consumer.getmany(timeout_ms=300) == []  # the two others are still in hand
    async with ShareConsumer(topic, group_id=group_id, **options) as other:
        rest = await read(other, 2)  # given back by close
        assert [record.offset for record in rest] == [7, 10]
        for record in rest:
            other.acknowledge(record)
        await other.commit_sync()
        assert await other.getmany(timeout_ms=300) == []


async def test_what_the_application_fails_at_is_given_back_at_once(bootstrap: str) -> None:
    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    await fill(bootstrap, topic, 5, partitions=1)

    async def work() -> None:
        async with ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap) as consumer:
            async for record in consumer:
                if record.offset == 3:
                    raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        await asyncio.wait_for(work(), 30)
    async with ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap) as consumer:
        assert [record.offset for record in await read(consumer, 2)] == [3, 4]


async def test_a_lock_that_runs_out_and_one_that_is_renewed(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker(settings=SETTINGS)
    group_id = new_group()
    topic = await make(broker.bootstrap, group_id, 1, **{"share.record.lock.duration.ms": "1500"})
    await fill(broker.bootstrap, topic, 2, partitions=1)
    options = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": group_id,
        "share_acknowledgement_mode": "explicit",
        "fetch_max_wait_ms": 100,
    }
    errors: dict[int, ErrorCode] = {}

    def on_outcome(partition: TopicPartition, offsets: tuple[int, ...], error: KafkaError | None) -> None:
        errors.update(dict.fromkeys(offsets, ErrorCode.NONE if error is None else error.code))

    async with (
        ShareConsumer(topic, acknowledgement_commit_callback=on_outcome, **options) as slow,
        ShareConsumer(topic, **options) as other,
    ):
        kept, forgotten = await read(slow, 2)

        async def renew() -> None:
            while True:
                slow.acknowledge(kept, AcknowledgeType.RENEW)
                await slow.commit_sync()
                await asyncio.sleep(0.3)

        renewing = asyncio.create_task(renew())
        (again,) = await read(other, 1)
        assert (again.offset, again.delivery_count) == (forgotten.offset, 2)
        renewing.cancel()
        other.acknowledge(again)
        await other.commit_sync()
        slow.acknowledge(forgotten)
        refused = (await slow.commit_sync())[TopicPartition(topic, 0)]
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_RECORD_STATE
        slow.acknowledge(kept)
        assert await slow.commit_sync() == {TopicPartition(topic, 0): None}
        assert errors == {kept.offset: ErrorCode.NONE, forgotten.offset: ErrorCode.INVALID_RECORD_STATE}


async def test_a_share_consumer_outlives_its_broker(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker(settings=SETTINGS)
    group_id = new_group()
    topic = await make(broker.bootstrap, group_id)
    await fill(broker.bootstrap, topic, 20)
    options = {"bootstrap_servers": broker.bootstrap, "reconnect_backoff_max_ms": 100}
    seen: Counter[tuple[int, int]] = Counter()
    async with ShareConsumer(topic, group_id=group_id, max_poll_records=5, **options) as consumer:
        for record in await read(consumer, 7):
            seen[(record.partition, record.offset)] += 1
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(60):
            while len(seen) < 20:
                for record in await consumer.getmany(timeout_ms=1_000):
                    seen[(record.partition, record.offset)] += 1
        await fill(broker.bootstrap, topic, 4)
        async with asyncio.timeout(60):
            while len(seen) < 24:
                for record in await consumer.getmany(timeout_ms=1_000):
                    seen[(record.partition, record.offset)] += 1
    assert len(seen) == 24


async def test_nobody_is_asked_again_and_again_for_what_it_does_not_have(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that says it does not lead the partition is left alone for a while."""
    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    asked = 0
    real = fetching.ShareFetcher._fetch_answer

    def not_the_leader(self: fetching.ShareFetcher, session: ShareSession, answer: ShareFetchResponse) -> None:
        nonlocal asked
        asked += 1
        refused = PartitionData(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        answer.responses = [ShareFetchableTopicResponse(topic_id=self._topic_ids[topic], partitions=[refused])]
        real(self, session, answer)

    async with ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap, fetch_max_wait_ms=10) as consumer:
        async with asyncio.timeout(30):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
        monkeypatch.setattr(fetching.ShareFetcher, "_fetch_answer", not_the_leader)
        assert await consumer.getmany(timeout_ms=2_000) == []
        assert 0 < asked < 20


async def test_a_topic_that_is_made_again_is_read_anew(bootstrap: str) -> None:
    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    await fill(bootstrap, topic, 3, partitions=1)
    async with (
        ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap, metadata_max_age_ms=200) as consumer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        assert len(await read(consumer, 3)) == 3
        await admin.delete_topics([topic])
        assert await consumer.getmany(timeout_ms=500) == []
        await admin.create_topics([NewTopic(name=topic, num_partitions=1)])
        await fill(bootstrap, topic, 2, partitions=1)
        assert [record.offset for record in await read(consumer, 2, seconds=60)] == [0, 1]


async def test_what_cannot_be_is_refused(bootstrap: str) -> None:
    with pytest.raises(TypeError, match="group_id"):
        ShareConsumer("t", bootstrap_servers=bootstrap)
    for options in ({"share_acknowledgement_mode": "both"}, {"share_acquire_mode": "all"}, {"max_poll_records": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ShareConsumer("t", group_id="g", bootstrap_servers=bootstrap, **options)
    consumer = ShareConsumer("t", group_id="g", bootstrap_servers=bootstrap)
    await consumer.close()
    assert await consumer.getmany(timeout_ms=None) == []
    with pytest.raises(RuntimeError, match="closed"):
        await consumer.start()


async def test_a_group_of_another_kind_is_told_to_the_application(bootstrap: str) -> None:
    from kraftpy.client import Consumer

    group_id = new_group()
    topic = await make(bootstrap, group_id, partitions=1)
    async with Consumer(topic, group_id=group_id, bootstrap_servers=bootstrap) as plain:
        async with asyncio.timeout(30):
            while not plain.assignment():
                await plain.getmany(timeout_ms=100)
        async with ShareConsumer(topic, group_id=group_id, bootstrap_servers=bootstrap) as consumer:
            with pytest.raises(KafkaError):
                await asyncio.wait_for(anext(consumer), 30)


def test_a_share_consumer_without_an_event_loop(bootstrap: str) -> None:
    group_id = new_group()
    topic = asyncio.run(make(bootstrap, group_id))
    asyncio.run(fill(bootstrap, topic, 10))
    options = {"group_id": group_id, "bootstrap_servers": bootstrap, "share_acknowledgement_mode": "explicit"}
    with BlockingShareConsumer(topic, **options) as consumer:
        seen = []
        for record in consumer:
            seen.append(record)
            consumer.acknowledge(record, AcknowledgeType.RELEASE if len(seen) == 1 else AcknowledgeType.ACCEPT)
            if len(seen) == 10:
                break
        assert set(consumer.commit_sync().values()) == {None}
        again: list[ShareRecord] = []
        deadline = time.monotonic() + 30
        while not again:
            assert time.monotonic() < deadline, "it was released"
            again = consumer.getmany(timeout_ms=1_000)
        assert [(record.value, record.delivery_count) for record in again] == [(seen[0].value, 2)]
        consumer.acknowledge(again[0])
        consumer.commit_async()
    assert numbers(seen) == list(range(10))
