"""Partitions and heartbeats in the words of scripts, as the consumer protocol and share groups have them in common.

Partitions are written `t:0,1;u:2`, none as `-`.
"""

from __future__ import annotations

from topics_now import once_called

from kraftpy.groups.assignment import Assignment, TopicIdPartition, by_topic
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import DescribedAssignment
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kraftpy.protocol.messages.share_group_describe import DescribedShareAssignment
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from kraftpy.types import TopicId

Beaten = ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse


def joined(topics: list[tuple[str, list[int]]]) -> str:
    return ";".join(f"{name}:{','.join(map(str, partitions))}" for name, partitions in topics) or "-"


def partitions(assignment: Assignment) -> str:
    return joined([(once_called(topic_id), numbers) for topic_id, numbers in by_topic(assignment)])


def assigned(r: Beaten) -> Assignment | None:
    """The assignment an answer carries."""
    if r.assignment is None:
        return None
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), number)
        for topic in r.assignment.topic_partitions
        for number in topic.partitions
    )


def show_beat(word: str, r: Beaten) -> str:
    if r.error_code:
        return f"{word} {ErrorCode.of(r.error_code).name}"
    has = assigned(r)
    told = f" has={partitions(has)}" if has is not None else ""
    every = f" every={r.heartbeat_interval_ms}" if r.heartbeat_interval_ms not in (0, 5_000) else ""
    return f"{word} {r.member_id} epoch={r.member_epoch}{told}{every}"


def described(assignment: DescribedAssignment | DescribedShareAssignment) -> str:
    return joined([(each.topic_name, each.partitions) for each in assignment.topic_partitions])
