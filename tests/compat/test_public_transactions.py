"""Transactions of public clients: what is aborted is never read, what is committed is read once, zombies are fenced."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PARTITIONS = 3
BOUND_SECONDS = 30.0
_names = itertools.count()


def name_of(what: str) -> str:
    return f"{what}-{next(_names)}-{time.time_ns()}"


@pytest.fixture
def topics(kraftpy_server: EmbeddedBroker) -> tuple[str, str]:
    """An input and an output."""
    source, target = name_of("source"), name_of("target")
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)]).values():
        made.result(20)
    return source, target


def producer_of(server: EmbeddedBroker, transactional_id: str, **settings: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **settings}
    )
    producer.init_transactions(BOUND_SECONDS)
    return producer


def read_all(server: EmbeddedBroker, topic: str, isolation: str) -> list[bytes]:
    """Read every value with a consumer that stops at the end offset the broker reports."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": name_of("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + BOUND_SECONDS
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, (values, ended)
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


def test_confluent_commits_and_aborts(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    _, topic = topics
    producer = producer_of(kraftpy_server, name_of("t"))
    for number in range(6):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        if number % 2:
            assert producer.flush(BOUND_SECONDS) == 0
            producer.abort_transaction(BOUND_SECONDS)
        else:
            producer.commit_transaction(BOUND_SECONDS)
    committed = sorted(f"{number}-{partition}".encode() for number in (0, 2, 4) for partition in range(PARTITIONS))
    assert read_all(kraftpy_server, topic, "read_committed") == committed
    assert len(read_all(kraftpy_server, topic, "read_uncommitted")) == 6 * PARTITIONS


def test_an_open_transaction_is_not_seen(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    _, topic = topics
    producer = producer_of(kraftpy_server, name_of("t"))
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(BOUND_SECONDS) == 0
    other = Producer({"bootstrap.servers": kraftpy_server.bootstrap})
    other.produce(topic, b"behind it", partition=0)
    assert other.flush(BOUND_SECONDS) == 0
    assert read_all(kraftpy_server, topic, "read_committed") == []
    assert read_all(kraftpy_server, topic, "read_uncommitted") == [b"behind it", b"open"]
    producer.commit_transaction(BOUND_SECONDS)
    assert read_all(kraftpy_server, topic, "read_committed") == [b"behind it", b"open"]


def test_a_new_instance_fences_the_old_one(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    _, topic = topics
    transactional_id = name_of("t")
    zombie = producer_of(kraftpy_server, transactional_id)
    zombie.begin_transaction()
    zombie.produce(topic, b"of a zombie", partition=0)
    assert zombie.flush(BOUND_SECONDS) == 0
    owner = producer_of(kraftpy_server, transactional_id)
    owner.begin_transaction()
    owner.produce(topic, b"of the owner", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        zombie.commit_transaction(BOUND_SECONDS)
    assert refused.value.args[0].fatal()
    owner.commit_transaction(BOUND_SECONDS)
    assert read_all(kraftpy_server, topic, "read_committed") == [b"of the owner"]


def test_confluent_reads_transforms_and_writes(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    """Every input once in the output, though every third transaction is aborted after its offsets were sent."""
    source, target = topics
    plain = Producer({"bootstrap.servers": kraftpy_server.bootstrap})
    for number in range(60):
        plain.produce(source, str(number).encode(), partition=number % PARTITIONS)
    assert plain.flush(BOUND_SECONDS) == 0
    group, transactional_id = name_of("g"), name_of("t")
    rounds = 0
    done = 0
    deadline = time.monotonic() + 2 * BOUND_SECONDS
    while done < 60:
        producer = producer_of(kraftpy_server, transactional_id)  # each takes the place of the one before
        consumer = Consumer(
            {
                "bootstrap.servers": kraftpy_server.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([source])
        for _ in range(3):
            taken = []
            while not taken and done < 60:
                assert time.monotonic() < deadline, done
                taken = consumer.consume(5, 0.5)
            if not taken:
                break
            rounds += 1
            producer.begin_transaction()
            for message in taken:
                producer.produce(target, b"<" + message.value() + b">", partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), BOUND_SECONDS
            )
            if rounds % 3 == 0:
                producer.abort_transaction(BOUND_SECONDS)
                break
            producer.commit_transaction(BOUND_SECONDS)
            done += len(taken)
        consumer.close()
    assert read_all(kraftpy_server, target, "read_committed") == sorted(f"<{number}>".encode() for number in range(60))
    assert rounds > 5


def test_aiokafka_commits_aborts_and_sends_offsets(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    source, target = topics

    async def run() -> None:
        bootstrap = kraftpy_server.bootstrap
        group = name_of("g")
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name_of("t"))
        await producer.start()
        try:
            for number in range(4):
                await producer.begin_transaction()
                await producer.send_and_wait(target, str(number).encode(), partition=0)
                place = aiokafka.TopicPartition(source, 0)
                await producer.send_offsets_to_transaction({place: number + 10}, group)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            assert await consumer.committed(aiokafka.TopicPartition(source, 0)) == 12
            consumer.assign([aiokafka.TopicPartition(target, 0)])
            async with asyncio.timeout(BOUND_SECONDS):
                values = [(await consumer.getone()).value for _ in range(2)]
            assert values == [b"0", b"2"]
        finally:
            await consumer.stop()

    asyncio.run(run())


def test_kafka_python_sends_the_first_offsets_of_a_new_broker() -> None:
    """No client has asked for a group's coordinator yet, so the offsets topic does not exist."""
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("source", 1, 1)])["source"].result(BOUND_SECONDS)
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("target", b"0", partition=0)
        place = kafka.TopicPartition("source", 0)
        producer.send_offsets_to_transaction({place: kafka.OffsetAndMetadata(10, "", -1)}, "g")
        producer.commit_transaction()
        producer.close()


def test_kafka_python_commits_aborts_and_sends_offsets(kraftpy_server: EmbeddedBroker, topics: tuple[str, str]) -> None:
    source, target = topics
    group = name_of("g")
    producer = kafka.KafkaProducer(bootstrap_servers=kraftpy_server.bootstrap, transactional_id=name_of("t"))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(target, str(number).encode(), partition=0)
        place = kafka.TopicPartition(source, 0)
        producer.send_offsets_to_transaction({place: kafka.OffsetAndMetadata(number + 10, "", -1)}, group)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    reader = kafka.KafkaConsumer(
        bootstrap_servers=kraftpy_server.bootstrap,
        group_id=group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        assert reader.committed(kafka.TopicPartition(source, 0)) == 12
        reader.assign([kafka.TopicPartition(target, 0)])
        reader.seek(kafka.TopicPartition(target, 0), 0)
        values: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(values) < 2:
            assert time.monotonic() < deadline, values
            values += [record.value for records in reader.poll(500).values() for record in records]
        assert values == [b"0", b"2"]
    finally:
        reader.close()
