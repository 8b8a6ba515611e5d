"""Joins a classic group, or rejoins it in a rebalance. The response is sent once all members have joined.

KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member id required), KIP-559 (protocol names), KIP-800
(reasons), KIP-814 (static leaders may skip the assignment).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    array,
    boolean,
    bytestring,
    ignorable,
    int16,
    int32,
    message,
    nullable,
    string,
    struct,
)


@struct
class JoinGroupRequestProtocol:
    """An assignor, and the member's metadata for it."""

    name: Annotated[str, string]
    metadata: Annotated[bytes, bytestring]


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """The member that joins, and its supported protocols in order of preference."""

    group_id: Annotated[str, string]
    session_timeout_ms: Annotated[int, int32]
    rebalance_timeout_ms: Annotated[int, int32, "1+", ignorable] = -1  # KIP-62
    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "5+"] = None  # KIP-345
    protocol_type: Annotated[str, string]
    protocols: Annotated[list[JoinGroupRequestProtocol], array] = []
    reason: Annotated[str | None, string, "8+", ignorable] = None  # KIP-800


@struct
class JoinGroupResponseMember:
    """A member, with its metadata for the assignor."""

    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "5+", ignorable] = None
    metadata: Annotated[bytes, bytestring] = b""


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The new generation. The leader's response also lists all members."""

    throttle_time_ms: Annotated[int, int32, "2+", ignorable] = 0
    error_code: Annotated[int, int16] = 0
    generation_id: Annotated[int, int32] = -1
    protocol_type: Annotated[str | None, string, "7+", ignorable] = None  # KIP-559
    protocol_name: Annotated[str | None, string, nullable("7+")] = None
    leader: Annotated[str, string] = ""
    skip_assignment: Annotated[bool, boolean, "9+"] = False  # KIP-814
    member_id: Annotated[str, string] = ""
    members: Annotated[list[JoinGroupResponseMember], array] = []
