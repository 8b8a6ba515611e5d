"""Guards of requests about topics and their records."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any

from kraftpy.broker.authorization.guards import Handler, allows, divided, needs, topic_name
from kraftpy.broker.handlers.produce import NONE, has_transactional, refuse_all, tell_by_closing
from kraftpy.broker.handlers.topics import FIRST_TOPIC_ID_VERSION
from kraftpy.broker.request import RequestContext
from kraftpy.broker.rights import ASK_UNITS
from kraftpy.metadata.topics import METADATA_TOPIC, topic_name_problem
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kraftpy.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kraftpy.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kraftpy.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from kraftpy.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kraftpy.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kraftpy.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kraftpy.types import TopicId

_DELETE_UNITS = 2 * ASK_UNITS
"""The cost of asking for the rights to delete one topic, in units of `slicing`."""
_by_name = attrgetter("name")
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NOT_AUTHORIZED = "Authorization failed."


async def produce(
    broker: Any, request: ProduceRequest, context: RequestContext, handler: Handler
) -> ProduceResponse | None:
    """Append to the topics that the client may write to; transactional batches also need the right to their id."""
    of_transaction, of_topic = needs(context)
    transactional_id = request.transactional_id
    if (
        has_transactional(request)
        and transactional_id is not None
        and not allows(context, of_transaction, transactional_id)
    ):
        return refuse_all(request)
    request.topic_data, refused = await divided(
        broker, context, of_topic, request.topic_data, lambda topic: topic_name(broker, context, topic)
    )
    if not refused:
        answered: ProduceResponse | None = await handler(broker, request, context)
        return answered
    refusals = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                PartitionProduceResponse(index=each.index, base_offset=-1, error_code=_DENIED)
                for each in topic.partition_data
            ],
        )
        for topic in refused
    ]
    answer: ProduceResponse | None = ProduceResponse(responses=[])
    if request.topic_data:
        answer = await handler(broker, request, context)
    if answer is None or request.acks == NONE:
        tell_by_closing(refusals)
        return None
    answer.responses += refusals
    return answer


async def list_offsets(
    broker: Any, request: ListOffsetsRequest, context: RequestContext, handler: Handler
) -> ListOffsetsResponse:
    """List the offsets of topics that the client may describe; refuse the others."""
    (need,) = needs(context)
    request.topics, refused = await divided(broker, context, need, request.topics, _by_name)
    answer: ListOffsetsResponse = await handler(broker, request, context)
    answer.topics += [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=_DENIED)
                for each in topic.partitions
            ],
        )
        for topic in refused
    ]
    return answer


async def create_topics(
    broker: Any, request: CreateTopicsRequest, context: RequestContext, handler: Handler
) -> CreateTopicsResponse:
    """Create the topics that the client may create; show their settings only if it may describe them."""
    of_cluster, of_topic, of_settings = needs(context)
    refused: list[Any] = []
    if not allows(context, of_cluster, is_asked_for=False):
        times = Counter(map(_by_name, request.topics))
        request.topics, refused = await divided(
            broker,
            context,
            of_topic,
            request.topics,
            # An error of the request itself comes before a refusal.
            lambda topic: None if times[topic.name] > 1 or topic.name == METADATA_TOPIC else topic.name,
        )
    else:
        allows(context, of_cluster)
    answer: CreateTopicsResponse = await handler(broker, request, context)
    async for results in broker.slices.pieces(answer.topics, ASK_UNITS):
        for result in results:
            if result.error_code == ErrorCode.NONE and not allows(
                context, of_settings, result.name, is_asked_for=False
            ):
                result.topic_config_error_code = _DENIED
                result.num_partitions = result.replication_factor = -1
                result.configs = []
    answer.topics += [
        CreatableTopicResult(name=topic.name, error_code=_DENIED, error_message=_NOT_AUTHORIZED) for topic in refused
    ]
    return answer


async def delete_topics(
    broker: Any, request: DeleteTopicsRequest, context: RequestContext, handler: Handler
) -> DeleteTopicsResponse:
    """Delete the topics that the client may delete; reveal that one does not exist only if it may be described."""
    of_cluster, of_deletion, of_description = needs(context)
    if not broker.config.delete_topic_enable or allows(context, of_cluster, is_asked_for=False):
        allows(context, of_cluster)
        answer: DeleteTopicsResponse = await handler(broker, request, context)
        return answer
    if context.api_version < FIRST_TOPIC_ID_VERSION:
        named = [DeleteTopicState(name=name, topic_id=bytes(16)) for name in request.topic_names]
    else:
        named = request.topics
    times = Counter((topic.name, topic.topic_id) for topic in named)
    allowed: list[DeleteTopicState] = []
    refusals: list[DeletableTopicResult] = []
    async for some in broker.slices.pieces(named, _DELETE_UNITS):
        for topic in some:
            is_by_id = any(topic.topic_id)
            known = broker.image.topic_by_id(TopicId(topic.topic_id)) if is_by_id else None
            name = known.name if known is not None else topic.name
            is_malformed = times[topic.name, topic.topic_id] > 1 or is_by_id == (topic.name is not None)
            if is_malformed or name is None or (is_by_id and known is None):
                allowed.append(topic)
            elif not allows(context, of_description, name):
                shown = None if is_by_id else name
                refusals.append(_not_deleted(shown, topic))
            elif not is_by_id and broker.image.topic(name) is None:
                refusals.append(_not_deleted(name, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            elif not allows(context, of_deletion, name):
                refusals.append(_not_deleted(name, topic))
            else:
                allowed.append(topic)
    request.topics = allowed
    request.topic_names = [topic.name or "" for topic in allowed]
    answer = await handler(broker, request, context)
    answer.responses += refusals
    return answer


def _not_deleted(name: str | None, topic: DeleteTopicState, error: ErrorCode = _DENIED) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic.topic_id, error_code=error, error_message=error.meaning)


async def delete_records(
    broker: Any, request: DeleteRecordsRequest, context: RequestContext, handler: Handler
) -> DeleteRecordsResponse:
    """Delete records of the topics that the client may delete; refuse the others."""
    (need,) = needs(context)
    request.topics, refused = await divided(broker, context, need, request.topics, _by_name)
    answer: DeleteRecordsResponse = await handler(broker, request, context)
    topics: dict[str, dict[int, DeleteRecordsPartitionResult]] = {}
    for topic in refused:
        topics.setdefault(topic.name, {}).update(
            (
                each.partition_index,
                DeleteRecordsPartitionResult(partition_index=each.partition_index, error_code=_DENIED),
            )
            for each in topic.partitions
        )
    answer.topics += [
        DeleteRecordsTopicResult(name=name, partitions=list(results.values())) for name, results in topics.items()
    ]
    return answer


async def create_partitions(
    broker: Any, request: CreatePartitionsRequest, context: RequestContext, handler: Handler
) -> CreatePartitionsResponse:
    """Add partitions to the topics that the client may alter; refuse the others."""
    (need,) = needs(context)
    times = Counter(map(_by_name, request.topics))
    request.topics, refused = await divided(
        broker, context, need, request.topics, lambda topic: None if times[topic.name] > 1 else topic.name
    )
    answer = CreatePartitionsResponse()
    if request.topics or not refused:
        answer = await handler(broker, request, context)
    answer.results += [CreatePartitionsTopicResult(name=topic.name, error_code=_DENIED) for topic in refused]
    return answer


async def offset_for_leader_epoch(
    broker: Any, request: OffsetForLeaderEpochRequest, context: RequestContext, handler: Handler
) -> OffsetForLeaderEpochResponse:
    """Return the end offsets of epochs of the topics that the client may describe; a broker may ask for any topic."""
    of_cluster, of_topic = needs(context)
    refused: list[Any] = []
    if not allows(context, of_cluster, is_asked_for=False):
        request.topics, refused = await divided(broker, context, of_topic, request.topics, lambda topic: topic.topic)
    answer: OffsetForLeaderEpochResponse = await handler(broker, request, context)
    answer.topics += [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[EpochEndOffset(partition=each.partition, error_code=_DENIED) for each in topic.partitions],
        )
        for topic in refused
    ]
    return answer


async def describe_producers(
    broker: Any, request: DescribeProducersRequest, context: RequestContext, handler: Handler
) -> DescribeProducersResponse:
    """Describe the producers of topics that the client may read; an invalid name is reported before a refusal."""
    (need,) = needs(context)
    request.topics, refused = await divided(
        broker,
        context,
        need,
        request.topics,
        lambda topic: None if topic_name_problem(topic.name) is not None else topic.name,
    )
    answer: DescribeProducersResponse = await handler(broker, request, context)
    answer.topics += [
        TopicResponse(
            name=name,
            partitions=[
                PartitionResponse(partition_index=index, error_code=_DENIED, error_message=_DENIED.meaning)
                for index in dict.fromkeys(topic.partition_indexes)
            ],
        )
        for name, topic in {topic.name: topic for topic in refused}.items()
    ]
    return answer
