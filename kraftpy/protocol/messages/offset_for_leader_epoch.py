"""Where a leader epoch ends: how clients and followers find out that they read what is no longer there.

KIP-101, KIP-279 (the epoch in the answer), KIP-320 (fencing), KIP-392 (replica id).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct


@struct
class OffsetForLeaderPartition:
    """One partition and the epoch in question."""

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
    """Ask where epochs end."""

    replica_id: Annotated[int, int32, "3+", ignorable] = -2  # -2 for "debugging", which may ask any replica
    topics: Annotated[list[OffsetForLeaderTopic], array] = []


@struct
class EpochEndOffset:
    """One partition: the largest epoch not after the one asked for, and its end offset."""

    error_code: Annotated[int, int16] = 0
    partition: Annotated[int, int32]
    leader_epoch: Annotated[int, int32] = -1
    end_offset: Annotated[int, int64] = -1


@struct
class OffsetForLeaderTopicResult:
    """A topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[EpochEndOffset], array] = []


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """Where the epochs end."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[OffsetForLeaderTopicResult], array] = []
