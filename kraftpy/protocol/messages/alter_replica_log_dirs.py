"""Moves replicas between the log directories of one broker.

KIP-113.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct


@struct
class AlterReplicaLogDirTopic:
    """Partitions of a topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class AlterReplicaLogDir:
    """A log directory by its absolute path, and the replicas to move into it."""

    path: Annotated[str, string]
    topics: Annotated[list[AlterReplicaLogDirTopic], array] = []


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """The replicas to move, by log directory."""

    dirs: Annotated[list[AlterReplicaLogDir], array] = []


@struct
class AlterReplicaLogDirPartitionResult:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class AlterReplicaLogDirTopicResult:
    """The results for one topic."""

    topic_name: Annotated[str, string]
    partitions: Annotated[list[AlterReplicaLogDirPartitionResult], array] = []


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[AlterReplicaLogDirTopicResult], array] = []
