"""Clients that are not ours, behind one small shape each: send these records, read that topic.

Each is used as its own documentation says, with nothing about this broker in it. The shape is what they have in
common, so that every test can be asked of each of them, and of each pair of a writer and a reader.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka

BOUND_SECONDS = 40.0


@dataclass(frozen=True)
class Message:
    """A record as any client sees it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int | None = None
    offset: int | None = None


class Client(Protocol):
    """A client library."""

    name: str
    codecs: tuple[str, ...]

    def produce(
        self, bootstrap: str, topic: str, messages: list[Message], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> None:
        """Send all and wait for the acknowledgements; raises if one fails."""
        ...

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Message]:
        """Read `count` messages from the start, in the order they came."""
        ...


class ConfluentKafka:
    """librdkafka through confluent-kafka."""

    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, messages: list[Message], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> None:
        errors: list[object] = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                errors.append(error)

        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "acks": acks, **more}
        )
        for message in messages:
            optional: dict[str, Any] = {}
            if message.timestamp is not None:
                optional["timestamp"] = message.timestamp
            if message.partition is not None:
                optional["partition"] = message.partition
            producer.produce(
                topic,
                message.value,
                message.key,
                headers=list(message.headers) or None,
                on_delivery=delivered,
                **optional,
            )
        assert producer.flush(BOUND_SECONDS) == 0
        assert not errors, errors[:3]

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Message]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group or f"confluent-{time.time_ns()}",
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": 16_000_000,
            }
        )
        consumer.subscribe([topic])
        found: list[Message] = []
        deadline = time.monotonic() + BOUND_SECONDS
        try:
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.5):
                    assert message.error() is None, message.error()
                    found.append(
                        Message(
                            message.value(),
                            message.key(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                            message.partition(),
                            message.offset(),
                        )
                    )
        finally:
            consumer.close()
        return found


class KafkaPython:
    """kafka-python: pure Python, its own implementation of the protocol."""

    name = "kafka-python"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, messages: list[Message], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=acks == -1,
            max_request_size=16_000_000,
            **more,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    headers=list(message.headers),
                    timestamp_ms=message.timestamp,
                    partition=message.partition,
                )
                for message in messages
            ]
            for future in sent:
                future.get(BOUND_SECONDS)
        finally:
            producer.close(timeout=BOUND_SECONDS)

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group or f"kafka-python-{time.time_ns()}",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=16_000_000,
        )
        found: list[Message] = []
        deadline = time.monotonic() + BOUND_SECONDS
        try:
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=500).values():
                    found.extend(_from_attributes(record) for record in records)
        finally:
            consumer.close()
        return found


class AioKafka:
    """aiokafka: asyncio, with the oldest protocol versions of all."""

    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, messages: list[Message], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> None:
        asyncio.run(self._produce(bootstrap, topic, messages, codec, acks, more))

    async def _produce(
        self, bootstrap: str, topic: str, messages: list[Message], codec: str, acks: int, more: dict[str, Any]
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=acks == -1,
            max_request_size=16_000_000,
            **more,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    message.value,
                    message.key,
                    headers=list(message.headers),
                    timestamp_ms=message.timestamp,
                    partition=message.partition,
                )
                for message in messages
            ]
            await asyncio.wait_for(asyncio.gather(*sent), BOUND_SECONDS)
        finally:
            await producer.stop()

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Message]:
        return asyncio.run(self._consume(bootstrap, topic, count, group))

    async def _consume(self, bootstrap: str, topic: str, count: int, group: str | None) -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group or f"aiokafka-{time.time_ns()}",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=16_000_000,
        )
        await consumer.start()
        found: list[Message] = []
        deadline = time.monotonic() + BOUND_SECONDS
        try:
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found.extend(_from_attributes(record) for record in records)
        finally:
            await consumer.stop()
        return found


class Kcat:
    """kcat from Debian: librdkafka 2.0, two years older than confluent-kafka's."""

    name = "kcat"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, messages: list[Message], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> None:
        for message in messages:  # one process each: kcat takes headers, partition and null as arguments
            command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-z", codec, "-X", f"acks={acks}"]
            if message.partition is not None:
                command += ["-p", str(message.partition)]
            if message.value is not None and message.key is not None:
                command += ["-k", message.key.decode()]
            for name, value in message.headers:
                command += ["-H", name if value is None else f"{name}={value.decode()}"]
            if message.value is None:  # kcat sends null (-Z) for what is empty behind the key's delimiter (-K)
                line = (message.key or b"") + b"\t\n"
                subprocess.run([*command, "-Z", "-K", "\t"], input=line, check=True, timeout=BOUND_SECONDS)
                continue
            with tempfile.NamedTemporaryFile() as content:  # a named file is one message, even with newlines
                content.write(message.value)
                content.flush()
                subprocess.run([*command, content.name], check=True, timeout=BOUND_SECONDS)

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Message]:
        command = ["kcat", "-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-c", str(count), "-J", "-q"]
        run = subprocess.run(command, capture_output=True, check=True, timeout=BOUND_SECONDS)
        return [self._message(json.loads(line)) for line in run.stdout.splitlines()]

    def _message(self, found: dict[str, Any]) -> Message:
        pairs = found.get("headers", [])
        headers = tuple(
            (name, None if value is None else value.encode())
            for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        )
        return Message(
            None if found["payload"] is None else found["payload"].encode(),
            None if found["key"] is None else found["key"].encode(),
            headers,
            found["ts"],
            found["partition"],
            found["offset"],
        )


def _from_attributes(record: Any) -> Message:
    """kafka-python and aiokafka name a record's parts alike."""
    return Message(record.value, record.key, tuple(record.headers), record.timestamp, record.partition, record.offset)


CONFLUENT, KAFKA_PYTHON, AIOKAFKA, KCAT = ConfluentKafka(), KafkaPython(), AioKafka(), Kcat()
ALL: tuple[Client, ...] = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA, KCAT)
LIBRARIES: tuple[Client, ...] = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
