"""Metadata (key 3) and DescribeTopicPartitions (key 75): topics, leaders, brokers.

Unknown topics are created when both the request and `auto.create.topics.enable` allow it; the answer then waits for the
creation, where Kafka answers LEADER_NOT_AVAILABLE and lets the client ask again. Topic ids: KIP-516. Paging: KIP-966.

Left out: authorized operations (-2147483648, "not asked for", is Kafka's own word for it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.broker.auto_creation import auto_create_topics
from kraftpy.metadata.controller import is_internal, topic_name_problem
from kraftpy.metadata.image import Partition, Topic
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kraftpy.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kraftpy.types import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.request import RequestContext

_NULLABLE_NAME_VERSION = 12


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """The topics asked for (all of them for null, and for an empty list in version 0) and every broker."""
    asked = request.topics
    if asked is None or (context.api_version == 0 and not asked):
        topics = [_known(topic) for topic in broker.image.topics()]
    else:
        topics = await _asked_for(broker, asked, request.allow_auto_topic_creation, context)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in broker.endpoints(context.listener)
        ],
        cluster_id=broker.image.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
    )


async def _asked_for(
    broker: Broker, asked: list[MetadataRequestTopic], allow_creation: bool, context: RequestContext
) -> list[MetadataResponseTopic]:
    # Each once, however often it is named: a small request must not become an answer of any size.
    asked = list({(topic.name, topic.topic_id): topic for topic in asked}.values())
    names = [topic.name for topic in asked if topic.name is not None and not _is_by_id(topic)]
    missing = [name for name in names if broker.image.topic(name) is None]
    refused: dict[str, ErrorCode] = {}
    if missing and allow_creation and broker.config.auto_create_topics_enable:
        refused = await auto_create_topics(missing, broker.metadata, broker.config, broker.clock)
    topics = []
    for wanted in asked:
        if wanted.name is None or _is_by_id(wanted):
            name = None if context.api_version >= _NULLABLE_NAME_VERSION else ""
            known = broker.image.topic_by_id(TopicId(wanted.topic_id))
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name = wanted.name
            known = broker.image.topic(name)
            error = refused.get(name, _why_unknown(name))
        if known is not None:
            topics.append(_known(known))
        else:
            topics.append(MetadataResponseTopic(error_code=error, name=name, topic_id=wanted.topic_id, partitions=[]))
    return topics


def _is_by_id(topic: MetadataRequestTopic) -> bool:
    return topic.topic_id != ZERO_TOPIC_ID  # whatever the name says: Java's client sends an empty one, others null


def _why_unknown(name: str) -> ErrorCode:
    return (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def _known(topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            MetadataResponsePartition(
                error_code=_error_of(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
            )
            for index, partition in enumerate(topic.partitions)
        ],
    )


def _error_of(partition: Partition) -> ErrorCode:
    return ErrorCode.NONE if partition.has_leader else ErrorCode.LEADER_NOT_AVAILABLE


async def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Topics and their partitions in name order, a page at a time."""
    limit = max(1, min(request.response_partition_limit, broker.config.max_request_partition_size_limit))
    names = sorted({topic.name for topic in request.topics}) or [topic.name for topic in broker.image.topics()]
    start = (request.cursor.topic_name, request.cursor.partition_index) if request.cursor is not None else ("", 0)
    if start[1] < 0:
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name, partitions=[])
                for name in names[:limit]
            ]
        )
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if name < start[0]:
            continue
        if limit == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = broker.image.topic(name)
        if topic is None:
            topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]
                )
            )
            continue
        first = start[1] if name == start[0] else 0
        page = list(enumerate(topic.partitions))[first : first + limit]
        topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=is_internal(topic.name),
                partitions=[_described(index, partition) for index, partition in page],
            )
        )
        limit -= len(page)
        if first + len(page) < len(topic.partitions):
            cursor = Cursor(topic_name=name, partition_index=first + len(page))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


def _described(index: int, partition: Partition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=_error_of(partition),
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
