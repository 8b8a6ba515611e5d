"""Distributes the assignment of a classic group: the leader sends it, and each member receives its own part.

KIP-345 (static members), KIP-559 (protocol names).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, bytestring, ignorable, int16, int32, message, string, struct


@struct
class SyncGroupRequestAssignment:
    """The assignment of one member."""

    member_id: Annotated[str, string]
    assignment: Annotated[bytes, bytestring]


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """The whole assignment if sent by the leader; empty from other members."""

    group_id: Annotated[str, string]
    generation_id: Annotated[int, int32]
    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "3+"] = None  # KIP-345
    protocol_type: Annotated[str | None, string, "5+", ignorable] = None  # KIP-559
    protocol_name: Annotated[str | None, string, "5+", ignorable] = None
    assignments: Annotated[list[SyncGroupRequestAssignment], array] = []


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The assignment of the member that asked."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    error_code: Annotated[int, int16] = 0
    protocol_type: Annotated[str | None, string, "5+", ignorable] = None
    protocol_name: Annotated[str | None, string, "5+", ignorable] = None
    assignment: Annotated[bytes, bytestring] = b""
