"""Committed offsets: commit, fetch, delete, expire.

A commit is checked against the group, appended, and answered when it is durable; only then can a fetch see it. Commits
in flight are counted, so that deletion and expiry never overlook one (its tombstone must come after it in the log).

Left out: commits in transactions (see `transactional_offsets`); topic ids of v10, which the shell maps to names before
and back after (the `topic_id` of a request's topic is copied to its response); whether the topic exists, which the
shell knows.

Read: KIP-211 (expiry), KIP-320 (leader epochs), KIP-447 (require_stable), KIP-496 (OffsetDelete), KIP-709 (batches).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import assert_never

from kraftpy.groups.appends import DeleteOffsets, ExpireOffsets, StoreOffsets
from kraftpy.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, State
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group
from kraftpy.groups.memory import MAX_BYTES_SETTING, Room, Usage, weight_of_offset
from kraftpy.groups.records import NO_TIMESTAMP, OffsetCommitKey, OffsetCommitValue, Record, offset_record
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.step import Step
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kraftpy.types import Millis, TopicPartition

FIRST_FETCH_WITH_GROUPS = 8
FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
NO_OFFSET = OffsetCommitValue(offset=-1)
_FOREVER = 2**63 - 1  # the latest time that the record can express
TOMBSTONES_AT_ONCE = 1_000
"""How many offsets are deleted before other requests are served."""
_BATCH_BYTES = 1 << 18
_OVERHEAD_BYTES = 32
_RECORD_BYTES = 282
"""The size of an offset's tombstone without the group's id, at most."""


# ---- OffsetCommit


def check_commit(message: OffsetCommitRequest, group: Group | None, api_version: int) -> ErrorCode:
    """Return an error if this sender may not commit for the group now (rules 34 and 35)."""
    generation_id = message.generation_id_or_member_epoch
    if group is None:
        # A group that does not exist has no members; a sender without a generation stores offsets independently.
        if generation_id < 0:
            return ErrorCode.NONE
        has_name = api_version >= FIRST_COMMIT_WITH_MEMBER_EPOCH
        return ErrorCode.GROUP_ID_NOT_FOUND if has_name else ErrorCode.ILLEGAL_GENERATION
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.is_empty:
        return ErrorCode.NONE
    match group.kind:
        case StreamsGroup() as streams:
            if api_version < FIRST_COMMIT_WITH_MEMBER_EPOCH and message.member_id in streams.members:
                return ErrorCode.UNSUPPORTED_VERSION
            return _check_streams_epoch(streams, message.member_id, generation_id)
        case ConsumerGroup() as consumers:
            member = consumers.members.get(message.member_id)
            if member is not None and member.classic is None and api_version < FIRST_COMMIT_WITH_MEMBER_EPOCH:
                return ErrorCode.UNSUPPORTED_VERSION  # the request would take the epoch for a generation
            return _check_member_epoch(consumers, message.member_id, generation_id)
        case ClassicGroup() as classic:
            return _check_generation(message, classic)
        case ShareGroup():
            return ErrorCode.UNKNOWN_MEMBER_ID
        case _:
            assert_never(group.kind)


def _check_generation(message: OffsetCommitRequest, group: ClassicGroup) -> ErrorCode:
    """Check that this is a member of the classic group in its generation, and that the generation has begun."""
    error = group.check_member(message.member_id, message.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if message.generation_id_or_member_epoch != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is State.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_member_epoch(group: ConsumerGroup, member_id: str, member_epoch: int) -> ErrorCode:
    """Check that this is a member at its last epoch (KIP-848). One that is behind learns more in its next heartbeat."""
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch != group.current(member_id).member_epoch:
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _check_streams_epoch(group: StreamsGroup, member_id: str, member_epoch: int) -> ErrorCode:
    """Check that this is a member of the streams group at its last epoch (KIP-1071)."""
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_current = member_epoch == group.current(member_id).member_epoch
    return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH


def refuse_commit(message: OffsetCommitRequest, error_code: ErrorCode) -> OffsetCommitResponse:
    """Return a response with the same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error_code)
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def put(group: Group, partition: TopicPartition, value: OffsetCommitValue | None, usage: Usage) -> None:
    """Take over an offset from the log, replayed or just stored; None deletes the group's offset."""
    before = group.offsets.pop(partition, None) if value is None else group.offsets.get(partition)
    if value is not None:
        group.offsets[partition] = value
        if before is not None and len(before.metadata) == len(value.metadata):
            return
        usage.bytes += weight_of_offset(value)
    if before is not None:
        usage.bytes -= weight_of_offset(before)


def lacks_room(
    group: Group, partition: TopicPartition, value: OffsetCommitValue, room: Room, growth: int
) -> ErrorCode | None:
    """Return the error for an offset that does not fit in memory. `growth` counts bytes already accepted."""
    known = group.offsets.get(partition)
    if known is not None and len(known.metadata) >= len(value.metadata):
        return None
    more = weight_of_offset(value) - (0 if known is None else weight_of_offset(known))
    if room.has(growth + more):
        return None
    room.refused(f"an offset ({MAX_BYTES_SETTING}={room.max_bytes}) of group {group.group_id}")
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def commit(
    event: Request,
    message: OffsetCommitRequest,
    group: Group,
    config: GroupConfig,
    room: Room,
    step: Step,
    is_deleted: Callable[[str], bool],
) -> None:
    """Store offsets that passed `check_commit`. Partitions with too much metadata or no room are refused one by one.

    So are those of topics for which `is_deleted` is true.
    """
    growth = 0
    records: list[Record] = []
    stored: list[TopicPartition] = []
    topics = []
    for topic in message.topics:
        partitions = []
        is_gone = is_deleted(topic.name)
        for each in topic.partitions:
            error = ErrorCode.NONE
            if is_gone:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(each.committed_metadata or "") > config.offset_metadata_max_bytes:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                key = OffsetCommitKey(group_id=group.group_id, topic=topic.name, partition=each.partition_index)
                value = _to_value(each, message.retention_time_ms, step.timestamp)
                partition = key.topic_partition
                code = lacks_room(group, partition, value, room, growth)
                if code is not None:
                    error = code
                else:
                    if partition not in group.offsets:
                        growth += weight_of_offset(value)
                    records.append(offset_record(key, value))
                    stored.append(partition)
            partitions.append(OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error))
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    response = OffsetCommitResponse(topics=topics)
    if not records:
        step.reply(event.request_id, response)
        return
    group.offsets_in_flight.update(stored)
    purpose = StoreOffsets(
        group_id=group.group_id, request_id=event.request_id, partitions=tuple(stored), response=response
    )
    step.append(records, purpose)


def _to_value(partition: OffsetCommitRequestPartition, retention_time_ms: int, timestamp: Millis) -> OffsetCommitValue:
    """An explicit retention time (v2-4) gives the offset its own expiry."""
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=timestamp,
        expire_timestamp=min(timestamp + retention_time_ms, _FOREVER) if retention_time_ms >= 0 else NO_TIMESTAMP,
    )


def failed_commit(response: OffsetCommitResponse, error_code: ErrorCode) -> OffsetCommitResponse:
    """Put this error into a response prepared for success, wherever it says NONE."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=each.error_code or error_code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


# ---- OffsetFetch


def fetch(message: OffsetFetchRequest, api_version: int, groups: dict[str, Group]) -> OffsetFetchResponse:
    """Return durable offsets: of one group up to v7, of several from v8; null topics mean all.

    The only senders refused are those that claim to be a member of a consumer or streams group and are not, or not at
    that epoch. A group that is being deleted piece by piece shows nothing until that is done.
    """
    if api_version >= FIRST_FETCH_WITH_GROUPS:
        return OffsetFetchResponse(groups=[_fetch_group(each, groups.get(each.group_id)) for each in message.groups])
    group = groups.get(message.group_id)
    if group is not None and group.is_losing_offsets:
        return OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    topics = (
        _all_topics(group)
        if message.topics is None
        else [
            OffsetFetchResponseTopics(
                name=topic.name, partitions=_partitions(group, topic.name, topic.partition_indexes)
            )
            for topic in message.topics
        ]
    )
    return OffsetFetchResponse(topics=[_of_one_group(topic) for topic in topics])


def _fetch_group(asked: OffsetFetchRequestGroup, group: Group | None) -> OffsetFetchResponseGroup:
    if group is not None and group.is_losing_offsets:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    if group is not None and (asked.member_id is not None or asked.member_epoch >= 0):
        error = ErrorCode.NONE
        if isinstance(group.kind, ConsumerGroup):
            error = _check_member_epoch(group.kind, asked.member_id or "", asked.member_epoch)
        elif isinstance(group.kind, StreamsGroup):
            error = _check_streams_epoch(group.kind, asked.member_id or "", asked.member_epoch)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    if asked.topics is None:
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=_all_topics(group))
    return OffsetFetchResponseGroup(
        group_id=asked.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=_partitions(group, topic.name, topic.partition_indexes),
            )
            for topic in asked.topics
        ],
    )


def _all_topics(group: Group | None) -> list[OffsetFetchResponseTopics]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(group.offsets) if group is not None else []:
        by_topic.setdefault(topic, []).append(partition)
    return [
        OffsetFetchResponseTopics(name=topic, partitions=_partitions(group, topic, partitions))
        for topic, partitions in by_topic.items()
    ]


def _partitions(group: Group | None, topic: str, partitions: list[int]) -> list[OffsetFetchResponsePartitions]:
    offsets = group.offsets if group is not None else {}
    found = [(partition, offsets.get(TopicPartition(topic, partition), NO_OFFSET)) for partition in partitions]
    return [
        OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
        )
        for partition, value in found
    ]


def _of_one_group(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """Convert to the form of v1-7."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
            )
            for each in topic.partitions
        ],
    )


# ---- OffsetDelete


def tombstone(group: Group, partition: TopicPartition) -> Record:
    """Return the record that deletes the group's offset."""
    key = OffsetCommitKey(group_id=group.group_id, topic=partition.topic, partition=partition.partition)
    return offset_record(key, None)


def is_known(group: Group, partition: TopicPartition) -> bool:
    """Return True if there is an offset, one in flight, or one in an open transaction."""
    return partition in group.offsets or partition in group.offsets_in_flight or partition in group.unstable


def known(group: Group, topics: Container[str] | None = None) -> list[TopicPartition]:
    """Return the partitions for which `is_known` is true, or those of some topics, in the order of their commits."""
    found = list(group.offsets)
    found += [each for each in group.offsets_in_flight if each not in group.offsets]
    found += [each for each in group.unstable if each not in group.offsets and each not in group.offsets_in_flight]
    return found if topics is None else [each for each in found if each.topic in topics]


def pieces(group: Group, partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Split partitions whose offsets are deleted so that each piece takes little time and fits in one batch.

    Each piece is sorted; to sort all of them at once would take too long.
    """
    size = max(1, min(TOMBSTONES_AT_ONCE, _BATCH_BYTES // (_RECORD_BYTES + len(group.group_id))))
    for start in range(0, len(partitions), size):
        yield sorted(partitions[start : start + size])


def in_batches(records: list[Record]) -> Iterator[list[Record]]:
    """Split records into batches that fit in the log."""
    batch: list[Record] = []
    size = 0
    for record in records:
        key, value = record
        batch.append(record)
        size += _OVERHEAD_BYTES + len(key) + len(value or b"")
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def delete(event: Request, message: OffsetDeleteRequest, group: Group | None, step: Step) -> None:
    """Delete offsets of topics that no member of the group subscribes to (KIP-496)."""
    error = _check_delete(group)
    if error is not ErrorCode.NONE or group is None:
        step.reply(event.request_id, OffsetDeleteResponse(error_code=error))
        return
    records: list[Record] = []
    topics = []
    subscribes_to = group.subscription()
    for topic in message.topics:
        subscribed = subscribes_to(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        partitions = []
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if not subscribed and is_known(group, partition):
                records.append(tombstone(group, partition))
            partitions.append(OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=error))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    response = OffsetDeleteResponse(topics=topics)
    if not records:
        step.reply(event.request_id, response)
        return
    *before, records = in_batches(records)
    for each_batch in before:
        step.append(each_batch, ExpireOffsets(group_id=group.group_id))
    step.append(records, DeleteOffsets(group_id=group.group_id, request_id=event.request_id, response=response))


def _check_delete(group: Group | None) -> ErrorCode:
    if group is None or group.is_dead or isinstance(group.kind, ShareGroup):
        return ErrorCode.GROUP_ID_NOT_FOUND
    classic = group.classic_or_empty()
    if classic.state is not State.EMPTY and classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def failed_delete(error_code: ErrorCode) -> OffsetDeleteResponse:
    """The response when the tombstones could not be written: the state of every partition is unknown."""
    return OffsetDeleteResponse(error_code=error_code)


# ---- expiry


def expired(
    group: Group, config: GroupConfig, timestamp: Millis, among: Iterable[TopicPartition] | None = None
) -> list[TopicPartition]:
    """Return the partitions whose offsets have expired (rule 38, KIP-211); with `among`, only those.

    An offset's retention starts when the group becomes empty, or at its commit if the group never had members. While a
    consumer group is Stable, only topics it no longer reads expire, counted from their commit. In any other state
    nothing expires. In a group of the consumer protocol, topics that no member reads expire, counted from their commit.
    """
    since_empty = NO_TIMESTAMP
    classic = group.classic_or_empty()
    if classic.protocol_type is not None:
        if classic.state is State.EMPTY:
            since_empty = classic.current_state_timestamp
        elif classic.state is not State.STABLE or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return []

    def is_expired(partition: TopicPartition) -> bool:
        value = group.offsets.get(partition)
        if value is None or partition in group.unstable:
            return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return timestamp >= value.expire_timestamp
        since = since_empty if since_empty != NO_TIMESTAMP else value.commit_timestamp
        return timestamp - since >= config.offsets_retention_ms

    due = list(filter(is_expired, group.offsets if among is None else among))
    if due and (classic.state is State.STABLE or isinstance(group.kind, ConsumerGroup | StreamsGroup)):
        subscribes_to = group.subscription()
        due = [partition for partition in due if not subscribes_to(partition.topic)]
    return due


def expire(group: Group, partitions: list[TopicPartition], step: Step) -> None:
    """Delete these offsets; the group stays."""
    for records in in_batches([tombstone(group, each) for each in partitions]):
        step.append(records, ExpireOffsets(group_id=group.group_id))
