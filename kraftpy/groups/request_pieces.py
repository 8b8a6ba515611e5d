"""Splits long requests about groups into pieces that a coordinator can serve at once, and joins the responses.

A coordinator serves a request in one step. A request that names tens of thousands of partitions, or groups with that
much to return, is passed to it piece by piece, so that others are served in between. Every partition and group succeeds
or fails independently anyway: a refused piece (its sender is no longer a member) reports the error for its own
partitions.

Work is counted in units (`broker.slicing`); each kind of request has its cost per partition or group.

Invariant: together, the pieces name what the request named, in the same order; no piece costs more than `MOST_UNITS`
unless it cannot be split.

Left out: requests that are decided as a whole (heartbeats, joins), and DeleteGroups, which its handler splits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

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
"""The maximum cost of one piece."""
COMMIT_UNITS: Final = 5
"""The cost of committing one partition's offset: checked, encoded, appended and applied from the log."""
DELETE_UNITS: Final = 3
FETCH_UNITS: Final = 1
LEAVE_UNITS: Final = 4
GROUP_UNITS: Final = 4
"""The cost of describing one group, without its members and offsets."""
NAME_CHARACTERS: Final = 50
"""How many characters of a group's id are hashed per unit."""
_TOPIC_UNITS: Final = 2

MOST_REPEATS: Final = 10
"""How many repeated groups of a request are answered again: an answer must not grow with the request's repetitions."""

T = TypeVar("T")
Size = Callable[[str], int]
"""Returns the number of a group's members and committed offsets, by its id."""


def pieces(message: GroupRequest, size: Size) -> Iterator[tuple[GroupRequest, int]]:
    """Split a request into pieces, each with its cost in units; a short request stays whole."""
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
    """Join the responses to the pieces, in order, into the response to the whole request."""
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


def repeats(items: Iterable[T], name: Callable[[T], object]) -> tuple[list[T], list[T]]:
    """Return the first item of each name, and up to `MOST_REPEATS` items that repeat a name."""
    first: dict[object, T] = {}
    again: list[T] = []
    for item in items:
        if first.setdefault(name(item), item) is not item and len(again) < MOST_REPEATS:
            again.append(item)
    return list(first.values()), again


def as_often_as_named(names: Iterable[str], found: Mapping[str, T]) -> list[T]:
    """Answer for each name, in order; only `MOST_REPEATS` repeated names are answered again."""
    known: set[str] = set()
    answers: list[T] = []
    left = MOST_REPEATS
    for name in names:
        if name in known:
            if not left:
                continue
            left -= 1
        known.add(name)
        answers.append(found[name])
    return answers


def _with(message: Any, field: str, value: object) -> Any:
    """Return a copy of the message with one field replaced."""
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


def _of_topics(message: Any, field: str, units: int) -> Iterator[tuple[Any, int]]:
    for topics, spent in topics_in_pieces(message.topics, field, units):
        yield _with(message, "topics", topics), spent


def topics_in_pieces(topics: Sequence[Any], field: str, units: int) -> Iterator[tuple[list[Any], int]]:
    """Split topics into pieces with their costs. `field` names a topic's partitions; `units` is the cost of one of
    them.

    A topic with too many partitions is spread over several pieces. There is always at least one piece.
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


def with_refused(refused: list[Any], answered: list[Any]) -> list[Any]:
    """Put the partitions that the broker refused before the coordinator's answer, and list each topic once.

    If nothing was refused, the answer stays as it is: a topic that the request names twice is listed twice.
    """
    return _topics(iter([*refused, *answered])) if refused else answered


def _topics(topics: Iterator[Any]) -> list[Any]:
    """Merge topics that were spread over several parts."""
    found: dict[tuple[str, bytes], Any] = {}
    for topic in topics:
        known = found.setdefault((topic.name, getattr(topic, "topic_id", b"")), topic)
        if known is not topic:
            known.partitions.extend(topic.partitions)
    return list(found.values())


def _groups(groups: Iterator[OffsetFetchResponseGroup]) -> list[OffsetFetchResponseGroup]:
    """Merge groups that were spread over several parts. An error in any part is the group's error."""
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
    """Turn a request for all offsets of one group into one that names `partitions`, in any order."""
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
