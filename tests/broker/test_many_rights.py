"""Requests that name thousands of resources ask for the rights to them in slices, whichever way they name them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from one_broker import BOUND_SECONDS, context, running
from test_many_share_partitions import Calls

from kraftpy.broker.authorization.guards import guard_of
from kraftpy.broker.groups import coordinators
from kraftpy.broker.handlers import metadata as handlers
from kraftpy.broker.rights import ASK_UNITS, Rights
from kraftpy.broker.security.authorizer import Authorizer
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.broker.waiting import Watch
from kraftpy.config import load
from kraftpy.groups.events import CreateInternalTopics
from kraftpy.groups.streams.topology import InternalTopic
from kraftpy.metadata.acls import Acls
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import TopicCreated
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages import consumer_group_describe as described
from kraftpy.protocol.messages import describe_configs as configs
from kraftpy.protocol.messages import describe_share_group_offsets as shared
from kraftpy.protocol.messages import describe_transactions as transactions
from kraftpy.protocol.messages import incremental_alter_configs as altering
from kraftpy.protocol.messages import metadata, offset_commit, offset_fetch, produce
from kraftpy.protocol.messages import streams_group_heartbeat as streams
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kraftpy.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.types import Millis, TopicId

MANY = 4 * UNITS_PER_ITERATION // ASK_UNITS
MOST = 2 * UNITS_PER_ITERATION // ASK_UNITS
"""The room of two iterations of the loop: a piece of work may begin in one and end in the next."""
NAMES = [f"name-{number}" for number in range(MANY)]


class Counted:
    """Rights of somebody who may do with groups and transactions what he likes, but nothing with a topic."""

    are_unlimited = False
    of_topics = None

    def __init__(self, *, sees_topics: bool) -> None:
        self.sees_topics = sees_topics
        self.calls = Calls()

    def allows(
        self, operation: Operation, resource_type: ResourceType, name: str, *, is_asked_for: bool = True
    ) -> bool:
        self.calls.called()
        return (resource_type == ResourceType.TOPIC and self.sees_topics) or resource_type in _NOT_REFUSED

    def operations(self, resource_type: ResourceType, name: str) -> int:
        for _ in range(5):
            self.calls.called()
        return 0


_NOT_REFUSED = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def fetch_group(name: str, topics: list[str]) -> offset_fetch.OffsetFetchRequestGroup:
    named = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0]) for topic in topics]
    return offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=named)


def commits() -> list[offset_commit.OffsetCommitRequestTopic]:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return [offset_commit.OffsetCommitRequestTopic(name=name, partitions=[partition]) for name in NAMES]


def describing(group: str, topics: list[str]) -> described.DescribedConsumerGroup:
    named = [described.DescribedTopicPartitions(topic_id=bytes(16), topic_name=name, partitions=[0]) for name in topics]
    assignment = described.DescribedAssignment(topic_partitions=named)
    member = described.DescribedConsumerGroupMember(member_id="m", assignment=assignment, target_assignment=assignment)
    return described.DescribedConsumerGroup(group_id=group, members=[member])


def topology() -> streams.Topology:
    return streams.Topology(epoch=1, subtopologies=[streams.Subtopology(subtopology_id="0", source_topics=NAMES)])


ASKED: dict[str, tuple[ApiKey, int, bool, Callable[[], Any], Any]] = {
    "the topics of a Produce": (
        ApiKey.PRODUCE,
        8,
        False,
        lambda: produce.ProduceRequest(
            acks=1, timeout_ms=1, topic_data=[produce.TopicProduceData(name=name, partition_data=[]) for name in NAMES]
        ),
        None,
    ),
    "the topics of an OffsetCommit": (
        ApiKey.OFFSET_COMMIT,
        8,
        False,
        lambda: offset_commit.OffsetCommitRequest(group_id="g", member_id="", topics=commits()),
        None,
    ),
    "the topics of a group's OffsetFetch": (
        ApiKey.OFFSET_FETCH,
        8,
        False,
        lambda: offset_fetch.OffsetFetchRequest(groups=[fetch_group("g", NAMES)]),
        offset_fetch.OffsetFetchResponse(),
    ),
    "one topic of each of many groups": (
        ApiKey.OFFSET_FETCH,
        8,
        False,
        lambda: offset_fetch.OffsetFetchRequest(groups=[fetch_group(name, ["t"]) for name in NAMES]),
        offset_fetch.OffsetFetchResponse(),
    ),
    "one topic of each of many groups that are told": (
        ApiKey.OFFSET_FETCH,
        8,
        True,
        lambda: offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in NAMES]
        ),
        offset_fetch.OffsetFetchResponse(
            groups=[
                offset_fetch.OffsetFetchResponseGroup(
                    group_id=name, topics=[offset_fetch.OffsetFetchResponseTopics(name="t", partitions=[])]
                )
                for name in NAMES
            ]
        ),
    ),
    "one topic of each of many share groups": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        False,
        lambda: shared.DescribeShareGroupOffsetsRequest(
            groups=[
                shared.DescribeShareGroupOffsetsRequestGroup(
                    group_id=name,
                    topics=[shared.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[0])],
                )
                for name in NAMES
            ]
        ),
        shared.DescribeShareGroupOffsetsResponse(),
    ),
    "the resources of a DescribeConfigs": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        False,
        lambda: configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
                for name in NAMES
            ]
        ),
        configs.DescribeConfigsResponse(results=[]),
    ),
    "the resources of an IncrementalAlterConfigs": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        False,
        lambda: altering.IncrementalAlterConfigsRequest(
            resources=[altering.AlterConfigsResource(resource_type=2, resource_name=name, configs=[]) for name in NAMES]
        ),
        altering.IncrementalAlterConfigsResponse(responses=[]),
    ),
    "the topics of a DeleteTopics": (
        ApiKey.DELETE_TOPICS,
        5,
        False,
        lambda: DeleteTopicsRequest(topic_names=NAMES),
        DeleteTopicsResponse(responses=[]),
    ),
    "the settings of created topics": (
        ApiKey.CREATE_TOPICS,
        5,
        True,
        lambda: CreateTopicsRequest(topics=[]),
        CreateTopicsResponse(topics=[CreatableTopicResult(name=name) for name in NAMES]),
    ),
    "the topics that a member subscribes to": (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        True,
        lambda: ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=NAMES),
        ConsumerGroupHeartbeatResponse(member_epoch=1),
    ),
    "the topics of a topology": (
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        0,
        True,
        lambda: streams.StreamsGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, process_id="p", topology=topology()
        ),
        None,
    ),
    "the operations on described groups": (
        ApiKey.DESCRIBE_GROUPS,
        6,
        True,
        lambda: DescribeGroupsRequest(groups=[], include_authorized_operations=True),
        DescribeGroupsResponse(groups=[DescribedGroup(group_id=name, authorized_operations=0) for name in NAMES]),
    ),
    "the topics of a described group": (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        1,
        True,
        lambda: described.ConsumerGroupDescribeRequest(group_ids=[]),
        described.ConsumerGroupDescribeResponse(groups=[describing("g", NAMES)]),
    ),
    "one topic of each of many described groups": (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        1,
        True,
        lambda: described.ConsumerGroupDescribeRequest(group_ids=[]),
        described.ConsumerGroupDescribeResponse(groups=[describing(name, ["t"]) for name in NAMES]),
    ),
    "one topic of each of many transactions": (
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        True,
        lambda: transactions.DescribeTransactionsRequest(transactional_ids=[]),
        transactions.DescribeTransactionsResponse(
            transaction_states=[
                transactions.TransactionState(
                    transactional_id=name,
                    transaction_start_time_ms=0,
                    producer_id=1,
                    producer_epoch=1,
                    topics=[transactions.TopicData(topic="t", partitions=[0])],
                )
                for name in NAMES
            ]
        ),
    ),
    "the groups of a list": (
        ApiKey.LIST_GROUPS,
        4,
        True,
        ListGroupsRequest,
        ListGroupsResponse(groups=[ListedGroup(group_id=name, protocol_type="") for name in NAMES]),
    ),
}


def a_broker(topics: int = 0) -> Any:
    image = Image()
    for number in range(topics):
        topic_id = TopicId((number + 1).to_bytes(16, "big"))
        image.replay(TopicCreated(name=NAMES[number], topic_id=topic_id, created_ms=Millis(0)))
    groups = SimpleNamespace(not_created=lambda group_id: [])
    return SimpleNamespace(
        slices=Slices(),
        image=image,
        config=load("", {}, []).config,
        controller_id=1,
        node_id=1,
        coordinators=groups,
    )


@pytest.mark.parametrize("what", ASKED)
async def test_guards_ask_in_slices(what: str) -> None:
    key, version, sees_topics, request, answer = ASKED[what]
    rights = Counted(sees_topics=sees_topics)
    asked_in = context(key, version)
    asked_in.rights = cast("Rights", rights)

    async def handler(broker: Any, request: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(error_code=0, status=[]) if answer is None else answer

    guard = guard_of(key)
    assert guard is not None
    await guard(a_broker(), request(), asked_in, handler)
    assert rights.calls.all >= MANY
    assert rights.calls.most <= MOST


@pytest.mark.parametrize(
    ("sees_topics", "request_of"),
    [
        (False, lambda topics: metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)),
        (True, lambda topics: metadata.MetadataRequest(topics=topics, include_topic_authorized_operations=True)),
        (True, lambda _: metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True)),
    ],
    ids=["denied", "operations", "operations on all"],
)
async def test_metadata_asks_in_slices(sees_topics: bool, request_of: Callable[[Any], Any]) -> None:
    rights = Counted(sees_topics=sees_topics)
    asked_in = context(ApiKey.METADATA, 9)
    asked_in.rights = cast("Rights", rights)
    named = [metadata.MetadataRequestTopic(name=name) for name in NAMES]
    answer = await handlers.metadata(a_broker(MANY), request_of(named), asked_in)
    assert isinstance(answer, metadata.MetadataResponse)
    assert len(answer.topics) == MANY
    assert rights.calls.all >= MANY
    assert rights.calls.most <= MOST


async def test_a_change_of_rights_wakes_those_who_wait_in_slices() -> None:
    calls = Calls()
    acls = Acls()
    decisions = Authorizer(lambda: acls, super_users=frozenset(), allow_everyone_if_no_acl_found=False)

    async def wait(watch: Watch) -> None:
        assert await watch.wait_until(asyncio.get_running_loop().time() + BOUND_SECONDS)
        calls.called()

    with ExitStack() as waiting:
        watches = [waiting.enter_context(Watch([decisions])) for _ in range(2_000)]
        async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
            for watch in watches:
                tasks.create_task(wait(watch))
            await asyncio.sleep(0)
            decisions.follow(None)
    assert calls.all == len(watches)
    assert calls.most <= 2 * 200


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_whether_internal_topics_may_be_created_is_asked_in_slices(
    is_allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, created = Calls(), asyncio.Event()

    async def create(topics: Sequence[InternalTopic], *_: Any) -> dict[str, str]:
        assert len(topics) == MANY
        created.set()
        return {}

    monkeypatch.setattr(coordinators, "create_internal_topics", create)
    rights = SimpleNamespace(may_create=calls.wrapping(lambda _: is_allowed))
    wanted = tuple(InternalTopic(name=name, partitions=1) for name in NAMES)
    async with running(tmp_path) as broker:
        groups = broker.coordinators
        groups._creators["g"] = cast("Any", rights)
        groups._create_topics(CreateInternalTopics(group_id="g", topics=wanted))
        task = groups._making["g"]
        await asyncio.wait_for(task, BOUND_SECONDS)
        assert calls.all == MANY
        assert calls.most <= MOST // 2
        assert created.is_set() is is_allowed
        told = groups.not_created("g")
        assert told == ([] if is_allowed else NAMES[:20]), "an answer has room for some of them"


@pytest.mark.parametrize("sees_topics", [False, True])
async def test_describe_topic_partitions_asks_in_slices(sees_topics: bool) -> None:
    rights = Counted(sees_topics=sees_topics)
    asked_in = context(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    asked_in.rights = cast("Rights", rights)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in NAMES])
    answer = await handlers.describe_topic_partitions(a_broker(), request, asked_in)
    assert len(answer.topics) == MANY
    assert rights.calls.all >= MANY
    assert rights.calls.most <= MOST
