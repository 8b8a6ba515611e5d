"""Reads the state of share partitions: sent by a partition's leader to a share coordinator.

The coordinator remembers the leader epoch, which fences writes of earlier leaders. KIP-932.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, int64, message, string, struct, uuid


@struct
class PartitionData:
    """One partition."""

    partition: Annotated[int, int32]
    leader_epoch: Annotated[int, int32]


@struct
class ReadStateData:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=84, versions="0-0", flexible="0+")
class ReadShareGroupStateRequest:
    """The share partitions of one group to read."""

    group_id: Annotated[str, string]
    topics: Annotated[list[ReadStateData], array] = []


@struct
class StateBatch:
    """A range of offsets in one state, both ends included: 0 available, 2 acknowledged, 4 archived."""

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    delivery_state: Annotated[int, int8]
    delivery_count: Annotated[int, int16]


@struct
class PartitionResult:
    """The state of one partition; `start_offset` is -1 if none has been chosen yet."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    state_epoch: Annotated[int, int32] = 0
    start_offset: Annotated[int, int64] = 0
    state_batches: Annotated[list[StateBatch], array] = []


@struct
class ReadStateResult:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=84, versions="0-0", flexible="0+")
class ReadShareGroupStateResponse:
    """The state, by partition."""

    results: Annotated[list[ReadStateResult], array] = []
