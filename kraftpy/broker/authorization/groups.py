"""Guards of requests about groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kraftpy.broker.authorization.guards import (
    Handler,
    all_allowed,
    allows,
    commit_allowed,
    divided,
    each_with_room,
    needs,
    put_operations,
    topic_name,
    visible,
)
from kraftpy.broker.authorization.policy import Need
from kraftpy.broker.request import RequestContext
from kraftpy.broker.rights import OPERATIONS_NOT_ASKED
from kraftpy.broker.slicing import PIECE
from kraftpy.groups.offsets import FIRST_FETCH_WITH_GROUPS, refuse_commit
from kraftpy.groups.routing import refuse
from kraftpy.groups.streams.topology import MISSING_INTERNAL_TOPICS
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from kraftpy.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from kraftpy.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from kraftpy.security.acls import WILDCARD

_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_NAMES_AT_ONCE = 10 * PIECE
"""How many names of topics are collected in a piece of work."""
_LONGEST_SHOWN = 249
_FIRST_KEYS_VERSION = 4
_FIRST_SHARE_VERSION = 6
_HIDDEN_TOPICS = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: "The group has described topic(s) that the client is not authorized to describe.",
    ApiKey.SHARE_GROUP_DESCRIBE: "The group has described topic(s) that the client is not authorized to describe.",
    ApiKey.STREAMS_GROUP_DESCRIBE: "The described group uses topics that the client is not authorized to describe.",
}


async def of_member(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Serve a member whose client may read with the group."""
    need = needs(context)[0]
    if allows(context, need, request.group_id):
        return await handler(broker, request, context)
    return refuse(request, context.api_version, need.error)


async def topology_description(
    broker: Any, request: StreamsGroupTopologyDescriptionUpdateRequest, context: RequestContext, handler: Handler
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Take the description of a topology from a client that may read with the group."""
    (need,) = needs(context)
    if not allows(context, need, request.group_id):
        return StreamsGroupTopologyDescriptionUpdateResponse(error_code=need.error, error_message=need.error.meaning)
    answer: StreamsGroupTopologyDescriptionUpdateResponse = await handler(broker, request, context)
    return answer


async def heartbeat_with_topics(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Serve a member whose client may read with the group, and may describe each topic that the heartbeat names."""
    of_group, of_topics = needs(context)[:2]
    if not allows(context, of_group, request.group_id):
        return refuse(request, context.api_version, of_group.error)
    if await all_allowed(broker, context, of_topics, _subscribed(request)):
        answer = await handler(broker, request, context)
        if context.api_key == ApiKey.STREAMS_GROUP_HEARTBEAT and answer.error_code == ErrorCode.NONE:
            _report_not_created(broker, request, answer)
        return answer
    return refuse(request, context.api_version, of_topics.error)


def _report_not_created(broker: Any, request: Any, answer: StreamsGroupHeartbeatResponse) -> None:
    """Add to the status the internal topics that are missing because the client may not create them."""
    refused = broker.coordinators.not_created(request.group_id)
    missing = next((each for each in answer.status or () if each.status_code == MISSING_INTERNAL_TOPICS), None)
    if refused and missing is not None:
        named = ", ".join(name[:_LONGEST_SHOWN] for name in refused)
        missing.status_detail += f"; Unauthorized to CREATE on topics {named}."


def _subscribed(request: Any) -> Iterable[str]:
    """Return the topics that a heartbeat names: its subscription's, or its topology's."""
    if not hasattr(request, "topology"):
        return request.subscribed_topic_names or ()
    if request.topology is None:
        return ()
    subtopologies = request.topology.subtopologies
    has_expression = any(each.source_topic_regex for each in subtopologies)
    return [*_topics_of(subtopologies), *([WILDCARD] if has_expression else [])]  # an expression sees every topic


def _topics_of(subtopologies: Iterable[Any]) -> list[str]:
    names: list[str] = []
    for each in subtopologies or ():
        names += each.source_topics
        names += each.repartition_sink_topics
        names += [topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics)]
    return names


async def describe(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Describe the groups that the client may describe; refuse the others."""
    (need, *_) = needs(context)
    field = "groups" if hasattr(request, "groups") else "group_ids"
    allowed, refused = await divided(broker, context, need, getattr(request, field), lambda name: name)
    setattr(request, field, refused)
    refusal: Any = refuse(request, context.api_version, need.error)
    setattr(request, field, allowed)
    answer = await handler(broker, request, context)
    await put_operations(broker, context, answer.groups, OPERATIONS_NOT_ASKED)
    answer.groups += refusal.groups
    return answer


async def describe_with_topics(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Describe the groups that the client may describe, if it may describe all their topics; refuse the others."""
    answer = await describe(broker, request, context, handler)
    need = needs(context)[1]
    for place, group in enumerate(answer.groups):
        if len(answer.groups) > 1:
            await broker.slices.breathe(PIECE)
        if group.error_code == ErrorCode.NONE and not await _may_be_told(broker, context, need, group):
            answer.groups[place] = type(group)(
                group_id=group.group_id, error_code=_NO_TOPIC, error_message=_HIDDEN_TOPICS[context.api_key]
            )
    return answer


async def _may_be_told(broker: Any, context: RequestContext, need: Need, group: Any) -> bool:
    """Return whether every topic that a description of a group names may be described."""
    if hasattr(group, "topology"):
        used = [] if group.topology is None else _topics_of(group.topology.subtopologies or ())
        return await all_allowed(broker, context, need, used)
    names: dict[str, None] = {}
    unpaused = 0
    for member in group.members:
        for assignment in (member.assignment, getattr(member, "target_assignment", None)):
            if assignment is not None:
                names.update((each.topic_name, None) for each in assignment.topic_partitions)
                unpaused += len(assignment.topic_partitions)
        if unpaused >= _NAMES_AT_ONCE:
            await broker.slices.breathe(PIECE)
            unpaused = 0
    return await all_allowed(broker, context, need, names)


async def list_groups(
    broker: Any, request: ListGroupsRequest, context: RequestContext, handler: Handler
) -> ListGroupsResponse:
    """List the groups that the client may describe."""
    of_cluster, of_group = needs(context)
    answer: ListGroupsResponse = await handler(broker, request, context)
    if not allows(context, of_cluster, is_asked_for=False):
        answer.groups = await visible(broker, context, of_group, answer.groups, lambda group: group.group_id)
    return answer


async def delete_groups(broker: Any, request: DeleteGroupsRequest, context: RequestContext, handler: Handler) -> Any:
    """Delete the groups that the client may delete; refuse the others."""
    (need,) = needs(context)
    request.groups_names, refused = await divided(broker, context, need, request.groups_names, lambda name: name)
    answer = await handler(broker, request, context)
    answer.results += [DeletableGroupResult(group_id=name, error_code=need.error) for name in refused]
    return answer


async def find_coordinator(
    broker: Any, request: FindCoordinatorRequest, context: RequestContext, handler: Handler
) -> FindCoordinatorResponse:
    """Name the coordinators of groups and transactions that the client may describe, and of shares to brokers."""
    need = dict(enumerate(needs(context))).get(request.key_type)
    if need is None or (request.key_type == _SHARE and context.api_version < _FIRST_SHARE_VERSION):
        unasked: FindCoordinatorResponse = await handler(broker, request, context)
        return unasked
    error, meaning = need.error, need.error.meaning
    if context.api_version < _FIRST_KEYS_VERSION:
        if not allows(context, need, request.key):
            return FindCoordinatorResponse(error_code=error, error_message=meaning, node_id=-1, host="", port=-1)
        found: FindCoordinatorResponse = await handler(broker, request, context)
        return found
    refused: list[str] = []
    if request.key_type == _SHARE:
        if not allows(context, need):
            request.coordinator_keys, refused = [], request.coordinator_keys
    else:
        request.coordinator_keys, refused = await divided(
            broker, context, need, request.coordinator_keys, lambda key: key
        )
    answer: FindCoordinatorResponse = await handler(broker, request, context)
    answer.coordinators += [
        Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=meaning) for key in refused
    ]
    return answer


async def offset_commit(
    broker: Any, request: OffsetCommitRequest, context: RequestContext, handler: Handler
) -> OffsetCommitResponse:
    """Commit the offsets of topics that the client may read, if it may read with the group."""
    of_group, of_topic = needs(context)
    if not allows(context, of_group, request.group_id):
        return refuse_commit(request, of_group.error)
    answer: OffsetCommitResponse = await commit_allowed(
        broker, request, context, handler, of_topic, lambda topic: topic_name(broker, context, topic), refuse_commit
    )
    return answer


async def offset_delete(
    broker: Any, request: OffsetDeleteRequest, context: RequestContext, handler: Handler
) -> OffsetDeleteResponse:
    """Delete the offsets of topics that the client may read, if it may delete the group."""
    of_group, of_topic = needs(context)
    if not allows(context, of_group, request.group_id):
        return OffsetDeleteResponse(error_code=of_group.error)
    request.topics, refused = await divided(broker, context, of_topic, request.topics, lambda topic: topic.name)
    answer: OffsetDeleteResponse = await handler(broker, request, context)
    if answer.error_code == ErrorCode.NONE:
        answer.topics += [
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=_NO_TOPIC)
                    for each in topic.partitions
                ],
            )
            for topic in refused
        ]
    return answer


async def offset_fetch(
    broker: Any, request: OffsetFetchRequest, context: RequestContext, handler: Handler
) -> OffsetFetchResponse:
    """Fetch the offsets of groups and topics that the client may describe.

    Other topics are refused if the request names them, and left out if it asks for all.
    """
    if context.api_version < FIRST_FETCH_WITH_GROUPS:
        return await _offset_fetch_of_one(broker, request, context, handler)
    of_group, of_topic = needs(context)
    request.groups, without_right = await divided(
        broker, context, of_group, request.groups, lambda group: group.group_id
    )
    refused: dict[str, list[OffsetFetchResponseTopics]] = {}
    of_all = {group.group_id for group in request.groups if group.topics is None}
    async for group in each_with_room(broker, request.groups, lambda group: len(group.topics or ())):
        refused.setdefault(group.group_id, []).extend(await _refused_of(broker, context, group))
    answer = OffsetFetchResponse()
    if request.groups or not without_right:
        answer = await handler(broker, request, context)
    async for described in each_with_room(broker, answer.groups, lambda group: len(group.topics)):
        if described.group_id in of_all:
            described.topics = await visible(
                broker, context, of_topic, described.topics, lambda topic: topic_name(broker, context, topic) or ""
            )
        elif described.error_code == ErrorCode.NONE:
            described.topics = described.topics + refused.pop(described.group_id, [])
    answer.groups += [
        OffsetFetchResponseGroup(group_id=group.group_id, error_code=of_group.error) for group in without_right
    ]
    return answer


async def _refused_of(
    broker: Any, context: RequestContext, group: OffsetFetchRequestGroup
) -> list[OffsetFetchResponseTopics]:
    """Take the topics that the client may not describe out of the group, and return their refusals."""
    if group.topics is None:
        return []
    of_topic = needs(context)[1]
    group.topics, refused = await divided(
        broker, context, of_topic, group.topics, lambda topic: topic_name(broker, context, topic)
    )
    return [
        OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetFetchResponsePartitions(partition_index=each, committed_offset=-1, error_code=_NO_TOPIC)
                for each in topic.partition_indexes
            ],
        )
        for topic in refused
    ]


async def _offset_fetch_of_one(
    broker: Any, request: OffsetFetchRequest, context: RequestContext, handler: Handler
) -> OffsetFetchResponse:
    of_group, of_topic = needs(context)
    if not allows(context, of_group, request.group_id):
        refusal = refuse(request, context.api_version, of_group.error)
        assert isinstance(refusal, OffsetFetchResponse)
        return refusal
    if request.topics is None:
        answer: OffsetFetchResponse = await handler(broker, request, context)
        answer.topics = await visible(broker, context, of_topic, answer.topics, lambda topic: topic.name)
        return answer
    request.topics, refused = await divided(broker, context, of_topic, request.topics, lambda topic: topic.name)
    answer = await handler(broker, request, context)
    if answer.error_code == ErrorCode.NONE:
        answer.topics += [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=each, committed_offset=-1, error_code=_NO_TOPIC)
                    for each in topic.partition_indexes
                ],
            )
            for topic in refused
        ]
    return answer
