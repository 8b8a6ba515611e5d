"""Requests about groups as no good client puts them: what is unknown, unnamed or named twice. Kafka's answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import BOUND_SECONDS, ask, connect

from kraftpy.groups.request_pieces import MOST_REPEATS
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TopicInfo,
    Topology,
)
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.testing.cluster import EmbeddedBroker

_numbers = itertools.count()
_COORDINATORS = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


def in_time() -> Iterator[None]:
    """Go on until the caller has seen what it waits for."""
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(0.01)
    raise TimeoutError


class Client:
    """Asks one broker, about groups and a topic of two partitions that nothing else uses."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = connect(bootstrap)
        number = next(_numbers)
        self.topic, self._group = f"of-groups-{number}", f"group-{number}"
        wanted = CreatableTopic(name=self.topic, num_partitions=2, replication_factor=1)
        created = self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted], timeout_ms=20_000))
        self.topic_id = created.topics[0].topic_id

    def close(self) -> None:
        self._connection.close()

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        return ask(self._connection, key, version, request)

    def group(self, name: str = "") -> str:
        """The id of a group whose coordinator is ready."""
        group_id = self._group + name
        for _ in in_time():
            found = self.ask(ApiKey.FIND_COORDINATOR, 6, FindCoordinatorRequest(coordinator_keys=[group_id]))
            beat = self.ask(ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[group_id]))
            if not {found.coordinators[0].error_code, beat.groups[0].error_code} & _COORDINATORS:
                break
        return group_id

    def commit(self, version: int, group_id: str, *offsets: tuple[str, int], times: int = 1) -> list[tuple[str, Any]]:
        """Commit to these topics and partitions; the answer's topics, each with its partitions and their errors."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for name, partition in offsets:
            by: dict[str, Any] = {"name": name}
            if version >= 10:
                by = {"topic_id": self.topic_id if name == self.topic else b"\x11" * 16}
            topic = topics.setdefault(name, OffsetCommitRequestTopic(**by, partitions=[]))
            topic.partitions.append(OffsetCommitRequestPartition(partition_index=partition, committed_offset=7))
        request = OffsetCommitRequest(group_id=group_id, member_id="", topics=[*topics.values()] * times)
        return _told(self.ask(ApiKey.OFFSET_COMMIT, version, request).topics)


def _told(topics: list[Any]) -> list[tuple[str, Any]]:
    return [
        (topic.name, [(each.partition_index, ErrorCode(each.error_code).name) for each in topic.partitions])
        for topic in topics
    ]


@pytest.fixture
def client(kraftpy_server: EmbeddedBroker) -> Iterator[Client]:
    made = Client(kraftpy_server.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("version", [2, 9])
def test_a_commit_lists_a_topic_once_whatever_is_wrong_with_its_partitions(client: Client, version: int) -> None:
    told = client.commit(version, client.group(), (client.topic, 0), (client.topic, 9), ("none", 0), (client.topic, 1))
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert told == [(client.topic, [(9, unknown), (0, "NONE"), (1, "NONE")]), ("none", [(0, unknown)])]


def test_a_commit_by_id_lists_a_topic_once(client: Client) -> None:
    told = client.commit(10, client.group(), (client.topic, 0), (client.topic, 9), ("none", 0))
    assert told == [
        ("", [(9, "UNKNOWN_TOPIC_OR_PARTITION"), (0, "NONE")]),
        ("", [(0, "UNKNOWN_TOPIC_ID")]),
    ]


def test_a_topic_that_a_commit_names_twice_is_listed_twice(client: Client) -> None:
    told = client.commit(9, client.group(), (client.topic, 0), times=2)
    assert told == [(client.topic, [(0, "NONE")])] * 2


def _delete(client: Client, group_id: str, *partitions: int, topic: str = "") -> Any:
    named = [OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
    topics = [OffsetDeleteRequestTopic(name=topic or client.topic, partitions=named)]
    return client.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group_id, topics=topics))


def test_offsets_are_deleted_of_a_group_that_exists(client: Client) -> None:
    group_id = client.group()
    client.commit(9, group_id, (client.topic, 0), (client.topic, 1))
    assert _told(_delete(client, group_id, 0, 9).topics) == [
        (client.topic, [(9, "UNKNOWN_TOPIC_OR_PARTITION"), (0, "NONE")])
    ]
    assert _told(_delete(client, group_id, 0, topic="none").topics) == [("none", [(0, "UNKNOWN_TOPIC_OR_PARTITION")])]


@pytest.mark.parametrize("partition", [0, 9])
def test_offsets_of_no_group_cannot_be_deleted_whether_the_partition_exists_or_not(
    client: Client, partition: int
) -> None:
    answer = _delete(client, client.group("-none"), partition)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    answer = _delete(client, client.group("-none"), 0, topic="none")
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_groups_without_a_name_that_need_one(client: Client) -> None:
    client.group()
    invalid = ErrorCode.INVALID_GROUP_ID
    assert _delete(client, "", 0).error_code == invalid
    commit = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="",
        producer_id=1,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=client.topic,
                partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ],
    )
    for version in range(6):
        answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, version, commit)
        assert _told(answer.topics) == [(client.topic, [(0, "INVALID_GROUP_ID")])], version
    for key, version, request in (
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(group_ids=["", "none"])),
        (ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest(group_ids=["", "none"])),
        (ApiKey.STREAMS_GROUP_DESCRIBE, 0, StreamsGroupDescribeRequest(group_ids=["", "none"])),
    ):
        groups = client.ask(key, version, request).groups
        errors = {each.group_id: each.error_code for each in groups}
        assert errors[""] == invalid, key
        assert errors["none"] != invalid, key


@pytest.mark.parametrize("again", [1, MOST_REPEATS + 5])
def test_a_group_named_again_is_described_again_as_long_as_that_is_not_often(client: Client, again: int) -> None:
    name = client.group()
    names = [name] * (1 + again)
    expected = [name] * (1 + min(again, MOST_REPEATS))
    for key, version, request in (
        (ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=names)),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(group_ids=names)),
        (ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest(group_ids=names)),
        (ApiKey.STREAMS_GROUP_DESCRIBE, 0, StreamsGroupDescribeRequest(group_ids=names)),
    ):
        found = client.ask(key, version, request).groups
        assert [each.group_id for each in found] == expected, key
    offsets = [DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in names]
    share = client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, DescribeShareGroupOffsetsRequest(groups=offsets))
    assert [each.group_id for each in share.groups] == expected


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_are_fetched_as_often_as_the_group_is_named(client: Client, version: int) -> None:
    group_id = client.group()
    client.commit(9, group_id, (client.topic, 0), (client.topic, 1))

    def wanted(partition: int) -> OffsetFetchRequestGroup:
        by: dict[str, Any] = {"topic_id": client.topic_id} if version >= 10 else {"name": client.topic}
        topic = OffsetFetchRequestTopics(**by, partition_indexes=[partition])
        return OffsetFetchRequestGroup(group_id=group_id, topics=[topic])

    answer = client.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=[wanted(0), wanted(1)]))
    assert [
        (group.group_id, [(each.partition_index, each.committed_offset) for each in group.topics[0].partitions])
        for group in answer.groups
    ] == [(group_id, [(0, 7)]), (group_id, [(1, 7)])]
    many = [wanted(0)] * (MOST_REPEATS + 5)
    answer = client.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=many))
    assert len(answer.groups) == 1 + MOST_REPEATS


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_share_partition_is_found_from_version_6_on(client: Client, version: int) -> None:
    client.group()
    key = "g:AAAAAAAAAAAAAAAAAAAAAA:-1"
    by: dict[str, Any] = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
    request = FindCoordinatorRequest(key_type=2, **by)
    for _ in in_time():
        answer = client.ask(ApiKey.FIND_COORDINATOR, version, request)
        found = answer.coordinators[0] if version >= 4 else answer
        if found.error_code not in _COORDINATORS:
            break
    if version < 6:
        assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    else:
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)


def _join(client: Client, group_id: str, member_id: str = "", instance: str | None = None, version: int = 5) -> Any:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff")],
    )
    return client.ask(ApiKey.JOIN_GROUP, version, request)


def test_from_version_5_on_a_sync_names_its_protocol(client: Client) -> None:
    group_id = client.group()
    joined = _join(client, group_id, _join(client, group_id).member_id)

    def sync(version: int, **names: str | None) -> Any:
        given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
        request = SyncGroupRequest(
            group_id=group_id, generation_id=1, member_id=joined.member_id, assignments=given, **names
        )
        return client.ask(ApiKey.SYNC_GROUP, version, request)

    for names in ({}, {"protocol_type": "consumer"}, {"protocol_name": "range"}):
        answer = sync(5, **names)
        assert (answer.error_code, answer.assignment) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, b""), names
    answer = sync(4)
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"all")
    answer = sync(5, protocol_type="consumer", protocol_name="range")
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"all")


@pytest.mark.parametrize("instance", ["", "i" * 250, "ü" * 500])
def test_the_id_of_a_static_member_begins_with_its_whole_instance_id(client: Client, instance: str) -> None:
    member_id = _join(client, client.group(), instance=instance).member_id
    assert member_id[:-36] == f"{instance}-"


def test_an_instance_id_that_would_not_fit_is_cut(client: Client) -> None:
    member_id = _join(client, client.group(), instance="i" * 10_000).member_id
    assert member_id[:-36] == f"{'i' * 1_000}-"


def _streams_beat(client: Client, group_id: str, source: str, epoch: int = 0, **more: Any) -> Any:
    topics = [] if epoch else [Subtopology(subtopology_id="0", source_topics=[source], **more)]
    request = StreamsGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=-1 if epoch else 10_000,
        topology=None if epoch else Topology(epoch=0, subtopologies=topics),
        active_tasks=None if epoch else [],
        standby_tasks=None if epoch else [],
        warmup_tasks=None if epoch else [],
    )
    return client.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, request)


def test_a_streams_group_without_anything_to_say_says_so(client: Client) -> None:
    """A client that gets null keeps the conditions that it got last; an empty list clears them."""
    group_id = client.group("-streams")
    first = _streams_beat(client, group_id, client.topic)
    assert [each.status_code for each in first.status] == [5], "the first assignment is delayed"
    for _ in in_time():
        told = _streams_beat(client, group_id, client.topic, first.member_epoch)
        assert told.error_code == ErrorCode.NONE
        if not told.status:
            break
    assert (told.error_code, told.status) == (ErrorCode.NONE, [])
    assert _streams_beat(client, group_id, client.topic, 99).status == []
    left = _streams_beat(client, group_id, client.topic, -1)
    assert (left.error_code, left.status) == (ErrorCode.NONE, [])


def test_a_topology_names_topics_that_there_may_be(client: Client) -> None:
    client.group("-names")

    def refused(source: str, **more: Any) -> str:
        answer = _streams_beat(client, client.group("-names"), source, **more)
        assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        return str(answer.error_message)

    changelog, other = ([TopicInfo(name=name)] for name in ("a b", "__consumer_offsets"))
    invalid = "Topic names a b are not valid topic names."
    assert refused("a b") == invalid
    assert refused("a", repartition_sink_topics=["a b"]) == invalid
    assert refused("a", repartition_source_topics=changelog) == invalid
    assert refused("a", state_changelog_topics=changelog) == invalid
    internal = "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited."
    assert refused("__consumer_offsets") == refused("a b", state_changelog_topics=other) == internal


def test_a_member_of_a_share_group_has_no_longer_id_than_a_uuid(client: Client) -> None:
    for length, error in ((36, ErrorCode.NONE), (37, ErrorCode.INVALID_REQUEST)):
        request = ShareGroupHeartbeatRequest(
            group_id=client.group("-share"),
            member_id="m" * length,
            member_epoch=0,
            subscribed_topic_names=[client.topic],
        )
        assert client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request).error_code == error, length
    request = ConsumerGroupHeartbeatRequest(
        group_id=client.group("-consumer"),
        member_id="m" * 300,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[client.topic],
        topic_partitions=[],
    )
    assert client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request).error_code == ErrorCode.NONE
