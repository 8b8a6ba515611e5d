"""Reads the progress of share partitions, to describe a group: sent by its coordinator to a share coordinator.

KIP-932, KIP-1226 (version 1 counts finished records, for the lag).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct, uuid


@struct
class PartitionData:
    """One partition."""

    partition: Annotated[int, int32]
    leader_epoch: Annotated[int, int32]


@struct
class ReadStateSummaryData:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    """The share partitions of one group to read."""

    group_id: Annotated[str, string]
    topics: Annotated[list[ReadStateSummaryData], array] = []


@struct
class PartitionResult:
    """The result for one partition; `start_offset` is -1 if none has been chosen yet."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    state_epoch: Annotated[int, int32] = 0
    leader_epoch: Annotated[int, int32] = 0
    start_offset: Annotated[int, int64] = 0
    delivery_complete_count: Annotated[int, int32, "1+", ignorable] = -1  # finished, from the start offset on


@struct
class ReadStateSummaryResult:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    """The summaries, by partition."""

    results: Annotated[list[ReadStateSummaryResult], array] = []
