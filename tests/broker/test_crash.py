"""SIGKILL at any moment: acknowledged records are there, in order, once, and the broker resumes.

The page cache survives a killed process, so this must hold with and without syncs before the answers; what must hold
when the power goes is tested against a disk in memory (tests/log, tests/metadata, test_flush_before_ack).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import confluent_kafka
import pytest
from broker_wire import StartBroker, ask, connect, create_topic, fetch, produce, produce_values, read_all, serves

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker

SEED = 20261121
ROUNDS = 6
PARTITIONS = 2
IN_FLIGHT = 1000
SYNCING_NAMES = ["page cache", "flush.messages", "flush.before.ack"]
SYNCING: list[dict[str, str]] = [{}, {"flush_messages": "1"}, {"kraftpy_flush_before_ack": "true"}]


class Writer:
    """An idempotent producer in a thread of its own that never stops writing numbers, each to one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        self.failed: list[int] = []
        self.sent = 0
        self._topic = topic
        self._ended = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.size": 8000,  # well below the size of a segment
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "message.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self.sent - self.progress() > IN_FLIGHT:
                self._producer.poll(0.01)
                continue
            number = self.sent
            self._producer.produce(
                self._topic, str(number).encode(), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        number = int(message.value() or b"-1")
        if error is not None:
            self.failed.append(number)
        else:
            offset = message.offset()
            assert offset is not None
            self.acknowledged[number % PARTITIONS].append((number, offset))

    def progress(self) -> int:
        return sum(map(len, self.acknowledged))

    def end(self) -> None:
        """Stop writing, and wait until everything sent is acknowledged."""
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def check(bootstrap: str, topic: str, writer: Writer) -> None:
    """Check that acknowledged records are at their offsets, every number once and in order, offsets without a hole."""
    assert not writer.failed
    for partition in range(PARTITIONS):
        found = read_all(bootstrap, topic, partition=partition)
        assert [offset for offset, _ in found] == list(range(len(found)))
        values = [int(value or b"-1") for _, value in found]
        assert values == list(range(partition, writer.sent, PARTITIONS))
        by_offset = dict(found)
        for number, offset in writer.acknowledged[partition]:
            if offset >= 0:  # librdkafka knows no offset of a batch that turned out to be a duplicate
                assert by_offset[offset] == str(number).encode()


@pytest.mark.parametrize("syncing", SYNCING, ids=SYNCING_NAMES)
def test_no_acknowledged_record_is_lost(start_broker: StartBroker, syncing: dict[str, str]) -> None:
    """Kill the broker again and again under a steady producer; segments are small, so that rolls are hit too."""
    chance = Random(SEED)
    broker = start_broker()
    topic = "crashed"
    with connect(broker.bootstrap) as connection:
        small = {"internal_segment_bytes": "32768", "index_interval_bytes": "256"}
        create_topic(connection, topic, PARTITIONS, **syncing, **small)
    writer = Writer(broker.bootstrap, topic)
    try:
        for _ in range(ROUNDS):
            before = writer.progress()
            wait_for(lambda before=before: writer.progress() > before)  # type: ignore[misc]
            time.sleep(chance.random() * 0.4)
            broker.kill()
            broker.start()
    finally:
        writer.end()
    check(broker.bootstrap, topic, writer)
    assert broker.stop() == 0
    broker.start()
    check(broker.bootstrap, topic, writer)
    assert "Traceback" not in broker.log_text


@pytest.mark.parametrize("damage", ["garbage", "zeros", "cut", "cut to nothing", "half a batch"])
def test_a_torn_tail_costs_the_tail(start_broker: StartBroker, damage: str) -> None:
    """A power loss tears the last write: the whole batches before it are kept, and the log continues there."""
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "torn")
        for number in range(20):
            assert produce_values(connection, "torn", b"%d" % number) == number
    broker.kill()
    segment = broker.data_dir / "logs" / "torn-0" / "00000000000000000000.log"
    data = segment.read_bytes()
    batch_bytes = len(data) // 20
    kept = {"cut": 19, "cut to nothing": 0}.get(damage, 20)
    match damage:
        case "garbage":
            segment.write_bytes(data + Random(SEED).randbytes(300))
        case "zeros":
            segment.write_bytes(data + bytes(4096))
        case "cut":
            segment.write_bytes(data[:-7])
        case "cut to nothing":
            segment.write_bytes(b"")
        case _:
            segment.write_bytes(data + data[: batch_bytes // 2])
    broker.start()
    assert read_all(broker.bootstrap, "torn") == [(number, b"%d" % number) for number in range(kept)]
    with connect(broker.bootstrap) as connection:
        assert produce_values(connection, "torn", b"next") == kept
    broker.kill()
    broker.start()
    assert read_all(broker.bootstrap, "torn")[kept:] == [(kept, b"next")]


def test_a_flipped_bit_before_the_recovery_point_is_not_served_as_good(start_broker: StartBroker) -> None:
    """After a crash everything not synced is verified; the log is truncated at the first damage."""
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "flipped")
        for number in range(10):
            produce_values(connection, "flipped", b"%d" % number)
    broker.kill()
    segment = broker.data_dir / "logs" / "flipped-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 + 40] ^= 1
    segment.write_bytes(data)
    broker.start()
    assert read_all(broker.bootstrap, "flipped") == [(number, b"%d" % number) for number in range(5)]


@pytest.mark.parametrize(
    "syncing",
    [{}, {"log.flush.interval.messages": "1"}, {"kraftpy.flush.before.ack": "true"}],
    ids=SYNCING_NAMES,
)
def test_committed_offsets_survive(start_broker: StartBroker, syncing: dict[str, str]) -> None:
    """With a sync before each answer too: then answers come later than what follows them is asked."""
    broker = start_broker(settings={"offsets.topic.num.partitions": "4", **syncing})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "read", PARTITIONS)
        for number in range(100):
            produce_values(connection, "read", b"%d" % number, partition=number % PARTITIONS)
    groups = [f"group-{number}" for number in range(6)]
    for _ in range(3):
        for number, group in enumerate(groups):
            with grouped(broker.bootstrap, group) as consumer:
                consumer.commit(offsets=positions(10 + number), asynchronous=False)
        broker.kill()
        broker.start()
        for number, group in enumerate(groups):
            with grouped(broker.bootstrap, group) as consumer:
                found = consumer.committed(positions(), timeout=20)
            assert [each.offset for each in found] == [10 + number + part for part in range(PARTITIONS)]
    assert "Traceback" not in broker.log_text


def positions(first: int = -1001) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition("read", part, first + part) for part in range(PARTITIONS)]


@contextmanager
def grouped(bootstrap: str, group: str) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("crash", [True, False], ids=["SIGKILL", "SIGTERM"])
def test_a_repeated_batch_gets_its_first_offset_after_a_restart(start_broker: StartBroker, crash: bool) -> None:
    """A producer whose answer was lost in the crash sends again: it must not be stored twice (KIP-98)."""
    broker = start_broker()

    def batch(sequence: int) -> bytearray:
        record = (1_700_000_000_000, None, b"%d" % sequence, ())
        return bytearray(encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence))

    with connect(broker.bootstrap) as connection:
        create_topic(connection, "once")
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        producer_id = ask(connection, ApiKey.INIT_PRODUCER_ID, 4, request).producer_id
        for sequence in range(8):
            answered = produce(connection, "once", batch(sequence))
            assert (answered.error_code, answered.base_offset) == (ErrorCode.NONE, sequence)
    for _ in range(2):
        broker.kill() if crash else broker.stop()
        broker.start()
        with connect(broker.bootstrap) as connection:
            for sequence in range(3, 8):
                answered = produce(connection, "once", batch(sequence))
                assert (answered.error_code, answered.base_offset) == (ErrorCode.NONE, sequence)
            assert produce(connection, "once", batch(0)).error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            assert produce(connection, "once", batch(9)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            described = ask(
                connection,
                ApiKey.DESCRIBE_PRODUCERS,
                0,
                DescribeProducersRequest(topics=[TopicRequest(name="once", partition_indexes=[0])]),
            )
            states = described.topics[0].partitions[0].active_producers
            assert [(state.producer_id, state.last_sequence) for state in states] == [(producer_id, 7)]
    assert [value for _, value in read_all(broker.bootstrap, "once")] == [b"%d" % number for number in range(8)]
    with connect(broker.bootstrap) as connection:
        assert produce(connection, "once", batch(8)).base_offset == 8
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert ask(connection, ApiKey.INIT_PRODUCER_ID, 4, request).producer_id > producer_id, "never one given before"


@pytest.mark.parametrize("crash", [True, False], ids=["SIGKILL", "SIGTERM"])
def test_deleted_records_stay_deleted(start_broker: StartBroker, crash: bool) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "shortened")
        for number in range(10):
            produce_values(connection, "shortened", b"%d" % number)
        request = DeleteRecordsRequest(
            timeout_ms=1000,
            topics=[
                DeleteRecordsTopic(name="shortened", partitions=[DeleteRecordsPartition(partition_index=0, offset=4)])
            ],
        )
        deleted = ask(connection, ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0]
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 4)
    broker.kill() if crash else broker.stop()
    broker.start()
    with connect(broker.bootstrap) as connection:
        assert fetch(connection, "shortened", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch(connection, "shortened", 4).log_start_offset == 4
    assert read_all(broker.bootstrap, "shortened", offset=4)[0] == (4, b"4")


def test_topics_come_and_go_across_crashes(start_broker: StartBroker) -> None:
    """A topic is there or is not; one that was created again under its name has nothing of its predecessor's."""
    broker = start_broker()
    for generation in range(4):
        with connect(broker.bootstrap) as connection:
            topic_id = create_topic(connection, "again", 3)
            produce_values(connection, "again", b"generation %d" % generation, partition=2)
        broker.kill()
        broker.start()
        assert read_all(broker.bootstrap, "again", partition=2) == [(0, b"generation %d" % generation)]
        with connect(broker.bootstrap) as connection:
            delete_topic(connection, topic_id)
        broker.kill()
        broker.start()
        with connect(broker.bootstrap) as connection:
            assert fetch(connection, "again", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.stop()
    assert [path.name for path in (broker.data_dir / "logs").iterdir() if path.name.startswith("again")] == []
    broker.start()
    serves(broker.bootstrap)


def delete_topic(connection: socket.socket, topic_id: bytes) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1000)
    answered = ask(connection, ApiKey.DELETE_TOPICS, 6, request).responses[0]
    assert answered.error_code == ErrorCode.NONE
    assert answered.name == "again"


def test_a_crash_while_starting(start_broker: StartBroker) -> None:
    """Killed during its own recovery, again and again, a broker loses nothing."""
    broker: EmbeddedBroker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "restarted", 4)
        for number in range(200):
            produce_values(connection, "restarted", b"%d" % number, partition=number % 4)
    broker.kill()
    chance = Random(SEED)
    command = [sys.executable, "-m", "kraftpy", "server", "--override", "listeners=PLAINTEXT://127.0.0.1:0"]
    command += ["--override", f"log.dirs={broker.data_dir / 'logs'}"]
    for _ in range(6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.random() * 0.5)
        process.kill()
        process.wait()
    broker.start()
    for partition in range(4):
        found = read_all(broker.bootstrap, "restarted", partition=partition)
        assert [value for _, value in found] == [b"%d" % number for number in range(partition, 200, 4)]
