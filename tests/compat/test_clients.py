"""Unmodified public clients against our server, every one of them and in every pair."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import pytest
from compat.clients import AIOKAFKA, ALL, CONFLUENT, KAFKA_PYTHON, LIBRARIES, Client, Message

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"compat-{next(_names)}-{time.time_ns()}"


def _id(value: object) -> str:
    return getattr(value, "name", str(value))


@pytest.mark.parametrize("writer", ALL, ids=_id)
@pytest.mark.parametrize("reader", ALL, ids=_id)
def test_what_one_client_writes_another_reads(
    kraftpy_server: EmbeddedBroker, topic: str, writer: Client, reader: Client
) -> None:
    sent = [
        Message(b"plain"),
        Message(b"with a key", b"key"),
        Message(b"with headers", b"key", (("one", b"1"), ("two", b"2"), ("one", b"again"))),
        Message(None, b"tombstone"),
    ]
    writer.produce(kraftpy_server.bootstrap, topic, sent)
    found = reader.consume(kraftpy_server.bootstrap, topic, len(sent))
    assert [(m.value, m.key, m.headers) for m in found] == [(m.value, m.key, m.headers) for m in sent]
    assert [m.offset for m in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(kraftpy_server: EmbeddedBroker, topic: str, client: Client, acks: int) -> None:
    sent = [Message(b"%d" % i) for i in range(200)]
    client.produce(kraftpy_server.bootstrap, topic, sent, acks=acks)
    assert [m.value for m in client.consume(kraftpy_server.bootstrap, topic, 200)] == [m.value for m in sent]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("writer", ALL, ids=_id)
def test_codecs_cross_over(kraftpy_server: EmbeddedBroker, topic: str, writer: Client, codec: str) -> None:
    sent = [Message(b"compress me " * 50 + b"%d" % i, b"k%d" % i) for i in range(3 if writer.name == "kcat" else 300)]
    writer.produce(kraftpy_server.bootstrap, topic, sent, codec=codec)
    for reader in LIBRARIES:
        found = reader.consume(kraftpy_server.bootstrap, topic, len(sent))
        assert [(m.value, m.key) for m in found] == [(m.value, m.key) for m in sent], reader.name


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
def test_empty_and_null_keys_and_values_stay_apart(kraftpy_server: EmbeddedBroker, topic: str, client: Client) -> None:
    sent = [
        Message(b"", b""),
        Message(b"", None),
        Message(None, b""),
        Message(b"v", None),
        Message(b"v", b"", (("h", b""),)),
    ]
    client.produce(kraftpy_server.bootstrap, topic, sent)
    found = client.consume(kraftpy_server.bootstrap, topic, len(sent))
    assert [(m.value, m.key, m.headers) for m in found] == [(m.value, m.key, m.headers) for m in sent]


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
def test_timestamps_are_the_producers_own(kraftpy_server: EmbeddedBroker, topic: str, client: Client) -> None:
    start = int(time.time() * 1000) - 86_400_000
    sent = [Message(b"%d" % i, timestamp=start + i * 1000) for i in range(20)]
    client.produce(kraftpy_server.bootstrap, topic, sent)
    found = client.consume(kraftpy_server.bootstrap, topic, len(sent))
    assert [m.timestamp for m in found] == [m.timestamp for m in sent]


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
def test_partitions_are_kept_apart_and_in_order(start_server: EmbeddedBroker, topic: str, client: Client) -> None:
    sent = [Message(b"%d" % i, partition=i % 3) for i in range(300)]
    client.produce(start_server.bootstrap, topic, sent)
    found = client.consume(start_server.bootstrap, topic, len(sent))
    for partition in range(3):
        values = [int(m.value or b"") for m in found if m.partition == partition]
        assert values == list(range(partition, 300, 3))


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedBroker:
    """A server of three partitions a topic, where messages of 10 MB are allowed."""
    settings = {"num.partitions": "3", "message.max.bytes": "12000000", "offsets.topic.num.partitions": "8"}
    with EmbeddedBroker(tmp_path_factory.mktemp("server"), settings=settings) as broker:
        yield broker  # type: ignore[misc]
        assert "Traceback" not in broker.log_text, broker.log_text


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
def test_messages_of_10_mb_when_allowed(start_server: EmbeddedBroker, topic: str, client: Client) -> None:
    big = bytes(range(256)) * 40_000
    more = {"message.max.bytes": 12_000_000} if client is CONFLUENT else {}
    client.produce(start_server.bootstrap, topic, [Message(big), Message(b"small")], **more)
    assert {m.value for m in client.consume(start_server.bootstrap, topic, 2)} == {big, b"small"}


def test_a_message_that_is_too_large_is_refused(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        CONFLUENT.produce(
            kraftpy_server.bootstrap, topic, [Message(bytes(3_000_000))], **{"message.max.bytes": 12_000_000}
        )


@pytest.mark.parametrize("client", LIBRARIES, ids=_id)
def test_restart_in_between_keeps_records_and_positions(tmp_path: Path, topic: str, client: Client) -> None:
    settings = {"offsets.topic.num.partitions": "4"}
    with EmbeddedBroker(tmp_path, settings=settings) as broker:
        client.produce(broker.bootstrap, topic, [Message(b"%d" % i) for i in range(100)])
        assert len(client.consume(broker.bootstrap, topic, 100, group="readers")) == 100
        broker.stop()
        broker.start()
        client.produce(broker.bootstrap, topic, [Message(b"%d" % i) for i in range(100, 150)])
        broker.kill()
        broker.start()
        # The group resumes at its offsets; a new group reads everything.
        found = client.consume(broker.bootstrap, topic, 50, group="readers")
        assert [m.value for m in found] == [b"%d" % i for i in range(100, 150)]
        assert [m.offset for m in client.consume(broker.bootstrap, topic, 150)] == list(range(150))
        assert "Traceback" not in broker.log_text, broker.log_text


def test_two_clients_share_one_broker(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    KAFKA_PYTHON.produce(kraftpy_server.bootstrap, topic, [Message(b"a", b"same")] * 5)
    AIOKAFKA.produce(kraftpy_server.bootstrap, topic, [Message(b"b", b"same")] * 5)
    found = CONFLUENT.consume(kraftpy_server.bootstrap, topic, 10)
    assert Counter(m.value for m in found) == {b"a": 5, b"b": 5}
