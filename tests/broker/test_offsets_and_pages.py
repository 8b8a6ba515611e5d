"""ListOffsets, OffsetForLeaderEpoch, and what describes logs, producers and partitions, in every version."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import StartBroker, ask, connect, create_topic, produce, produce_values

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kraftpy.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kraftpy.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from kraftpy.protocol.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker

LATEST, EARLIEST, LARGEST, EARLIEST_LOCAL, LAST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
VERSIONS = range(APIS[ApiKey.LIST_OFFSETS].first, APIS[ApiKey.LIST_OFFSETS].last + 1)


@pytest.fixture
def asking(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(asking: socket.socket) -> str:
    """Records at 1000, 5000 (offset 1), 3000 and 3000 ms, the last two in one batch."""
    name = f"listed-{time.time_ns()}"
    create_topic(asking, name, 2)
    for times in ((1000,), (5000,), (3000, 3000)):
        batch = encode_batch([(timestamp, None, b"v", ()) for timestamp in times])
        assert produce(asking, name, batch).error_code == ErrorCode.NONE
    return name


def listed(
    connection: socket.socket, topic: str, timestamp: int, version: int = 9, **more: Any
) -> tuple[int, int, int]:
    """(error, offset, timestamp) of one partition."""
    partition = ListOffsetsPartition(partition_index=more.pop("partition", 0), timestamp=timestamp, **more)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    found = ask(connection, ApiKey.LIST_OFFSETS, version, request).topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize("version", VERSIONS)
def test_positions_in_every_version(asking: socket.socket, topic: str, version: int) -> None:
    assert listed(asking, topic, LATEST, version) == (0, 4, -1)
    assert listed(asking, topic, EARLIEST, version) == (0, 0, -1)
    assert listed(asking, topic, 2000, version) == (0, 1, 5000), "the first that is not before"
    assert listed(asking, topic, 1000, version) == (0, 0, 1000)
    assert listed(asking, topic, 5001, version) == (0, -1, -1), "later than all"
    for special, since, expected in (
        (LARGEST, 7, (0, 1, 5000)),
        (EARLIEST_LOCAL, 8, (0, 0, -1)),
        (LAST_TIERED, 9, (0, -1, -1)),
        (PENDING_UPLOAD, 11, (0, -1, -1)),
        (-7, 99, None),
    ):
        unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        assert listed(asking, topic, special, version) == (expected if version >= since else unsupported)


def test_positions_of_an_empty_partition(asking: socket.socket, topic: str) -> None:
    for timestamp, expected in ((LATEST, 0), (EARLIEST, 0), (LARGEST, -1), (0, -1)):
        assert listed(asking, topic, timestamp, partition=1)[:2] == (0, expected)


def test_offsets_that_cannot_be_listed(asking: socket.socket, topic: str) -> None:
    assert listed(asking, "no-such", LATEST)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(asking, topic, LATEST, partition=2)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(asking, topic, LATEST, partition=-1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(asking, topic, LATEST, current_leader_epoch=5)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert listed(asking, topic, LATEST, current_leader_epoch=0)[0] == ErrorCode.NONE


def test_a_partition_listed_twice_is_refused_once(asking: socket.socket, topic: str) -> None:
    first, second = (ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1))
    for asked in ([[first, first, second]], [[first, second], [first]], [[first], [], [second, first]]):
        topics = [ListOffsetsTopic(name=topic, partitions=partitions) for partitions in asked]
        (found,) = ask(asking, ApiKey.LIST_OFFSETS, 9, ListOffsetsRequest(replica_id=-1, topics=topics)).topics
        told = {each.partition_index: each.error_code for each in found.partitions}
        assert len(found.partitions) == 2
        assert told == {0: ErrorCode.INVALID_REQUEST, 1: ErrorCode.NONE}


def test_offsets_of_an_unknown_isolation_level_or_an_epoch_below_none_are_refused(
    asking: socket.socket, topic: str
) -> None:
    def error(isolation_level: int, epoch: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST, current_leader_epoch=epoch)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[partition])],
        )
        code: int = ask(asking, ApiKey.LIST_OFFSETS, 9, request).topics[0].partitions[0].error_code
        return code

    assert [error(level, -1) for level in (0, 1, 2, -1)] == [0, 0, *[ErrorCode.INVALID_REQUEST] * 2]
    assert error(0, -2) == ErrorCode.FENCED_LEADER_EPOCH


def test_records_deleted_are_not_listed(asking: socket.socket, topic: str) -> None:
    def delete(offset: int) -> tuple[int, int]:
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000)
        found = ask(asking, ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete(5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(2) == (ErrorCode.NONE, 2)
    assert delete(1) == (ErrorCode.NONE, 2), "it never goes back"
    assert listed(asking, topic, EARLIEST)[1] == 2
    assert listed(asking, topic, 0) == (0, 2, 3000)
    assert delete(-1) == (ErrorCode.NONE, 4), "all there is"
    assert listed(asking, topic, 0) == (0, -1, -1)


@pytest.mark.parametrize("version", range(2, 5))
def test_where_an_epoch_ends(asking: socket.socket, topic: str, version: int) -> None:
    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])])
        found = ask(asking, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert end(0) == (ErrorCode.NONE, 0, 4)
    assert end(-1)[1:] == (-1, -1)
    assert end(3)[2] == -1, "an epoch that has not begun"
    assert end(0, current=7)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(topic="no-such", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])
        ]
    )
    unknown = ask(asking, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directories(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "sized", 2)
        produce_values(connection, "sized", b"x" * 1000)
        every = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=None)).results
        assert [result.log_dir for result in every] == [str(broker.data_dir / "logs")]
        sizes = {partition.partition_index: partition.partition_size for partition in every[0].topics[0].partitions}
        assert sizes[0] > 1000
        assert sizes[1] == 0
        if version >= 4:
            assert every[0].total_bytes >= every[0].usable_bytes > 0
        some = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="sized", partitions=[1, 7])])
        found = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, version, some).results[0].topics
        assert [[each.partition_index for each in topic.partitions] for topic in found] == [[1]]
        none = DescribeLogDirsRequest(topics=[])
        assert ask(connection, ApiKey.DESCRIBE_LOG_DIRS, version, none).results[0].topics == []


def pages(connection: socket.socket, names: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """Every page until the cursor ends: per topic its name and partitions."""
    found, cursor = [], None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribedTopic(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        page = ask(connection, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        found.append([(topic.name, [each.partition_index for each in topic.partitions]) for topic in page.topics])
        if page.next_cursor is None:
            return found
        assert len(found) < 50
        cursor = Cursor(topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index)


def test_partitions_in_pages(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        for name, count in (("a", 3), ("b", 1), ("c", 4)):
            create_topic(connection, name, count)
        whole = [("a", [0, 1, 2]), ("b", [0]), ("c", [0, 1, 2, 3])]
        assert pages(connection, [], 2000) == [whole]
        assert pages(connection, ["c", "a", "b", "a"], 8) == [whole], "sorted, each once"
        assert pages(connection, [], 2) == [
            [("a", [0, 1])],
            [("a", [2]), ("b", [0])],
            [("c", [0, 1])],
            [("c", [2, 3])],
        ]
        assert [sum(len(numbers) for _, numbers in page) for page in pages(connection, [], 3)] == [3, 3, 2]
        assert pages(connection, ["a", "no-such"], 3)[-1][-1] == ("no-such", [])


def test_a_cursor_below_zero(asking: socket.socket, topic: str) -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribedTopic(name=topic)], cursor=Cursor(topic_name=topic, partition_index=-1)
    )
    found = ask(asking, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [each.error_code for each in found.topics] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(
    ("names", "cursor"),
    [
        (["{}"], ("other", 0)),
        (["{}"], ("", 0)),
        (["{}", "no.such"], ("zzz", 0)),
        (["{}"], ("{}", -1)),
        (["no.such", "no.such"], ("{}", 0)),
    ],
)
def test_a_cursor_that_is_not_of_the_topics(
    asking: socket.socket, topic: str, names: list[str], cursor: tuple[str, int]
) -> None:
    named = [name.format(topic) for name in names]
    request = DescribeTopicPartitionsRequest(
        topics=[DescribedTopic(name=name) for name in named],
        cursor=Cursor(topic_name=cursor[0].format(topic), partition_index=cursor[1]),
    )
    found = ask(asking, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [(each.name, each.error_code) for each in found.topics] == [
        (name, ErrorCode.INVALID_REQUEST) for name in named
    ]
    assert found.next_cursor is None


def test_a_cursor_may_be_of_any_topic_if_none_is_named(asking: socket.socket, topic: str) -> None:
    request = DescribeTopicPartitionsRequest(topics=[], cursor=Cursor(topic_name=topic[:-1], partition_index=1))
    found = ask(asking, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert (found.topics[0].name, len(found.topics[0].partitions)) == (topic, 2)


def test_a_name_that_no_topic_can_have_is_described_as_such(asking: socket.socket) -> None:
    request = DescribeTopicPartitionsRequest(topics=[DescribedTopic(name=name) for name in ("no.such", "sp ace")])
    found = ask(asking, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [each.error_code for each in found.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_before_version_12_has_no_topic_ids(asking: socket.socket, topic: str, version: int) -> None:
    (known,) = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    topic_id = known.topic_id
    for wanted in (
        [MetadataRequestTopic(name=topic, topic_id=topic_id)],
        [MetadataRequestTopic(name=topic), MetadataRequestTopic(name="", topic_id=bytes(range(16)))],
        [MetadataRequestTopic(name=None)],
    ):
        found = ask(asking, ApiKey.METADATA, version, MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        assert (found.brokers, found.cluster_id, found.controller_id) == ([], None, -1)
        assert [(each.error_code, each.name, each.topic_id) for each in found.topics] == [
            (ErrorCode.INVALID_REQUEST, each.name or "", each.topic_id) for each in wanted
        ]
    by_name = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    assert ask(asking, ApiKey.METADATA, version, by_name).topics[0].topic_id == topic_id


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id_ignores_names(asking: socket.socket, topic: str, version: int) -> None:
    (known,) = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    topic_id = known.topic_id
    wanted = [
        MetadataRequestTopic(name=None, topic_id=topic_id),
        MetadataRequestTopic(name="other", topic_id=topic_id),
        MetadataRequestTopic(name=topic),
        MetadataRequestTopic(name=f"{topic}-new"),
    ]
    found = ask(asking, ApiKey.METADATA, version, MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    assert [(each.error_code, each.name) for each in found.topics] == [(ErrorCode.NONE, topic)]


def test_the_metadata_log_is_no_topic_to_create(asking: socket.socket) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="__cluster_metadata")], allow_auto_topic_creation=True)
    (found,) = ask(asking, ApiKey.METADATA, 12, request).topics
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_of_names_that_cannot_be(asking: socket.socket) -> None:
    for allowed in (True, False):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="not a topic"), MetadataRequestTopic(name="x" * 250)],
            allow_auto_topic_creation=allowed,
        )
        found = ask(asking, ApiKey.METADATA, 9, request)
        assert {each.error_code for each in found.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    request = MetadataRequest(topics=[MetadataRequestTopic(name="no-such")], allow_auto_topic_creation=False)
    assert ask(asking, ApiKey.METADATA, 9, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
