"""ListOffsets (key 2) and OffsetForLeaderEpoch (key 23): where to start reading, and where two logs diverge.

ListOffsets by timestamp (KIP-79), with epochs (KIP-320), the offset of the largest timestamp (KIP-734); -1 latest, -2
earliest, -3 largest timestamp, -4 earliest local, -5 last tiered, -6 earliest pending upload (KIP-405, KIP-1005,
KIP-1023). OffsetForLeaderEpoch: KIP-101, KIP-320. Both go to the leader, and check the client's leader epoch. A leader
that does not yet know how far its predecessor had committed answers OFFSET_NOT_AVAILABLE (KIP-207).

There is no tiered storage: the local log starts where the log starts, and no offset is tiered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.replication.log_search import search_max_timestamp, search_timestamp
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kraftpy.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kraftpy.types import LeaderEpoch, Millis, Offset

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasReplicas
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasSlices

    class Broker(HasReplicas, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


READ_UNCOMMITTED = 0
READ_COMMITTED = 1
_LARGEST = -3

_SINCE_VERSION = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""The first version of ListOffsets in which negative timestamps have a meaning."""
_SINCE_NOT_AVAILABLE = 5
_DEBUGGING = -2
"""The replica id of a debugging tool, which may look at any replica."""
_LOOK_UP_UNITS = 4
"""The cost of finding an offset, in units of `slicing`."""


async def list_offsets(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Return each partition's offset for a timestamp or a special position; each partition is answered once."""
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        if context.is_long:
            await broker.slices.breathe(1 + len(topic.partitions) // 10)
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            (repeated if key in seen else seen).add(key)
    is_committed_only = committed_only(request.isolation_level)
    topics: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
    searches = 0
    for topic in request.topics:
        for partition in topic.partitions:
            if context.is_long:
                await broker.slices.breathe(_LOOK_UP_UNITS)
            if partition.timestamp >= 0 or partition.timestamp == _LARGEST:
                if searches:
                    await asyncio.sleep(0)  # yield between searches, but not before the first
                searches += 1
            answer = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
            try:
                if (topic.name, partition.partition_index) in repeated:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names a partition more than once")
                if partition.timestamp < 0 and context.api_version < _SINCE_VERSION.get(partition.timestamp, 1 << 15):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown timestamp {partition.timestamp}")
                if is_committed_only is None:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown isolation level {request.isolation_level}")
                await _look_up(broker, request, topic.name, partition, answer, is_committed_only=is_committed_only)
            except KafkaError as error:
                answer.error_code = error.code
                if error.code == ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < _SINCE_NOT_AVAILABLE:
                    answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE  # older clients know to retry on this one
            topics.setdefault(topic.name, {})[partition.partition_index] = answer
    answers = [ListOffsetsTopicResponse(name=name, partitions=list(found.values())) for name, found in topics.items()]
    return ListOffsetsResponse(topics=answers)


def committed_only(isolation_level: int) -> bool | None:
    """Return whether a reader of this isolation level sees only committed records; None for an unknown level."""
    return None if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED) else isolation_level == READ_COMMITTED


async def _look_up(
    broker: Broker,
    request: ListOffsetsRequest,
    topic: str,
    partition: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    *,
    is_committed_only: bool,
) -> None:
    if request.replica_id == _DEBUGGING:
        replica = broker.replicas.readable(topic, partition.partition_index)
        replica.check_leader_epoch(partition.current_leader_epoch)
    else:
        replica = broker.replicas.leader(topic, partition.partition_index, partition.current_leader_epoch)
    readable_end = replica.last_stable_offset if is_committed_only else replica.high_watermark
    log = replica.log
    match partition.timestamp:
        case -1:
            _check_high_watermark(replica)
            answer.offset = readable_end
            answer.leader_epoch = replica.leader_epoch
        case -2 | -4:
            answer.offset = log.log_start_offset
            is_empty = log.log_start_offset >= log.log_end_offset
            start = Offset(log.log_start_offset)
            answer.leader_epoch = replica.leader_epoch if is_empty else log.epochs.epoch_of(start)
        case -3:
            found = await broker.replicas.decoding.carry_out(search_max_timestamp(replica))
            if found is None or found.offset >= readable_end:  # a record that this reader may not see yet
                _check_high_watermark(replica)
            else:
                answer.offset, answer.timestamp, answer.leader_epoch = found.offset, found.timestamp, found.leader_epoch
        case -5 | -6:
            pass  # the offset stays -1: nothing is tiered
        case timestamp:
            search = search_timestamp(replica, Millis(timestamp), readable_end)
            found = await broker.replicas.decoding.carry_out(search)
            if found is not None:
                answer.offset, answer.timestamp, answer.leader_epoch = found.offset, found.timestamp, found.leader_epoch
            else:
                _check_high_watermark(replica)


def _check_high_watermark(replica: Replica) -> None:
    """Check that a new leader knows what its predecessor committed; until then offsets could go backwards (rule 11)."""
    if replica.leading is not None and replica.high_watermark < replica.leading.epoch_start_offset:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader does not yet know what is committed")


async def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Return the end offset of an epoch, by which a client detects that the log it read was truncated."""
    topics = []
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic=topic.topic, partitions=[])
        for partition in topic.partitions:
            if context.is_long:
                await broker.slices.breathe(1)
            answer.partitions.append(_epoch_end(broker, topic.topic, partition))
        topics.append(answer)
    return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(broker: Broker, topic: str, partition: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=partition.partition)
    try:
        replica = broker.replicas.leader(topic, partition.partition, partition.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = replica.end_offset_for_epoch(LeaderEpoch(partition.leader_epoch))
    except KafkaError as error:
        answer.error_code = error.code
    return answer
