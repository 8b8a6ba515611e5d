"""Advances the log start offset of partitions: records before it are deleted.

KIP-107.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct


@struct
class DeleteRecordsPartition:
    """A partition and its new log start offset; -1 for the high watermark."""

    partition_index: Annotated[int, int32]
    offset: Annotated[int, int64]


@struct
class DeleteRecordsTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[DeleteRecordsPartition], array] = []


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """The offsets before which records are deleted."""

    topics: Annotated[list[DeleteRecordsTopic], array] = []
    timeout_ms: Annotated[int, int32] = 60000


@struct
class DeleteRecordsPartitionResult:
    """The result for one partition: an error, or the lowest log start offset among its replicas."""

    partition_index: Annotated[int, int32]
    low_watermark: Annotated[int, int64] = -1
    error_code: Annotated[int, int16] = 0


@struct
class DeleteRecordsTopicResult:
    """The results for one topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[DeleteRecordsPartitionResult], array] = []


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[DeleteRecordsTopicResult], array] = []
