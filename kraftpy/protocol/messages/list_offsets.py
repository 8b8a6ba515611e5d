"""Finds the offset for a timestamp, or at either end of the log.

Negative timestamps have special meanings: -1 latest, -2 earliest, -3 the largest timestamp (version 7, KIP-734), -4
earliest on local disk (version 8, KIP-405), -5 latest in tiered storage (version 9, KIP-1005), -6 earliest pending
upload (version 11, KIP-1023).

KIP-79 (by time), KIP-98 (isolation), KIP-207 (offset not available), KIP-320 (leader epochs), KIP-1075 (timeout).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int8, int16, int32, int64, message, string, struct


@struct
class ListOffsetsPartition:
    """A partition and a timestamp, possibly one of the special negative ones."""

    partition_index: Annotated[int, int32]
    current_leader_epoch: Annotated[int, int32, "4+", ignorable] = -1
    timestamp: Annotated[int, int64]


@struct
class ListOffsetsTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ListOffsetsPartition], array] = []


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """The partitions and timestamps to look up."""

    replica_id: Annotated[int, int32] = -1  # -1 for a consumer
    isolation_level: Annotated[int, int8, "2+"] = 0
    topics: Annotated[list[ListOffsetsTopic], array] = []
    timeout_ms: Annotated[int, int32, "10+", ignorable] = 0  # KIP-1075


@struct
class ListOffsetsPartitionResponse:
    """The result for one partition: the first offset whose timestamp is not before the requested one, or -1."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    timestamp: Annotated[int, int64] = -1
    offset: Annotated[int, int64] = -1
    leader_epoch: Annotated[int, int32, "4+", ignorable] = -1


@struct
class ListOffsetsTopicResponse:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ListOffsetsPartitionResponse], array] = []


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """The offsets, by partition."""

    throttle_time_ms: Annotated[int, int32, "2+", ignorable] = 0
    topics: Annotated[list[ListOffsetsTopicResponse], array] = []
