"""Helpers for the cleaner's tests: a compacted topic, the records sent to it, and the records clients read from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import kafka
from compat.clients import Message
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 60.0
TABLE = "table"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def create(broker: EmbeddedBroker, name: str = TABLE, **config: str) -> None:
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "file.delete.delay.ms": "0", **config}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(BOUND_SECONDS)


def log_bytes(broker: EmbeddedBroker, name: str = TABLE) -> int:
    """Bytes in the topic's `.log` files; one that is renamed while it is looked at counts for nothing."""
    total = 0
    for file in (broker.data_dir / "logs" / f"{name}-0").glob("*.log"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def produce(
    bootstrap: str, messages: list[Message], *, codec: str = "none", topic: str = TABLE, batch: int = 50
) -> dict[int, Message]:
    """Send with librdkafka, `batch` records in each batch; what is at each offset."""
    sent: dict[int, Message] = {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 1000, "batch.num.messages": batch}
    )

    def delivered(message: Message) -> Callable[[object, object], None]:
        def note(error: object, report: object) -> None:
            assert error is None, error
            sent[report.offset()] = message  # type: ignore[attr-defined]

        return note

    for message in messages:
        producer.produce(topic, message.value, message.key, on_delivery=delivered(message))
    assert producer.flush(BOUND_SECONDS) == 0
    assert len(sent) == len(messages)
    return sent


def read_confluent(bootstrap: str, last_offset: int, topic: str = TABLE) -> list[Message]:
    """Everything from the beginning to the last record that was sent, which no compaction removes."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while not found or found[-1].offset != last_offset:
        assert time.monotonic() < deadline, found[-1:]
        for message in consumer.consume(10_000, 0.2):
            assert message.error() is None, message.error()
            found.append(Message(message.value(), message.key(), offset=message.offset()))
    consumer.close()
    return found


def read_kafka_python(bootstrap: str, last_offset: int, topic: str = TABLE) -> list[Message]:
    """The same with kafka-python."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, max_partition_fetch_bytes=16_000_000)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while not found or found[-1].offset != last_offset:
        assert time.monotonic() < deadline, found[-1:]
        for records in consumer.poll(timeout_ms=200).values():
            found += [Message(record.value, record.key, offset=record.offset) for record in records]
    consumer.close()
    return found


READERS = (read_confluent, read_kafka_python)


def check_read(found: list[Message], sent: dict[int, Message]) -> None:
    """Check that offsets rise, every record keeps its offset, and each key's last record is the last one sent."""
    offsets = [message.offset or 0 for message in found]
    assert offsets == sorted(set(offsets)), "offsets rise"
    for message in found:
        at = sent[message.offset or 0]
        assert (message.key, message.value) == (at.key, at.value), message.offset
    last = {message.key: message.value for _, message in sorted(sent.items())}
    read = {message.key: message.value for message in found}
    assert read | {key: None for key, value in last.items() if value is None} == last, "the last of each key is there"


def workers_of(pid: int) -> list[int]:
    """The process ids of a broker's cleaners."""
    try:
        children = [
            int(child)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []
    return [child for child in children if is_worker(child)]


def worker_of(pid: int) -> int | None:
    """Return one of the worker processes, or None if there is none now."""
    return next(iter(workers_of(pid)), None)


def is_worker(pid: int) -> bool:
    """Return whether that process exists and is a cleaner's worker."""
    try:
        return b"cleaning_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
