"""Decisions about topics: names, creation, deletion and added partitions.

Errors are Kafka's, in Kafka's order: a duplicate within the request, the name, whether it exists, its settings, its
replicas. As in Kafka, any client that may create and delete topics may do so with internal ones, except
`__cluster_metadata`. Names that differ only in '.' and '_' collide (they would share metric names).

A topic that already exists with the id in the command was created by an earlier copy of the command: the result is
success, without records.

Left out: creation policies of the operator; delayed deletion (topics are deleted immediately).
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
"""Kafka's own limit on partitions created by one request."""

RESERVED_TOPIC_IDS = (ZERO_TOPIC_ID, TopicId(bytes(15) + b"\x01"))
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

Replicas = tuple[BrokerId, ...]


def is_internal(name: str) -> bool:
    """Return whether a topic is internal: clients may not write to it, and may exclude it from listings."""
    return name in INTERNAL_TOPICS


def topic_name_problem(name: str) -> str | None:
    """Describe what is wrong with a topic name, in Kafka's words; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _NAME_CHARACTERS.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def partitions_added(command: CreateTopics | CreatePartitions, image: Image) -> int:
    """Return the number of new partitions that the command asks for, allowed or not."""
    if isinstance(command, CreatePartitions):
        return sum(max(0, wanted.count - _count(image.topic(wanted.name))) for wanted in command.topics)
    default = command.default_partitions
    return sum(
        len(topic.assignments) or (default if topic.partitions == -1 else max(topic.partitions, 0))
        for topic in command.topics
    )


# -- creation


def create_topics(command: CreateTopics, image: Image) -> Decision[tuple[TopicResult, ...]]:
    """Create each topic that may be created; POLICY_VIOLATION for all if they ask for too many partitions in total."""
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
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
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
        new_names[_metric_name(topic.name)] = topic.name
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
    """Refuse every topic of the request, since the limit is on their total."""
    refused = Refused(
        ErrorCode.POLICY_VIOLATION,
        "Excessively large number of partitions per request.",
    )
    return Decision(
        result=tuple(_refused(topic.name, refused) for topic in command.topics),
        error=refused.error,
        message=refused.message,
    )


def _metric_name(name: str) -> str:
    """Return the topic's name as metrics have it: names that are equal there collide."""
    return name.replace(".", "_")


def _check_new_name(name: str, existing: Topic | None, new_names: dict[str, str], image: Image) -> None:
    if name == METADATA_TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if problem := topic_name_problem(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if existing:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other := image.topic_colliding_with(name) or new_names.get(_metric_name(name)):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _check_new_id(topic_id: TopicId, ids: AbstractSet[TopicId], image: Image) -> None:
    """Refuse a topic id that is malformed, reserved or taken: the proposer should have chosen it at random."""
    if len(topic_id) != 16 or topic_id in RESERVED_TOPIC_IDS or topic_id in ids or image.topic_by_id(topic_id):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Topic id {topic_id.hex()} is reserved, taken or malformed.")


def _new_configs(topic: NewTopic, image: Image) -> list[Record]:
    if nulls := sorted(config.name for config in topic.configs if config.value is None):
        raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
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
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions < 1:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    return _placed(image, partitions, factor, seed)


def _placed(image: Image, partitions: int, factor: int, seed: int, after: BrokerId | None = None) -> list[Replicas]:
    try:
        return place(image.brokers(), partitions=partitions, replication_factor=factor, seed=seed, after=after)
    except CannotPlaceError as error:
        message = f"Unable to replicate the partition {factor} time(s): {error}"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message) from None


def _manual_placement(topic: NewTopic, image: Image) -> list[Replicas]:
    if topic.replication_factor != -1 or topic.partitions != -1:
        count = "replication factor" if topic.replication_factor != -1 else "numPartitions"
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"A manual partition assignment was specified, but {count} was not set to -1."
        )
    placed: dict[int, Replicas] = {}
    good: set[Replicas] = set()
    for assignment in topic.assignments:
        if assignment.partition in placed:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition}",
            )
        if assignment.replicas not in good:
            _check_replicas(assignment.replicas, len(topic.assignments[0].replicas), image)
            good.add(assignment.replicas)
        placed[assignment.partition] = assignment.replicas
    if sorted(placed) != list(range(len(placed))):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [placed[partition] for partition in range(len(placed))]


def _check_replicas(replicas: Replicas, replication_factor: int, image: Image) -> None:
    """Check a client's replicas: registered, distinct, as many as other partitions have, at least one active, none on
    a broker that is cordoned."""
    problem = None
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif unknown := [broker_id for broker_id in replicas if image.broker(broker_id) is None]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif len(frozenset(replicas)) != len(replicas):
        twice = next(broker_id for broker_id in replicas if replicas.count(broker_id) > 1)
        problem = f"The manual partition assignment includes the broker {twice} more than once."
    elif len(replicas) != replication_factor:
        problem = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    elif not any(image.is_active(broker_id) for broker_id in replicas):
        problem = f"All brokers in the manual partition assignment {list(replicas)} are fenced or shutting down."
    else:
        problem = cordon_problem(replicas, image)
    if problem:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def cordon_problem(added: Sequence[BrokerId], image: Image) -> str | None:
    """Say which of the brokers that would get a replica is cordoned (KIP-1066); return None if none is."""
    for broker_id in added:
        broker = image.broker(broker_id)
        if broker is not None and broker.is_cordoned:
            return (
                f"The manual partition assignment includes broker {broker_id}, but all of its log directories are "
                "cordoned."
            )
    return None


def _partition_records(
    topic: str, topic_id: TopicId, first: int, placed: Sequence[Replicas], image: Image
) -> list[PartitionCreated]:
    """Return records of new partitions. Active replicas are in sync, as the log is empty; the first of them leads."""
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
    """Delete each existing topic. All references to a topic that is given twice, by name or id, are refused."""
    sound = [reference for reference in command.topics if reference.is_sound]
    named = Counter(reference.name if reference.name is not None else reference.topic_id for reference in sound)
    resolved = [_resolve(reference, image) for reference in command.topics]
    meant = Counter(topic.topic_id for topic in (_resolve(reference, image) for reference in sound) if topic)
    records: list[Record] = []
    results = []
    for reference, topic in zip(command.topics, resolved, strict=True):
        try:
            _check_reference(reference, named)
            if topic is None and reference.name is not None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.meaning)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID.meaning)
        except Refused as refused:
            results.append(_refused(reference.name, refused, reference.topic_id))
            continue
        if meant[topic.topic_id] > 1:
            twice = "The provided topic name maps to an ID that was already supplied."
            results.append(_refused(topic.name, Refused(ErrorCode.INVALID_REQUEST, twice), topic.topic_id))
            continue
        records.append(TopicDeleted(name=topic.name, topic_id=topic.topic_id))
        results.append(TopicResult(name=topic.name, topic_id=topic.topic_id))
    return Decision(records=tuple(records), result=tuple(results))


def _resolve(reference: TopicReference, image: Image) -> Topic | None:
    return image.topic_by_id(reference.topic_id) if reference.name is None else image.topic(reference.name)


def _check_reference(reference: TopicReference, named: Counter[str | TopicId]) -> None:
    if reference.name is None and reference.topic_id == ZERO_TOPIC_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if reference.name is not None and reference.topic_id != ZERO_TOPIC_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if reference.name is None and named[reference.topic_id] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    if reference.name is not None and named[reference.name] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


# -- growth


def create_partitions(command: CreatePartitions, image: Image) -> Decision[tuple[TopicResult, ...]]:
    """Add partitions to each topic, if allowed; the new ones start at leader epoch 0."""
    if partitions_added(command, image) > MAX_PARTITIONS_PER_REQUEST:
        return _too_many_partitions(command)
    times_named = Counter(wanted.name for wanted in command.topics)
    records: list[Record] = []
    results = []
    seed = image.partition_count
    for wanted in command.topics:
        try:
            if times_named[wanted.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
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
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {has} partition(s).")
    if wanted.count < has:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {has} partition(s); {wanted.count} would not be an increase.",
        )
    added = wanted.count - has
    factor = topic.replication_factor
    if wanted.assignments is None:
        return _placed(image, added, factor, seed, after=topic.partitions[-1].replicas[0])
    if len(wanted.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) were "
            "specified.",
        )
    for replicas in dict.fromkeys(wanted.assignments):
        _check_replicas(replicas, factor, image)
    return list(wanted.assignments)
