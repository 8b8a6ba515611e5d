"""The one request of a consumer group's members: to join, stay, resubscribe, report owned partitions, and leave.

KIP-848 (the protocol), KIP-345 (static members). From version 1 a subscription may be a regular expression, and members
choose their own ids.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, nested, string, struct, uuid


@struct
class ConsumerGroupTopicPartitions:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[int], array(int32)] = []


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """Shows that a member is alive. Null, or a timeout of -1, means no change since its last heartbeat."""

    group_id: Annotated[str, string]
    member_id: Annotated[str, string] = ""
    member_epoch: Annotated[int, int32] = 0
    instance_id: Annotated[str | None, string] = None
    rack_id: Annotated[str | None, string] = None
    rebalance_timeout_ms: Annotated[int, int32] = -1
    subscribed_topic_names: Annotated[list[str] | None, array(string)] = None
    subscribed_topic_regex: Annotated[str | None, string, "1+"] = None
    server_assignor: Annotated[str | None, string] = None
    topic_partitions: Annotated[list[ConsumerGroupTopicPartitions] | None, array] = None


@struct
class ConsumerGroupHeartbeatResponseAssignment:
    """All partitions that the member may read now."""

    topic_partitions: Annotated[list[ConsumerGroupTopicPartitions], array] = []


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    member_id: Annotated[str | None, string] = None
    member_epoch: Annotated[int, int32] = 0
    heartbeat_interval_ms: Annotated[int, int32] = 0
    assignment: Annotated[ConsumerGroupHeartbeatResponseAssignment | None, nested] = None
