"""Interceptors of producers and consumers, against our own broker."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from kraftpy.client import (
    Admin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from kraftpy.testing.cluster import EmbeddedBroker


@pytest.fixture
def bootstrap(kraftpy_server: EmbeddedBroker) -> str:
    return kraftpy_server.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=2, config={"max.message.bytes": "1000"})])
    return name


class Counting:
    """Counts what passes; needs no base class, and serves producers and consumers."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.acknowledged: list[RecordMetadata] = []
        self.failed: list[tuple[RecordMetadata, ErrorCode]] = []
        self.consumed: list[ConsumerRecord] = []
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> None:
        self.sent[record.topic] += 1

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        if error is None:
            self.acknowledged.append(metadata)
        else:
            self.failed.append((metadata, error.code))

    def on_consume(self, records: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        for some in records.values():
            self.consumed += some

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update(offsets)

    def close(self) -> None:
        self.closed += 1


class Marking(ProducerInterceptor, ConsumerInterceptor):
    """Adds to each record's value, and lets only even partitions through."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=(record.value or b"") + b"!", headers=[*record.headers, ("by", b"marking")])

    def on_consume(
        self, records: dict[TopicPartition, list[ConsumerRecord]]
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        return {name: some for name, some in records.items() if name.partition % 2 == 0}


class Failing:
    """Never does anything right."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ValueError("on_send")

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        raise ValueError("on_acknowledgement")

    def on_consume(self, records: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        raise ValueError("on_consume")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise ValueError("on_commit")

    def close(self) -> None:
        raise ValueError("close")


async def test_a_producer_s_interceptors_see_what_is_sent_and_what_becomes_of_it(bootstrap: str, topic: str) -> None:
    before, after = Counting(), Counting()
    producer = Producer(bootstrap_servers=bootstrap, interceptors=[before, Marking(), after])
    async with producer:
        placed = [await producer.send_and_wait(topic, b"%d" % n, partition=0) for n in range(5)]
        placed.append(await producer.send_nowait(topic, b"now", partition=1))
        refused = await producer.send(topic, b"x" * 2_000, partition=1)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await refused
        with pytest.raises(KafkaError, match="max_request_size"):
            await producer.send(topic, b"x" * 2_000_000)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send(topic, b"x", partition=7)
    for each in (before, after):
        assert each.sent == {topic: 9}
        assert each.acknowledged == placed
        assert [(place.partition, place.offset, code) for place, code in each.failed] == [
            (1, -1, ErrorCode.MESSAGE_TOO_LARGE),
            (-1, -1, ErrorCode.MESSAGE_TOO_LARGE),
            (7, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert each.closed == 1
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(30):
            records = [await anext(consumer) for _ in range(6)]
    assert sorted(record.value or b"" for record in records) == [b"0!", b"1!", b"2!", b"3!", b"4!", b"now!"]
    assert {record.headers for record in records} == {(("by", b"marking"),)}


async def test_what_interceptors_hear_of_is_still_a_loss_nobody_looked_at(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, interceptors=[Counting()])
    await producer.send(topic, b"x" * 2_000, partition=1)
    with pytest.raises(KafkaError, match="1 record"):
        await producer.flush()
    await producer.close()


@pytest.mark.parametrize("way", ["for", "getone", "getmany"])
async def test_a_consumer_s_interceptors_see_what_is_handed_out_and_committed(
    bootstrap: str, topic: str, way: str
) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(20):
            await producer.send(topic, b"%d" % n, partition=n % 2)
    before, after = Counting(), Counting()
    options = {"bootstrap_servers": bootstrap, "group_id": f"group-{topic}", "auto_offset_reset": "earliest"}
    consumer = Consumer(topic, interceptors=[before, Marking(), after], enable_auto_commit=False, **options)
    records: list[ConsumerRecord] = []
    async with consumer, asyncio.timeout(30):
        while len(records) < 10:
            match way:
                case "for":
                    records.append(await anext(consumer))
                case "getone":
                    one = await consumer.getone(timeout_ms=30_000)
                    assert one is not None
                    records.append(one)
                case "getmany":
                    for some in (await consumer.getmany(timeout_ms=1_000)).values():
                        records += some
        assert await consumer.getone(timeout_ms=0) is None
        while len(before.consumed) < 20:
            assert await consumer.getmany(timeout_ms=100) == {}
        await consumer.commit()
    assert [record.value for record in records] == [b"%d" % n for n in range(0, 20, 2)]
    assert after.consumed == records
    assert len(before.consumed) == 20
    assert {name.partition: place.offset for name, place in before.committed.items()} == {0: 10, 1: 10}
    assert before.closed == after.closed == 1


async def test_automatic_commits_are_told_of(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send(topic, b"x", partition=0)
    options = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 20}
    name = TopicPartition(topic, 0)
    for assigned in (False, True):
        counting = Counting()
        consumer = Consumer(group_id=f"group-{topic}-{assigned}", interceptors=[counting], **options)
        if assigned:
            consumer.assign([name])
        else:
            consumer.subscribe([topic])
        async with consumer, asyncio.timeout(30):
            while counting.committed.get(name, OffsetAndMetadata(0)).offset != 1:
                await consumer.getmany(timeout_ms=20)


async def test_what_an_interceptor_raises_is_logged_and_changes_nothing(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting()
    options = {"bootstrap_servers": bootstrap, "interceptors": [Failing(), counting]}
    with caplog.at_level(logging.ERROR, "kraftpy.client.interceptors"):
        async with Producer(**options) as producer:
            assert (await producer.send_and_wait(topic, b"x", partition=0)).offset == 0
        async with Consumer(topic, group_id=f"group-{topic}", auto_offset_reset="earliest", **options) as consumer:
            record = await asyncio.wait_for(anext(consumer), 30)
            await consumer.commit()
    assert (record.value, counting.sent[topic], len(counting.consumed)) == (b"x", 1, 1)
    assert counting.committed[TopicPartition(topic, 0)].offset == 1
    told = {entry.message for entry in caplog.records}
    names = ("on_send", "on_acknowledgement", "on_consume", "on_commit", "close")
    assert told == {f"an interceptor's {name} failed" for name in names}


def test_an_interceptor_without_a_method_is_refused() -> None:
    with pytest.raises(TypeError, match="interceptors"):
        Producer(interceptors=[object()])
    with pytest.raises(TypeError, match="on_consume"):
        Consumer(interceptors=[ProducerInterceptor()])


def test_interceptors_without_an_event_loop(bootstrap: str) -> None:
    counting, topic = Counting(), f"topic-{uuid.uuid4().hex[:8]}"
    with BlockingProducer(bootstrap_servers=bootstrap, interceptors=[counting]) as producer:
        producer.send_many(topic, [(None, b"%d" % n) for n in range(10)])
    assert len(counting.acknowledged) == 10
    with BlockingConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", interceptors=[counting]
    ) as consumer:
        for _ in zip(range(10), consumer, strict=False):
            pass
    assert len(counting.consumed) == 10
