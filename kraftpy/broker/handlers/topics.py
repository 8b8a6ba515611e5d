"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37), DeleteRecords (21).

The first three are metadata commands. Topics succeed and fail independently, and many are handled in parts
(`metadata.topic_changes`). The answer comes when this broker can use the partitions; others may take a moment longer.
KIP-4, KIP-195, KIP-204 (DeleteRecords by watermark: KIP-107), KIP-464 (defaults for -1), KIP-516 (topic ids), KIP-525
(settings in the answer).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kraftpy.broker.metadata.auto_creation import new_topic_id
from kraftpy.broker.metadata.config_changes import topic_problem
from kraftpy.broker.metadata.topic_changes import change_topics
from kraftpy.broker.quotas.mutations import (
    FIRST_STRICT_CREATE_PARTITIONS,
    FIRST_STRICT_CREATE_TOPICS,
    FIRST_STRICT_DELETE_TOPICS,
    Mutations,
    cost_of_creation,
    cost_of_deletion,
    cost_of_growth,
    exceeded,
)
from kraftpy.broker.slicing import PIECE
from kraftpy.config.describe import describe_topic
from kraftpy.metadata.commands import (
    ConfigValue,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    ReplicaAssignment,
    TopicReference,
)
from kraftpy.metadata.controller import is_internal
from kraftpy.metadata.image import config_bytes
from kraftpy.metadata.topics import METADATA_TOPIC, topic_name_problem
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kraftpy.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kraftpy.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kraftpy.types import BrokerId, Offset, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata, HasReplicas
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices

    class Broker(HasClock, HasConfig, HasConfigRoom, HasImage, HasMetadata, HasReplicas, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


T = TypeVar("T")

FIRST_TOPIC_ID_VERSION = 6
HIGH_WATERMARK = -1
MOST_DESCRIBED = 1_000
"""How many topics' settings one answer has; DescribeConfigs has those of the others that were created with them."""
_AT_ONCE = 200


async def create_topics(broker: Broker, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    """Create each topic, or only validate it (`validate_only`)."""
    times = Counter(topic.name for topic in request.topics)
    answers: list[CreatableTopicResult] = []
    topics = []
    for place, topic in enumerate(request.topics):
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        may_be_new = times[topic.name] == 1 and broker.image.topic(topic.name) is None
        may_be_new = may_be_new and topic.name != METADATA_TOPIC and topic_name_problem(topic.name) is None
        # The metadata log reports a wrong name first.
        problem = _problem_of(topic, broker) if may_be_new else None
        if problem is None:
            topics.append(_new_topic(topic))
        else:
            answers.append(_refusal(topic.name, ErrorCode.INVALID_CONFIG, problem))
    mutations: Mutations[NewTopic] = Mutations(
        broker.slices, context, FIRST_STRICT_CREATE_TOPICS, lambda topic: _cost_of_creation(topic, times, broker)
    )
    await mutations.count(topics)
    topics = mutations.allowed
    answers += [_refusal(topic.name, exceeded().code, exceeded().message) for topic in mutations.refused]
    if not topics:
        return CreateTopicsResponse(topics=answers)
    command = CreateTopics(
        topics=tuple(topics),
        time_ms=broker.clock.now(),
        default_partitions=broker.config.num_partitions,
        default_replication_factor=broker.config.default_replication_factor,
        validate_only=request.validate_only,
    )
    added = sum(
        config_bytes(topic.name, config.name, config.value or "")
        for topic in command.topics
        for config in topic.configs
    )
    try:
        with broker.config_room.held(added):
            results = await change_topics(command, broker.metadata, broker.config, request.timeout_ms)
    except KafkaError as error:
        answers += [_refusal(topic.name, error.code, error.message) for topic in command.topics]
        return CreateTopicsResponse(topics=answers)
    await mutations.decided(results)
    configs = {topic.name: topic.configs for topic in request.topics}
    described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}  # most topics share their settings
    for place, result in enumerate(results):
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        answer = CreatableTopicResult(
            name=result.name or "",
            topic_id=result.topic_id,
            error_code=result.error,
            error_message=shortened(result.message),
        )
        if result.error == ErrorCode.NONE:
            answer.num_partitions = result.partitions
            answer.replication_factor = result.replication_factor
            answer.configs = []
            if place < MOST_DESCRIBED:
                key = tuple((c.name, c.value) for c in configs[result.name or ""] if c.value is not None)
                if key not in described:
                    described[key] = _described(dict(key), broker)
                answer.configs = described[key]
        answers.append(answer)
    return CreateTopicsResponse(topics=_once(answers, lambda answer: answer.name))


def _cost_of_creation(topic: NewTopic, times: Counter[str], broker: Broker) -> int:
    """Return the number of partitions to count for a topic: 0 if it exists already, or is named twice."""
    if times[topic.name] > 1 or broker.image.topic(topic.name) is not None:
        return 0
    return cost_of_creation(topic, broker.config.num_partitions)


def _once(answers: Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the answers without duplicates: topics named twice have equal answers."""
    return list({key(answer): answer for answer in answers}.values())


def _refusal(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=shortened(message))


def _problem_of(topic: CreatableTopic, broker: Broker) -> str | None:
    """Say why this broker does not allow the topic's settings; None if it does."""
    return topic_problem([(config.name, config.value) for config in topic.configs], broker.config)


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        topic_id=new_topic_id(),
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(
                partition=assignment.partition_index,
                replicas=tuple(BrokerId(replica) for replica in assignment.broker_ids),
            )
            for assignment in topic.assignments
        ),
        configs=tuple(ConfigValue(name=config.name, value=config.value) for config in topic.configs),
    )


def _described(overrides: dict[str, str], broker: Broker) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in describe_topic(overrides, broker.config, cluster=broker.image.cluster_configs())
    ]


async def delete_topics(broker: Broker, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Delete each topic, by name or (from version 6) by id."""
    references: list[TopicReference] = []
    if context.api_version >= FIRST_TOPIC_ID_VERSION:
        async for topics in broker.slices.pieces(request.topics):
            references += [TopicReference(name=topic.name, topic_id=TopicId(topic.topic_id)) for topic in topics]
    else:
        async for names in broker.slices.pieces(request.topic_names):
            references += [TopicReference(name=name) for name in names]
    if not broker.config.delete_topic_enable:
        # The error code came with version 3; before it, Kafka answers INVALID_REQUEST.
        error = ErrorCode.TOPIC_DELETION_DISABLED if context.api_version >= 3 else ErrorCode.INVALID_REQUEST
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=reference.name, topic_id=reference.topic_id, error_code=error)
                for reference in references
            ]
        )
    mutations: Mutations[TopicReference] = Mutations(
        broker.slices, context, FIRST_STRICT_DELETE_TOPICS, lambda reference: cost_of_deletion(reference, broker.image)
    )
    await mutations.count(references)
    references = mutations.allowed
    command = DeleteTopics(topics=tuple(references), time_ms=broker.clock.now())
    results = await change_topics(command, broker.metadata, broker.config, request.timeout_ms)
    await mutations.decided(results)
    answers: dict[Hashable, DeletableTopicResult] = {
        (each.name, each.topic_id): DeletableTopicResult(
            name=each.name,
            topic_id=each.topic_id,
            error_code=exceeded().code,
            error_message=exceeded().message,
        )
        for each in mutations.refused
    }
    for place, (reference, result) in enumerate(zip(references, results, strict=True)):
        if place and place % PIECE == 0:
            await broker.slices.breathe(PIECE)
        key = (result.name, result.topic_id) if reference.is_sound else place  # as in Kafka, each invalid one
        answers[key] = DeletableTopicResult(
            name=result.name,
            topic_id=result.topic_id,
            error_code=result.error,
            error_message=shortened(result.message),
        )
    return DeleteTopicsResponse(responses=list(answers.values()))


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Raise each topic's number of partitions to the count given."""
    wanted: list[NewPartitions] = []
    async for topics in broker.slices.pieces(request.topics):
        wanted += map(_growth, topics)
    mutations: Mutations[NewPartitions] = Mutations(
        broker.slices, context, FIRST_STRICT_CREATE_PARTITIONS, lambda topic: cost_of_growth(topic, broker.image)
    )
    await mutations.count(wanted)
    command = CreatePartitions(
        topics=tuple(mutations.allowed), time_ms=broker.clock.now(), validate_only=request.validate_only
    )
    results = await change_topics(command, broker.metadata, broker.config, request.timeout_ms)
    await mutations.decided(results)
    answers = [
        CreatePartitionsTopicResult(name=topic.name, error_code=exceeded().code, error_message=exceeded().message)
        for topic in mutations.refused
    ]
    async for some in broker.slices.pieces(results):
        answers += [
            CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error, error_message=shortened(result.message)
            )
            for result in some
        ]
    return CreatePartitionsResponse(results=_once(answers, lambda answer: answer.name))


def _growth(topic: CreatePartitionsTopic) -> NewPartitions:
    return NewPartitions(
        name=topic.name,
        count=topic.count,
        assignments=None
        if topic.assignments is None
        else tuple(tuple(BrokerId(replica) for replica in assignment.broker_ids) for assignment in topic.assignments),
    )


_DELETED_AT_ONCE = 100
"""How many partitions have their records deleted at the same time."""
_DELETE_UNITS = 10
"""The cost of deleting one partition's records, in units of `slicing`."""


async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Move each partition's log start offset (-1: to the high watermark); its live replicas follow."""
    deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    topics: dict[str, DeleteRecordsTopicResult] = {}
    for name, named in _last_named(request).items():
        partitions = list(named.values())
        for start in range(0, len(partitions), _DELETED_AT_ONCE):
            piece = partitions[start : start + _DELETED_AT_ONCE]
            if context.is_long:
                await broker.slices.breathe(_DELETE_UNITS * len(piece))
            deleting = [_delete(broker, name, partition, deadline) for partition in piece]
            topics.setdefault(name, DeleteRecordsTopicResult(name=name)).partitions += await asyncio.gather(*deleting)
    return DeleteRecordsResponse(topics=list(topics.values()))


def _last_named(request: DeleteRecordsRequest) -> dict[str, dict[int, DeleteRecordsPartition]]:
    """Return the request for each partition; the last one counts if a partition is named twice."""
    found: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        found.setdefault(topic.name, {}).update({each.partition_index: each for each in topic.partitions})
    return found


async def _delete(
    broker: Broker, topic: str, partition: DeleteRecordsPartition, deadline: float
) -> DeleteRecordsPartitionResult:
    answer = DeleteRecordsPartitionResult(partition_index=partition.partition_index, low_watermark=-1)
    try:
        if is_internal(topic) and broker.image.partition(topic, partition.partition_index) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        replica = broker.replicas.leader(topic, partition.partition_index)
        if replica.log.config.cleanup_policy == frozenset({"compact"}):
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "cannot delete records of a topic with cleanup.policy=compact")
        before = replica.high_watermark if partition.offset == HIGH_WATERMARK else Offset(partition.offset)
        if not 0 <= before <= replica.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {before} is outside the log")
        await replica.delete_records(before)
        answer.low_watermark = await replica.low_watermark_at(before, deadline)
    except KafkaError as error:
        answer.error_code = error.code
    return answer
