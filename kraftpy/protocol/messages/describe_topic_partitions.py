"""Describes topics and their partitions, in pages.

KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, array, boolean, int16, int32, message, nested, string, struct, uuid


@struct
class TopicRequest:
    """A topic."""

    name: Annotated[str, string]


@struct
class Cursor:
    """The first partition of a page."""

    topic_name: Annotated[str, string]
    partition_index: Annotated[int, int32]


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """The topics to describe, and the partition to start from."""

    topics: Annotated[list[TopicRequest], array] = []
    response_partition_limit: Annotated[int, int32] = 2000
    cursor: Annotated[Cursor | None, nested] = None


@struct
class DescribeTopicPartitionsResponsePartition:
    """A partition and its replicas."""

    error_code: Annotated[int, int16] = 0
    partition_index: Annotated[int, int32]
    leader_id: Annotated[int, int32] = -1
    leader_epoch: Annotated[int, int32] = -1
    replica_nodes: Annotated[list[int], array(int32)] = []
    isr_nodes: Annotated[list[int], array(int32)] = []
    eligible_leader_replicas: Annotated[list[int] | None, array(int32)] = None  # KIP-966
    last_known_elr: Annotated[list[int] | None, array(int32)] = None
    offline_replicas: Annotated[list[int], array(int32)] = []


@struct
class DescribeTopicPartitionsResponseTopic:
    """A topic: an error, or its partitions."""

    error_code: Annotated[int, int16] = 0
    name: Annotated[str | None, string] = None
    topic_id: Annotated[bytes, uuid] = ZERO_UUID
    is_internal: Annotated[bool, boolean] = False
    partitions: Annotated[list[DescribeTopicPartitionsResponsePartition], array] = []
    topic_authorized_operations: Annotated[int, int32] = -0x80000000


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """One page, and the start of the next one."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[DescribeTopicPartitionsResponseTopic], array] = []
    next_cursor: Annotated[Cursor | None, nested] = None
