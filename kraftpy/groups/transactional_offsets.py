"""Offsets committed in a transaction: stored with the producer's id and pending until its marker arrives.

A commit marker turns a producer's pending offsets into the groups' own; an abort marker drops them. If a partition has
two such offsets, the one later in the log wins, regardless of when their transactions end: an offset older than the
group's present one, or older than its deletion, is dropped. While an offset is pending or in flight it is unstable: a
reader that asks for stable offsets only must wait (KIP-447), or it could start at a position that the open transaction
is about to change. Unstable offsets do not expire.

The outcome of a transaction takes effect in each group at once, for all its offsets there. If there are many, one group
after another has it, and other requests are served in between (`backlog`); until then they stay unstable.

The shell checks beforehand that the partition is part of the transaction; the log checks whether the producer is
fenced.

Read: rules 33 and 38; KIP-98, KIP-447 (a member may only commit in its generation).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from kraftpy.frozen import frozen
from kraftpy.groups.appends import Purpose, StoreTransactionalOffsets
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group
from kraftpy.groups.memory import OFFSET_BYTES, Room, Usage, weight_of_offset
from kraftpy.groups.offsets import lacks_room
from kraftpy.groups.records import OffsetCommitKey, OffsetCommitValue, Record, offset_record
from kraftpy.groups.step import Step
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kraftpy.types import TopicPartition

_FetchedPartition = OffsetFetchResponsePartition | OffsetFetchResponsePartitions


_Offsets = dict[TopicPartition, tuple[int, OffsetCommitValue]]
"""Offsets of one transaction in one group, each with its place in the order of the log."""


@frozen
class _Ended:
    """The offsets that an ended transaction commits or drops in one group."""

    group_id: str
    offsets: _Offsets
    is_commit: bool


class PendingOffsets:
    """Offsets of open transactions, by producer id, and of ended ones, until each group has them.

    `Group.unstable` counts them, including those in flight.
    """

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._by_producer: dict[int, dict[str, _Offsets]] = {}
        self._ended: deque[_Ended] = deque()
        self._added = 0

    def add(self, producer_id: int, group: Group, partition: TopicPartition, value: OffsetCommitValue) -> None:
        """Add an offset from the log that is pending until its transaction ends."""
        pending = self._by_producer.setdefault(producer_id, {}).setdefault(group.group_id, {})
        if partition not in pending:
            group.unstable[partition] += 1
        else:
            self._usage.pending -= weight_of_offset(pending[partition][1])
        self._added += 1
        pending[partition] = self._added, value
        self._usage.pending += weight_of_offset(value)

    def _in(self, group_id: str) -> list[_Offsets]:
        """Return the pending offsets in a group, by transaction."""
        found = [each.offsets for each in self._ended if each.group_id == group_id]
        return found + [groups[group_id] for groups in self._by_producer.values() if group_id in groups]

    def superseded(self, group: Group, partition: TopicPartition) -> None:
        """Drop pending offsets older than the group's new offset, or than its deletion."""
        if not group.unstable:
            return
        for pending in self._in(group.group_id):
            if partition in pending:
                self._usage.pending -= weight_of_offset(pending.pop(partition)[1])
                mark_stable(group, [partition])

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        """End the producer's transaction. `end_one` then commits or drops its offsets, group by group."""
        for group_id, pending in self._by_producer.pop(producer_id, {}).items():
            self._ended.append(_Ended(group_id=group_id, offsets=pending, is_commit=is_commit))

    @property
    def has_ended(self) -> bool:
        """Return True if transactions have ended whose offsets not every group has yet."""
        return bool(self._ended)

    def end_one(self, groups: Mapping[str, Group]) -> tuple[str, int] | None:
        """Commit or drop the offsets of the oldest ended transaction in one group.

        Returns the group's id and the number of offsets, or None if there is nothing to do.
        """
        if not self._ended:
            return None
        ended = self._ended.popleft()
        group = groups.get(ended.group_id)
        if group is None:
            assert not ended.offsets, ended.group_id
            return ended.group_id, 0
        older = self._in(ended.group_id)
        usage, unstable, known = self._usage, group.unstable, group.offsets
        usage.pending -= OFFSET_BYTES * len(ended.offsets)
        for partition, (place, value) in ended.offsets.items():
            if unstable[partition] > 1:
                unstable[partition] -= 1
            else:
                del unstable[partition]
            size = len(value.metadata)
            usage.pending -= size
            if not ended.is_commit:
                continue
            before = known.get(partition)
            usage.bytes += OFFSET_BYTES + size if before is None else size - len(before.metadata)
            known[partition] = value
            for pending in older:
                if partition in pending and pending[partition][0] < place:
                    usage.pending -= weight_of_offset(pending.pop(partition)[1])
                    mark_stable(group, [partition])
        return ended.group_id, len(ended.offsets)

    def unstable(self, group: Group, purposes: Iterable[Purpose]) -> Counter[TopicPartition]:
        """Count, by partition, the offsets that are pending or in flight."""
        counts: Counter[TopicPartition] = Counter()
        for purpose in purposes:
            if isinstance(purpose, StoreTransactionalOffsets) and purpose.group_id == group.group_id:
                counts.update(purpose.partitions)
        for pending in self._in(group.group_id):
            counts.update(pending.keys())
        return counts

    def validate(self) -> None:
        """Assert that all bytes are counted. For tests and simulations."""
        kept = [pending for groups in self._by_producer.values() for pending in groups.values()]
        kept += [each.offsets for each in self._ended]
        assert self._usage.pending == sum(weight_of_offset(value) for each in kept for _, value in each.values())


def mark_stable(group: Group, partitions: Sequence[TopicPartition]) -> None:
    """Count one unstable offset less for each partition."""
    uncount(group.unstable, partitions)


def uncount(counts: Counter[TopicPartition], partitions: Sequence[TopicPartition]) -> None:
    """Count each of these partitions once less, and drop those that are no longer counted."""
    counts.subtract(partitions)
    for partition in partitions:
        if counts[partition] <= 0:
            del counts[partition]


# ---- TxnOffsetCommit


def check(message: TxnOffsetCommitRequest, group: Group | None) -> ErrorCode:
    """Return an error if this sender may not commit now.

    It must be a member in its generation, or not claim to be one. In a group without members, a sender that names no
    generation does not claim to be one.
    """
    is_member = message.generation_id >= 0 or message.member_id != "" or message.group_instance_id is not None
    if group is None:
        return ErrorCode.ILLEGAL_GENERATION if message.generation_id >= 0 else ErrorCode.NONE
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not is_member or (message.generation_id < 0 and group.is_empty):
        return ErrorCode.NONE
    if isinstance(group.kind, ConsumerGroup | StreamsGroup):
        if message.member_id not in group.kind.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_current = message.generation_id == group.kind.current(message.member_id).member_epoch
        return ErrorCode.NONE if is_current else ErrorCode.ILLEGAL_GENERATION
    classic = group.classic_or_empty()
    error = classic.check_member(message.member_id, message.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if message.generation_id == classic.generation_id else ErrorCode.ILLEGAL_GENERATION


def refuse(message: TxnOffsetCommitRequest, error_code: ErrorCode) -> TxnOffsetCommitResponse:
    """Return a response with the same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error_code)
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def failed(prepared: TxnOffsetCommitResponse, error_code: ErrorCode) -> TxnOffsetCommitResponse:
    """Put this error into a response prepared for success, wherever it says NONE."""
    for topic in prepared.topics:
        for each in topic.partitions:
            each.error_code = each.error_code or error_code
    return prepared


def commit(
    event: Request,
    message: TxnOffsetCommitRequest,
    group: Group,
    config: GroupConfig,
    room: Room,
    step: Step,
    is_deleted: Callable[[str], bool],
) -> None:
    """Store offsets that passed `check`. Partitions with too much metadata or no room are refused one by one.

    So are those of topics for which `is_deleted` is true.
    """
    growth = 0
    records: list[Record] = []
    stored: list[TopicPartition] = []
    response = refuse(message, ErrorCode.NONE)
    for topic, answers in zip(message.topics, response.topics, strict=True):
        is_gone = is_deleted(topic.name)
        for each, answer in zip(topic.partitions, answers.partitions, strict=True):
            if is_gone:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            if len(each.committed_metadata or "") > config.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            key = OffsetCommitKey(group_id=group.group_id, topic=topic.name, partition=each.partition_index)
            value = OffsetCommitValue(
                offset=each.committed_offset,
                leader_epoch=each.committed_leader_epoch,
                metadata=each.committed_metadata or "",
                commit_timestamp=step.timestamp,
            )
            if (code := lacks_room(group, key.topic_partition, value, room, growth)) is not None:
                answer.error_code = code
                continue
            if key.topic_partition not in group.offsets:
                growth += weight_of_offset(value)
            records.append(offset_record(key, value))
            stored.append(key.topic_partition)
    if not records:
        step.reply(event.request_id, response)
        return
    group.unstable.update(stored)
    purpose = StoreTransactionalOffsets(
        group_id=group.group_id,
        request_id=event.request_id,
        partitions=tuple(stored),
        response=response,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
    )
    step.append(records, purpose)


# ---- OffsetFetch


def only_stable(message: OffsetFetchRequest, response: OffsetFetchResponse, groups: dict[str, Group]) -> None:
    """Replace unstable offsets in the response by an error (KIP-447)."""
    fetched: list[tuple[Group | None, str, list[_FetchedPartition]]] = []
    for answered in response.groups:
        group = groups.get(answered.group_id)
        fetched += [(group, topic.name, [*topic.partitions]) for topic in answered.topics]
    fetched += [(groups.get(message.group_id), topic.name, [*topic.partitions]) for topic in response.topics]
    for group, name, partitions in fetched:
        for each in partitions:
            if group is not None and TopicPartition(name, each.partition_index) in group.unstable:
                each.committed_offset, each.committed_leader_epoch, each.metadata = -1, -1, ""
                each.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
