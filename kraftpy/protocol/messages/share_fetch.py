"""Acquires records from share partitions for a limited time, and acknowledges records acquired earlier.

The partitions fetched are those of the share session, after the changes named in the request. Acknowledgements are sent
with the next fetch. From version 2 a fetch may renew the locks of records (`is_renew_ack`, KIP-1222), and says how
strict its limit on records is (`share_acquire_mode`, KIP-1206).

KIP-932, KIP-951 (the new leader in the response).
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
    """Outcomes of the records in a range of offsets, both ends included: one type for all of them, or one for each.

    0 gap (there is no record), 1 accept, 2 release, 3 reject, 4 renew (from version 2).
    """

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    acknowledge_types: Annotated[list[int], array(int8)] = []


@struct
class FetchPartition:
    """A partition to fetch, and the acknowledgements for it."""

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
    """The request of a member of a share group: changes of its session, limits, and acknowledgements."""

    group_id: Annotated[str | None, string] = None
    member_id: Annotated[str | None, string] = ""
    share_session_epoch: Annotated[int, int32] = 0  # 0 opens a session, -1 closes it, otherwise one more each time
    max_wait_ms: Annotated[int, int32]
    min_bytes: Annotated[int, int32]
    max_bytes: Annotated[int, int32] = 0x7FFFFFFF
    max_records: Annotated[int, int32]
    batch_size: Annotated[int, int32]  # the number of records to acquire and acknowledge together, if possible
    share_acquire_mode: Annotated[int, int8, "2+"] = 0  # KIP-1206: 0 batch_optimized, 1 record_limit
    is_renew_ack: Annotated[bool, boolean, "2+"] = False  # KIP-1222
    topics: Annotated[list[FetchTopic], array] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], array] = []


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition, if it is another broker; -1 if none is known.

    It has a meaning only if the error says that the leader is elsewhere; otherwise its fields are 0, as in Kafka.
    """

    leader_id: Annotated[int, int32] = 0
    leader_epoch: Annotated[int, int32] = 0


@struct
class AcquiredRecords:
    """A range of records, both ends included, that the member holds until their lock expires."""

    first_offset: Annotated[int, int64]
    last_offset: Annotated[int, int64]
    delivery_count: Annotated[int, int16]


@struct
class PartitionData:
    """A partition's batches, the ranges acquired from them, and the result of acknowledging."""

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
    """The address of a leader named in the response."""

    node_id: Annotated[int, int32]
    host: Annotated[str, string]
    port: Annotated[int, int32]
    rack: Annotated[str | None, string] = None


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    """The records, by partition, and the duration of their locks."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    acquisition_lock_timeout_ms: Annotated[int, int32] = 0
    responses: Annotated[list[ShareFetchableTopicResponse], array] = []
    node_endpoints: Annotated[list[NodeEndpoint], array] = []
