"""Finds the end offset of a leader epoch, by which clients and followers detect that the log was truncated.

KIP-101, KIP-279 (the epoch in the response), KIP-320 (fencing), KIP-392 (replica id).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct


@struct
class OffsetForLeaderPartition:
    """A partition, and the epoch to look up."""

    partition: Annotated[int, int32]
    current_leader_epoch: Annotated[int, int32] = -1  # KIP-320
    leader_epoch: Annotated[int, int32]


@struct
class OffsetForLeaderTopic:
    """A topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[OffsetForLeaderPartition], array] = []


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """The epochs to look up, by partition."""

    replica_id: Annotated[int, int32, "3+", ignorable] = -2  # -2 for "debugging", which may ask any replica
    topics: Annotated[list[OffsetForLeaderTopic], array] = []


@struct
class EpochEndOffset:
    """The result for one partition: the largest epoch not above the requested one, and its end offset."""

    error_code: Annotated[int, int16] = 0
    partition: Annotated[int, int32]
    leader_epoch: Annotated[int, int32] = -1
    end_offset: Annotated[int, int64] = -1


@struct
class OffsetForLeaderTopicResult:
    """The results for one topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[EpochEndOffset], array] = []


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The end offsets, by partition."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[OffsetForLeaderTopicResult], array] = []
