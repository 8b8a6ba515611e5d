"""Long requests about groups in pieces, each of which a coordinator can serve at once, and their answers joined.

A coordinator serves a request in one step. One that names tens of thousands of partitions, or groups that have as much
to tell, is handed to it piece by piece, so that others are served in between. Every partition and every group succeeds
or fails on its own anyway: a piece that is refused (its sender is no member any more) says so of its own partitions.

Work is counted in units (`broker.slicing`), which the cost of each kind of request gives for a partition or a group.

Invariant: the pieces name together what the request named, in its order; none but one that cannot be cut costs more
than `MOST_UNITS`.

Left out: requests that are decided as a whole (heartbeats, joins), and DeleteGroups, which its handler cuts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kraftpy.groups.events import GroupRequest
from kraftpy.groups.routing import merge
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kraftpy.types import TopicPartition

MOST_UNITS: Final = 2_000
"""The most that one piece costs."""
COMMIT_UNITS: Final = 5
"""The cost of committing the offset of one partition: checked, encoded, appended and taken over from the log."""
DELETE_UNITS: Final = 3
FETCH_UNITS: Final = 1
LEAVE_UNITS: Final = 4
GROUP_UNITS: Final = 4
"""The cost of telling of one group, without its members and offsets."""
NAME_CHARACTERS: Final = 50
"""How much of a group's id is hashed for one unit."""
_TOPIC_UNITS: Final = 2

Size = Callable[[str], int]
"""How many members and committed offsets a group has, by its id."""


def pieces(message: GroupRequest, size: Size) -> Iterator[tuple[GroupRequest, int]]:
    """The request in pieces, each with its cost in units; whole where it is short."""
    match message:
        case OffsetCommitRequest() | TxnOffsetCommitRequest():
            yield from _of_topics(message, "partitions", COMMIT_UNITS)
        case OffsetDeleteRequest():
            yield from _of_topics(message, "partitions", DELETE_UNITS)
        case OffsetFetchRequest() if message.groups:
            yield from _of_fetch(message, size)
        case OffsetFetchRequest() if message.topics is not None:
            yield from _of_topics(message, "partition_indexes", FETCH_UNITS)
        case LeaveGroupRequest() if message.members:
            for start in range(0, len(message.members), MOST_UNITS // LEAVE_UNITS):
                members = message.members[start : start + MOST_UNITS // LEAVE_UNITS]
                yield _with(message, "members", members), LEAVE_UNITS * len(members)
        case DescribeGroupsRequest():
            yield from _of_names(message, "groups", size)
        case ConsumerGroupDescribeRequest() | ShareGroupDescribeRequest() | StreamsGroupDescribeRequest():
            yield from _of_names(message, "group_ids", size)
        case _:
            yield message, 1


def joined(answers: Sequence[Any]) -> Any:
    """The answer to the whole request, from those to its pieces in their order."""
    first = answers[0]
    if len(answers) == 1:
        return first
    match first:
        case OffsetCommitResponse() | TxnOffsetCommitResponse():
            first.topics = _topics(topic for answer in answers for topic in answer.topics)
            return first
        case LeaveGroupResponse():
            first = next((answer for answer in answers if answer.error_code), first)
            first.members = [] if first.error_code else [member for each in answers for member in each.members]
            return first
        case OffsetDeleteResponse():
            first = next((answer for answer in answers if answer.error_code), first)
            first.topics = [] if first.error_code else _topics(topic for each in answers for topic in each.topics)
            return first
        case OffsetFetchResponse() if first.groups:
            return OffsetFetchResponse(groups=_groups(group for answer in answers for group in answer.groups))
        case OffsetFetchResponse():
            first = next((answer for answer in answers if answer.error_code), first)
            if not first.error_code:
                first.topics = _topics(topic for answer in answers for topic in answer.topics)
            return first
    return merge(answers)


# ---- requests


def _with(message: Any, field: str, value: object) -> Any:
    """The same message but for one field."""
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


def _of_topics(message: Any, field: str, units: int) -> Iterator[tuple[Any, int]]:
    for topics, spent in topics_in_pieces(message.topics, field, units):
        yield _with(message, "topics", topics), spent


def topics_in_pieces(topics: Sequence[Any], field: str, units: int) -> Iterator[tuple[list[Any], int]]:
    """Topics in pieces, each with its cost: `field` are a topic's partitions, and `units` is the cost of one of them.

    A topic whose partitions are too many stands in several pieces. There is always at least one piece.
    """
    piece: list[Any] = []
    spent = 0
    for topic in topics:
        partitions = getattr(topic, field)
        if spent and spent + _TOPIC_UNITS + units * len(partitions) > MOST_UNITS:
            yield piece, spent
            piece, spent = [], 0
        most = (MOST_UNITS - _TOPIC_UNITS) // units
        for start in range(0, len(partitions) - most, most):
            yield [_with(topic, field, partitions[start : start + most])], MOST_UNITS
        rest = (len(partitions) - 1) % most + 1 if len(partitions) > most else len(partitions)
        piece.append(topic if rest == len(partitions) else _with(topic, field, partitions[-rest:]))
        spent += _TOPIC_UNITS + units * rest
    if piece or not topics:
        yield piece, max(spent, 1)


def _of_fetch(message: OffsetFetchRequest, size: Size) -> Iterator[tuple[OffsetFetchRequest, int]]:
    piece: list[OffsetFetchRequestGroup] = []
    spent = 0
    for group in message.groups:
        of_group: list[tuple[OffsetFetchRequestGroup, int]] = [(group, FETCH_UNITS * size(group.group_id))]
        if group.topics is not None:
            parts = topics_in_pieces(group.topics, "partition_indexes", FETCH_UNITS)
            of_group = [(_with(group, "topics", topics), units) for topics, units in parts]
        for part, units in of_group:
            cost = units + GROUP_UNITS + len(group.group_id) // NAME_CHARACTERS
            if piece and spent + cost > MOST_UNITS:
                yield _with(message, "groups", piece), spent
                piece, spent = [], 0
            piece.append(part)
            spent += cost
    yield _with(message, "groups", piece), max(spent, 1)


def _of_names(message: Any, field: str, size: Size) -> Iterator[tuple[Any, int]]:
    piece: list[str] = []
    spent = 0
    for group_id in getattr(message, field):
        cost = GROUP_UNITS + len(group_id) // NAME_CHARACTERS + size(group_id)
        if piece and spent + cost > MOST_UNITS:
            yield _with(message, field, piece), spent
            piece, spent = [], 0
        piece.append(group_id)
        spent += cost
    yield _with(message, field, piece), max(spent, 1)


# ---- answers


def _topics(topics: Iterator[Any]) -> list[Any]:
    """Each topic once, with the partitions of all its parts."""
    found: dict[tuple[str, bytes], Any] = {}
    for topic in topics:
        known = found.setdefault((topic.name, getattr(topic, "topic_id", b"")), topic)
        if known is not topic:
            known.partitions.extend(topic.partitions)
    return list(found.values())


def _groups(groups: Iterator[OffsetFetchResponseGroup]) -> list[OffsetFetchResponseGroup]:
    """Each group once: with an error if a part of it has one, else with the topics of all its parts."""
    found: dict[str, list[OffsetFetchResponseGroup]] = {}
    for group in groups:
        found.setdefault(group.group_id, []).append(group)
    whole: list[OffsetFetchResponseGroup] = []
    for parts in found.values():
        first = next((part for part in parts if part.error_code != ErrorCode.NONE), parts[0])
        if len(parts) > 1:
            has_error = first.error_code != ErrorCode.NONE
            first.topics = [] if has_error else _topics(topic for part in parts for topic in part.topics)
        whole.append(first)
    return whole


def naming_all(message: OffsetFetchRequest, partitions: Sequence[TopicPartition]) -> OffsetFetchRequest:
    """A request for all offsets of one group, as one that names them: `partitions`, in any order."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    named: OffsetFetchRequest
    if message.groups:
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in by_topic.items()]
        named = _with(message, "groups", [_with(message.groups[0], "topics", topics)])
    else:
        of_one = [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in by_topic.items()]
        named = _with(message, "topics", of_one)
    return named
