"""Producers and consumer groups of third-party libraries, at work while nodes fail, and the proof afterwards.

Each library writes a topic of its own, each partition's records numbered from 0, with an idempotent producer that waits
for all in-sync replicas; and reads it back as a group that commits what it has seen. `Traffic.goes_on` is what is asked
after each failure: every partition of every topic gets a record that was sent after it, acknowledged and consumed.
`Traffic.proof` is asked at the end: nothing acknowledged is lost, nothing is there twice, nothing out of order, and no
group is behind what it committed.

Clients have their default settings, except those that the proof needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.errors import KafkaError as KafkaPythonError

PARTITIONS = 3
PAUSE_SECONDS = 0.02
BOUND_SECONDS = 40.0
_POLL_SECONDS = 0.02


class Producer(Protocol):
    """A producer of one library."""

    def __init__(self, bootstrap: str) -> None: ...

    def send(self, topic: str, partition: int, value: bytes, done: Callable[[object], None]) -> None:
        """Hand a record over; `done` is called with None once it is acknowledged, else with what went wrong."""
        ...

    def close(self) -> None:
        """Wait for all that was sent."""
        ...


class Consumer(Protocol):
    """A member of a group, of one library."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None: ...

    def poll(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of what arrived within a moment."""
        ...

    def commit(self, next_offsets: dict[int, int]) -> str | None:
        """Commit, and wait; None once it is done, else why not. It may be refused while the group rebalances."""
        ...

    def close(self) -> None: ...


class ConfluentProducer:
    """librdkafka's."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(self, topic: str, partition: int, value: bytes, done: Callable[[object], None]) -> None:
        self._producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: done(error))
        self._producer.poll(0)

    def close(self) -> None:
        assert self._producer.flush(BOUND_SECONDS) == 0, "every record is acknowledged, or has failed"


class ConfluentConsumer:
    """librdkafka's."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int, bytes]]:
        return [
            (message.partition(), message.offset(), message.value())
            for message in self._consumer.consume(500, 0.05)
            if message.error() is None
        ]

    def commit(self, next_offsets: dict[int, int]) -> str | None:
        offsets = [confluent_kafka.TopicPartition(self._topic, *pair) for pair in next_offsets.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            return repr(error)
        return next((str(each.error) for each in done or () if each.error is not None), None)

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonProducer:
    """kafka-python's."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), enable_idempotence=True)

    def send(self, topic: str, partition: int, value: bytes, done: Callable[[object], None]) -> None:
        future = self._producer.send(topic, value, partition=partition)
        future.add_callback(lambda _: done(None))
        future.add_errback(done)

    def close(self) -> None:
        self._producer.flush(timeout=BOUND_SECONDS)
        self._producer.close(timeout=BOUND_SECONDS)


class KafkaPythonConsumer:
    """kafka-python's."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._topic = topic
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer.partitions_for_topic(topic)  # one that joins before it knows them may be assigned none
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int, bytes]]:
        try:
            # A join that lasts longer than a poll is restarted by the next one, or leaves a member that never commits.
            found = self._consumer.poll(timeout_ms=5_000)
        except KafkaPythonError as error:
            if not error.retriable:
                raise
            time.sleep(0.05)  # it raises what fails for now, as when no node answers; an application polls again
            return []
        return [(record.partition, record.offset, record.value) for records in found.values() for record in records]

    def commit(self, next_offsets: dict[int, int]) -> str | None:
        offsets = {
            kafka.TopicPartition(self._topic, partition): kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in next_offsets.items()
        }
        try:
            self._consumer.commit(offsets)
        except KafkaPythonError as error:
            return repr(error)
        return None

    def close(self) -> None:
        self._consumer.close()


class _Loop:
    """An event loop in a thread, for the library that needs one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(BOUND_SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AioKafkaProducer:
    """aiokafka's."""

    def __init__(self, bootstrap: str) -> None:
        self._loop = _Loop()
        self._producer = self._loop.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        return producer

    def send(self, topic: str, partition: int, value: bytes, done: Callable[[object], None]) -> None:
        async def send() -> None:
            future = await self._producer.send(topic, value, partition=partition)
            future.add_done_callback(lambda future: done(future.exception()))

        self._loop.run(send())

    def close(self) -> None:
        self._loop.run(self._producer.stop())
        self._loop.close()


class AioKafkaConsumer:
    """aiokafka's."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._topic = topic
        self._loop = _Loop()
        self._consumer = self._loop.run(self._start(bootstrap, topic, group))

    async def _start(self, bootstrap: str, topic: str, group: str) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        return consumer

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = self._loop.run(self._consumer.getmany(timeout_ms=50))
        return [(record.partition, record.offset, record.value) for records in found.values() for record in records]

    def commit(self, next_offsets: dict[int, int]) -> str | None:
        offsets = {
            aiokafka.TopicPartition(self._topic, partition): offset for partition, offset in next_offsets.items()
        }
        try:
            self._loop.run(self._consumer.commit(offsets))
        except (AioKafkaError, TimeoutError) as error:
            return repr(error)
        return None

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.close()


LIBRARIES: dict[str, tuple[type[Producer], type[Consumer]]] = {
    "confluent-kafka": (ConfluentProducer, ConfluentConsumer),
    "kafka-python": (KafkaPythonProducer, KafkaPythonConsumer),
    "aiokafka": (AioKafkaProducer, AioKafkaConsumer),
}


class Flow:
    """One library's producer and group, each in a thread, and what they have seen."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.topic = f"events-{name}"
        self.group = f"readers-{name}"
        self.sent = [0] * PARTITIONS
        self.acknowledged = [-1] * PARTITIONS  # the last number; idempotence makes them come in order
        self.acknowledged_all: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.consumed: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.newest_consumed = [-1] * PARTITIONS
        self.committed = [0] * PARTITIONS
        self.not_committed: str | None = None
        self.failures: list[object] = []
        self._bootstrap = bootstrap
        self._stop_sending = threading.Event()
        self._stop_reading = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(each,), name=f"{name} {each.__name__}", daemon=True)
            for each in (self._produce, self._consume)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)
            raise

    def _produce(self) -> None:
        producer = LIBRARIES[self.name][0](self._bootstrap)
        while not self._stop_sending.is_set():
            for partition in range(PARTITIONS):
                number = self.sent[partition]
                self.sent[partition] += 1
                producer.send(self.topic, partition, b"%d" % number, self._done(partition, number))
            self._stop_sending.wait(PAUSE_SECONDS)
        producer.close()

    def _done(self, partition: int, number: int) -> Callable[[object], None]:
        def done(error: object) -> None:
            if error is None:
                self.acknowledged_all[partition].add(number)
                self.acknowledged[partition] = max(number, self.acknowledged[partition])
            else:
                self.failures.append(error)

        return done

    def _consume(self) -> None:
        consumer = LIBRARIES[self.name][1](self._bootstrap, self.topic, self.group)
        next_offsets: dict[int, int] = {}
        while not self._stop_reading.is_set():
            for partition, offset, value in consumer.poll():
                number = int(value)
                self.consumed[partition].add(number)
                self.newest_consumed[partition] = max(number, self.newest_consumed[partition])
                next_offsets[partition] = offset + 1
            if not next_offsets:
                continue
            self.not_committed = consumer.commit(next_offsets)
            if self.not_committed is None:
                for partition, offset in next_offsets.items():
                    self.committed[partition] = max(offset, self.committed[partition])
                next_offsets = {}
        consumer.close()

    def stop(self) -> None:
        """End the producer, have the rest consumed, end the group."""
        self._stop_sending.set()
        self._threads[0].join(2 * BOUND_SECONDS)
        assert not self._threads[0].is_alive(), f"{self.name}: the producer does not end"
        _until(lambda: self._has_all(), f"{self.name}: the group does not get to the end", self)
        self._stop_reading.set()
        self._threads[1].join(2 * BOUND_SECONDS)
        assert not self._threads[1].is_alive(), f"{self.name}: the consumer does not end"

    def _has_all(self) -> bool:
        return all(seen <= consumed for seen, consumed in zip(self.acknowledged_all, self.consumed, strict=True))

    def abandon(self) -> None:
        """Let it end when it can: the test has failed already."""
        self._stop_sending.set()
        self._stop_reading.set()

    def __str__(self) -> str:
        return (
            f"{self.name}: sent {self.sent}, acknowledged up to {self.acknowledged}, consumed up to "
            f"{self.newest_consumed}, committed {self.committed} ({self.not_committed or 'all'}), "
            f"failures {self.failures[:3]}"
        )


class Traffic:
    """The flows of several libraries over one cluster; a context manager that starts them and ends them."""

    def __init__(self, bootstrap: str, *names: str) -> None:
        self._bootstrap = bootstrap
        self.flows = [Flow(name, bootstrap) for name in names or LIBRARIES]

    def __enter__(self) -> Traffic:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        topics = [NewTopic(f.topic, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for f in self.flows]
        for future in admin.create_topics(topics).values():
            future.result(BOUND_SECONDS)
        for flow in self.flows:
            flow.start()
        try:
            self.goes_on("the start")
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._abandon()
            return
        for flow in self.flows:
            flow.stop()

    def _abandon(self) -> None:
        for flow in self.flows:
            flow.abandon()

    def goes_on(self, after: str) -> float:
        """Wait until every partition of every topic has a record of after this call acknowledged and consumed."""
        started = time.monotonic()
        marks = [(flow, list(flow.sent)) for flow in self.flows]
        for flow, mark in marks:
            _until(
                lambda flow=flow, mark=mark: all(  # type: ignore[misc]
                    flow.acknowledged[partition] > mark[partition] and flow.newest_consumed[partition] > mark[partition]
                    for partition in range(PARTITIONS)
                ),
                f"nothing more after {after}",
                flow,
            )
        return time.monotonic() - started

    def proof(self) -> None:
        """After the block: what is in the log, and what the groups committed."""
        for flow in self.flows:
            assert not flow.failures, f"a request failed: {flow}"
            for partition, numbers in enumerate(read_all(self._bootstrap, flow.topic)):
                where = f"{flow.topic}-{partition}"
                lost = sorted(flow.acknowledged_all[partition] - set(numbers))
                assert not lost, f"{where}: acknowledged and lost: {lost[:10]} of {len(lost)}"
                assert len(set(numbers)) == len(numbers), f"{where}: {_repeated(numbers)[:10]} twice"
                assert numbers == sorted(numbers), f"{where}: out of order"
                assert numbers == list(range(flow.sent[partition])), f"{where}: not all of {flow.sent[partition]}"
            assert min(flow.committed) > 0, f"the group committed nothing: {flow}"
            behind = {
                partition: (offset, flow.committed[partition])
                for partition, offset in committed(self._bootstrap, flow.topic, flow.group).items()
                if offset < flow.committed[partition]
            }
            assert not behind, f"{flow.group}: committed offsets went back: {behind}"


def _repeated(numbers: list[int]) -> list[int]:
    seen: set[int] = set()
    return [number for number in numbers if number in seen or seen.add(number)]  # type: ignore[func-returns-value]


def read_all(bootstrap: str, topic: str) -> list[list[int]]:
    """The numbers in each partition, from its start to its end, in their order."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "the proof"})
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with contextlib.closing(consumer):
        partitions = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(each, BOUND_SECONDS)[1] for each in partitions]
        consumer.assign(partitions)
        offsets = [0] * PARTITIONS
        deadline = time.monotonic() + BOUND_SECONDS
        while any(offset < end for offset, end in zip(offsets, ends, strict=True)):
            assert time.monotonic() < deadline, f"{topic} is read up to {offsets} of {ends}"
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                assert message.offset() >= offsets[message.partition()]
                offsets[message.partition()] = message.offset() + 1
                found[message.partition()].append(int(message.value()))
    return found


def committed(bootstrap: str, topic: str, group: str) -> dict[int, int]:
    """The group's committed offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    with contextlib.closing(consumer):
        partitions = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(partitions, BOUND_SECONDS)}


def _until(is_true: Callable[[], bool], otherwise: str, flow: Flow) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not is_true():
        assert not flow.failures, f"{otherwise}: {flow}"
        assert time.monotonic() < deadline, f"{otherwise}: {flow}"
        time.sleep(_POLL_SECONDS)
