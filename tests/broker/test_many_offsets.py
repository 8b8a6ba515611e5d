"""Requests that name many partitions or groups are served in pieces, with others served in between; the answer is
the same as if all had been done at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, running

from kraftpy.broker.apis import answer
from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.handlers.producers import init_producer_id
from kraftpy.broker.slicing import UNITS_PER_ITERATION
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import Request
from kraftpy.groups.request_pieces import COMMIT_UNITS, DELETE_UNITS, FETCH_UNITS, GROUP_UNITS
from kraftpy.metadata.records import PartitionCreated, TopicCreated
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
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
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.protocol.record_batch import ControlType, encode_control_batch
from kraftpy.protocol.schema import decode
from kraftpy.types import Millis, TopicId

PARTITIONS = 6_000
TOPIC_ID = TopicId(bytes(15) + b"\1")
SETTINGS = ("offsets.topic.num.partitions=1",)


class Steps:
    """Counts the partitions or groups that coordinators are asked about in one turn of the event loop."""

    def __init__(self) -> None:
        self.in_this_turn = self.most = 0

    def asked(self, message: Any) -> None:
        if not self.in_this_turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.in_this_turn += self._named(message)
        self.most = max(self.most, self.in_this_turn)

    def _next_turn(self) -> None:
        self.in_this_turn = 0

    @staticmethod
    def _named(message: Any) -> int:
        if isinstance(message, OffsetFetchRequest):
            topics = [topic for group in message.groups for topic in group.topics or []] + (message.topics or [])
            return sum(len(topic.partition_indexes) for topic in topics) + len(message.groups)
        if isinstance(message, DescribeGroupsRequest):
            return len(message.groups)
        if isinstance(message, DeleteGroupsRequest):
            return len(message.groups_names)
        if isinstance(message, LeaveGroupRequest):
            return len(message.members)
        return sum(len(topic.partitions) for topic in getattr(message, "topics", []))

    def are_within(self, units: int) -> bool:
        """Return whether no turn did more than two may (a turn's end is seen one late), nor everything at once."""
        return 0 < self.most <= 2 * UNITS_PER_ITERATION // units


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    counted, usual = Steps(), GroupCoordinator.step

    def step(self: GroupCoordinator, event: Any, *times: Any) -> Any:
        if isinstance(event, Request):
            counted.asked(event.message)
        return usual(self, event, *times)

    monkeypatch.setattr(GroupCoordinator, "step", step)
    return counted


async def ask(broker: Broker, key: ApiKey, version: int, request: Any) -> Any:
    """The answer, and that of another client that asks meanwhile comes first."""
    frame = bytearray(encode_request(key, version, 7, "test", request)[4:])
    asked = asyncio.create_task(answer(broker, frame, "127.0.0.1", "PLAINTEXT"))
    await asyncio.sleep(0)
    other = bytearray(encode_request(ApiKey.API_VERSIONS, 0, 8, "other", ApiVersionsRequest())[4:])
    assert await answer(broker, other, "127.0.0.2", "PLAINTEXT")
    assert not asked.done(), "the other client waited for all of it"
    response = await asyncio.wait_for(asked, BOUND_SECONDS)
    assert isinstance(response, bytes | bytearray)
    _, body = decode_response_header(key, version, memoryview(response)[4:])
    return decode(APIS[key].response, body, version)


async def prepare(broker: Broker) -> None:
    """A coordinator and a topic with many partitions; only their number matters."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
    found = await find_coordinator(broker, request, context(ApiKey.FIND_COORDINATOR, 6))
    assert found.coordinators[0].error_code == ErrorCode.NONE
    broker.image.replay(TopicCreated(name="many", topic_id=TOPIC_ID, created_ms=Millis(0)))
    ids = (broker.node_id,)
    for number in range(PARTITIONS):
        broker.image.replay(
            PartitionCreated(
                topic="many", topic_id=TOPIC_ID, partition=number, replicas=ids, isr=ids, leader=broker.node_id
            )
        )


def commit(first: int = 0, end: int = PARTITIONS) -> OffsetCommitRequest:
    named = [OffsetCommitRequestPartition(partition_index=each, committed_offset=each) for each in range(first, end)]
    return OffsetCommitRequest(
        group_id="group", member_id="", topics=[OffsetCommitRequestTopic(name="many", partitions=named)]
    )


async def test_many_offsets_of_one_group_are_committed_told_and_deleted_in_pieces(tmp_path: Path, steps: Steps) -> None:
    async with running(tmp_path / "data", *SETTINGS) as broker:
        await prepare(broker)
        committed = await ask(broker, ApiKey.OFFSET_COMMIT, 8, commit(end=PARTITIONS + 10))
        codes = Counter(part.error_code for topic in committed.topics for part in topic.partitions)
        assert codes == {ErrorCode.NONE: PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 10}
        assert steps.are_within(COMMIT_UNITS), steps.most

        steps.most = 0
        indexes = list(range(PARTITIONS))
        topic = OffsetFetchRequestTopics(name="many", partition_indexes=indexes)
        for topics in ([topic], None):
            group = OffsetFetchRequestGroup(group_id="group", topics=topics)
            fetched = await ask(broker, ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[group], require_stable=True))
            ((told,),) = [each.topics for each in fetched.groups]
            assert [(part.partition_index, part.committed_offset) for part in told.partitions] == [
                (each, each) for each in indexes
            ]
            assert steps.are_within(FETCH_UNITS), steps.most
        fetched = await ask(broker, ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id="group", topics=None))
        (of_one,) = fetched.topics
        assert [part.committed_offset for part in of_one.partitions] == indexes
        assert steps.are_within(FETCH_UNITS), steps.most

        steps.most = 0
        doomed = [OffsetDeleteRequestPartition(partition_index=each) for each in indexes]
        deletion = OffsetDeleteRequest(
            group_id="group", topics=[OffsetDeleteRequestTopic(name="many", partitions=doomed)]
        )
        deleted = await ask(broker, ApiKey.OFFSET_DELETE, 0, deletion)
        (of_topic,) = deleted.topics
        assert [part.partition_index for part in of_topic.partitions] == indexes
        assert {part.error_code for part in of_topic.partitions} == {ErrorCode.NONE}
        assert steps.are_within(DELETE_UNITS), steps.most
        assert broker.coordinators.committed("group") == []


async def test_many_groups_are_listed_described_and_deleted_in_pieces(tmp_path: Path, steps: Steps) -> None:
    async with running(tmp_path / "data", *SETTINGS) as broker:
        await prepare(broker)
        names = [f"group-{number:04}" for number in range(3_000)]
        for name in names:
            request = commit(end=1)
            request.group_id = name
            await broker.coordinators.ask(request, context(ApiKey.OFFSET_COMMIT, 8))
        steps.most = 0
        listed = await ask(broker, ApiKey.LIST_GROUPS, 5, ListGroupsRequest())
        assert [group.group_id for group in listed.groups] == names
        described = await ask(broker, ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=names))
        assert [group.group_id for group in described.groups] == names
        assert steps.are_within(GROUP_UNITS), steps.most
        leaving = [MemberIdentity(member_id=name) for name in names]
        left = await ask(broker, ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(group_id=names[0], members=leaving))
        assert [(each.member_id, each.error_code) for each in left.members] == [
            (name, ErrorCode.UNKNOWN_MEMBER_ID) for name in names
        ]
        assert steps.are_within(GROUP_UNITS), steps.most
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        fetched = await ask(broker, ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=groups))
        assert [group.group_id for group in fetched.groups] == names
        assert {len(group.topics[0].partitions) for group in fetched.groups} == {1}
        assert steps.are_within(GROUP_UNITS), steps.most
        deleted = await ask(broker, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=names))
        assert {result.error_code for result in deleted.results} == {ErrorCode.NONE}
        assert steps.are_within(GROUP_UNITS), steps.most


async def test_many_offsets_of_a_transaction_are_stored_in_pieces_as_long_as_it_is_open(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece checks this again: offsets written behind its marker would be pending forever."""
    async with running(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1") as broker:
        await prepare(broker)
        finding = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
        await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
        begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        begun = await init_producer_id(broker, begin, context(ApiKey.INIT_PRODUCER_ID, 4))
        assert begun.error_code == ErrorCode.NONE
        named = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(PARTITIONS)]
        request = TxnOffsetCommitRequest(
            transactional_id="id",
            group_id="group",
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name="many", partitions=named)],
        )
        told = await ask(broker, ApiKey.TXN_OFFSET_COMMIT, 5, request)
        (topic,) = told.topics
        assert [(part.partition_index, part.error_code) for part in topic.partitions] == [
            (number, ErrorCode.NONE) for number in range(PARTITIONS)
        ]
        assert steps.are_within(COMMIT_UNITS), steps.most

        usual, stored = broker.coordinators.ask, 0

        async def ended_meanwhile(*arguments: Any) -> Any:
            nonlocal stored
            stored += 1
            if stored == 3:
                marker = encode_control_batch(
                    ControlType.ABORT,
                    timestamp=0,
                    producer_id=begun.producer_id,
                    producer_epoch=begun.producer_epoch,
                    coordinator_epoch=0,
                )
                written = await broker.coordinators.write_marker(
                    0, marker, begun.producer_id, is_commit=False, raised_epoch=None
                )
                assert written == ErrorCode.NONE
            return await usual(*arguments)

        async def refused(*arguments: Any, **named: Any) -> Any:
            return dict.fromkeys(arguments[3], ErrorCode.TRANSACTION_ABORTABLE)

        monkeypatch.setattr(broker.coordinators, "ask", ended_meanwhile)
        monkeypatch.setattr(broker.transactions, "begin_writing", refused)
        told = await ask(broker, ApiKey.TXN_OFFSET_COMMIT, 5, request)
        codes = Counter(part.error_code for topic in told.topics for part in topic.partitions)
        assert set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
        assert codes[ErrorCode.NONE] <= 2 * UNITS_PER_ITERATION // COMMIT_UNITS
        assert broker.replicas.leader("__consumer_offsets", 0).log.producers.first_open_offset is None
