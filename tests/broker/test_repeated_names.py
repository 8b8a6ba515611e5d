"""Requests that name a thing twice, or nothing, or name it oddly, over the wire: answered as Kafka answers them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from broker_wire import BOUND_SECONDS, ask, connect, create_topic, fetch_request, produce_request
from crc32c import crc32c

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kraftpy.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker

NOT_ASKED = -(2**31)
CRC_AT, ATTRIBUTES_AT = 17, 22
BATCH = encode_batch([(1_700_000_000_000, None, b"v", ())])


@pytest.fixture
def asking(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(asking: socket.socket) -> str:
    name = f"named-{time.time_ns()}"
    create_topic(asking, name, 2)
    return name


def wait_for_coordinators(connection: socket.socket) -> None:
    """Have the topic with groups made, and loaded."""
    ask(connection, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    deadline = time.monotonic() + BOUND_SECONDS
    groups = DescribeGroupsRequest(groups=["no-such"])
    while ask(connection, ApiKey.DESCRIBE_GROUPS, 5, groups).groups[0].error_code != ErrorCode.NONE:
        assert time.monotonic() < deadline


def test_records_of_a_partition_that_is_named_twice_are_deleted_once(asking: socket.socket, topic: str) -> None:
    ask(asking, ApiKey.PRODUCE, 9, produce_request(topic, BATCH))
    partitions = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (9, 1)]
    topics = [DeleteRecordsTopic(name=topic, partitions=each) for each in (partitions[:1], [], partitions[1:])]
    topics.append(DeleteRecordsTopic(name="empty", partitions=[]))
    (found,) = ask(asking, ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=topics, timeout_ms=1000)).topics
    told = [(each.partition_index, each.error_code, each.low_watermark) for each in found.partitions]
    assert told == [(0, 0, 1)], "the offset said last"


def test_a_topic_without_partitions_is_not_in_the_answer_to_produce(asking: socket.socket, topic: str) -> None:
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[])])
    assert ask(asking, ApiKey.PRODUCE, 9, request).responses == []


def test_acks_are_judged_after_the_topic_and_the_batch(asking: socket.socket, topic: str) -> None:
    def error(name: str, records: bytes) -> int:
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])
        request = ProduceRequest(acks=5, timeout_ms=1000, topic_data=[data])
        code: int = ask(asking, ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0].error_code
        return code

    assert error("no-such", BATCH) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error(topic, BATCH * 2) == ErrorCode.INVALID_RECORD
    assert error(topic, BATCH) == ErrorCode.INVALID_REQUIRED_ACKS


def test_records_that_nobody_can_read_are_refused_where_the_broker_stamps_times(asking: socket.socket) -> None:
    name = f"stamped-{time.time_ns()}"
    create_topic(asking, name, 1, message_timestamp_type="LogAppendTime")
    batch = bytearray(encode_batch([(0, None, b"v", ())] * 2))
    batch[ATTRIBUTES_AT] |= Compression.GZIP
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_AT + 4 :]))
    found = ask(asking, ApiKey.PRODUCE, 9, produce_request(name, batch)).responses[0].partition_responses[0]
    assert found.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [4, 7, 12])
@pytest.mark.parametrize("level", [2, -1])
def test_an_unknown_isolation_level_is_refused(asking: socket.socket, topic: str, version: int, level: int) -> None:
    answer = ask(asking, ApiKey.FETCH, version, fetch_request(topic, 0, isolation_level=level))
    told = [part.error_code for each in answer.responses for part in each.partitions]
    assert (answer.error_code, told) == (
        ErrorCode.INVALID_REQUEST if version >= 7 else 0,
        [ErrorCode.INVALID_REQUEST],
    )


def test_a_topic_that_is_deleted_by_name_and_by_id_is_named_with_both(asking: socket.socket, topic: str) -> None:
    known = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics[0]
    both = [DeleteTopicState(name=topic, topic_id=bytes(16)), DeleteTopicState(name=None, topic_id=known.topic_id)]
    odd = [DeleteTopicState(name=topic, topic_id=known.topic_id)] * 2
    unknown = [DeleteTopicState(name="no-such", topic_id=bytes(16)), DeleteTopicState(name=None, topic_id=b"\x11" * 16)]
    request = DeleteTopicsRequest(topics=[*both, *odd, *unknown], timeout_ms=1000)
    found = ask(asking, ApiKey.DELETE_TOPICS, 6, request).responses
    assert [(each.name, each.topic_id != bytes(16), each.error_code) for each in found] == [
        (topic, True, ErrorCode.INVALID_REQUEST),
        (topic, True, ErrorCode.INVALID_REQUEST),
        (topic, True, ErrorCode.INVALID_REQUEST),
        ("no-such", False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, True, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert [each.error_message for each in found[3:]] == [ErrorCode.of(each.error_code).meaning for each in found[3:]]


def test_topics_that_belong_together_keep_their_places_in_the_answer(asking: socket.socket, topic: str) -> None:
    known = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics[0]
    twice = DeleteTopicState(name="no-such", topic_id=bytes(16))
    between = [
        DeleteTopicState(name=None, topic_id=b"\x22" * 16),
        DeleteTopicState(name=topic, topic_id=known.topic_id),
    ]
    request = DeleteTopicsRequest(topics=[twice, *between, twice], timeout_ms=1000)
    assert [each.name for each in ask(asking, ApiKey.DELETE_TOPICS, 6, request).responses] == ["no-such", None, topic]


def test_what_is_unknown_has_no_operations(asking: socket.socket, topic: str) -> None:
    asked = [MetadataRequestTopic(name=None, topic_id=b"\x11" * 16)]
    request = MetadataRequest(topics=asked, include_topic_authorized_operations=True)
    assert [each.topic_authorized_operations for each in ask(asking, ApiKey.METADATA, 12, request).topics] == [
        NOT_ASKED
    ]
    groups = DescribeGroupsRequest(groups=["no-such"], include_authorized_operations=True)
    wait_for_coordinators(asking)
    for version, is_known in ((5, True), (6, False)):
        (found,) = ask(asking, ApiKey.DESCRIBE_GROUPS, version, groups).groups
        assert (found.authorized_operations != NOT_ASKED) is is_known


def test_a_coordinator_that_is_found_is_told_in_kafkas_words(asking: socket.socket) -> None:
    assert ask(asking, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g")).error_message == "NONE"
    (found,) = ask(asking, ApiKey.FIND_COORDINATOR, 6, FindCoordinatorRequest(coordinator_keys=["g"])).coordinators
    assert found.error_message == ""


def test_partitions_of_a_transaction_are_answered_once(asking: socket.socket, topic: str) -> None:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in (("x", [7, 7]), ("y", []))]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[*topics, *topics],
    )
    found = ask(asking, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request).results_by_topic_v3_and_below
    assert [(each.name, [part.partition_index for part in each.results_by_partition]) for each in found] == [("x", [7])]


def test_unknown_topics_of_commits_are_told_before_anything_else(asking: socket.socket, topic: str) -> None:
    wait_for_coordinators(asking)
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [
        TxnOffsetCommitRequestTopic(name="no-such", partitions=[part]),
        TxnOffsetCommitRequestTopic(name="nothing", partitions=[]),
        TxnOffsetCommitRequestTopic(name=topic, partitions=[part]),
    ]
    request = TxnOffsetCommitRequest(transactional_id="t", group_id="", producer_id=1, producer_epoch=0, topics=topics)
    found = ask(asking, ApiKey.TXN_OFFSET_COMMIT, 3, request).topics
    assert [(each.name, [one.error_code for one in each.partitions]) for each in found] == [
        ("no-such", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ("nothing", []),
        (topic, [ErrorCode.INVALID_GROUP_ID]),
    ]
    empty = [OffsetCommitRequestTopic(name="nothing", partitions=[])]
    committed = OffsetCommitRequest(group_id="g", member_id="", topics=empty)
    found = ask(asking, ApiKey.OFFSET_COMMIT, 9, committed).topics
    assert [(each.name, each.partitions) for each in found] == [("nothing", [])]


def test_markers_of_one_producer_have_one_result(asking: socket.socket, topic: str) -> None:
    def marker(producer_id: int, *partitions: int) -> WritableTxnMarker:
        topics = [WritableTxnMarkerTopic(name="no-such", partition_indexes=list(partitions))] if partitions else []
        return WritableTxnMarker(
            producer_id=producer_id, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0
        )

    request = WriteTxnMarkersRequest(markers=[marker(1, 0), marker(2), marker(1, 1)])
    found = ask(asking, ApiKey.WRITE_TXN_MARKERS, 1, request).markers
    told = [
        (each.producer_id, [part.partition_index for one in each.topics for part in one.partitions]) for each in found
    ]
    assert told == [(1, [0, 1])]
