"""Guards of requests about the records and offsets of share groups."""

from __future__ import annotations

from typing import Any

from kraftpy.broker.authorization.guards import Handler, allows, divided, needs, visible
from kraftpy.broker.request import RequestContext
from kraftpy.metadata.features import SHARE_FEATURE
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from kraftpy.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kraftpy.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from kraftpy.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _has_share_groups(broker: Any) -> bool:
    """Return whether share groups are enabled. If not, the handler says so before any refusal, as in Kafka."""
    level: int = broker.image.feature_level(SHARE_FEATURE)
    return level >= 1


async def of_member(
    broker: Any, request: ShareFetchRequest | ShareAcknowledgeRequest, context: RequestContext, handler: Handler
) -> ShareFetchResponse | ShareAcknowledgeResponse:
    """Serve a client that may read with the group; the handler asks for the topics."""
    need = needs(context)[0]
    if not _has_share_groups(broker) or request.group_id is None or allows(context, need, request.group_id):
        answer: ShareFetchResponse | ShareAcknowledgeResponse = await handler(broker, request, context)
        return answer
    response = ShareFetchResponse if isinstance(request, ShareFetchRequest) else ShareAcknowledgeResponse
    return response(error_code=need.error, error_message=need.error.meaning)


async def describe_share_group_offsets(
    broker: Any, request: DescribeShareGroupOffsetsRequest, context: RequestContext, handler: Handler
) -> DescribeShareGroupOffsetsResponse:
    """Describe the offsets of groups and topics that the client may describe.

    Other topics are refused if the request names them, and left out if it asks for all.
    """
    of_group, of_topic = needs(context)
    request.groups, without_right = await divided(
        broker, context, of_group, request.groups, lambda group: group.group_id
    )
    refused: dict[str, list[DescribeShareGroupOffsetsRequestTopic]] = {}
    of_all = {group.group_id for group in request.groups if group.topics is None}
    for group in request.groups:
        if group.topics is not None:
            group.topics, some = await divided(broker, context, of_topic, group.topics, lambda topic: topic.topic_name)
            refused.setdefault(group.group_id, []).extend(some)
    answer = DescribeShareGroupOffsetsResponse()
    if request.groups or not without_right:
        answer = await handler(broker, request, context)
    for described in answer.groups:
        if described.error_code != ErrorCode.NONE:
            continue
        if described.group_id in of_all:
            described.topics = await visible(
                broker, context, of_topic, described.topics, lambda topic: topic.topic_name
            )
        described.topics = described.topics + [
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    DescribeShareGroupOffsetsResponsePartition(
                        partition_index=each, error_code=_DENIED, error_message=_DENIED.meaning
                    )
                    for each in topic.partitions
                ],
            )
            for topic in refused.pop(described.group_id, [])
        ]
    answer.groups += [
        DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id, error_code=of_group.error, error_message=of_group.error.meaning
        )
        for group in without_right
    ]
    return answer


async def alter_share_group_offsets(
    broker: Any, request: AlterShareGroupOffsetsRequest, context: RequestContext, handler: Handler
) -> AlterShareGroupOffsetsResponse:
    """Alter the offsets of topics that the client may read, if it may read with the group."""
    of_group, of_topic = needs(context)
    if _has_share_groups(broker) and not allows(context, of_group, request.group_id):
        return AlterShareGroupOffsetsResponse(error_code=of_group.error, error_message=of_group.error.meaning)
    request.topics, refused = await divided(broker, context, of_topic, request.topics, lambda topic: topic.topic_name)
    answer = AlterShareGroupOffsetsResponse()
    if request.topics or not refused:
        answer = await handler(broker, request, context)
    if answer.error_code == ErrorCode.NONE:
        answer.responses += [
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    AlterShareGroupOffsetsResponsePartition(
                        partition_index=each.partition_index, error_code=_DENIED, error_message=_DENIED.meaning
                    )
                    for each in topic.partitions
                ],
            )
            for topic in refused
        ]
    return answer


async def delete_share_group_offsets(
    broker: Any, request: DeleteShareGroupOffsetsRequest, context: RequestContext, handler: Handler
) -> DeleteShareGroupOffsetsResponse:
    """Delete the offsets of topics that the client may read, if it may delete the group."""
    of_group, of_topic = needs(context)
    if _has_share_groups(broker) and not allows(context, of_group, request.group_id):
        return DeleteShareGroupOffsetsResponse(error_code=of_group.error, error_message=of_group.error.meaning)
    request.topics, refused = await divided(broker, context, of_topic, request.topics, lambda topic: topic.topic_name)
    answer: DeleteShareGroupOffsetsResponse = await handler(broker, request, context)  # the group may not exist
    if answer.error_code == ErrorCode.NONE:
        answer.responses += [
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, error_code=_DENIED, error_message=_DENIED.meaning
            )
            for topic in refused
        ]
    return answer
