"""Anything a hostile or broken peer sends can cost its connection, never the broker."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
import zlib

import confluent_kafka
import pytest
from broker_wire import answer, ask, connect, create_topic, fetch, is_closed, read_frame, resident_mb, serves
from compat.clients import CONFLUENT, Message

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kraftpy.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import decode
from kraftpy.testing.cluster import EmbeddedBroker

SEED = 20261121


FRAMES = {
    "negative size": struct.pack(">i", -1),
    "huge size": struct.pack(">i", 2**31 - 1),
    "just above socket.request.max.bytes": struct.pack(">i", 104_857_601),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303"),
    "empty frame": struct.pack(">i", 0),
    "half a header": struct.pack(">ihh", 4, 3, 1),
    "unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unsupported version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "2^31-1 topics": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    "negative client id length": struct.pack(">ihhih", 10, 3, 1, 1, -9),
    "2^28 tagged fields": struct.pack(">ihhih", 15, 18, 3, 1, -1) + b"\xff\xff\xff\xff\x01",
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_malformed_frame_costs_its_connection(kraftpy_server: EmbeddedBroker, name: str) -> None:
    with connect(kraftpy_server.bootstrap) as connection:
        connection.sendall(FRAMES[name])
        if name == "TLS":  # a plausible size: the broker waits for the rest, and the peer gives up
            connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)
    serves(kraftpy_server.bootstrap)


def test_names_that_are_not_utf_8_are_answered(kraftpy_server: EmbeddedBroker) -> None:
    """As in Kafka: they name nothing that exists, but cost no connection."""
    with connect(kraftpy_server.bootstrap) as connection:
        names = struct.pack(">i", 2) + b"\0\x03t\xff1" + b"\0\x02\xc0\xaf"
        request = struct.pack(">hhih", 3, 1, 7, 2) + b"\xfe\xff" + names
        connection.sendall(struct.pack(">i", len(request)) + request)
        found = answer(connection, ApiKey.METADATA, 1)
        assert [(topic.name, topic.error_code) for topic in found.topics] == [
            ("t\ufffd1", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("\ufffd\ufffd", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        group = b"g\x80"
        request = struct.pack(">hhih", 15, 0, 7, -1) + struct.pack(">ih", 1, len(group)) + group
        connection.sendall(struct.pack(">i", len(request)) + request)
        (described,) = answer(connection, ApiKey.DESCRIBE_GROUPS, 0).groups
        assert described.group_id == "g\ufffd"


def test_an_unsupported_api_versions_is_answered_in_version_0(kraftpy_server: EmbeddedBroker) -> None:
    with connect(kraftpy_server.bootstrap) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 77, 5, -1))
        frame = read_frame(connection)
        assert frame[:4] == struct.pack(">i", 5)
        found = decode(ApiVersionsResponse, memoryview(frame)[4:], 0)
        assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(key.api_key, key.min_version, key.max_version) for key in found.api_keys] == [(18, 0, 5)], "as Kafka"
        # The connection stays open: that is what the answer is for.
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        ask(connection, ApiKey.API_VERSIONS, 3, request)


def test_a_frame_that_never_ends_holds_nothing_up(kraftpy_server: EmbeddedBroker) -> None:
    with contextlib.ExitStack() as stack:
        before = resident_mb(kraftpy_server.pid)
        for _ in range(20):
            slow = stack.enter_context(connect(kraftpy_server.bootstrap))
            slow.sendall(struct.pack(">i", 100_000_000) + b"\x00\x03\x00\x01")
        serves(kraftpy_server.bootstrap)
        assert resident_mb(kraftpy_server.pid) < before + 50, "2 GB were announced, almost nothing was sent"


def produce(connection: socket.socket, topic: str, records: bytes, version: int = 9) -> tuple[int, int]:
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])],
    )
    found = ask(connection, ApiKey.PRODUCE, version, request)
    assert isinstance(found, ProduceResponse)
    answer = found.responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


def test_a_bad_batch_costs_its_partition_an_error(kraftpy_server: EmbeddedBroker) -> None:
    topic = f"bad-batches-{time.time_ns()}"
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"first")])
    good = encode_batch([(1_700_000_000_000, b"k", b"v" * 50, ())])

    def changed(position: int, data: bytes) -> bytes:
        return good[:position] + data + good[position + len(data) :]

    with connect(kraftpy_server.bootstrap) as connection:
        expected = {
            "flipped bit": (changed(80, bytes([good[80] ^ 1])), ErrorCode.CORRUPT_MESSAGE),
            "torn": (good[:-10], ErrorCode.INVALID_RECORD),
            "lying length": (changed(8, struct.pack(">i", 2**31 - 1)), ErrorCode.INVALID_RECORD),
            "negative length": (changed(8, struct.pack(">i", -5)), ErrorCode.CORRUPT_MESSAGE),
        }
        for what, (records, code) in expected.items():
            assert produce(connection, topic, records)[0] == code, what
        lying = bytearray(encode_batch([(1_700_000_000_000, b"k", b"v", ())]))
        lying[57:61] = struct.pack(">i", 1_000_000)
        import crc32c

        lying[17:21] = struct.pack(">I", crc32c.crc32c(bytes(lying[21:])))
        assert produce(connection, topic, bytes(lying))[0] == ErrorCode.INVALID_RECORD
        assert produce(connection, topic, b"")[0] != ErrorCode.NONE
        assert produce(connection, topic, good) == (ErrorCode.NONE, 1), "and the next good one is stored"


def test_message_sets_get_the_proper_error(kraftpy_server: EmbeddedBroker) -> None:
    topic = f"old-format-{time.time_ns()}"
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"first")])
    message_set = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)
    with connect(kraftpy_server.bootstrap) as connection:
        for version in (0, 1, 2):
            assert produce(connection, topic, message_set, version)[0] == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_garbage_and_mutations_never_stop_the_broker(kraftpy_server: EmbeddedBroker) -> None:
    chance = random.Random(SEED)
    topic = f"mutations-{time.time_ns()}"
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"before")])
    batch = encode_batch([(1_700_000_000_000, b"k", b"v" * 20, ())])
    originals = [
        encode_request(
            ApiKey.PRODUCE,
            9,
            1,
            "fuzz",
            ProduceRequest(
                acks=1,
                timeout_ms=100,
                topic_data=[
                    TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
                ],
            ),
        ),
        encode_request(
            ApiKey.FETCH,
            12,
            1,
            "fuzz",
            FetchRequest(
                max_wait_ms=1,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
                    )
                ],
            ),
        ),
        encode_request(
            ApiKey.API_VERSIONS, 3, 1, "fuzz", ApiVersionsRequest(client_software_name="f", client_software_version="1")
        ),
    ]
    frames = []
    for _ in range(800):
        frame = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
        frames.append(bytes(frame))
    # Several on each connection, and many connections at once, so that the two processes need not take turns.
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(kraftpy_server.bootstrap)) for _ in range(100)]
        for number, frame in enumerate(frames):
            with contextlib.suppress(ConnectionError):
                connections[number % len(connections)].sendall(frame)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                while connection.recv(65536):
                    pass
    serves(kraftpy_server.bootstrap)
    found = CONFLUENT.consume(kraftpy_server.bootstrap, topic, 1)
    assert found[0].value == b"before"


def test_a_fetch_of_a_topic_that_is_not_there(kraftpy_server: EmbeddedBroker) -> None:
    with connect(kraftpy_server.bootstrap) as connection:
        request = FetchRequest(
            max_wait_ms=1,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic="no-such", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
                )
            ],
        )
        found = ask(connection, ApiKey.FETCH, 12, request)
        assert isinstance(found, FetchResponse)
        assert found.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_may_not_fetch_as_a_replica(kraftpy_server: EmbeddedBroker) -> None:
    """CVE-2018-1288: a crafted Fetch must not act on replication."""
    with connect(kraftpy_server.bootstrap) as connection:
        found = ask(connection, ApiKey.FETCH, 12, FetchRequest(replica_id=1, max_wait_ms=1, min_bytes=1))
        assert isinstance(found, FetchResponse)
        assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_many_connections_come_and_go(kraftpy_server: EmbeddedBroker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(kraftpy_server.bootstrap))
        serves(kraftpy_server.bootstrap)
    producer = confluent_kafka.Producer({"bootstrap.servers": kraftpy_server.bootstrap})
    assert producer.list_topics(timeout=20).brokers


@pytest.mark.parametrize("version", [3, 7, 9])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_in_newer_requests_get_the_proper_error(
    kraftpy_server: EmbeddedBroker, magic: int, version: int
) -> None:
    topic = f"old-magic-{time.time_ns()}"
    body = struct.pack(">bb", magic, 0) + bytes(8 * magic) + struct.pack(">ii", -1, 1) + b"v"
    message = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    with connect(kraftpy_server.bootstrap) as connection:
        create_topic(connection, topic)
        for records in (message, message * 5):  # shorter and longer than a batch's header
            assert produce(connection, topic, records, version)[0] == ErrorCode.INVALID_RECORD


def test_a_transaction_cannot_be_begun_by_a_batch_alone(kraftpy_server: EmbeddedBroker) -> None:
    """Without a transactional id nothing could end it, and read_committed readers would wait forever."""
    topic = f"transactional-{time.time_ns()}"
    record = (1_700_000_000_000, None, b"v", ())
    begun = encode_batch([record], is_transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    with connect(kraftpy_server.bootstrap) as connection:
        create_topic(connection, topic)
        assert produce(connection, topic, begun)[0] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert produce(connection, topic, encode_batch([record], is_control=True))[0] == ErrorCode.INVALID_RECORD
        assert produce(connection, topic, encode_batch([record])) == (ErrorCode.NONE, 0)
        answered = fetch(connection, topic, 0)
        assert (answered.high_watermark, answered.last_stable_offset) == (1, 1)
