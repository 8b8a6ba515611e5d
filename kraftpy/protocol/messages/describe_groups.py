"""Describes classic groups: state and members.

KIP-345 (static members), KIP-430 (authorized operations), KIP-1043 (an error for groups that do not exist).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, bytestring, ignorable, int16, int32, message, string, struct


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """The ids of the groups to describe."""

    groups: Annotated[list[str], array(string)]
    include_authorized_operations: Annotated[bool, boolean, "3+"] = False


@struct
class DescribedGroupMember:
    """A member with its metadata and its assignment."""

    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "4+", ignorable] = None
    client_id: Annotated[str, string] = ""
    client_host: Annotated[str, string] = ""
    member_metadata: Annotated[bytes, bytestring] = b""
    member_assignment: Annotated[bytes, bytestring] = b""


@struct
class DescribedGroup:
    """A group: an error, or its state and members."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string, "6+", ignorable] = None
    group_id: Annotated[str, string]
    group_state: Annotated[str, string] = ""
    protocol_type: Annotated[str, string] = ""
    protocol_data: Annotated[str, string] = ""
    members: Annotated[list[DescribedGroupMember], array] = []
    authorized_operations: Annotated[int, int32, "3+"] = -0x80000000  # KIP-430; the default means not requested


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """The described groups."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    groups: Annotated[list[DescribedGroup], array] = []
