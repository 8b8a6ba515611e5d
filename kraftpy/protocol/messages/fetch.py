"""Reads record batches from partitions, for consumers and followers; waits for `min_bytes`.

KIP-74 (max bytes), KIP-98 (isolation), KIP-107 (log start offset), KIP-110 (zstd, from version 10), KIP-227 (sessions),
KIP-320 (leader epochs), KIP-392 (nearest replica), KIP-405 (tiered storage), KIP-516 (topic ids), KIP-595 (diverging
epochs), KIP-853 (directory ids), KIP-903 (replica epochs), KIP-951 (the new leader in the response), KIP-1166 (high
watermark of the follower).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    ignorable,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    tag,
    uuid,
)


@struct
class ReplicaState:
    """The follower that sent the request, if it is one."""

    replica_id: Annotated[int, int32] = -1
    replica_epoch: Annotated[int, int64] = -1


@struct
class FetchPartition:
    """A partition, and the offset to read from."""

    partition: Annotated[int, int32]
    current_leader_epoch: Annotated[int, int32, "9+", ignorable] = -1  # KIP-320
    fetch_offset: Annotated[int, int64]
    last_fetched_epoch: Annotated[int, int32, "12+"] = -1  # KIP-595
    log_start_offset: Annotated[int, int64, "5+", ignorable] = -1  # of the follower (KIP-107)
    partition_max_bytes: Annotated[int, int32]
    replica_directory_id: Annotated[bytes, uuid, "17+", tag(0), ignorable] = ZERO_UUID  # KIP-853
    high_watermark: Annotated[int, int64, "18+", tag(1), ignorable] = 0x7FFFFFFFFFFFFFFF  # KIP-1166


@struct
class FetchTopic:
    """A topic: by name up to version 12, by id from 13."""

    topic: Annotated[str, string, "0-12", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "13+", ignorable] = ZERO_UUID
    partitions: Annotated[list[FetchPartition], array] = []


@struct
class ForgottenTopic:
    """Partitions to drop from the session."""

    topic: Annotated[str, string, "7-12", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "13+", ignorable] = ZERO_UUID
    partitions: Annotated[list[int], array(int32)] = []


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """The partitions to read, and the limits of the response."""

    cluster_id: Annotated[str | None, string, "12+", tag(0), ignorable] = None
    replica_id: Annotated[int, int32, "0-14"] = -1  # -1 for a consumer
    replica_state: Annotated[ReplicaState, nested, "15+", tag(1)] = ReplicaState()  # KIP-903
    max_wait_ms: Annotated[int, int32]
    min_bytes: Annotated[int, int32]
    max_bytes: Annotated[int, int32] = 0x7FFFFFFF
    isolation_level: Annotated[int, int8] = 0  # 0 read uncommitted, 1 read committed
    session_id: Annotated[int, int32, "7+", ignorable] = 0  # KIP-227
    session_epoch: Annotated[int, int32, "7+", ignorable] = -1
    topics: Annotated[list[FetchTopic], array] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], array, "7+"] = []  # KIP-227
    rack_id: Annotated[str, string, "11+", ignorable] = ""  # KIP-392


@struct
class EpochEndOffset:
    """The largest epoch below the requested one, and its end offset: the follower has to truncate."""

    epoch: Annotated[int, int32] = -1
    end_offset: Annotated[int, int64] = -1


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition, if it is another broker."""

    leader_id: Annotated[int, int32] = -1
    leader_epoch: Annotated[int, int32] = -1


@struct
class SnapshotId:
    """The snapshot to fetch instead, for the quorum's log."""

    end_offset: Annotated[int, int64] = -1
    epoch: Annotated[int, int32] = -1


@struct
class AbortedTransaction:
    """An aborted transaction: skip this producer's records from the offset to its next abort marker."""

    producer_id: Annotated[int, int64]
    first_offset: Annotated[int, int64]


@struct
class PartitionData:
    """A partition's log offsets and batches. The first batch may begin before the requested offset."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    high_watermark: Annotated[int, int64] = -1
    last_stable_offset: Annotated[int, int64] = -1
    log_start_offset: Annotated[int, int64, "5+", ignorable] = -1
    diverging_epoch: Annotated[EpochEndOffset, nested, "12+", tag(0)] = EpochEndOffset()  # KIP-595
    current_leader: Annotated[LeaderIdAndEpoch, nested, "12+", tag(1), ignorable] = LeaderIdAndEpoch()  # KIP-951
    snapshot_id: Annotated[SnapshotId, nested, "12+", tag(2)] = SnapshotId()  # KIP-630
    aborted_transactions: Annotated[list[AbortedTransaction] | None, array] = None
    preferred_read_replica: Annotated[int, int32, "11+"] = -1  # KIP-392
    records: Annotated[memoryview | bytes | None, records] = b""


@struct
class FetchableTopicResponse:
    """A topic, identified as in the request."""

    topic: Annotated[str, string, "0-12", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "13+", ignorable] = ZERO_UUID
    partitions: Annotated[list[PartitionData], array] = []


@struct
class NodeEndpoint:
    """The address of a leader named in the response."""

    node_id: Annotated[int, int32]
    host: Annotated[str, string]
    port: Annotated[int, int32]
    rack: Annotated[str | None, string] = None


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """The batches, by partition."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16, "7+", ignorable] = 0
    session_id: Annotated[int, int32, "7+"] = 0
    responses: Annotated[list[FetchableTopicResponse], array] = []
    node_endpoints: Annotated[list[NodeEndpoint], array, "16+", tag(0), ignorable] = []  # KIP-951
