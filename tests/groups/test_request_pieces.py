"""Requests about groups in pieces: nothing is lost, nothing is duplicated, and no piece is too large."""

from __future__ import annotations

import pytest

from kraftpy.groups.request_pieces import MOST_UNITS, joined, naming_all, pieces, topics_in_pieces
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kraftpy.protocol.messages.offset_delete import OffsetDeleteResponse
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kraftpy.types import TopicPartition


@pytest.mark.parametrize("units", [1, 3, 5])
@pytest.mark.parametrize("sizes", [[], [0], [1], [398, 399, 400, 401], [798], [10_000, 1, 10_000], [1] * 5_000])
def test_every_partition_is_in_one_piece(units: int, sizes: list[int]) -> None:
    topics = [
        OffsetCommitRequestTopic(
            name=f"topic-{number}",
            partitions=[OffsetCommitRequestPartition(partition_index=each, committed_offset=0) for each in range(size)],
        )
        for number, size in enumerate(sizes)
    ]
    found = list(topics_in_pieces(topics, "partitions", units))
    assert all(0 < cost <= MOST_UNITS for _, cost in found)
    named = [(topic.name, part.partition_index) for piece, _ in found for topic in piece for part in topic.partitions]
    assert named == [(topic.name, part.partition_index) for topic in topics for part in topic.partitions]
    for piece, cost in found:
        assert units * sum(len(topic.partitions) for topic in piece) <= cost
    assert [len(topic.partitions) for topic in topics] == sizes, "the request itself is as it was"


def test_groups_are_weighed_by_what_there_is_to_tell_and_by_their_names() -> None:
    sizes = {"large": MOST_UNITS, "small": 1}
    message = DescribeGroupsRequest(groups=["small", "large", "other", "x" * 30_000, "y" * 30_000, "z" * 60_000])
    found = [(piece.groups, cost) for piece, cost in pieces(message, lambda group_id: sizes.get(group_id, 0))]  # type: ignore[union-attr]
    assert [each for groups, _ in found for each in groups] == message.groups
    assert [len(groups) for groups, _ in found] == [1, 1, 3, 1], "a large one is alone, small ones share a piece"
    assert all(cost <= MOST_UNITS for groups, cost in found if len(groups) > 1)


def test_a_group_that_was_cut_is_told_once() -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group", topics=None)])
    partitions = [TopicPartition(topic, number) for topic in ("b", "a") for number in range(3_000)]
    named = naming_all(request, partitions)
    assert request.groups[0].topics is None
    answers = []
    for piece, _ in pieces(named, lambda _: 0):
        assert isinstance(piece, OffsetFetchRequest)
        groups = [
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=[OffsetFetchResponsePartitions(partition_index=n) for n in topic.partition_indexes],
                    )
                    for topic in group.topics or []
                ],
            )
            for group in piece.groups
        ]
        answers.append(OffsetFetchResponse(groups=groups))
    assert len(answers) > 2
    (group,) = joined(answers).groups
    assert [topic.name for topic in group.topics] == ["a", "b"]
    assert all([part.partition_index for part in topic.partitions] == list(range(3_000)) for topic in group.topics)


def test_a_group_of_which_a_piece_was_refused_is_refused() -> None:
    told = OffsetFetchResponseGroup(group_id="group", topics=[OffsetFetchResponseTopics(name="a")])
    refused = OffsetFetchResponseGroup(group_id="group", error_code=ErrorCode.STALE_MEMBER_EPOCH)
    (group,) = joined([OffsetFetchResponse(groups=[told]), OffsetFetchResponse(groups=[refused])]).groups
    assert (group.error_code, group.topics) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    answers = [OffsetDeleteResponse(), OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR)]
    assert joined(answers).error_code == ErrorCode.NOT_COORDINATOR
