"""Writes changes to the state of share partitions: sent by a partition's leader to a share coordinator.

KIP-932, KIP-1226 (version 1 counts finished records, for the lag).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.messages.read_share_group_state import StateBatch
from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct, uuid


@struct
class PartitionData:
    """A partition: its start offset, and the batches above it that have changed."""

    partition: Annotated[int, int32]
    state_epoch: Annotated[int, int32]
    leader_epoch: Annotated[int, int32]
    start_offset: Annotated[int, int64]  # -1: unchanged
    delivery_complete_count: Annotated[int, int32, "1+", ignorable] = -1  # finished, from the start offset on
    state_batches: Annotated[list[StateBatch], array] = []


@struct
class WriteStateData:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    """The changes, for share partitions of one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[WriteStateData], array] = []


@struct
class PartitionResult:
    """The result for one partition."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class WriteStateResult:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    """The results, by partition."""

    results: Annotated[list[WriteStateResult], array] = []
