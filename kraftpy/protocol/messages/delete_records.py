"""Advance the log start offset of partitions: what lies before it is gone.

KIP-107.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct


@struct
class DeleteRecordsPartition:
    """One partition and its new log start offset; -1 for the high watermark."""

    partition_index: Annotated[int, int32]
    offset: Annotated[int, int64]


@struct
class DeleteRecordsTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[DeleteRecordsPartition], array] = []


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Delete what lies before an offset."""

    topics: Annotated[list[DeleteRecordsTopic], array] = []
    timeout_ms: Annotated[int, int32] = 60000


@struct
class DeleteRecordsPartitionResult:
    """One partition: an error, or the smallest log start offset of its replicas."""

    partition_index: Annotated[int, int32]
    low_watermark: Annotated[int, int64] = -1
    error_code: Annotated[int, int16] = 0


@struct
class DeleteRecordsTopicResult:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[DeleteRecordsPartitionResult], array] = []


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """What came of it."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[DeleteRecordsTopicResult], array] = []
