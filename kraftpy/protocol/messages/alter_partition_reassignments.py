"""Moves partitions to other brokers, or cancels an ongoing reassignment.

KIP-455, KIP-860 (a guard for the replication factor).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int16, int32, message, string, struct


@struct
class ReassignablePartition:
    """A partition and its new replicas; null cancels the ongoing reassignment."""

    partition_index: Annotated[int, int32]
    replicas: Annotated[list[int] | None, array(int32)] = None


@struct
class ReassignableTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ReassignablePartition], array] = []


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """The partitions to reassign. The reassignments continue after the response."""

    timeout_ms: Annotated[int, int32] = 60000
    allow_replication_factor_change: Annotated[bool, boolean, "1+"] = True  # KIP-860
    topics: Annotated[list[ReassignableTopic], array] = []


@struct
class ReassignablePartitionResponse:
    """The result for one partition: an error, or success if its reassignment was started or cancelled."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class ReassignableTopicResponse:
    """The results for one topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[ReassignablePartitionResponse], array] = []


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    allow_replication_factor_change: Annotated[bool, boolean, "1+", ignorable] = True
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    responses: Annotated[list[ReassignableTopicResponse], array] = []
