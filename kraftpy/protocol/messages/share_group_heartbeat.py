"""The one request of a share group's members: to join, stay, resubscribe, and leave.

KIP-932. A member chooses its own id. It does not report its partitions, because a share group never waits for a member
to give one up.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, nested, string, struct, uuid


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """Shows that a member is alive. Null means no change since its last heartbeat."""

    group_id: Annotated[str, string]
    member_id: Annotated[str, string]
    member_epoch: Annotated[int, int32] = 0
    rack_id: Annotated[str | None, string] = None
    subscribed_topic_names: Annotated[list[str] | None, array(string)] = None


@struct
class ShareGroupTopicPartitions:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class ShareGroupHeartbeatResponseAssignment:
    """All partitions that the member reads from now on."""

    topic_partitions: Annotated[list[ShareGroupTopicPartitions], array] = []


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    member_id: Annotated[str | None, string] = None
    member_epoch: Annotated[int, int32] = 0
    heartbeat_interval_ms: Annotated[int, int32] = 0
    assignment: Annotated[ShareGroupHeartbeatResponseAssignment | None, nested] = None
