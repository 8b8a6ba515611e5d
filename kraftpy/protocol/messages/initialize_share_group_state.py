"""From a group coordinator to a share coordinator: begin to keep the state of share partitions, or begin anew.

KIP-932. `start_offset` is -1 where the partition's leader is to choose it by the group's `share.auto.offset.reset`.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct, uuid


@struct
class PartitionData:
    """One partition, and what its state begins with."""

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
    """Share partitions of one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[InitializeStateData], array] = []


@struct
class PartitionResult:
    """How it went with one partition."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class InitializeStateResult:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=83, versions="0-0", flexible="0+")
class InitializeShareGroupStateResponse:
    """How it went, by partition."""

    results: Annotated[list[InitializeStateResult], array] = []
