"""Produced batches as they are stored, and refusals of others, compared with Kafka 4.3's answers."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from broker_wire import ask, connect, create_topic
from hostile_batches import patched, with_max

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.protocol.records import MOST_NAMED
from kraftpy.testing.cluster import EmbeddedBroker

NOW = time.time_ns() // 1_000_000
HOUR = 3_600_000
_names = itertools.count()
Record = tuple[int, bytes | None, bytes | None, tuple[()]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made
        assert "Traceback" not in made.log_text


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap) as made:
        yield made


class Topic:
    """A topic of one partition."""

    def __init__(self, connection: socket.socket, **configs: str) -> None:
        self.connection = connection
        self.name = f"t-{next(_names)}"
        self.id = create_topic(connection, self.name, **configs)

    def send(self, batch: bytes, version: int = 12, **how: Any) -> Any:
        data = [PartitionProduceData(index=0, records=batch)]
        topic_data = [TopicProduceData(name=self.name, topic_id=self.id, partition_data=data)]
        request = ProduceRequest(
            **{"transactional_id": None, "acks": -1, "timeout_ms": 5_000, **how}, topic_data=topic_data
        )
        return ask(self.connection, ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]

    def read(self, offset: int = 0, version: int = 12) -> Any:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=self.name, topic_id=self.id, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)
        return ask(self.connection, ApiKey.FETCH, version, request).responses[0].partitions[0]

    def batches(self) -> list[Any]:
        return [header for header, _ in split_batches(self.read().records)]

    def at(self, timestamp: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=self.name, partitions=[partition])])
        return int(ask(self.connection, ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0].offset)


def records(*times: int, key: bytes | None = b"k") -> list[Record]:
    return [(each, key, b"v%d" % number, ()) for number, each in enumerate(times)]


# --- timestamps -------------------------------------------------------------------------------------------------------

CODECS = pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)


@CODECS
@pytest.mark.parametrize(
    "max_timestamp",
    [-1, 0, -5, NOW - 1, NOW + 10 * HOUR, 1 << 62],
    ids=["-1", "0", "-5", "before", "hours later", "2^62"],
)
def test_a_largest_timestamp_that_cannot_be_right_is_set_right(
    connection: socket.socket, codec: Compression, max_timestamp: int
) -> None:
    topic = Topic(connection)
    sent = encode_batch(records(NOW, NOW + 7, NOW + 3), compression=codec)
    assert topic.send(with_max(sent, max_timestamp)).error_code == ErrorCode.NONE
    (header,) = topic.batches()
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 7)
    assert list(iter_records(topic.read().records)) == list(iter_records(sent))
    assert [topic.at(NOW), topic.at(NOW + 7), topic.at(NOW + 8), topic.at(-3)] == [0, 1, -1, 1]


@pytest.mark.parametrize("max_timestamp", [NOW + 5, NOW, NOW - 5, -1], ids=["later", "now", "before", "-1"])
@pytest.mark.parametrize("delta", [0, 1, -1, 64, -65, 5_000_000])
def test_the_largest_timestamp_of_a_single_record_is_its_own(
    connection: socket.socket, delta: int, max_timestamp: int
) -> None:
    topic = Topic(connection)
    base = NOW - delta
    sent = encode_batch(records(base, NOW))
    first, second = iter_records(sent)
    body = bytes([0]) + _varint(delta) + bytes([0, 2]) + b"k" + bytes([4]) + b"v1" + bytes([0])
    single = patched(sent[:61] + _varint(len(body)) + body, ">i", 57, 1)
    single = patched(patched(single, ">i", 23, 0), ">i", 8, len(single) - 12)
    assert (first.timestamp, second.timestamp) == (base, NOW)
    assert topic.send(with_max(single, max_timestamp)).error_code == ErrorCode.NONE
    (header,) = topic.batches()
    assert (header.base_timestamp, header.max_timestamp) == (base, NOW)
    assert topic.at(NOW) == 0
    assert topic.at(NOW + 1) == -1


def _varint(value: int) -> bytes:
    encoded = (value << 1) ^ (value >> 63)
    found = b""
    while encoded >= 128:
        found += bytes([encoded & 127 | 128])
        encoded >>= 7
    return found + bytes([encoded])


def test_a_clients_headers_are_believed_once_they_have_proved_right(broker: EmbeddedBroker) -> None:
    """A client that sets the largest timestamp wrong does so in every batch, the first one included."""
    sent = encode_batch(records(NOW, NOW + 7, NOW + 3))
    same = encode_batch(records(NOW, NOW))
    for wrong in (NOW, NOW + 3, NOW + 500):
        with connect(broker.bootstrap) as first, connect(broker.bootstrap) as second:
            topic = Topic(first)
            for _ in range(3):
                assert topic.send(with_max(sent, wrong)).error_code == ErrorCode.NONE
            assert [header.max_timestamp for header in topic.batches()] == [NOW + 7] * 3
            topic = Topic(second)
            for batch in (same, with_max(sent, wrong), sent, with_max(sent, wrong)):
                assert topic.send(batch).error_code == ErrorCode.NONE
            assert [header.max_timestamp for header in topic.batches()] == [NOW, NOW + 7, NOW + 7, NOW + 7]
            for batch in (sent, with_max(sent, wrong)):
                assert topic.send(batch).error_code == ErrorCode.NONE
            assert topic.batches()[-1].max_timestamp == NOW + 7, "it was wrong before"


def test_every_record_is_read_where_their_age_is_limited(connection: socket.socket) -> None:
    topic = Topic(connection, message_timestamp_before_max_ms=str(HOUR))
    for _ in range(3):
        assert topic.send(encode_batch(records(NOW, NOW + 1))).error_code == ErrorCode.NONE
    answer = topic.send(encode_batch(records(NOW, NOW - 2 * HOUR, NOW + 1)))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in errors(answer)] == [1]


def test_a_base_timestamp_is_only_what_the_deltas_count_from(connection: socket.socket) -> None:
    topic = Topic(connection, message_timestamp_before_max_ms=str(HOUR))
    late = patched(encode_batch(records(NOW, NOW)), ">qq", 27, NOW + 5_000, NOW)
    assert topic.send(late).error_code == ErrorCode.NONE
    assert [header.max_timestamp for header in topic.batches()] == [NOW + 5_000]


def test_the_producers_log_append_time_is_its_create_time(connection: socket.socket) -> None:
    topic = Topic(connection)
    assert topic.send(patched(encode_batch(records(NOW, NOW + 1)), ">h", 21, 0x08)).error_code == ErrorCode.NONE
    (header,) = topic.batches()
    assert (header.attributes, header.max_timestamp) == (0, NOW + 1)


@pytest.mark.parametrize("attributes", [0x40, 0x80, 0x100, -0x8000])
def test_attribute_bits_without_a_meaning_are_taken_as_they_are(connection: socket.socket, attributes: int) -> None:
    topic = Topic(connection)
    sent = patched(encode_batch(records(NOW, NOW)), ">h", 21, attributes)
    assert topic.send(sent).error_code == ErrorCode.NONE
    assert list(iter_records(topic.read().records)) == list(iter_records(sent))


def test_a_duplicate_is_told_its_timestamp(connection: socket.socket) -> None:
    topic = Topic(connection)
    sent = encode_batch(records(NOW, NOW + 9), producer_id=77, producer_epoch=0, base_sequence=0)
    first, again = topic.send(sent), topic.send(sent)
    assert (first.base_offset, first.log_append_time_ms) == (0, -1)
    assert (again.base_offset, again.log_append_time_ms) == (0, NOW + 9)


# --- record errors ----------------------------------------------------------------------------------------------------


def errors(answer: Any) -> list[tuple[int, str]]:
    return [(each.batch_index, each.batch_index_error_message) for each in answer.record_errors]


@CODECS
@pytest.mark.parametrize("version", range(3, 14))
def test_records_out_of_the_topics_time_are_named(connection: socket.socket, version: int, codec: Compression) -> None:
    if codec is Compression.ZSTD and version < 7:
        return
    topic = Topic(connection, message_timestamp_before_max_ms=str(HOUR), message_timestamp_after_max_ms=str(HOUR))
    late, early = NOW + 2 * HOUR, NOW - 2 * HOUR
    answer = topic.send(encode_batch(records(NOW, late, NOW, early), compression=codec), version)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    if version >= 8:
        found = errors(answer)
        assert [number for number, _ in found] == [1, 3]
        for (number, text), timestamp in zip(found, (late, early), strict=True):
            assert text.startswith(f"Timestamp {timestamp} of message with offset {number} is out of range. The")
        assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
    assert topic.batches() == []


@pytest.mark.parametrize("version", range(3, 14))
def test_records_without_keys_are_named_in_a_compacted_topic(connection: socket.socket, version: int) -> None:
    topic = Topic(connection, cleanup_policy="compact")
    mixed = [*records(NOW), *records(NOW, key=None), *records(NOW), *records(NOW, key=None)]
    answer = topic.send(encode_batch(mixed), version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    if version >= 8:
        text = f"Compacted topic cannot accept message without key in topic partition {topic.name}-0"
        assert errors(answer) == [(1, text), (3, text)]
        assert answer.error_message.startswith("One or more records have been rejected due to 2 record errors in total")


def test_a_producer_may_not_say_log_append_time_where_the_broker_does(connection: socket.socket) -> None:
    topic = Topic(connection, message_timestamp_type="LogAppendTime")
    answer = topic.send(patched(encode_batch(records(NOW, NOW, NOW)), ">h", 21, 0x08))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in errors(answer)] == [0, 1, 2]
    assert {text for _, text in errors(answer)} == {
        "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
    }


def test_only_so_many_records_are_named(connection: socket.socket) -> None:
    topic = Topic(connection, message_timestamp_after_max_ms=str(HOUR))
    answer = topic.send(encode_batch(records(*[NOW + 2 * HOUR] * (MOST_NAMED + 500))))
    assert [number for number, _ in errors(answer)] == list(range(MOST_NAMED))


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uncompressed", "lz4", "snappy"])
def test_a_batch_that_grows_beyond_the_limit_in_the_topics_codec_is_too_large(
    connection: socket.socket, name: str
) -> None:
    topic = Topic(connection, compression_type=name, max_message_bytes="10000", segment_bytes="1048576")
    noise = Random(1).randbytes(6_000)  # which only zstd remembers for so long
    grown = encode_batch([(NOW, b"k", noise + bytes(90_000) + noise, ())], compression=Compression.ZSTD)
    assert len(grown) < 10_000
    answer = topic.send(grown)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)
    assert topic.batches() == []


def test_a_batch_that_grows_beyond_a_segment_in_the_topics_codec_is_refused(connection: socket.socket) -> None:
    topic = Topic(connection, compression_type="uncompressed", max_message_bytes="10000000", segment_bytes="1048576")
    grown = encode_batch([(NOW, b"k", bytes(1_100_000), ())], compression=Compression.ZSTD)
    assert len(grown) < 10_000
    answer = topic.send(grown)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.RECORD_LIST_TOO_LARGE, -1)
    assert topic.batches() == []


# --- what a refused batch is told -------------------------------------------------------------------------------------


def test_where_the_log_starts_is_told_with_errors_of_the_log(connection: socket.socket) -> None:
    topic = Topic(connection, max_message_bytes="1000", min_insync_replicas="2")
    good = encode_batch(records(NOW))
    expected = {
        "none": (patched(good, ">i", 57, 0), ErrorCode.INVALID_RECORD, 0),
        "crc": (good[:20] + bytes([good[20] ^ 1]) + good[21:], ErrorCode.CORRUPT_MESSAGE, -1),
        "size": (encode_batch([(NOW, b"k", bytes(2_000), ())]), ErrorCode.MESSAGE_TOO_LARGE, -1),
        "cut": (good[:-1], ErrorCode.INVALID_RECORD, -1),
        "two": (good + good, ErrorCode.INVALID_RECORD, -1),
        "old": (patched(good, ">b", 16, 1), ErrorCode.INVALID_RECORD, -1),
    }
    for what, (batch, code, start) in expected.items():
        answer = topic.send(batch, acks=1)
        assert (answer.error_code, answer.log_start_offset) == (code, start), what
    answer = topic.send(good, acks=3)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)


def test_bytes_behind_a_batch_are_ignored(connection: socket.socket) -> None:
    topic = Topic(connection)
    good = encode_batch(records(NOW))
    for number, behind in enumerate((bytes(5), good[:40])):
        answer = topic.send(good + behind)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number)
    assert [header.size_bytes for header in topic.batches()] == [len(good)] * 2


def test_a_partition_that_is_named_twice_gets_both_batches(connection: socket.socket) -> None:
    topic = Topic(connection)
    data = [PartitionProduceData(index=0, records=encode_batch(records(*[NOW] * count))) for count in (2, 3)]
    topic_data = [TopicProduceData(name=topic.name, partition_data=data)]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=topic_data)
    answered = ask(connection, ApiKey.PRODUCE, 12, request)
    assert [(each.error_code, each.base_offset) for each in answered.responses[0].partition_responses] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 2),
    ]
    assert [header.records_count for header in topic.batches()] == [2, 3]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_transactional_batch_without_an_id_refuses_the_request(connection: socket.socket, version: int) -> None:
    topic, other = Topic(connection), Topic(connection)
    plain = encode_batch(records(NOW))
    begun = encode_batch(records(NOW), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[
            TopicProduceData(
                name=each.name, topic_id=each.id, partition_data=[PartitionProduceData(index=0, records=batch)]
            )
            for each, batch in ((topic, plain), (other, begun))
        ],
    )
    answered = ask(connection, ApiKey.PRODUCE, version, request)
    for part in (each.partition_responses[0] for each in answered.responses):
        assert part.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (part.base_offset, part.log_append_time_ms, part.log_start_offset) == (-1, -1, -1)
    assert topic.batches() == other.batches() == []


def test_a_missing_partition_of_a_known_topic_is_unknown_and_not_its_id(connection: socket.socket) -> None:
    topic = Topic(connection)
    data = [PartitionProduceData(index=7, records=encode_batch(records(NOW)))]
    for topic_id, code in (
        (topic.id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (b"\x11" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(topic_id=topic_id, partition_data=data)],
        )
        answered = ask(connection, ApiKey.PRODUCE, 13, request)
        assert answered.responses[0].partition_responses[0].error_code == code


# --- zstd and old clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_zstd_is_produced_from_version_7_on(connection: socket.socket, version: int) -> None:
    topic = Topic(connection)
    answer = topic.send(encode_batch(records(NOW), compression=Compression.ZSTD), version)
    expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (answer.error_code, answer.base_offset) == (expected, 0 if version >= 7 else -1)
    if version < 7:
        assert answer.log_start_offset == -1


@pytest.mark.parametrize("version", range(4, 13))
def test_zstd_is_fetched_in_every_version(connection: socket.socket, version: int) -> None:
    """As from Kafka 4.3: clients that fetch in an old version may know the codec all the same."""
    topic = Topic(connection)
    for codec in (Compression.GZIP, Compression.NONE, Compression.ZSTD, Compression.LZ4):
        assert topic.send(encode_batch(records(NOW), compression=codec)).error_code == ErrorCode.NONE
    found = topic.read(0, version)
    assert found.error_code == ErrorCode.NONE
    assert [header.base_offset for header, _ in split_batches(found.records)] == [0, 1, 2, 3]
