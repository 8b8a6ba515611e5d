"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46).

An election is answered once this broker knows its outcome; a reassignment continues after its answer, until the new
replicas are in sync. KIP-183, KIP-460 (unclean), KIP-455 (reassignments), KIP-860 (a guard for the replication factor).

Ongoing reassignments are listed as this broker knows them, perhaps a moment behind the controller.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from kraftpy.broker.metadata.client_commands import decided_within
from kraftpy.broker.metadata.topic_changes import UNITS_AT_ONCE
from kraftpy.broker.slicing import in_slices
from kraftpy.metadata.commands import AlterReassignments, ElectLeaders, PartitionReference, Reassignment
from kraftpy.metadata.decision import ElectionResult, ReassignmentResult
from kraftpy.metadata.image import Image, Topic
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kraftpy.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kraftpy.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasImage

    class Broker(HasClock, HasImage, HasMetadata, Protocol):
        """The part of a broker that these handlers need."""


_FIRST_TOP_LEVEL_ERROR_VERSION = 1
_AT_ONCE = 1_000
"""How many partitions are read, or results built, before other requests are served."""
_UNREPORTED = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors to leave out for partitions that the request did not name: they were elected or deleted meanwhile."""

_Result = ElectionResult | ReassignmentResult | KafkaError

T = TypeVar("T")
K = TypeVar("K")


async def elect_leaders(broker: Broker, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Elect a leader for each partition named, or for every partition that needs one."""
    partitions = [
        PartitionReference(topic=name, partition=number)
        async for name, numbers in _pieces((topic.topic, topic.partitions) for topic in request.topic_partitions or ())
        for number in numbers
    ]
    if request.topic_partitions is not None and not request.topic_partitions:
        return ElectLeadersResponse()  # as in Kafka, for any type of election
    if request.election_type not in (PREFERRED, UNCLEAN):
        unknown = KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        return await no_election(unknown, request, context.api_version)
    try:
        is_unclean = request.election_type == UNCLEAN
        if request.topic_partitions is None:
            await _decided(
                broker, ElectLeaders(partitions=(), unclean=is_unclean, time_ms=broker.clock.now()), request.timeout_ms
            )
            partitions = await _in_need(broker.image, is_unclean=is_unclean)
        partitions = list(dict.fromkeys(partitions))  # one election for a partition that is named twice
        command = ElectLeaders(partitions=tuple(partitions), unclean=is_unclean, time_ms=broker.clock.now())
        elected = await _decided_in_parts(broker, command, request.timeout_ms)
    except KafkaError as error:
        return await no_election(error, request, context.api_version)
    if request.topic_partitions is not None:
        held: dict[tuple[str, int], _Result] = {(each.topic, each.partition): each for each in elected}
        return ElectLeadersResponse(replica_election_results=await _as_named(request, lambda *key: held[key]))
    results: dict[str, ReplicaElectionResult] = {}
    async for some in in_slices(elected, _AT_ONCE):
        for result in some:
            if result.error not in _UNREPORTED:
                _topic_of(results, result.topic).partition_result.append(_told(result.partition, result))
    async for names in in_slices([topic.name for topic in broker.image.topics()], _AT_ONCE):
        for name in names:  # as in Kafka: the other topics are listed without partitions
            _topic_of(results, name)
    return ElectLeadersResponse(replica_election_results=list(results.values()))


async def _as_named(
    request: ElectLeadersRequest, result_of: Callable[[str, int], _Result]
) -> list[ReplicaElectionResult]:
    """Return the topics as the request names them, with the result of each partition by `result_of`."""
    results = [ReplicaElectionResult(topic=topic.topic) for topic in request.topic_partitions or ()]
    named = zip(results, request.topic_partitions or (), strict=True)
    async for result, numbers in _pieces((result, topic.partitions) for result, topic in named):
        result.partition_result += [_told(number, result_of(result.topic, number)) for number in numbers]
    return results


def _told(partition: int, result: _Result) -> PartitionResult:
    error = result.code if isinstance(result, KafkaError) else result.error
    return PartitionResult(partition_id=partition, error_code=error, error_message=shortened(result.message))


async def _in_need(image: Image, *, is_unclean: bool) -> list[PartitionReference]:
    """Return all partitions that need an election, according to the current image.

    A request for all partitions becomes one that names these, and is carried out in parts. A partition that needs an
    election later has to be requested again.
    """
    found: list[PartitionReference] = []
    looked_at = 0
    for topic in image.topics():
        for start in range(0, len(topic.partitions), _AT_ONCE):
            for number, partition in enumerate(topic.partitions[start : start + _AT_ONCE], start):
                if not (partition.has_leader if is_unclean else partition.leader == partition.preferred_leader):
                    found.append(PartitionReference(topic=topic.name, partition=number))
            looked_at += min(_AT_ONCE, len(topic.partitions) - start)
            if looked_at >= _AT_ONCE:
                await asyncio.sleep(0)
                looked_at = 0
    return found


async def _pieces(topics: Iterable[tuple[K, Sequence[T]]]) -> AsyncIterator[tuple[K, Sequence[T]]]:
    """Yield topics with what the request names of each, and let other requests run after every few thousand."""
    done = 0
    for name, items in topics:
        for start in range(0, len(items), _AT_ONCE):
            some = items[start : start + _AT_ONCE]
            done += len(some)
            if done >= _AT_ONCE:
                await asyncio.sleep(0)
                done = 0
            yield name, some


async def _decided_in_parts(
    broker: Broker, command: ElectLeaders | AlterReassignments, timeout_ms: int
) -> list[ElectionResult | ReassignmentResult]:
    """Return each partition's result, in order. Long requests are split into commands, so that others are served.

    Raises KafkaError if a command could not be decided; the commands before it may have taken effect.
    """
    named: Sequence[PartitionReference | Reassignment] | None = (
        command.partitions if isinstance(command, ElectLeaders) else command.reassignments
    )
    if named is None or len(named) <= UNITS_AT_ONCE:
        return await _decided(broker, command, timeout_ms)
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
    alike: dict[tuple[str, int], list[int]] = {}  # entries for the same partition are judged together
    for place, each in enumerate(named):
        alike.setdefault((each.topic, each.partition), []).append(place)
    places = [place for of_partition in alike.values() for place in of_partition]
    ends = list(itertools.accumulate(map(len, alike.values())))
    results: dict[int, ElectionResult | ReassignmentResult] = {}
    begin = 0
    for number, end in enumerate(ends, 1):
        if end - begin < UNITS_AT_ONCE and number < len(ends):
            continue
        part = places[begin:end]
        some: ElectLeaders | AlterReassignments
        if isinstance(command, ElectLeaders):
            assert command.partitions is not None
            some = replace(command, partitions=tuple(command.partitions[place] for place in part))
        else:
            some = replace(command, reassignments=tuple(command.reassignments[place] for place in part))
        left_ms = round((deadline - asyncio.get_running_loop().time()) * 1000)
        async with broker.metadata.many_topics:
            results.update(zip(part, await _decided(broker, some, left_ms), strict=True))
        await asyncio.sleep(0)  # a command that changes nothing is decided without yielding
        begin = end
    return [results[place] for place in range(len(named))]


async def _decided(
    broker: Broker, command: ElectLeaders | AlterReassignments, timeout_ms: int
) -> list[ElectionResult | ReassignmentResult]:
    decision = await decided_within(broker.metadata, command, timeout_ms)
    if decision.error is not ErrorCode.NONE:
        raise KafkaError(decision.error, decision.message or decision.error.meaning)
    return list(decision.result or ())


async def no_election(error: KafkaError, request: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
    """Report an error of the whole request, for each partition as well: version 0 has no other field for it."""
    response = ElectLeadersResponse(replica_election_results=await _as_named(request, lambda *_: error))
    if version >= _FIRST_TOP_LEVEL_ERROR_VERSION:
        response.error_code = error.code
    return response


def _topic_of(results: dict[str, ReplicaElectionResult], topic: str) -> ReplicaElectionResult:
    return results.setdefault(topic, ReplicaElectionResult(topic=topic))


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Begin to reassign each partition, or cancel its reassignment (null)."""
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="")  # as in Kafka
    wanted = [
        Reassignment(
            topic=name,
            partition=partition.partition_index,
            replicas=None if partition.replicas is None else tuple(map(BrokerId, partition.replicas)),
        )
        async for name, partitions in _pieces((topic.name, topic.partitions) for topic in request.topics)
        for partition in partitions
    ]
    command = AlterReassignments(
        reassignments=tuple(dict.fromkeys(wanted)),  # the same move named twice is made once, with one result for both
        time_ms=broker.clock.now(),
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    results: dict[Reassignment, _Result]
    try:
        altered = await _decided_in_parts(broker, command, request.timeout_ms)
        results = dict(zip(command.reassignments, altered, strict=True))
    except KafkaError as error:
        response.error_code, response.error_message = error.code, shortened(error.message)
        results = dict.fromkeys(command.reassignments, error)
    response.responses = [ReassignableTopicResponse(name=topic.name) for topic in request.topics]
    places = (topic for topic, asked in zip(response.responses, request.topics, strict=True) for _ in asked.partitions)
    async for some in in_slices(list(zip(places, wanted, strict=True)), _AT_ONCE):
        for topic, move in some:
            told = _told(move.partition, results[move])
            topic.partitions.append(
                ReassignablePartitionResponse(
                    partition_index=told.partition_id, error_code=told.error_code, error_message=told.error_message
                )
            )
    return response


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """List ongoing reassignments, of all partitions or those named; others and unknown ones are left out."""
    image = broker.image
    moving = _every(image) if request.topics is None else _named(image, request)
    return ListPartitionReassignmentsResponse(topics=[topic for topic in moving if topic.partitions])


def _every(image: Image) -> list[OngoingTopicReassignment]:
    return [
        OngoingTopicReassignment(name=topic.name, partitions=_moves(topic, range(len(topic.partitions))))
        for topic in image.topics()
    ]


def _named(image: Image, request: ListPartitionReassignmentsRequest) -> list[OngoingTopicReassignment]:
    wanted: dict[str, dict[int, None]] = {}  # each partition once, even if it is named twice
    for named in request.topics or ():
        wanted.setdefault(named.name, {}).update(dict.fromkeys(named.partition_indexes))
    return [
        OngoingTopicReassignment(name=name, partitions=_moves(topic, numbers))
        for name, numbers in wanted.items()
        if (topic := image.topic(name)) is not None
    ]


def _moves(topic: Topic, numbers: Iterable[int]) -> list[OngoingPartitionReassignment]:
    return [
        OngoingPartitionReassignment(
            partition_index=number,
            replicas=list(partition.replicas),
            adding_replicas=list(partition.adding_replicas),
            removing_replicas=list(partition.removing_replicas),
        )
        for number in numbers
        if 0 <= number < len(topic.partitions) and (partition := topic.partitions[number]).is_reassigning
    ]
