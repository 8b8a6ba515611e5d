"""Share groups (keys 76, 77, 90 to 92): their members, and their start offset in each partition (KIP-932).

The protocol itself is in `groups.coordinator`; other handlers hand records out. These add what only the broker knows:
whether the cluster has share groups (`share.version`), the state that share coordinators keep of a group's partitions,
and where those partitions end (KIP-1226).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers.pieces import ask, described
from kraftpy.broker.share.state_changes import summaries
from kraftpy.groups.assignment import Assignment, TopicIdPartition, by_topic
from kraftpy.groups.events import GroupRequest
from kraftpy.groups.request_pieces import repeats
from kraftpy.groups.routing import refuse
from kraftpy.metadata.features import SHARE_FEATURE
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kraftpy.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.share.events import Result
from kraftpy.types import BrokerId, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasCoordinators, HasShareStates
    from kraftpy.broker.peers import Peers
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasImage, HasSlices

    class Broker(HasCoordinators, HasImage, HasShareStates, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def peers(self) -> Peers:
            """Connections to the other brokers."""


_LATEST = -1
_DESCRIBE_UNITS = 20
"""The cost of starting on one group, in units of `slicing`."""


def _has_share_groups(broker: Broker) -> bool:
    return broker.image.feature_level(SHARE_FEATURE) >= 1


async def _ask(broker: Broker, request: GroupRequest, context: RequestContext) -> Any:
    if not _has_share_groups(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    return await broker.coordinators.ask(request, context)


async def share_group_heartbeat(broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext) -> Any:
    """Join a share group, stay in it or leave it."""
    answer = await _ask(broker, request, context)
    answer.error_message = shortened(answer.error_message)
    return answer


async def share_group_describe(broker: Broker, request: ShareGroupDescribeRequest, context: RequestContext) -> Any:
    """Describe share groups."""
    if not _has_share_groups(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    return await described(broker, request, context, ask, DescribedShareGroup)


async def alter_share_group_offsets(
    broker: Broker, request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> Any:
    """Set the start offsets of a share group without members."""
    return await _ask(broker, request, context)


async def delete_share_group_offsets(
    broker: Broker, request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> Any:
    """Delete the start offsets of a share group without members."""
    return await _ask(broker, request, context)


async def describe_share_group_offsets(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    """Return the start offsets of share groups, and their lag."""
    groups, again = repeats(request.groups, lambda group: group.group_id)
    answers: list[asyncio.Task[DescribeShareGroupOffsetsResponseGroup]] = []
    async with asyncio.TaskGroup() as tasks:
        for group in groups + again:
            if context.is_long:
                await broker.slices.breathe(_DESCRIBE_UNITS)
            answers.append(tasks.create_task(_describe(broker, group)))
    return DescribeShareGroupOffsetsResponse(groups=[each.result() for each in answers])


async def _describe(
    broker: Broker, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    known: Assignment | ErrorCode = ErrorCode.UNSUPPORTED_VERSION
    if _has_share_groups(broker):
        known = broker.coordinators.shared_partitions(asked.group_id)
    if isinstance(known, ErrorCode):
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id, error_code=known, error_message=known.meaning
        )
    wanted, without_topic = (known, []) if asked.topics is None else _named(broker, asked)
    found = await summaries(broker.share_states, asked.group_id, wanted & known)
    ends = await _ends(broker, frozenset(each for each, summary in found.items() if _has_lag(summary)))
    topics = []
    for topic_id, numbers in by_topic(wanted):
        name = _name(broker, topic_id)
        if name is not None:
            partitions = [
                _partition(TopicIdPartition(topic_id, number), found, ends) for number in dict.fromkeys(numbers)
            ]
            topics.append(
                DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=partitions)
            )
    return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=topics + without_topic)


def _named(
    broker: Broker, asked: DescribeShareGroupOffsetsRequestGroup
) -> tuple[Assignment, list[DescribeShareGroupOffsetsResponseTopic]]:
    """Return the partitions that a request names, and the answer for unknown topics: no start offset."""
    found: list[TopicIdPartition] = []
    others = []
    for topic in asked.topics or []:
        known = broker.image.topic(topic.topic_name)
        if known is not None:
            found += [TopicIdPartition(known.topic_id, number) for number in topic.partitions]
        else:
            partitions = [DescribeShareGroupOffsetsResponsePartition(partition_index=each) for each in topic.partitions]
            others.append(DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions))
    return frozenset(found), others


def _name(broker: Broker, topic_id: TopicId) -> str | None:
    topic = broker.image.topic_by_id(topic_id)
    return None if topic is None else topic.name


def _has_lag(summary: Result) -> bool:
    return summary.error_code == ErrorCode.NONE and summary.start_offset >= 0 and summary.delivery_complete_count >= 0


def _partition(
    partition: TopicIdPartition,
    found: Mapping[TopicIdPartition, Result],
    ends: Mapping[TopicIdPartition, int | ErrorCode],
) -> DescribeShareGroupOffsetsResponsePartition:
    """Describe a partition; if its state is missing or cannot be read, it has no start offset, which is no error."""
    answer = DescribeShareGroupOffsetsResponsePartition(partition_index=partition.partition)
    summary = found.get(partition)
    if summary is None or summary.error_code != ErrorCode.NONE:
        return answer
    end = ends.get(partition)
    if isinstance(end, ErrorCode):
        answer.error_code, answer.error_message = end, end.meaning
        return answer
    answer.start_offset, answer.leader_epoch = summary.start_offset, max(0, summary.leader_epoch)  # 0: never led
    if end is not None:
        answer.lag = max(0, end - summary.start_offset - summary.delivery_complete_count)  # the start may be ahead
    return answer


async def _ends(broker: Broker, partitions: Assignment) -> dict[TopicIdPartition, int | ErrorCode]:
    """Return where each partition ends for consumers, according to its leader."""
    by_leader: dict[BrokerId, list[TopicIdPartition]] = {}
    for each in sorted(partitions):
        topic = broker.image.topic_by_id(each.topic_id)
        leader = -1 if topic is None else topic.partitions[each.partition].leader
        by_leader.setdefault(BrokerId(leader), []).append(each)
    answers = await asyncio.gather(*(_ends_at(broker, leader, theirs) for leader, theirs in by_leader.items()))
    return {each: end for answer in answers for each, end in answer.items()}


async def _ends_at(
    broker: Broker, leader: BrokerId, partitions: list[TopicIdPartition]
) -> dict[TopicIdPartition, int | ErrorCode]:
    if leader < 0:
        return dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE)
    names = {topic_id: _name(broker, topic_id) or "" for topic_id, _ in by_topic(frozenset(partitions))}
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=names[topic_id],
                partitions=[ListOffsetsPartition(partition_index=number, timestamp=_LATEST) for number in numbers],
            )
            for topic_id, numbers in by_topic(frozenset(partitions))
        ],
    )
    try:
        response = await broker.peers.ask(leader, ApiKey.LIST_OFFSETS, request)
    except KafkaError as error:
        return dict.fromkeys(partitions, error.code)
    told = {(topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions}
    found: dict[TopicIdPartition, int | ErrorCode] = {}
    for partition in partitions:
        answer = told[names[partition.topic_id], partition.partition]
        found[partition] = ErrorCode.of(answer.error_code) if answer.error_code else answer.offset
    return found
