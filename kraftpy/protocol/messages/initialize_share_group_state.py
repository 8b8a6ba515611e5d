"""Initializes the state of share partitions, or resets it: sent by a group coordinator to a share coordinator.

KIP-932. A `start_offset` of -1 lets the partition's leader choose by the group's `share.auto.offset.reset`.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct, uuid


@struct
class PartitionData:
    """One partition, and its initial state."""

    partition: Annotated[int, int32]
    state_epoch: Annotated[int, int32]
    start_offset: Annotated[int, int64]


@struct
class InitializeStateData:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=83, versions="0-0", flexible="0+")
class InitializeShareGroupStateRequest:
    """The share partitions of one group to initialize."""

    group_id: Annotated[str, string]
    topics: Annotated[list[InitializeStateData], array] = []


@struct
class PartitionResult:
    """The result for one partition."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class InitializeStateResult:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=83, versions="0-0", flexible="0+")
class InitializeShareGroupStateResponse:
    """The results, by partition."""

    results: Annotated[list[InitializeStateResult], array] = []
