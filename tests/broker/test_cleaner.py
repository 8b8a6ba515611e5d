"""Compaction in a running broker: `cleanup.policy=compact` keeps the last value of each key, and only that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from compat.clients import CONFLUENT, Message
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker
from tests.waiting import eventually

BOUND_SECONDS = 30.0
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "1048576",
}


def test_the_last_value_of_each_key_stays_where_it_was(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "file.delete.delay.ms": "0"}
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("table", 1, 1, config=config)])["table"].result(20)
        sent = [Message(b"%d" % i + b"." * 100, b"key %d" % (i % 10)) for i in range(2000)]
        for start in range(0, len(sent), 100):  # batches of a hundred, so that segments roll
            CONFLUENT.produce(broker.bootstrap, "table", sent[start : start + 100])
        log = tmp_path / "logs" / "table-0"

        def size() -> int:
            try:
                return sum(file.stat().st_size for file in log.glob("*.log"))
            except FileNotFoundError:  # replaced between the look at the directory and the look at the file
                return 1 << 60

        eventually(lambda: size() < 60_000, "240 kB of ten keys shrink to about three segments")
        before_restart = read_all(broker, 1999)
        broker.kill()
        broker.start()
        after_restart = read_all(broker, 1999)
        for found in (before_restart, after_restart):
            offsets = [m.offset for m in found]
            assert offsets == sorted(offsets), "offsets stay in order"
            assert {m.key: m.value for m in found} == {m.key: m.value for m in sent}, "the last of each key is there"
            assert all(sent[m.offset or 0].value == m.value for m in found), "every record is where it was"
        assert "Traceback" not in broker.log_text, broker.log_text


def read_all(broker: EmbeddedBroker, last_offset: int) -> list[Message]:
    """From the start to the last record that was sent, which no compaction removes."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("table", 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while not found or found[-1].offset != last_offset:
        assert time.monotonic() < deadline, found[-1:]
        for message in consumer.consume(10_000, 0.2):
            assert message.error() is None, message.error()
            found.append(Message(message.value(), message.key(), offset=message.offset()))
    consumer.close()
    return found


def test_the_offsets_topic_does_not_grow_with_every_commit(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker:
        CONFLUENT.produce(broker.bootstrap, "events", [Message(b"x")])
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "committer"})
        consumer.subscribe(["events"])
        eventually(lambda: bool(consumer.poll(0.1) or consumer.assignment()), "the coordinator is there")
        for offset in range(1000):
            wanted = TopicPartition("events", 0, offset, metadata="m" * 4000)
            consumer.commit(offsets=[wanted], asynchronous=False)
        log = tmp_path / "logs" / "__consumer_offsets-0"

        def live_bytes() -> int:
            try:
                return sum(file.stat().st_size for file in log.glob("*.log"))
            except FileNotFoundError:  # as above
                return 1 << 60

        eventually(
            lambda: live_bytes() < 2_200_000, "of 4 MB of commits, one counts and the segment being written stays"
        )
        broker.kill()
        broker.start()
        assert consumer.committed([TopicPartition("events", 0)], timeout=20)[0].offset == 999
        consumer.close()
        assert "Traceback" not in broker.log_text, broker.log_text


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_without_a_key_is_refused(tmp_path: Path, codec: str) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("table", 1, 1, config={"cleanup.policy": "compact"})])["table"].result(20)
        with pytest.raises(AssertionError, match="INVALID_RECORD"):
            CONFLUENT.produce(broker.bootstrap, "table", [Message(b"no key")], codec=codec)
