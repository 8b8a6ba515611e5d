"""The start offsets of share groups: the first offset in each partition that a group has not finished.

KIP-932; KIP-1226 (the lag, from version 1).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct, uuid


@struct
class DescribeShareGroupOffsetsRequestTopic:
    """A topic, and partitions of it."""

    topic_name: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class DescribeShareGroupOffsetsRequestGroup:
    """A group, and the topics to describe; null means all for which it has start offsets."""

    group_id: Annotated[str, string]
    topics: Annotated[list[DescribeShareGroupOffsetsRequestTopic] | None, array] = []


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    """The groups to describe."""

    groups: Annotated[list[DescribeShareGroupOffsetsRequestGroup], array] = []


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """One partition; a start offset of -1 means that it is not known yet."""

    partition_index: Annotated[int, int32]
    start_offset: Annotated[int, int64] = -1
    leader_epoch: Annotated[int, int32] = 0
    lag: Annotated[int, int64, "1+", ignorable] = -1
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class DescribeShareGroupOffsetsResponseTopic:
    """A topic."""

    topic_name: Annotated[str, string]
    topic_id: Annotated[bytes, uuid] = bytes(16)
    partitions: Annotated[list[DescribeShareGroupOffsetsResponsePartition], array] = []


@struct
class DescribeShareGroupOffsetsResponseGroup:
    """A group, or the error for it."""

    group_id: Annotated[str, string]
    topics: Annotated[list[DescribeShareGroupOffsetsResponseTopic], array] = []
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    """The start offsets, by group."""

    throttle_time_ms: Annotated[int, int32] = 0
    groups: Annotated[list[DescribeShareGroupOffsetsResponseGroup], array] = []
