"""Administrative requests with thousands of items are served in slices, for every kind of item."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from one_broker import context
from test_many_share_partitions import Calls

from kraftpy.broker import apis
from kraftpy.broker.handlers import (
    acls,
    configs,
    delegation_tokens,
    fetch,
    log_dirs,
    metadata,
    producers,
    security,
    topics,
)
from kraftpy.broker.metadata import topic_changes
from kraftpy.broker.metadata.topic_changes import MAX_TOPICS_PER_REQUEST
from kraftpy.broker.quotas.mutations import Mutations
from kraftpy.broker.replication.fetch_sessions import FetchContext, FetchedPartition
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.config import load
from kraftpy.metadata.acls import AclChanged
from kraftpy.metadata.controller import decide
from kraftpy.metadata.delegation_tokens import DelegationToken
from kraftpy.metadata.image import Image
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages import alter_replica_log_dirs as moving
from kraftpy.protocol.messages import alter_user_scram_credentials as scram
from kraftpy.protocol.messages import create_acls as creating
from kraftpy.protocol.messages import create_partitions as growing
from kraftpy.protocol.messages import delete_acls as deleting
from kraftpy.protocol.messages import describe_delegation_token as tokens
from kraftpy.protocol.messages import describe_producers as describing
from kraftpy.protocol.messages import incremental_alter_configs as altering
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.fetch import FetchRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.security.acls import AclBinding, AclFilter, Operation, ResourceType
from kraftpy.types import Millis, TopicId

MANY = 4 * UNITS_PER_ITERATION
MOST = 2 * UNITS_PER_ITERATION
"""The room of two iterations of the loop: a piece of work may begin in one and end in the next."""
NAMES = [f"name-{number}" for number in range(MANY)]


class Alone:
    """The metadata of a node that is alone: what changes nothing is decided at once, without a pause."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.commands: list[Any] = []

    async def submit(self, command: Any) -> Any:
        self.commands.append(command)
        return decide(command, self.image)


def a_broker(**more: Any) -> Any:
    image = Image()
    return SimpleNamespace(
        **{
            "slices": Slices(),
            "image": image,
            "metadata": Alone(image),
            "config": load("", {}, []).config,
            "config_room": SimpleNamespace(held=lambda added: nullcontext()),
            "clock": SimpleNamespace(now=lambda: Millis(1)),
            "authorizer": object(),
            "node_id": 1,
            "controller_id": 1,
            **more,
        }
    )


@pytest.fixture
def calls() -> Calls:
    return Calls()


# --- ACLs -------------------------------------------------------------------------------------------------------------


def a_filter(name: str) -> deleting.DeleteAclsFilter:
    return deleting.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=name,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


async def test_bindings_are_compared_with_filters_in_slices(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AclFilter, "selects", calls.wrapping(AclFilter.selects))
    broker, bindings, filters = a_broker(), 200, 1_000
    for number in range(bindings):
        binding = AclBinding(
            resource_type=ResourceType.TOPIC, name=f"topic-{number}", principal="User:a", operation=Operation.READ
        )
        broker.image.acls.replay(AclChanged(binding=binding))
    request = deleting.DeleteAclsRequest(filters=[a_filter(f"none-{number}") for number in range(filters)])
    answer = await acls.delete_acls(broker, request, context(ApiKey.DELETE_ACLS, 3))
    assert len(answer.filter_results) == filters
    assert calls.all == 2 * bindings * filters, "they are counted first"
    assert calls.most <= 2 * acls._COMPARED_AT_ONCE + MOST


async def test_more_filters_than_are_allowed_are_read_in_slices(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "_filter", calls.wrapping(acls._filter))
    request = deleting.DeleteAclsRequest(filters=[a_filter(name) for name in NAMES])
    answer = await acls.delete_acls(a_broker(), request, context(ApiKey.DELETE_ACLS, 3))
    assert {each.error_code for each in answer.filter_results} == {ErrorCode.INVALID_REQUEST}
    assert calls.all == MANY
    assert calls.most <= MOST


async def test_the_host_of_a_binding_is_parsed_only_if_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(acls, "is_address", lambda host: parsed.append(host) or True)
    creation = creating.AclCreation(
        resource_type=int(ResourceType.TOPIC),
        resource_name="topic",
        principal="User:a",
        host="1" * 30_000,
        operation=int(Operation.READ),
        permission_type=3,
    )
    request = creating.CreateAclsRequest(creations=[creation])
    answer = await acls.create_acls(a_broker(), request, context(ApiKey.CREATE_ACLS, 3))
    assert answer.results[0].error_message == "Resource name, principal and host must not exceed 1024 characters"
    assert not parsed


# --- users and tokens -------------------------------------------------------------------------------------------------


async def test_credentials_are_changed_in_parts() -> None:
    broker = a_broker()
    deletions = [scram.ScramCredentialDeletion(name=name, mechanism=1) for name in NAMES]
    request = scram.AlterUserScramCredentialsRequest(deletions=deletions)
    answer = await security.alter_user_scram_credentials(
        broker, request, context(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
    )
    assert [each.user for each in answer.results] == NAMES
    assert {each.error_code for each in answer.results} == {ErrorCode.RESOURCE_NOT_FOUND}
    sizes = [len(command.changes) for command in broker.metadata.commands]
    assert sum(sizes) == MANY
    assert max(sizes) <= security.AT_ONCE


async def test_tokens_with_many_renewers_are_described_in_slices(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "_has_proved_itself", lambda *_: True)
    monkeypatch.setattr(delegation_tokens, "_secret", lambda _: "secret")
    monkeypatch.setattr(delegation_tokens, "_described", calls.wrapping(lambda *_: tokens.DescribedDelegationToken))
    broker, renewers = a_broker(), 1_000
    for number in range(100):
        token = DelegationToken(
            token_id=str(number),
            digest=str(number).encode(),
            owner="a",
            requester="a",
            renewers=tuple(map(str, range(renewers))),
            issue_ms=Millis(0),
            expiry_ms=Millis(1 << 40),
            max_ms=Millis(1 << 40),
        )
        broker.image.delegation_tokens.put(token)
    request = tokens.DescribeDelegationTokenRequest(owners=None)
    await delegation_tokens.describe_delegation_token(broker, request, context(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3))
    assert calls.all == 100
    assert calls.most <= MOST * delegation_tokens._RENEWERS_PER_UNIT // renewers


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_many_topics_to_delete_or_grow_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    read, grown, failed = Calls(), Calls(), Calls()
    monkeypatch.setattr(topics, "TopicReference", read.wrapping(topics.TopicReference))
    monkeypatch.setattr(topics, "NewPartitions", grown.wrapping(topics.NewPartitions))
    monkeypatch.setattr(topic_changes, "_failed", failed.wrapping(topic_changes._failed))
    broker, names = a_broker(), [f"name-{number}" for number in range(MAX_TOPICS_PER_REQUEST + 1)]
    deleted = await topics.delete_topics(
        broker, DeleteTopicsRequest(topic_names=names), context(ApiKey.DELETE_TOPICS, 5)
    )
    assert {each.error_code for each in deleted.responses} == {ErrorCode.POLICY_VIOLATION}
    wanted = [growing.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
    answer = await topics.create_partitions(
        broker, growing.CreatePartitionsRequest(topics=wanted), context(ApiKey.CREATE_PARTITIONS, 3)
    )
    assert {each.error_code for each in answer.results} == {ErrorCode.POLICY_VIOLATION}
    for each in (read, grown):
        assert each.all == len(names)
        assert each.most <= MOST
    assert failed.all == 2 * len(names)
    assert failed.most <= MOST


async def test_what_topics_cost_of_a_quota_is_counted_in_slices(calls: Calls) -> None:
    asked = context(ApiKey.DELETE_TOPICS, 5)
    asked.quota = cast("Any", SimpleNamespace(may_mutate=lambda *_, **__: True, did_not_mutate=lambda _: None))
    mutations: Mutations[str] = Mutations(Slices(), asked, 5, calls.wrapping(lambda _: 1))
    await mutations.count(NAMES)
    assert mutations.allowed == NAMES
    assert calls.most <= MOST


async def test_settings_of_many_resources_are_looked_at_in_slices(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "_named_twice", calls.wrapping(configs._named_twice))
    named = [altering.AlterConfigsResource(resource_type=2, resource_name="same", configs=[]) for _ in NAMES]
    answer = await configs.incremental_alter_configs(
        a_broker(),
        altering.IncrementalAlterConfigsRequest(resources=named),
        context(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
    )
    assert {each.error_code for each in answer.responses} == {ErrorCode.INVALID_REQUEST}
    assert calls.all == MANY
    assert calls.most <= MOST


async def test_many_topics_are_described_by_page_in_slices(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "topic", calls.wrapping(Image.topic))
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in NAMES])
    answer = await metadata.describe_topic_partitions(a_broker(), request, context(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0))
    assert len(answer.topics) == MANY
    assert calls.all == MANY
    assert calls.most <= MOST


# --- partitions -------------------------------------------------------------------------------------------------------


async def test_producers_of_many_partitions_are_looked_up_in_slices(calls: Calls) -> None:
    def any_role(topic: str, partition: int) -> Any:
        calls.called()
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    for named in (
        [describing.TopicRequest(name="topic", partition_indexes=list(range(MANY)))],
        [describing.TopicRequest(name=name, partition_indexes=[0]) for name in NAMES],
    ):
        answer = await producers.describe_producers(
            a_broker(replicas=SimpleNamespace(any_role=any_role)),
            describing.DescribeProducersRequest(topics=named),
            context(ApiKey.DESCRIBE_PRODUCERS, 0),
        )
        assert sum(len(topic.partitions) for topic in answer.topics) == MANY
    assert calls.all == 2 * MANY
    assert calls.most <= MOST // producers._DESCRIBE_UNITS


async def test_many_producers_of_one_partition_are_described_in_slices(calls: Calls) -> None:
    producer = SimpleNamespace(
        producer_id=1,
        producer_epoch=1,
        last_sequence=1,
        last_timestamp=1,
        coordinator_epoch=1,
        current_txn_start_offset=1,
    )
    described = calls.wrapping(lambda _: producer)
    log = SimpleNamespace(producers=SimpleNamespace(describe=lambda: map(described, NAMES)))
    answer = await producers.describe_producers(
        a_broker(replicas=SimpleNamespace(any_role=lambda *_: SimpleNamespace(log=log))),
        describing.DescribeProducersRequest(topics=[describing.TopicRequest(name="topic", partition_indexes=[0])]),
        context(ApiKey.DESCRIBE_PRODUCERS, 0),
    )
    assert len(answer.topics[0].partitions[0].active_producers) == MANY
    assert calls.most <= MOST + 250


async def test_many_replicas_are_moved_in_slices(calls: Calls) -> None:
    async def alter(path: str, key: Any) -> ErrorCode:
        calls.called()
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    named = [moving.AlterReplicaLogDirTopic(name="topic", partitions=list(range(MANY)))]
    answer = await log_dirs.alter_replica_log_dirs(
        a_broker(log_moves=SimpleNamespace(alter=alter)),
        moving.AlterReplicaLogDirsRequest(dirs=[moving.AlterReplicaLogDir(path="/a", topics=named)]),
        context(ApiKey.ALTER_REPLICA_LOG_DIRS, 2),
    )
    assert len(answer.results[0].partitions) == MANY
    assert calls.all == MANY
    assert calls.most <= MOST // log_dirs._MOVE_UNITS


async def test_a_fetch_of_many_partitions_begins_to_wait_for_them_in_slices(calls: Calls) -> None:
    def readable(topic: str, partition: int) -> Any:
        calls.called()
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    broker = a_broker(request_memory=RequestMemory(), replicas=SimpleNamespace(readable=readable))
    reader = fetch._Reader(broker, FetchRequest(max_wait_ms=0, min_bytes=1), context(ApiKey.FETCH, 12))
    partitions = [
        FetchedPartition(
            topic=name,
            topic_id=TopicId(bytes(16)),
            partition=0,
            fetch_offset=0,
            max_bytes=1,
            current_leader_epoch=-1,
            last_fetched_epoch=-1,
        )
        for name in NAMES
    ]
    fetched = FetchContext(partitions=partitions, session=None, incremental=False, asked=partitions)
    answers = await fetch._wait(reader, fetched, [], set())
    assert len(answers) == MANY
    assert calls.all == 2 * MANY, "looked up to be watched, and then read"
    assert calls.most <= MOST + fetch._LONG


# --- long texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("characters", "is_hashed"), [(10, False), (30_000, True)])
async def test_long_texts_are_hashed_where_they_are_decoded(characters: int, is_hashed: bool) -> None:
    """The loop would spend up to 100 ms on the texts of one request otherwise, each time it looks them up."""
    named = [MetadataRequestTopic(name=str(number) + "x" * characters) for number in range(200)]
    body = encode_request(ApiKey.METADATA, 9, 7, None, MetadataRequest(topics=named))
    request = apis._decode_long(MetadataRequest, memoryview(body)[4 + 4 + 4 + 2 + 1 :], 9, ApiKey.METADATA)
    assert len(request.topics) == 200
    assert [knows_its_hash(topic.name) for topic in request.topics] == [is_hashed] * 200


def knows_its_hash(text: str | None) -> bool:
    """Return whether a text was hashed before: CPython keeps the hash behind the length, and -1 until then."""
    place = id(text) + object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    return ctypes.c_ssize_t.from_address(place).value != -1
