"""Carries out requests that create, delete or grow topics in parts, so that other requests are served meanwhile.

A metadata command is decided and acted upon as a whole: one with thousands of topics would block every node for
seconds. A request is therefore split into commands of about `UNITS_AT_ONCE` partitions each, submitted one after the
other. Results are returned in request order, and each topic still succeeds or fails independently. Requests with
several parts alternate: only one of them has a part in progress at a time. A topic is never split.

`kraftpy.max.partitions` limits the cluster. The broker that receives a request checks it against the image, because a
decision must not depend on a broker's settings; brokers that get requests at the same moment may exceed the limit by
one part each. Internal topics (`internal_topics`) are exempt, since otherwise groups could not work in a full cluster.

Left out: limiting the rate of changes (KIP-599), which handlers do (`quotas.mutations`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kraftpy.broker.internal_topics import settings_of
from kraftpy.broker.metadata.client_commands import check_timeout
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.slicing import in_slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.commands import CreatePartitions, CreateTopics, DeleteTopics, NewPartitions, NewTopic
from kraftpy.metadata.controller import decide
from kraftpy.metadata.decision import TopicResult
from kraftpy.metadata.image import Image
from kraftpy.metadata.topics import MAX_PARTITIONS_PER_REQUEST, partitions_added, topic_name_problem
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import ZERO_TOPIC_ID

UNITS_AT_ONCE: Final = 200
"""The most partitions, topics and settings in one command, in total, unless a single topic has more."""
MAX_TOPICS_PER_REQUEST: Final = 10_000
"""Kafka's limit on the changes in one admin request."""

TopicCommand = CreateTopics | DeleteTopics | CreatePartitions


class _Part(NamedTuple):
    """One of several commands: the positions of its topics in the request, and its units of work."""

    places: list[int]
    units: int


async def change_topics(
    command: TopicCommand, metadata: MetadataLog, config: BrokerConfig, timeout_ms: int | None = None
) -> list[TopicResult]:
    """Carry out the command in parts; return each topic's result, in order.

    `timeout_ms` limits the whole request (None: only `MetadataLog.submit` does). Topics that could not be decided get
    REQUEST_TIMED_OUT, or the error that `MetadataLog.submit` raises. With no time at all, nothing is done.
    """
    if timeout_ms is not None:
        try:
            check_timeout(timeout_ms)
        except KafkaError as no_time:
            return await _all_failed(command, no_time)
    loop = asyncio.get_running_loop()
    deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
    if isinstance(command, CreateTopics) and any(_needs_defaults(topic) for topic in command.topics):
        command = await _with_defaults(command, metadata, deadline)
    if len(command.topics) > MAX_TOPICS_PER_REQUEST:
        too_many = KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request.",  # in Kafka's words, as each topic has one
        )
        return await _all_failed(command, too_many)
    if not isinstance(command, DeleteTopics) and partitions_added(command, metadata.image) > MAX_PARTITIONS_PER_REQUEST:
        return list(decide(command, metadata.image).result or ())
    parts = _parts(command, metadata.image)
    results: list[TopicResult | None] = [None] * len(command.topics)
    validated = 0
    failure: KafkaError | None = None
    for part in parts:
        if failure is None:
            part_command = _with_topics(command, part.places)
            refused = _without_room(part_command, metadata.image, config, validated)
            try:
                decided = await _decided(part_command, refused, metadata, deadline, is_one_of_many=len(parts) > 1)
            except TimeoutError:
                failure = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The request was not decided within {timeout_ms} ms; it may still be, so check before retrying.",
                )
            except KafkaError as error:
                failure = error
            else:
                if not isinstance(command, DeleteTopics) and command.validate_only:
                    validated += part.units
                for place, result in zip(part.places, decided, strict=True):
                    results[place] = result
    if failure is None:
        return [result for result in results if result is not None]
    return [
        result if result is not None else _failed(command.topics[place], failure)
        for place, result in enumerate(results)
    ]


def _needs_defaults(topic: NewTopic) -> bool:
    return not topic.assignments and -1 in (topic.partitions, topic.replication_factor)


async def _with_defaults(command: CreateTopics, metadata: MetadataLog, deadline: float | None) -> CreateTopics:
    """Return the command with the active controller's defaults, or unchanged if the controller cannot be asked."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            defaults = await metadata.quorum.topic_defaults()
            return replace(
                command,
                default_partitions=defaults.partitions,
                default_replication_factor=defaults.replication_factor,
            )
    return command


async def _decided(
    command: TopicCommand,
    refused: dict[int, TopicResult],
    metadata: MetadataLog,
    deadline: float | None,
    *,
    is_one_of_many: bool,
) -> list[TopicResult]:
    """Return one part's results, merged with local refusals, in order. Raises KafkaError or TimeoutError."""
    places = [place for place in range(len(command.topics)) if place not in refused]
    allowed = _with_topics(command, places)
    async with asyncio.timeout_at(deadline):
        if is_one_of_many:
            async with metadata.many_topics:
                decision = await metadata.submit(allowed)
            await asyncio.sleep(0)
        else:
            decision = await metadata.submit(allowed)
    results = dict(refused)
    results.update(zip(places, decision.result or (), strict=True))
    return [results[place] for place in range(len(command.topics))]


def _with_topics(command: TopicCommand, places: Sequence[int]) -> TopicCommand:
    """Return the command with only the topics at these positions, in this order."""
    if list(places) == list(range(len(command.topics))):
        return command
    match command:
        case CreateTopics():
            return replace(command, topics=tuple(command.topics[place] for place in places))
        case DeleteTopics():
            return replace(command, topics=tuple(command.topics[place] for place in places))
        case CreatePartitions():
            return replace(command, topics=tuple(command.topics[place] for place in places))


def _parts(command: TopicCommand, image: Image) -> list[_Part]:
    """Split the command's topics. Those that affect each other (duplicates, colliding names) stay together."""
    together: dict[Hashable, list[int]] = {}
    key_of = _dependency_key(command, image)
    for place in range(len(command.topics)):
        together.setdefault(key_of(place), []).append(place)
    parts: list[_Part] = []
    for places in together.values():
        units = sum(_units(command, place, image) for place in places)
        if not parts or parts[-1].units + units > UNITS_AT_ONCE:
            parts.append(_Part([], 0))
        parts[-1].places.extend(places)
        parts[-1] = _Part(parts[-1].places, parts[-1].units + units)
    return parts or [_Part([], 0)]


def _dependency_key(command: TopicCommand, image: Image) -> Callable[[int], Hashable]:
    """Return a function from a topic's position to a key, equal for topics that must be decided together."""
    match command:
        case CreateTopics(topics=topics):
            return lambda place: topics[place].name.replace(".", "_")
        case CreatePartitions(topics=topics):
            return lambda place: topics[place].name
        case DeleteTopics(topics=references):

            def topic_of(place: int) -> Hashable:
                name, topic_id = references[place].name, references[place].topic_id
                topic = image.topic_by_id(topic_id) if name is None else image.topic(name)
                return topic.topic_id if topic is not None else (name, topic_id)

            return topic_of


def _units(command: TopicCommand, place: int, image: Image) -> int:
    """Return the units of work of one topic of the command."""
    match command:
        case CreateTopics(topics=topics):
            return _new_partitions(topics[place], command) + len(topics[place].configs)
        case CreatePartitions(topics=topics):
            return max(1, _growth(topics[place], image))
        case DeleteTopics(topics=references):
            name, topic_id = references[place].name, references[place].topic_id
            topic = image.topic_by_id(topic_id) if name is None else image.topic(name)
            return 1 if topic is None else len(topic.partitions)


def _new_partitions(topic: NewTopic, command: CreateTopics) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return max(1, command.default_partitions if topic.partitions == -1 else topic.partitions)


def _growth(wanted: NewPartitions, image: Image) -> int:
    topic = image.topic(wanted.name)
    return 0 if topic is None else wanted.count - len(topic.partitions)


def _without_room(command: TopicCommand, image: Image, config: BrokerConfig, validated: int) -> dict[int, TopicResult]:
    """Return refusals, by position, of topics that would exceed the cluster's limit; later, smaller ones may fit."""
    refused: dict[int, TopicResult] = {}
    if isinstance(command, DeleteTopics):
        return refused
    room = config.kraftpy_max_partitions - image.partition_count - validated
    topics: Sequence[NewTopic | NewPartitions] = command.topics
    for place, topic in enumerate(topics):
        if isinstance(topic, NewPartitions):
            added = _growth(topic, image)
        elif image.topic(topic.name) is not None or topic_name_problem(topic.name) is not None:
            continue  # `decide` refuses it for that reason
        else:
            assert isinstance(command, CreateTopics)
            added = _new_partitions(topic, command)
            own = settings_of(topic.name, config)
            if own is not None and added <= own.partitions:
                continue
        if 0 < added <= room:
            room -= added
        elif added > 0:
            message = (
                f"The cluster has {image.partition_count} partitions, and {added} more would exceed "
                f"kraftpy.max.partitions={config.kraftpy_max_partitions}."
            )
            refused[place] = TopicResult(
                name=topic.name, topic_id=ZERO_TOPIC_ID, error=ErrorCode.POLICY_VIOLATION, message=message
            )
    return refused


async def _all_failed(command: TopicCommand, failure: KafkaError) -> list[TopicResult]:
    results: list[TopicResult] = []
    async for topics in in_slices(command.topics, UNITS_AT_ONCE):
        results += [_failed(topic, failure) for topic in topics]
    return results


def _failed(topic: object, failure: KafkaError) -> TopicResult:
    name = getattr(topic, "name", None)
    topic_id = ZERO_TOPIC_ID if isinstance(topic, NewTopic) else getattr(topic, "topic_id", ZERO_TOPIC_ID)
    return TopicResult(name=name, topic_id=topic_id, error=failure.code, message=failure.message)
