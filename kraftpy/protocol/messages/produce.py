"""Appends record batches to partitions.

Versions 0-2 carry message sets of the old formats and are always refused; they are advertised because librdkafka
switches compression off without them. With `acks=0` there is no response.

KIP-32 (append time), KIP-98 (transactions), KIP-107 (log start offset), KIP-110 (zstd, from version 7), KIP-467 (errors
by record), KIP-516 (topic ids), KIP-890 (transactions, second part), KIP-951 (the new leader in the response).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    ignorable,
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
class PartitionProduceData:
    """A partition and its batch."""

    index: Annotated[int, int32]
    records: Annotated[memoryview | bytes | None, records] = None


@struct
class TopicProduceData:
    """A topic: by name up to version 12, by id from 13."""

    name: Annotated[str, string, "0-12", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "13+", ignorable] = ZERO_UUID
    partition_data: Annotated[list[PartitionProduceData], array] = []


@message(api_key=0, versions="0-13", flexible="9+")
class ProduceRequest:
    """The batches to append, by partition."""

    transactional_id: Annotated[str | None, string, "3+"] = None  # KIP-98
    acks: Annotated[int, int16]  # 0 none, 1 the leader, -1 all in-sync replicas
    timeout_ms: Annotated[int, int32]
    topic_data: Annotated[list[TopicProduceData], array] = []


@struct
class BatchIndexAndErrorMessage:
    """A refused record, by its position in the batch."""

    batch_index: Annotated[int, int32] = 0
    batch_index_error_message: Annotated[str | None, string] = None


@struct
class PartitionProduceResponse:
    """The result for one partition: an error, or the offset of the first record."""

    index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    base_offset: Annotated[int, int64] = -1
    log_append_time_ms: Annotated[int, int64, "2+", ignorable] = -1  # KIP-32; -1 under CreateTime
    log_start_offset: Annotated[int, int64, "5+", ignorable] = -1  # KIP-107
    record_errors: Annotated[list[BatchIndexAndErrorMessage], array, "8+", ignorable] = []  # KIP-467
    error_message: Annotated[str | None, string, "8+", ignorable] = None
    current_leader: Annotated[LeaderIdAndEpoch, nested, "10+", tag(0), ignorable] = LeaderIdAndEpoch()  # KIP-951


@struct
class TopicProduceResponse:
    """The results for one topic, identified as in the request."""

    name: Annotated[str, string, "0-12", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "13+", ignorable] = ZERO_UUID
    partition_responses: Annotated[list[PartitionProduceResponse], array] = []


@message(api_key=0, versions="0-13", flexible="9+")
class ProduceResponse:
    """The results, by topic."""

    responses: Annotated[list[TopicProduceResponse], array] = []
    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    node_endpoints: Annotated[list[NodeEndpoint], array, "10+", tag(0), ignorable] = []  # KIP-951
