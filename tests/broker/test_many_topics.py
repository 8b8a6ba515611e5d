"""Requests for thousands of topics are done in parts, others are served meanwhile, and the cluster has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, create, running

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import configs, leaders, metadata, topics
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.metadata.auto_creation import MOST_AT_ONCE, found_or_created
from kraftpy.broker.metadata.topic_changes import MAX_TOPICS_PER_REQUEST, UNITS_AT_ONCE, change_topics
from kraftpy.broker.replication.replica_opener import ReplicaOpener
from kraftpy.broker.storage.disk import Disk
from kraftpy.broker.storage.offline import Wanted
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import TopicsDeleted
from kraftpy.log.results import Origin
from kraftpy.metadata.commands import (
    AlterReassignments,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    NewPartitions,
    SetConfigs,
)
from kraftpy.metadata.decision import Decision
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kraftpy.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.elect_leaders import PREFERRED, ElectLeadersRequest, TopicPartitions
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import ZERO_TOPIC_ID

MANY = 3 * UNITS_AT_ONCE


async def delete(broker: Broker, names: Sequence[str]) -> list[ErrorCode]:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=ZERO_TOPIC_ID) for name in names],
        timeout_ms=int(BOUND_SECONDS * 1000),
    )
    answered = await topics.delete_topics(broker, request, context(ApiKey.DELETE_TOPICS, 6))
    return [ErrorCode.of(each.error_code) for each in answered.responses]


def submitted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Return a list that collects the commands submitted from now on."""
    commands: list[Command] = []
    submit = broker.metadata.submit

    async def noted(command: Command) -> Decision[Any]:
        commands.append(command)
        return await submit(command)

    monkeypatch.setattr(broker.metadata, "submit", noted)
    return commands


# --- parts ------------------------------------------------------------------------------------------------------------


async def test_others_are_answered_while_a_request_for_many_topics_is_pending(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        many = asyncio.ensure_future(create(broker, [f"many-{number}" for number in range(MANY)]))
        await asyncio.sleep(0)
        one = await create(broker, ["one"])
        assert not many.done(), "who asked for one topic does not wait for those of another"
        assert one.topics[0].error_code == ErrorCode.NONE
        assert {each.error_code for each in (await many).topics} == {ErrorCode.NONE}
        deleting = asyncio.ensure_future(delete(broker, [f"many-{number}" for number in range(MANY)]))
        await asyncio.sleep(0)
        assert await delete(broker, ["one"]) == [ErrorCode.NONE]
        assert not deleting.done()
        assert set(await deleting) == {ErrorCode.NONE}
        assert [topic.name for topic in broker.image.topics()] == []


async def test_each_command_is_small_and_answers_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        commands = submitted(broker, monkeypatch)
        names = ["twice", *(f"many-{number}" for number in range(MANY)), "bad name", "twice"]
        answered = await create(broker, names)
        assert [each.name for each in answered.topics] == names[:-1], "what is named twice is answered once"
        errors = {each.name: ErrorCode.of(each.error_code) for each in answered.topics}
        assert errors.pop("twice") is ErrorCode.INVALID_REQUEST, "named twice, though far apart"
        assert errors.pop("bad name") is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert set(errors.values()) == {ErrorCode.NONE}
        by_name_and_id = [each.name for each in answered.topics if each.error_code == ErrorCode.NONE]
        assert set(await delete(broker, by_name_and_id)) == {ErrorCode.NONE}
    sizes = [len(each.topics) for each in commands if isinstance(each, CreateTopics | DeleteTopics)]
    assert max(sizes) <= UNITS_AT_ONCE
    assert len(sizes) >= 6


async def test_partitions_are_made_in_slices_and_can_be_used_as_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single topic cannot be divided; what a broker does for it can."""
    slices: list[int] = []
    open_all = ReplicaOpener._open_all

    async def noted(self: ReplicaOpener, wanted: Sequence[Wanted], jobs_at_most: int) -> Any:
        slices.append(len(wanted))
        return await open_all(self, wanted, jobs_at_most)

    monkeypatch.setattr(ReplicaOpener, "_open_all", noted)
    async with running(tmp_path) as broker:
        slices.clear()
        answered = await create(broker, ["large"], partitions=350)
        assert answered.topics[0].error_code == ErrorCode.NONE
        assert sum(slices) == 350
        assert max(slices) <= 100
        assert all(broker.replicas.leader("large", number).leading is not None for number in range(350))


async def test_groups_hear_of_many_deleted_topics_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes through all groups: one for each topic would be their product."""
    told: list[int] = []
    step = GroupCoordinator.step

    def noted(self: GroupCoordinator, event: Any, *times: Any) -> Any:
        if isinstance(event, TopicsDeleted):
            told.append(len(event.topics))
        return step(self, event, *times)

    monkeypatch.setattr(GroupCoordinator, "step", noted)
    async with running(tmp_path, "offsets.topic.num.partitions=1") as broker:
        await found_or_created(CONSUMER_OFFSETS, broker.metadata, broker.config, broker.clock)
        names = [f"many-{number}" for number in range(UNITS_AT_ONCE)]
        await create(broker, names)
        await delete(broker, names)
    assert sum(told) == UNITS_AT_ONCE
    assert len(told) == 1


async def test_topics_after_one_that_was_not_decided_in_time_have_that_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        submit = broker.metadata.submit
        count = 0

        async def fails_second(command: Command) -> Decision[Any]:
            nonlocal count
            count += 1
            if count > 1:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata quorum has no leader")
            return await submit(command)

        monkeypatch.setattr(broker.metadata, "submit", fails_second)
        answered = await create(broker, [f"many-{number}" for number in range(MANY)])
        told = [ErrorCode.of(each.error_code) for each in answered.topics]
        assert told[:UNITS_AT_ONCE] == [ErrorCode.NONE] * UNITS_AT_ONCE
        assert set(told[UNITS_AT_ONCE:]) == {ErrorCode.NOT_CONTROLLER}
        assert count == 2, "nothing more is tried"


async def test_a_request_may_not_name_any_number_of_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        commands = submitted(broker, monkeypatch)
        told = await delete(broker, [f"none-{number}" for number in range(MAX_TOPICS_PER_REQUEST + 1)])
        assert set(told) == {ErrorCode.POLICY_VIOLATION}
        answered = await create(broker, ["a", "b"], partitions=6_000)
        assert {each.error_code for each in answered.topics} == {ErrorCode.POLICY_VIOLATION}
        assert commands == []


# --- auto-creation ----------------------------------------------------------------------------------------------------


async def test_metadata_makes_some_topics_and_the_rest_when_it_is_asked_again(tmp_path: Path) -> None:
    names = [f"wanted-{number}" for number in range(2 * MOST_AT_ONCE + 10)]
    async with running(tmp_path) as broker:
        left, made = names, []
        while left:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in left], allow_auto_topic_creation=True
            )
            answered = await metadata.metadata(broker, request, context(ApiKey.METADATA, 12))
            errors = {each.name or "": ErrorCode.of(each.error_code) for each in answered.topics}
            assert set(errors.values()) <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
            left = [name for name, error in errors.items() if error is ErrorCode.LEADER_NOT_AVAILABLE]
            made.append(len(errors) - len(left))
        assert made == [MOST_AT_ONCE, MOST_AT_ONCE, 10]
        assert all(broker.image.topic(name) is not None for name in names)


# --- the cluster's limit ----------------------------------------------------------------------------------------------


async def test_the_cluster_has_no_more_partitions_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path, "kraftpy.max.partitions=10") as broker:
        assert (await create(broker, ["a"], partitions=6)).topics[0].error_code == ErrorCode.NONE
        answered = (await create(broker, ["b", "c", "a"], partitions=3)).topics
        told = [ErrorCode.of(each.error_code) for each in answered]
        assert told == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert "kraftpy.max.partitions=10" in (answered[1].error_message or "")
        growth = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name="a", count=7, assignments=None),
                CreatePartitionsTopic(name="b", count=4, assignments=None),
            ],
            timeout_ms=10_000,
        )
        grown = await topics.create_partitions(broker, growth, context(ApiKey.CREATE_PARTITIONS, 3))
        told = [ErrorCode.of(each.error_code) for each in grown.results]
        assert told == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
        assert "kraftpy.max.partitions=10" in (grown.results[1].error_message or "")
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="d")], allow_auto_topic_creation=True)
        found = await metadata.metadata(broker, asked, context(ApiKey.METADATA, 12))
        assert found.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        own = await found_or_created(CONSUMER_OFFSETS, broker.metadata, broker.config, broker.clock)
        assert own is not None, "groups can be used in a full cluster"
        assert await delete(broker, ["a"]) == [ErrorCode.NONE]


async def test_only_validated_topics_count_as_if_they_were_made(tmp_path: Path) -> None:
    async with running(tmp_path, f"kraftpy.max.partitions={UNITS_AT_ONCE + 5}") as broker:
        answered = await create(broker, [f"t-{number}" for number in range(UNITS_AT_ONCE + 7)], validate_only=True)
        told = [ErrorCode.of(each.error_code) for each in answered.topics]
        assert told.count(ErrorCode.POLICY_VIOLATION) == 2
        assert broker.image.topics() == ()


async def test_a_cluster_above_its_limit_starts_and_serves_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["a"], partitions=8)
    async with running(tmp_path, "kraftpy.max.partitions=5") as broker:
        assert all(broker.replicas.leader("a", number).leading is not None for number in range(8))
        refused = await change_topics(
            CreatePartitions(topics=(NewPartitions(name="a", count=9),), time_ms=broker.clock.now()),
            broker.metadata,
            broker.config,
        )
        assert [each.error for each in refused] == [ErrorCode.POLICY_VIOLATION]


# --- settings ---------------------------------------------------------------------------------------------------------


async def set_groups(broker: Broker, names: Sequence[str], value: str = "50000") -> list[Any]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=32,
                resource_name=name,
                configs=[AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value=value)],
            )
            for name in names
        ],
        validate_only=False,
    )
    answered = await configs.incremental_alter_configs(broker, request, context(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1))
    return list(answered.responses)


async def test_settings_of_many_groups_are_set_in_parts_and_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"group-{number}" for number in range(2 * UNITS_AT_ONCE)]
    async with running(tmp_path) as broker:
        commands = submitted(broker, monkeypatch)
        answered = await set_groups(broker, [*names, names[0]])
        told = [ErrorCode.of(each.error_code) for each in answered]
        assert told[0] is told[-1] is ErrorCode.INVALID_REQUEST, "named twice, though far apart"
        assert set(told[1:-1]) == {ErrorCode.NONE}
        assert [each.resource_name for each in answered] == [*names, names[0]]
        assert max(len(each.changes) for each in commands if isinstance(each, SetConfigs)) <= UNITS_AT_ONCE
    async with running(tmp_path, "kraftpy.max.configs.bytes=1") as broker:
        refused, known = await set_groups(broker, ["another", names[1]], "60000")
        assert ErrorCode.of(refused.error_code) is ErrorCode.POLICY_VIOLATION
        assert "kraftpy.max.configs.bytes" in refused.error_message
        assert known.error_code == ErrorCode.NONE, "what is there already may be changed"


# --- administrators' other requests -----------------------------------------------------------------------------------


async def test_elections_and_moves_of_many_partitions_are_done_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = UNITS_AT_ONCE + 20
    async with running(tmp_path) as broker:
        await create(broker, ["a"], partitions=count)
        commands = submitted(broker, monkeypatch)
        numbers = [5, *range(count), 5]
        elected = await leaders.elect_leaders(
            broker,
            ElectLeadersRequest(
                election_type=PREFERRED,
                topic_partitions=[TopicPartitions(topic="a", partitions=numbers)],
                timeout_ms=10_000,
            ),
            context(ApiKey.ELECT_LEADERS, 2),
        )
        told = [(each.partition_id, each.error_code) for each in elected.replica_election_results[0].partition_result]
        assert [number for number, _ in told] == numbers
        assert {error for _, error in told} == {ErrorCode.ELECTION_NOT_NEEDED}
        altered = await leaders.alter_partition_reassignments(
            broker,
            AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(
                        name="a",
                        partitions=[ReassignablePartition(partition_index=each, replicas=[1]) for each in range(count)],
                    )
                ],
                timeout_ms=10_000,
            ),
            context(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0),
        )
        moved = altered.responses[0].partitions
        assert [each.partition_index for each in moved] == list(range(count))
        assert {each.error_code for each in moved} == {ErrorCode.NONE}
    sizes = [len(each.partitions or ()) for each in commands if isinstance(each, ElectLeaders)]
    sizes += [len(each.reassignments) for each in commands if isinstance(each, AlterReassignments)]
    assert len(sizes) >= 4
    assert max(sizes) <= UNITS_AT_ONCE + 2, "what is named several times stays together"


async def test_deletions_of_records_share_their_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint lists the start of every partition: writing one per partition asked for would be quadratic."""
    count = 50
    written = 0
    write = Disk.write_checkpoints

    def counted(self: Disk, *offsets: Any) -> None:
        nonlocal written
        written += 1
        write(self, *offsets)

    async with running(tmp_path) as broker:
        await create(broker, ["a"], partitions=count)
        for number in range(count):
            batch = encode_batch([(0, None, b"x", ())])
            broker.replicas.leader("a", number).append(batch, Origin.CLIENT, broker.clock.now())
        monkeypatch.setattr(Disk, "write_checkpoints", counted)
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="a",
                    partitions=[DeleteRecordsPartition(partition_index=each, offset=1) for each in range(count)],
                )
            ],
            timeout_ms=10_000,
        )
        answered = await topics.delete_records(broker, request, context(ApiKey.DELETE_RECORDS, 2))
        assert {each.error_code for each in answered.topics[0].partitions} == {ErrorCode.NONE}
        assert {each.low_watermark for each in answered.topics[0].partitions} == {1}
        assert 1 <= written < 10
        assert all(broker.replicas.leader("a", each).log.written_log_start == 1 for each in range(count))
