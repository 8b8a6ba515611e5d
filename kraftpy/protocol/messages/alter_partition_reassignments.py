"""Move partitions to other brokers, or give up a move that is under way.

KIP-455, KIP-860 (a guard for the replication factor).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int16, int32, message, string, struct


@struct
class ReassignablePartition:
    """A partition and the replicas it is to have; null gives up the move under way."""

    partition_index: Annotated[int, int32]
    replicas: Annotated[list[int] | None, array(int32)] = None


@struct
class ReassignableTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ReassignablePartition], array] = []


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Ask for moves. They go on after the answer."""

    timeout_ms: Annotated[int, int32] = 60000
    allow_replication_factor_change: Annotated[bool, boolean, "1+"] = True  # KIP-860
    topics: Annotated[list[ReassignableTopic], array] = []


@struct
class ReassignablePartitionResponse:
    """A partition: an error, or its move has begun or was given up."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class ReassignableTopicResponse:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ReassignablePartitionResponse], array] = []


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """What came of it."""

    throttle_time_ms: Annotated[int, int32] = 0
    allow_replication_factor_change: Annotated[bool, boolean, "1+", ignorable] = True
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    responses: Annotated[list[ReassignableTopicResponse], array] = []
