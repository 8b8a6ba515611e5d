"""The active producers of partitions, and their open transactions.

KIP-664.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct


@struct
class TopicRequest:
    """Partitions of a topic."""

    name: Annotated[str, string]
    partition_indexes: Annotated[list[int], array(int32)] = []


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """The partitions to describe."""

    topics: Annotated[list[TopicRequest], array] = []


@struct
class ProducerState:
    """A producer: its last sequence number, and the start offset of its open transaction, or -1."""

    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int32] = 0
    last_sequence: Annotated[int, int32] = -1
    last_timestamp: Annotated[int, int64] = -1
    coordinator_epoch: Annotated[int, int32] = -1
    current_txn_start_offset: Annotated[int, int64] = -1


@struct
class PartitionResponse:
    """A partition: an error, or its producers."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    active_producers: Annotated[list[ProducerState], array] = []


@struct
class TopicResponse:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[PartitionResponse], array] = []


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The producers, by partition."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[TopicResponse], array] = []
