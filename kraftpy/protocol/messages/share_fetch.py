"""Acquire records from share partitions for a while, and acknowledge those that were acquired before.

Partitions are those of the share session, changed by those named here; acknowledgements travel with the fetch that asks
for more. From version 2 a fetch may renew the locks of records (`is_renew_ack`, KIP-1222) and say how its limit on
records is meant (`share_acquire_mode`, KIP-1206).

KIP-932, KIP-951 (the new leader in the answer).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    uuid,
)


@struct
class AcknowledgementBatch:
    """What became of the records from the first offset to the last: one type for all of them, or one for each.

    0 gap (there is no record), 1 accept, 2 release, 3 reject, 4 renew (from version 2).
    """

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    acknowledge_types: Annotated[list[int], array(int8)] = []


@struct
class FetchPartition:
    """One partition to fetch, and what is acknowledged of it."""

    partition_index: Annotated[int, int32]
    acknowledgement_batches: Annotated[list[AcknowledgementBatch], array] = []


@struct
class FetchTopic:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[FetchPartition], array] = []


@struct
class ForgottenTopic:
    """Partitions to drop from the session."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[int], array(int32)] = []


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    """Ask for records, as a member of a share group."""

    group_id: Annotated[str | None, string] = None
    member_id: Annotated[str | None, string] = ""
    share_session_epoch: Annotated[int, int32] = 0  # 0 opens a session, -1 closes it, otherwise one more each time
    max_wait_ms: Annotated[int, int32]
    min_bytes: Annotated[int, int32]
    max_bytes: Annotated[int, int32] = 0x7FFFFFFF
    max_records: Annotated[int, int32]
    batch_size: Annotated[int, int32]  # records that are acquired and acknowledged together, at best
    share_acquire_mode: Annotated[int, int8, "2+"] = 0  # KIP-1206: 0 batch_optimized, 1 record_limit
    is_renew_ack: Annotated[bool, boolean, "2+"] = False  # KIP-1222
    topics: Annotated[list[FetchTopic], array] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], array] = []


@struct
class LeaderIdAndEpoch:
    """The partition's current leader, if the broker asked is not it."""

    leader_id: Annotated[int, int32] = -1
    leader_epoch: Annotated[int, int32] = -1


@struct
class AcquiredRecords:
    """Records that are the member's until their lock runs out, from the first offset to the last."""

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    delivery_count: Annotated[int, int16]


@struct
class PartitionData:
    """One partition: batches with records, those among them that were acquired, and how acknowledging went."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    acknowledge_error_code: Annotated[int, int16] = 0
    acknowledge_error_message: Annotated[str | None, string] = None
    current_leader: Annotated[LeaderIdAndEpoch, nested] = LeaderIdAndEpoch()
    records: Annotated[memoryview | bytes, records] = b""
    acquired_records: Annotated[list[AcquiredRecords], array] = []


@struct
class ShareFetchableTopicResponse:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@struct
class NodeEndpoint:
    """Where to reach a leader that the answer names."""

    node_id: Annotated[int, int32]
    host: Annotated[str, string]
    port: Annotated[int, int32]
    rack: Annotated[str | None, string] = None


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    """Records, by partition, and how long they are locked."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    acquisition_lock_timeout_ms: Annotated[int, int32] = 0
    responses: Annotated[list[ShareFetchableTopicResponse], array] = []
    node_endpoints: Annotated[list[NodeEndpoint], array] = []
