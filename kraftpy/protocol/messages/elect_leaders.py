"""Elects the preferred replica of partitions as their leader, or any live replica.

KIP-183 (preferred), KIP-460 (unclean).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, string, struct

PREFERRED = 0
UNCLEAN = 1


@struct
class TopicPartitions:
    """Partitions of a topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """The election type, `PREFERRED` or `UNCLEAN`, and the partitions; null for all."""

    election_type: Annotated[int, int8, "1+"] = PREFERRED  # KIP-460
    topic_partitions: Annotated[list[TopicPartitions] | None, array] = []
    timeout_ms: Annotated[int, int32] = 60000


@struct
class PartitionResult:
    """The result for one partition: an error, or success if it has the requested leader."""

    partition_id: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class ReplicaElectionResult:
    """The results for one topic."""

    topic: Annotated[str, string]
    partition_result: Annotated[list[PartitionResult], array] = []


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """The results, by topic. If all partitions were asked for, those that already had the right leader are omitted."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16, "1+"] = 0
    replica_election_results: Annotated[list[ReplicaElectionResult], array] = []
