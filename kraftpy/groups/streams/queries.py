"""Read-only requests about streams groups: StreamsGroupDescribe (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.groups.group import Group
from kraftpy.groups.queries import ALL_OPERATIONS, OPERATIONS_NOT_ASKED
from kraftpy.groups.streams.group import StreamsGroup, TaskOffsets
from kraftpy.groups.streams.protocol import task_ids
from kraftpy.groups.streams.records import Tasks
from kraftpy.groups.streams.topology import Configured, InternalTopic, Subtopology
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.streams_group_describe import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from kraftpy.protocol.messages.streams_group_heartbeat import Endpoint, KeyValue, TaskOffset, TopicInfo


def describe(
    message: StreamsGroupDescribeRequest,
    groups: Mapping[str, Group],
    configured: Mapping[str, Configured | None],
) -> StreamsGroupDescribeResponse:
    """Describe the requested groups. A missing group, or one of another type, gets its own error."""
    operations = ALL_OPERATIONS if message.include_authorized_operations else OPERATIONS_NOT_ASKED
    described = []
    for group_id in dict.fromkeys(message.group_ids):
        group = groups.get(group_id)
        if group is None:
            described.append(_not_found(group_id, "not found"))
        elif not isinstance(group.kind, StreamsGroup) or group.is_dead:
            described.append(_not_found(group_id, "is not a streams group"))
        else:
            described.append(_describe(group.kind, configured.get(group_id), operations))
    return StreamsGroupDescribeResponse(groups=described)


ASSIGNOR = "sticky"
"""Kafka's name of the assignor that all groups have."""


def _not_found(group_id: str, why: str) -> DescribedStreamsGroup:
    return DescribedStreamsGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id[:249]} {why}.", group_id=group_id
    )


def _describe(group: StreamsGroup, configured: Configured | None, operations: int) -> DescribedStreamsGroup:
    topology = None
    if group.topology is not None:
        counts = configured.internal if configured is not None and configured.is_ready else {}
        parts = [_subtopology(each, counts) for each in group.topology.subtopologies]
        topology = DescribedTopology(epoch=group.topology.epoch, subtopologies=parts)
    return DescribedStreamsGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=topology,
        members=[_member(group, member_id) for member_id in sorted(group.members)],
        authorized_operations=operations,
        assignor_name=ASSIGNOR,
    )


def _member(group: StreamsGroup, member_id: str) -> DescribedStreamsMember:
    member, volatile = group.members[member_id], group.volatile
    endpoint = member.user_endpoint
    return DescribedStreamsMember(
        member_id=member_id,
        member_epoch=group.current(member_id).member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[KeyValue(key=key, value=value) for key, value in member.client_tags],
        task_offsets=_offsets(volatile.offsets.get(member_id, {})),
        task_end_offsets=_offsets(volatile.end_offsets.get(member_id, {})),
        assignment=_tasks(group.current(member_id).assigned),
        target_assignment=_tasks(group.target(member_id)),
    )


def _tasks(tasks: Tasks) -> DescribedTasks:
    return DescribedTasks(
        active_tasks=task_ids(tasks.active),
        standby_tasks=task_ids(tasks.standby),
        warmup_tasks=task_ids(tasks.warmup),
    )


def _offsets(offsets: TaskOffsets) -> list[TaskOffset]:
    return [
        TaskOffset(subtopology_id=task.subtopology_id, partition=task.partition, offset=offset)
        for task, offset in sorted(offsets.items())
    ]


def _subtopology(subtopology: Subtopology, counts: Mapping[str, int]) -> DescribedSubtopology:
    """Describe a subtopology. `counts` has the numbers of partitions of internal topics that are known."""
    return DescribedSubtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=sorted(subtopology.source_topics),
        repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
        state_changelog_topics=_topics(subtopology.state_changelog_topics, counts),
        repartition_source_topics=_topics(subtopology.repartition_source_topics, counts),
    )


def _topics(topics: Iterable[InternalTopic], counts: Mapping[str, int]) -> list[TopicInfo]:
    return [_topic(topic, counts) for topic in sorted(topics, key=lambda topic: topic.name)]


def _topic(topic: InternalTopic, partitions: Mapping[str, int]) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        partitions=partitions.get(topic.name, topic.partitions),
        replication_factor=topic.replication_factor,
        topic_configs=[KeyValue(key=key, value=value) for key, value in topic.configs],
    )
