"""The state of the metadata quorum: its leader, its voters and observers, and the log end offset of each.

KIP-595, KIP-836 (times of the last fetch), KIP-853 (directories, endpoints, error messages).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    ignorable,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
)


@struct
class QuorumPartition:
    """A partition; the only valid one is 0."""

    partition_index: Annotated[int, int32]


@struct
class QuorumTopic:
    """A topic; only `__cluster_metadata` has a quorum."""

    topic_name: Annotated[str, string]
    partitions: Annotated[list[QuorumPartition], array] = []


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """The partitions to describe."""

    topics: Annotated[list[QuorumTopic], array] = []


@struct
class ReplicaState:
    """A voter or an observer as the leader sees it. -1 means unknown."""

    replica_id: Annotated[int, int32]
    replica_directory_id: Annotated[bytes, uuid, "2+"] = ZERO_UUID
    log_end_offset: Annotated[int, int64] = -1
    last_fetch_timestamp: Annotated[int, int64, "1+", ignorable] = -1  # KIP-836; for the leader itself, now
    last_caught_up_timestamp: Annotated[int, int64, "1+", ignorable] = -1


@struct
class QuorumPartitionState:
    """A partition: an error, or its quorum."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string, "2+", ignorable] = None
    leader_id: Annotated[int, int32] = -1
    leader_epoch: Annotated[int, int32] = -1
    high_watermark: Annotated[int, int64] = -1
    current_voters: Annotated[list[ReplicaState], array] = []
    observers: Annotated[list[ReplicaState], array] = []


@struct
class QuorumTopicState:
    """A topic."""

    topic_name: Annotated[str, string]
    partitions: Annotated[list[QuorumPartitionState], array] = []


@struct
class Listener:
    """An address of a voter."""

    name: Annotated[str, string]
    host: Annotated[str, string]
    port: Annotated[int, uint16]


@struct
class Node:
    """A voter and its endpoints."""

    node_id: Annotated[int, int32]
    listeners: Annotated[list[Listener], array] = []


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """The quorum, and its nodes."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string, "2+", ignorable] = None
    topics: Annotated[list[QuorumTopicState], array] = []
    nodes: Annotated[list[Node], array, "2+", ignorable] = []
