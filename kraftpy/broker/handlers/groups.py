"""Groups and committed offsets (keys 8 to 16, 42, 47, 68, 69), and how clients find coordinators.

The protocols themselves are in `groups.coordinator`. These handlers add what only the broker knows: which partition of
`__consumer_offsets` a group belongs to and which broker leads it (FindCoordinator, KIP-699 for several keys), whether
the topics of a commit exist, and the names of topic ids (OffsetCommit and OffsetFetch 10, KIP-848).

The coordinator of a share partition's state is found by the key "group:topic id:partition" (KIP-932).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers.pieces import described, fetched, in_pieces
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kraftpy.broker.metadata.auto_creation import found_or_created
from kraftpy.broker.share.state_requests import is_coordinator_key
from kraftpy.groups.events import GroupRequest
from kraftpy.groups.request_pieces import repeats, with_refused
from kraftpy.groups.routing import partition_for_group, refuse
from kraftpy.metadata.features import GROUP_FEATURE
from kraftpy.protocol.errors import ErrorCode, shortened
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.types import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasCoordinators, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices
    from kraftpy.types import BrokerId

    class Broker(HasClock, HasConfig, HasCoordinators, HasImage, HasMetadata, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        def endpoints(self, listener: str) -> list[tuple[BrokerId, str, int, str | None]]:
            """Return (id, host, port, rack) of every live broker that has this listener."""


_SHARE = 2
_TOPICS = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE, _SHARE: SHARE_GROUP_STATE}  # by key type
_FIRST_KEYS_VERSION = 4
_FIRST_SHARE_VERSION = 6
_FIRST_NAMING_VERSION = 5
_HASHED_CHARACTERS = 50
"""How many characters of a group id are hashed in one unit of `slicing`."""
_SHORT_KEY = 250
"""Keys longer than this are sliced even in a short request."""
_DELETED_AT_ONCE = 20
_DELETE_UNITS = 200
"""The cost of deleting this many groups that are almost empty."""
_FIRST_TOPIC_ID_VERSION = 10


# --- requests passed to the coordinator -------------------------------------------------------------------------------


async def _ask(broker: Broker, request: GroupRequest, context: RequestContext) -> Any:
    return await broker.coordinators.ask(request, context)


async def join_group(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> Any:
    """Join a group; answered when its next generation begins."""
    return await _ask(broker, request, context)


async def sync_group(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> Any:
    """Hand in the generation's assignment, or wait for it; from version 5 on, the sender names its protocol."""
    names = (request.protocol_type, request.protocol_name)
    if context.api_version >= _FIRST_NAMING_VERSION and None in names:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await _ask(broker, request, context)


async def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> Any:
    """Keep the membership alive."""
    return await _ask(broker, request, context)


async def leave_group(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> Any:
    """Leave a group, or remove several members from it."""
    if context.is_long:
        return await in_pieces(broker, request, context, _ask)
    return await _ask(broker, request, context)


async def consumer_group_heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> Any:
    """Join a group of the consumer protocol, stay in it or leave it."""
    if not _has_consumer_protocol(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    answer = await _ask(broker, request, context)
    answer.error_message = shortened(answer.error_message)
    return answer


def _has_consumer_protocol(broker: Broker) -> bool:
    has_feature = broker.image.feature_level(GROUP_FEATURE) >= 1
    return has_feature and "consumer" in broker.config.group_coordinator_rebalance_protocols


async def consumer_group_describe(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Any:
    """Describe groups of the consumer protocol."""
    if not _has_consumer_protocol(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    return await described(broker, request, context, _ask, DescribedConsumerGroup)


async def describe_groups(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> Any:
    """Describe the state and members of groups."""
    return await described(broker, request, context, _ask)


async def list_groups(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> Any:
    """List every group that this broker coordinates."""
    return await broker.coordinators.list_groups(request, context, broker.slices)


async def delete_groups(broker: Broker, request: DeleteGroupsRequest, context: RequestContext) -> Any:
    """Delete empty groups with their offsets, in parts if there are many, so that each part fits one batch."""
    names = request.groups_names
    answer = None
    for first in range(0, max(1, len(names)), _DELETED_AT_ONCE):
        request.groups_names = names[first : first + _DELETED_AT_ONCE]
        await broker.slices.breathe(_DELETE_UNITS)
        part = await _ask(broker, request, context)
        if answer is None:
            answer = part
        else:
            answer.results.extend(part.results)
    return answer


# --- finding coordinators ---------------------------------------------------------------------------------------------


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Find the broker that leads each key's partition; the first request creates the topic."""
    if context.api_version >= _FIRST_KEYS_VERSION:
        found = []
        for key in request.coordinator_keys:
            if context.is_long or len(key) > _SHORT_KEY:
                await broker.slices.breathe(2 + len(key) // _HASHED_CHARACTERS)
            found.append(await _coordinator(broker, key, request.key_type, context))
        return FindCoordinatorResponse(coordinators=found)
    one = await _coordinator(broker, request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or ErrorCode.of(one.error_code).meaning,  # as in Kafka, even for NONE
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _coordinator(broker: Broker, key: str, key_type: int, context: RequestContext) -> Coordinator:
    answer = Coordinator(key=key, node_id=-1, host="", port=-1, error_message="")
    name = None if key_type == _SHARE and context.api_version < _FIRST_SHARE_VERSION else _TOPICS.get(key_type)
    if name is None:
        answer.error_code = ErrorCode.INVALID_REQUEST
        answer.error_message = f"unknown coordinator type {key_type}"
        return answer
    if key_type == _SHARE and not is_coordinator_key(key):
        answer.error_code = ErrorCode.INVALID_REQUEST
        answer.error_message = "the key of a share partition must be group:topic id:partition"
        return answer
    topic = await found_or_created(name, broker.metadata, broker.config, broker.clock)
    if topic is None:
        answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return answer
    leader = topic.partitions[partition_for_group(key, len(topic.partitions))].leader
    for node_id, host, port, _ in broker.endpoints(context.listener):
        if node_id == leader:
            answer.node_id, answer.host, answer.port = node_id, host, port
            return answer
    answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return answer


# --- committed offsets ------------------------------------------------------------------------------------------------


async def offset_commit(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> Any:
    """Commit the offsets of partitions that exist; each of the others gets an error."""
    if context.is_long:
        return await in_pieces(broker, request, context, _offset_commit)
    return await _offset_commit(broker, request, context)


async def _offset_commit(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    by_id = context.api_version >= _FIRST_TOPIC_ID_VERSION
    unknown_error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ids: dict[str, TopicId] = {}
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        found = broker.image.topic_by_id(TopicId(topic.topic_id)) if by_id else broker.image.topic(topic.name)
        count = 0 if found is None else len(found.partitions)
        good = [part for part in topic.partitions if 0 <= part.partition_index < count]
        bad = [part for part in topic.partitions if not 0 <= part.partition_index < count]
        error = unknown_error if found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is not None:
            ids[found.name] = found.topic_id
            if good:
                known.append(OffsetCommitRequestTopic(name=found.name, partitions=good))
        if bad or found is None:
            refused.append(
                OffsetCommitResponseTopic(
                    name=topic.name if found is None else found.name,
                    topic_id=topic.topic_id if found is None else found.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
                        for part in bad
                    ],
                )
            )
    if request.topics and not known:
        return OffsetCommitResponse(topics=with_refused(refused, []))
    request.topics = known
    answered = await _ask(broker, request, context)
    assert isinstance(answered, OffsetCommitResponse)
    for answer in answered.topics:
        answer.topic_id = ids.get(answer.name, ZERO_TOPIC_ID)
    answered.topics = with_refused(refused, answered.topics)
    return answered


async def offset_delete(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> Any:
    """Delete committed offsets of existing partitions whose topics the group does not subscribe to."""
    if context.is_long:
        return await in_pieces(broker, request, context, _offset_delete)
    return await _offset_delete(broker, request, context)


async def _offset_delete(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        found = broker.image.topic(topic.name)
        count = 0 if found is None else len(found.partitions)
        unknown = [
            OffsetDeleteResponsePartition(
                partition_index=part.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            for part in topic.partitions
            if not 0 <= part.partition_index < count
        ]
        if unknown:
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=unknown))
            topic.partitions = [part for part in topic.partitions if 0 <= part.partition_index < count]
    request.topics = [topic for topic in request.topics if topic.partitions]
    answered = await _ask(broker, request, context)  # even without partitions: the group may not exist
    assert isinstance(answered, OffsetDeleteResponse)
    if answered.error_code == ErrorCode.NONE:
        answered.topics = with_refused(refused, answered.topics)
    return answered


async def offset_fetch(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Any:
    """Return the offsets that groups have committed; a group named twice is answered twice. By id from version 10."""
    request.groups, again = repeats(request.groups, lambda group: group.group_id)
    if context.is_long or len(request.groups) > 1:
        answer = await in_pieces(broker, request, context, _offset_fetch)
    else:
        answer = await _offset_fetch(broker, request, context)
    for group in again:
        one = OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
        answer.groups.extend((await in_pieces(broker, one, context, _offset_fetch)).groups)
    return answer


async def _offset_fetch(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    if context.api_version < _FIRST_TOPIC_ID_VERSION:
        answered = await fetched(broker, request, context)
        assert isinstance(answered, OffsetFetchResponse)
        return answered
    unknown: dict[str, list[OffsetFetchResponseTopics]] = {}
    for group in request.groups:
        if group.topics is None:
            continue
        known = []
        for topic in group.topics:
            found = broker.image.topic_by_id(TopicId(topic.topic_id))
            if found is None:
                unknown.setdefault(group.group_id, []).append(
                    OffsetFetchResponseTopics(
                        topic_id=topic.topic_id,
                        partitions=[
                            OffsetFetchResponsePartitions(
                                partition_index=index, committed_offset=-1, error_code=ErrorCode.UNKNOWN_TOPIC_ID
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                )
            else:
                topic.name = found.name
                known.append(topic)
        group.topics = known
    answered = await fetched(broker, request, context)
    assert isinstance(answered, OffsetFetchResponse)
    for answer in answered.groups:
        named = []
        for offsets in answer.topics:
            found = broker.image.topic(offsets.name)
            if found is not None:  # this version names topics only by id
                offsets.topic_id = found.topic_id
                named.append(offsets)
        answer.topics = named + unknown.get(answer.group_id, [])
    return answered
