"""Metadata (key 3) and DescribeTopicPartitions (key 75): topics, leaders, brokers.

Unknown topics are created if both the request and `auto.create.topics.enable` allow it. The answer then waits for the
creation, whereas Kafka answers LEADER_NOT_AVAILABLE and lets the client retry. Topic ids: KIP-516. Paging: KIP-966.

Many topics are described in slices. The answer for all topics of a large cluster is cached in encoded form until
something changes (`kraftpy.metadata.cache.max.bytes`): many clients that start, or lose a broker, at the same time all
ask for it.

Topics that the client may not describe are left out of a list of all topics; if they are named, the answer does not
reveal whether they exist. Authorized operations: KIP-430.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.encoded_answers import Encoded
from kraftpy.broker.metadata.auto_creation import MOST_AT_ONCE, auto_create_topics
from kraftpy.broker.rights import ASK_UNITS, OPERATIONS_NOT_ASKED, Rights
from kraftpy.broker.slicing import PIECE
from kraftpy.broker.view import View
from kraftpy.metadata.controller import is_internal, topic_name_problem
from kraftpy.metadata.image import Image, Partition, Topic
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
from kraftpy.protocol.schema import encode
from kraftpy.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from kraftpy.types import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.encoded_answers import EncodedAnswers
    from kraftpy.broker.handlers.services import HasControllerId, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasNodeId, HasSlices

    class Broker(HasClock, HasConfig, HasControllerId, HasImage, HasMetadata, HasNodeId, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def metadata_answers(self) -> EncodedAnswers:
            """The cache of encoded Metadata answers."""


_LISTENER_NOT_FOUND_VERSION = 6
_FIRST_TOPIC_ID_VERSION = 12
"""Versions 10 and 11 have a field for the id, but as in Kafka, it must be empty."""
_LARGE_CLUSTER = 500
"""From this many partitions on, the answer for all topics is made in slices and cached."""
CREATION_SECONDS = 5.0
"""How long an answer waits for topics it creates. Existing topics must be answered even if the quorum has no leader."""


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse | Encoded:
    """Describe every live broker and the topics asked for: all for null, and in version 0 for an empty list."""
    asked, rights = request.topics, context.rights
    refused: dict[str, ErrorCode] = {}
    hidden: list[MetadataResponseTopic] = []
    if asked is None or (context.api_version == 0 and not asked):
        asked = None
    elif context.api_version < _FIRST_TOPIC_ID_VERSION and any(
        _is_by_id(topic) or topic.name is None for topic in asked
    ):
        return _invalid(asked)
    else:
        if any(_is_by_id(topic) for topic in asked):  # as in Kafka: then names are ignored
            asked = [MetadataRequestTopic(topic_id=topic.topic_id, name=None) for topic in asked if _is_by_id(topic)]
        # Each topic once, even if it is named often: a small request must not get an answer of unbounded size.
        asked = list({(topic.name, topic.topic_id): topic for topic in asked}.values())
        if not rights.are_unlimited:
            asked, hidden = await _visible(broker, request, rights, asked)
        if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
            refused = await _create_missing(broker, asked, context)
    image = broker.image
    if asked is None and image.partition_count > _LARGE_CLUSTER and rights.are_unlimited:
        return await _all_topics(broker, request, context)
    view = View(image, context.listener)
    topics: list[MetadataResponseTopic] = []
    if asked is None and not rights.are_unlimited:
        for topic in image.topics():
            await broker.slices.breathe(ASK_UNITS + _units(topic))
            if rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_asked_for=False):
                topics.append(_known(topic, view, context.api_version))
    elif asked is None:
        topics = [_known(topic, view, context.api_version) for topic in image.topics()]
    else:
        for wanted in asked:
            known = _find(image, wanted)
            if context.is_long or (known is not None and len(known.partitions) > PIECE):
                await broker.slices.breathe(_units(known))
            if known is not None:
                topics.append(_known(known, view, context.api_version))
            else:
                topics.append(_unknown(wanted, refused))
    if request.include_topic_authorized_operations:
        await _tell_operations(broker, rights, topics)
    return _response(broker, request, image, view, topics, rights, hidden)


async def _tell_operations(broker: Broker, rights: Rights, topics: list[MetadataResponseTopic]) -> None:
    """Put into the answers what the requester may do with each topic."""
    units = 1 if rights.are_unlimited else ASK_UNITS * len(OPERATIONS[ResourceType.TOPIC])
    async for some in broker.slices.pieces(topics, units):
        for topic in some:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:  # as in Kafka: without a name, nothing is authorized
                topic.topic_authorized_operations = rights.operations(ResourceType.TOPIC, topic.name or "")


async def _visible(
    broker: Broker, request: MetadataRequest, rights: Rights, asked: list[MetadataRequestTopic]
) -> tuple[list[MetadataRequestTopic], list[MetadataResponseTopic]]:
    """Divide topics into those that the client may describe or create, and the answers for the others."""
    visible: list[MetadataRequestTopic] = []
    hidden: list[MetadataResponseTopic] = []
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    may_create_any = rights.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, is_asked_for=False)
    creates = request.allow_auto_topic_creation and broker.config.auto_create_topics_enable and not may_create_any
    async for some in broker.slices.pieces(asked, 2 * ASK_UNITS):
        for topic in some:
            known, is_by_id = _find(broker.image, topic), _is_by_id(topic)
            name = topic.name if known is None else known.name
            if name is None or (is_by_id and known is None):
                visible.append(topic)  # an unknown id reveals nothing
            elif not rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                told = None if is_by_id else name
                hidden.append(MetadataResponseTopic(error_code=denied, name=told, topic_id=topic.topic_id))
            elif creates and known is None and not rights.allows(Operation.CREATE, ResourceType.TOPIC, name):
                hidden.append(MetadataResponseTopic(error_code=denied, name=name, is_internal=is_internal(name)))
            else:
                visible.append(topic)
    return visible, hidden


def _invalid(asked: list[MetadataRequestTopic]) -> MetadataResponse:
    """Refuse topic ids in a version that does not allow them."""
    topics = [
        MetadataResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id, partitions=[]
        )
        for topic in asked
    ]
    return MetadataResponse(brokers=[], controller_id=-1, topics=topics)


async def _all_topics(broker: Broker, request: MetadataRequest, context: RequestContext) -> Encoded:
    """Return the encoded answer for all topics of a large cluster, made in slices, once per state of the cluster."""
    image, version = broker.image, context.api_version
    asked = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    key = (image.version, version, context.listener, broker.controller_id, asked)

    async def make() -> tuple[bytes, bool]:
        view = View(image, context.listener)
        response = _response(broker, request, image, view, [], context.rights, [])
        for topic in image.topics():
            await broker.slices.breathe(_units(topic))
            response.topics.append(_known(topic, view, version))
            if request.include_topic_authorized_operations:
                operations = context.rights.operations(ResourceType.TOPIC, topic.name)
                response.topics[-1].topic_authorized_operations = operations
        body = await broker.slices.apart(encode, response, version)
        return body, key == (broker.image.version, version, context.listener, broker.controller_id, asked)

    return Encoded(await broker.metadata_answers.get(key, make))


def _units(topic: Topic | None) -> int:
    """Return the cost of describing a topic, in units of `slicing`."""
    return 2 if topic is None else 2 + 2 * len(topic.partitions)


def _response(
    broker: Broker,
    request: MetadataRequest,
    image: Image,
    view: View,
    topics: list[MetadataResponseTopic],
    rights: Rights,
    hidden: list[MetadataResponseTopic],
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=seen.broker_id, host=seen.host, port=seen.port, rack=seen.rack)
            for seen in view.live_brokers
        ],
        cluster_id=image.cluster_id,
        controller_id=view.controller(broker.controller_id, broker.node_id),
        topics=topics + hidden,
        cluster_authorized_operations=cluster_operations(rights)
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def cluster_operations(rights: Rights) -> int:
    """Return the operations on the cluster that the client is authorized for; 0 if it may not describe the cluster."""
    if not rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, is_asked_for=False):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


async def _create_missing(
    broker: Broker, asked: list[MetadataRequestTopic], context: RequestContext
) -> dict[str, ErrorCode]:
    """Create the named topics that are missing; return an error for each that is not created in time."""
    names = [topic.name for topic in asked if topic.name is not None and not _is_by_id(topic)]
    missing = [name for name in names if broker.image.topic(name) is None]
    if not missing:
        return {}
    if context.quota is not None:  # the topics are created all the same; the client waits afterwards
        context.quota.may_mutate(len(missing[:MOST_AT_ONCE]) * broker.config.num_partitions, strict=False)
    try:
        async with asyncio.timeout(CREATION_SECONDS):
            return await auto_create_topics(missing, broker.metadata, broker.config, broker.clock)
    except TimeoutError:  # the quorum has no leader; answer with the topics that exist
        return dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)


def _find(image: Image, wanted: MetadataRequestTopic) -> Topic | None:
    if wanted.name is None or _is_by_id(wanted):
        return image.topic_by_id(TopicId(wanted.topic_id))
    return image.topic(wanted.name)


def _unknown(wanted: MetadataRequestTopic, refused: dict[str, ErrorCode]) -> MetadataResponseTopic:
    name = wanted.name
    if name is None or _is_by_id(wanted):
        name, error = None, ErrorCode.UNKNOWN_TOPIC_ID
    else:
        error = refused.get(name) or _why_unknown(name)
    return MetadataResponseTopic(error_code=error, name=name, topic_id=wanted.topic_id, partitions=[])


def _is_by_id(topic: MetadataRequestTopic) -> bool:
    return topic.topic_id != ZERO_TOPIC_ID  # ignore the name: Java's client sends an empty one, others null


def _why_unknown(name: str) -> ErrorCode:
    return (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def _known(topic: Topic, view: View, version: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(index, partition, view, version) for index, partition in enumerate(topic.partitions)],
    )


def _partition(index: int, partition: Partition, view: View, version: int) -> MetadataResponsePartition:
    leader, error = view.leader(partition)
    if error is ErrorCode.LISTENER_NOT_FOUND and version < _LISTENER_NOT_FOUND_VERSION:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    answer = MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=view.offline(partition),
    )
    if version == 0 and answer.offline_replicas:  # such a client assumes that every replica is reachable
        answer.replica_nodes = view.online(partition, partition.replicas)
        answer.isr_nodes = view.online(partition, partition.isr)
        answer.error_code = error or ErrorCode.REPLICA_NOT_AVAILABLE
    return answer


async def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe topics and their partitions in name order, one page at a time.

    A cursor must point to a topic that the request names, unless it names none.
    """
    view = View(broker.image, context.listener)
    limit = max(1, min(request.response_partition_limit, broker.config.max_request_partition_size_limit))
    names = sorted({topic.name for topic in request.topics}) or [topic.name for topic in broker.image.topics()]
    start = (request.cursor.topic_name, request.cursor.partition_index) if request.cursor is not None else ("", 0)
    is_foreign = request.cursor is not None and bool(request.topics) and request.cursor.topic_name not in names
    if is_foreign or start[1] < 0:
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST,
                    name=topic.name,
                    partitions=[],
                )
                for topic in request.topics
            ]
        )
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    names, hidden = await _hidden(broker, request, context.rights, [name for name in names if name >= start[0]])
    unpaused, units = 0, 2 if context.rights.are_unlimited else ASK_UNITS * len(OPERATIONS[ResourceType.TOPIC])
    for name in names:
        unpaused += units
        if unpaused >= PIECE:
            await broker.slices.breathe(unpaused)
            unpaused = 0
        if limit == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics + hidden, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        operations = context.rights.operations(ResourceType.TOPIC, name)
        topic = broker.image.topic(name)
        if topic is None:
            topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=_why_unknown(name),
                    name=name,
                    partitions=[],
                    topic_authorized_operations=operations,
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
                partitions=[_described(index, partition, view) for index, partition in page],
                topic_authorized_operations=operations,
            )
        )
        limit -= len(page)
        if first + len(page) < len(topic.partitions):
            cursor = Cursor(topic_name=name, partition_index=first + len(page))
            return DescribeTopicPartitionsResponse(topics=topics + hidden, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics + hidden)


async def _hidden(
    broker: Broker, request: DescribeTopicPartitionsRequest, rights: Rights, names: list[str]
) -> tuple[list[str], list[DescribeTopicPartitionsResponseTopic]]:
    """Return the topics that the client may describe, and the answers for other topics that it named."""
    if rights.are_unlimited:
        return names, []
    visible: list[str] = []
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    async for some in broker.slices.pieces(names, ASK_UNITS):
        for name in some:
            if rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_asked_for=bool(request.topics)):
                visible.append(name)
            elif request.topics:
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                hidden.append(DescribeTopicPartitionsResponseTopic(error_code=denied, name=name, partitions=[]))
    return visible, hidden


def _described(index: int, partition: Partition, view: View) -> DescribeTopicPartitionsResponsePartition:
    leader, error = view.leader(partition)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=view.offline(partition),
    )
