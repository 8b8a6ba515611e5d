"""What is decided about topics: their names, creation, deletion and growth.

Errors are Kafka's, in Kafka's order: a duplicate within the request, the name, whether it exists, its settings, its
replicas. As in Kafka, internal topics may be created and deleted by whoever may do so to any topic; only
`__cluster_metadata` is nobody's. Names that differ in '.' and '_' alone collide (they would share metric names).

A topic that exists under the very id the command brings was made by an earlier copy of that command: success, no
records.

Left out: policies of the operator; topics to be deleted later (a deletion is immediate).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from kraftpy.metadata.commands import (
    ConfigOperation,
    ConfigResourceType,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    TopicReference,
)
from kraftpy.metadata.configs import config_records
from kraftpy.metadata.decision import Decision, Refused, TopicResult
from kraftpy.metadata.image import Image, Topic
from kraftpy.metadata.placement import CannotPlaceError, place
from kraftpy.metadata.records import PartitionCreated, Record, TopicCreated, TopicDeleted
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import ZERO_TOPIC_ID, BrokerId, TopicId

METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = ("__consumer_offsets", "__share_group_state", "__transaction_state")
MAX_NAME_LENGTH = 249
MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's own bound on what one request may create."""

RESERVED_TOPIC_IDS = (ZERO_TOPIC_ID, TopicId(bytes(15) + b"\x01"))
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

Replicas = tuple[BrokerId, ...]


def is_internal(name: str) -> bool:
    """Whether clients may not write to the topic, nor see it in a listing that asks for none such."""
    return name in INTERNAL_TOPICS


def topic_name_problem(name: str) -> str | None:
    """What is wrong with a topic's name, in words; None when it is a good one."""
    if not name:
        return "A topic needs a name"
    if name in (".", ".."):
        return f"A topic cannot be named '{name}'"
    if len(name) > MAX_NAME_LENGTH:
        return f"A topic's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}"
    if not _NAME_CHARACTERS.issuperset(name):
        return "A topic's name is made of ASCII letters, digits, '.', '_' and '-'"
    return None


def partitions_added(command: CreateTopics | CreatePartitions, image: Image) -> int:
    """How many new partitions the command asks for, whether it may have them or not."""
    if isinstance(command, CreatePartitions):
        return sum(max(0, wanted.count - _count(image.topic(wanted.name))) for wanted in command.topics)
    default = command.default_partitions
    return sum(
        len(topic.assignments) or (default if topic.partitions == -1 else max(topic.partitions, 0))
        for topic in command.topics
    )


# -- creation


def create_topics(command: CreateTopics, image: Image) -> Decision[tuple[TopicResult, ...]]:
    """Create each topic that may be created; POLICY_VIOLATION for all where they ask for too many partitions."""
    if partitions_added(command, image) > MAX_PARTITIONS_PER_REQUEST:
        return _too_many_partitions(command)
    times_named = Counter(topic.name for topic in command.topics)
    new_names: dict[str, str] = {}
    seed = image.partition_count
    ids: set[TopicId] = set()
    records: list[Record] = []
    results = []
    for topic in command.topics:
        try:
            if times_named[topic.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request names this topic more than once.")
            existing = image.topic(topic.name)
            if existing and existing.topic_id == topic.topic_id:
                results.append(_created(topic, len(existing.partitions), existing.replication_factor))
                continue
            _check_new_name(topic.name, existing, new_names, image)
            _check_new_id(topic.topic_id, ids, image)
            configs = _new_configs(topic, image)
            placed = _place_new(topic, command, image, seed)
        except Refused as refused:
            results.append(_refused(topic.name, refused))
            continue
        ids.add(topic.topic_id)
        new_names[_unified(topic.name)] = topic.name
        seed += len(placed)
        records.append(TopicCreated(name=topic.name, topic_id=topic.topic_id, created_ms=command.time_ms))
        records += configs
        records += _partition_records(topic.name, topic.topic_id, 0, placed, image)
        results.append(_created(topic, len(placed), len(placed[0])))
    return Decision(records=() if command.validate_only else tuple(records), result=tuple(results))


def _created(topic: NewTopic, partitions: int, replication_factor: int) -> TopicResult:
    return TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=partitions,
        replication_factor=replication_factor,
    )


def _refused(name: str | None, refused: Refused, topic_id: TopicId = ZERO_TOPIC_ID) -> TopicResult:
    return TopicResult(name=name, topic_id=topic_id, error=refused.error, message=refused.message)


def _too_many_partitions(command: CreateTopics | CreatePartitions) -> Decision[tuple[TopicResult, ...]]:
    """Everything is refused: which topic is to blame is not for us to say."""
    refused = Refused(
        ErrorCode.POLICY_VIOLATION,
        f"One request may ask for {MAX_PARTITIONS_PER_REQUEST} new partitions in all, not more.",
    )
    return Decision(
        result=tuple(_refused(topic.name, refused) for topic in command.topics),
        error=refused.error,
        message=refused.message,
    )


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _check_new_name(name: str, existing: Topic | None, new_names: dict[str, str], image: Image) -> None:
    if name == METADATA_TOPIC:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{METADATA_TOPIC} is not to be created as a topic.")
    if problem := topic_name_problem(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if existing:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"There is a topic '{name}' already.")
    if other := image.topic_colliding_with(name) or new_names.get(_unified(name)):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"'{name}' is too close to '{other}': '.' and '_' count as the same."
        )


def _check_new_id(topic_id: TopicId, ids: AbstractSet[TopicId], image: Image) -> None:
    """The proposer chose the id at random: anything but a new one is its mistake."""
    if len(topic_id) != 16 or topic_id in RESERVED_TOPIC_IDS or topic_id in ids or image.topic_by_id(topic_id):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Topic id {topic_id.hex()} cannot be given to a new topic.")


def _new_configs(topic: NewTopic, image: Image) -> list[Record]:
    if nulls := sorted(config.name for config in topic.configs if config.value is None):
        raise Refused(ErrorCode.INVALID_CONFIG, f"Settings without a value: {', '.join(nulls)}")
    values = {config.name: config.value for config in topic.configs}
    operations = [ConfigOperation(name=name, value=value) for name, value in values.items()]
    return config_records(ConfigResourceType.TOPIC, topic.name, operations, image)


def _place_new(topic: NewTopic, command: CreateTopics, image: Image, seed: int) -> list[Replicas]:
    if topic.assignments:
        return _manual_placement(topic, image)
    partitions = command.default_partitions if topic.partitions == -1 else topic.partitions
    factor = command.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if factor < 1:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor must be 1 or more; -1 means the default."
        )
    if partitions < 1:
        raise Refused(ErrorCode.INVALID_PARTITIONS, "The number of partitions must be 1 or more; -1 means the default.")
    return _placed(image, partitions, factor, seed)


def _placed(image: Image, partitions: int, factor: int, seed: int, after: BrokerId | None = None) -> list[Replicas]:
    try:
        return place(image.brokers(), partitions=partitions, replication_factor=factor, seed=seed, after=after)
    except CannotPlaceError as error:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, f"No place for {factor} replica(s): {error}.") from None


def _manual_placement(topic: NewTopic, image: Image) -> list[Replicas]:
    if topic.replication_factor != -1 or topic.partitions != -1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Replicas that are assigned give the counts: partitions and replication factor must be -1 then.",
        )
    placed: dict[int, Replicas] = {}
    good: set[Replicas] = set()
    for assignment in topic.assignments:
        if assignment.partition in placed:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {assignment.partition} has two assignments.",
            )
        if assignment.replicas not in good:
            _check_replicas(assignment.replicas, len(topic.assignments[0].replicas), image)
            good.add(assignment.replicas)
        placed[assignment.partition] = assignment.replicas
    if sorted(placed) != list(range(len(placed))):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The assigned partitions must be numbered from 0 on, without a gap."
        )
    return [placed[partition] for partition in range(len(placed))]


def _check_replicas(replicas: Replicas, replication_factor: int, image: Image) -> None:
    """Replicas that a client chose: known, different, as many as the other partitions have, one of them active."""
    problem = None
    if not replicas:
        problem = "A partition is assigned to no broker."
    elif unknown := [broker_id for broker_id in replicas if image.broker(broker_id) is None]:
        problem = f"A partition is assigned to broker {unknown[0]}, which nobody has registered."
    elif len(frozenset(replicas)) != len(replicas):
        problem = f"The replicas {list(replicas)} name a broker twice."
    elif len(replicas) != replication_factor:
        problem = f"The replicas {list(replicas)} are {len(replicas)}; the other partitions have {replication_factor}."
    elif not any(image.is_active(broker_id) for broker_id in replicas):
        problem = f"None of the replicas {list(replicas)} is on an active broker."
    if problem:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _partition_records(
    topic: str, topic_id: TopicId, first: int, placed: Sequence[Replicas], image: Image
) -> list[PartitionCreated]:
    """New partitions: whoever is active is in sync, there being nothing to lag behind; the first of them leads."""
    records = []
    in_sync: dict[Replicas, Replicas] = {}
    for number, replicas in enumerate(placed, first):
        isr = in_sync.get(replicas)
        if isr is None:
            isr = in_sync[replicas] = tuple(broker_id for broker_id in replicas if image.is_active(broker_id))
        records.append(
            PartitionCreated(
                topic=topic, topic_id=topic_id, partition=number, replicas=replicas, isr=isr, leader=isr[0]
            )
        )
    return records


# -- deletion


def delete_topics(command: DeleteTopics, image: Image) -> Decision[tuple[TopicResult, ...]]:
    """Delete each topic that exists. One that is named twice, in whatever way, is refused each time."""
    named = Counter(
        reference.name if reference.name is not None else reference.topic_id for reference in command.topics
    )
    resolved = [_resolve(reference, image) for reference in command.topics]
    meant = Counter(topic.topic_id for topic in resolved if topic)
    records: list[Record] = []
    results = []
    for reference, topic in zip(command.topics, resolved, strict=True):
        try:
            _check_reference(reference, named)
            if topic is None and reference.name is not None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
            if meant[topic.topic_id] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request gives this topic by its name and by its id.")
        except Refused as refused:
            results.append(_refused(reference.name, refused, reference.topic_id))
            continue
        records.append(TopicDeleted(name=topic.name, topic_id=topic.topic_id))
        results.append(TopicResult(name=topic.name, topic_id=topic.topic_id))
    return Decision(records=tuple(records), result=tuple(results))


def _resolve(reference: TopicReference, image: Image) -> Topic | None:
    return image.topic_by_id(reference.topic_id) if reference.name is None else image.topic(reference.name)


def _check_reference(reference: TopicReference, named: Counter[str | TopicId]) -> None:
    if reference.name is None and reference.topic_id == ZERO_TOPIC_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "A topic must be named, or given by its id.")
    if reference.name is not None and reference.topic_id != ZERO_TOPIC_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "A topic is given by its name or by its id, not by both.")
    if reference.name is None and named[reference.topic_id] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "The request names this topic id more than once.")
    if reference.name is not None and named[reference.name] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "The request names this topic more than once.")


# -- growth


def create_partitions(command: CreatePartitions, image: Image) -> Decision[tuple[TopicResult, ...]]:
    """Add partitions to each topic that may grow; the new ones start at leader epoch 0."""
    if partitions_added(command, image) > MAX_PARTITIONS_PER_REQUEST:
        return _too_many_partitions(command)
    times_named = Counter(wanted.name for wanted in command.topics)
    records: list[Record] = []
    results = []
    seed = image.partition_count
    for wanted in command.topics:
        try:
            if times_named[wanted.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request names this topic more than once.")
            topic = image.topic(wanted.name)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            placed = _place_added(wanted, topic, image, seed)
        except Refused as refused:
            results.append(_refused(wanted.name, refused))
            continue
        seed += len(placed)
        records += _partition_records(topic.name, topic.topic_id, len(topic.partitions), placed, image)
        results.append(
            TopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=wanted.count,
                replication_factor=topic.replication_factor,
            )
        )
    return Decision(records=() if command.validate_only else tuple(records), result=tuple(results))


def _count(topic: Topic | None) -> int:
    return len(topic.partitions) if topic else 0


def _place_added(wanted: NewPartitions, topic: Topic, image: Image, seed: int) -> list[Replicas]:
    has = len(topic.partitions)
    if wanted.count == has:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"It has {has} partition(s) already.")
    if wanted.count < has:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"It has {has} partition(s), and partitions cannot be taken away: {wanted.count} are too few.",
        )
    added = wanted.count - has
    factor = topic.replication_factor
    if wanted.assignments is None:
        return _placed(image, added, factor, seed, after=topic.partitions[-1].replicas[0])
    if len(wanted.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partition(s) would be added, but {len(wanted.assignments)} are assigned to brokers.",
        )
    for replicas in dict.fromkeys(wanted.assignments):
        _check_replicas(replicas, factor, image)
    return list(wanted.assignments)
