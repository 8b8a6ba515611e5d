"""Removes members from a group; several at once from version 3.

KIP-345 (static members), KIP-800 (reasons).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, message, string, struct


@struct
class MemberIdentity:
    """A leaving member: its member id, its static instance id, or both."""

    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string] = None
    reason: Annotated[str | None, string, "5+", ignorable] = None  # KIP-800


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """The members to remove: the sender itself, or others."""

    group_id: Annotated[str, string]
    member_id: Annotated[str, string, "0-2"] = ""
    members: Annotated[list[MemberIdentity], array, "3+"] = []


@struct
class MemberResponse:
    """The result for one member."""

    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string] = None
    error_code: Annotated[int, int16] = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """The results, by member."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    error_code: Annotated[int, int16] = 0
    members: Annotated[list[MemberResponse], array, "3+"] = []
