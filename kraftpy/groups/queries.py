"""Read-only requests about groups: DescribeGroups and ListGroups.

Groups of the consumer protocol, share groups and streams groups are listed under their own type. DescribeGroups does
not find them; they are described by `consumer.queries`, `share.queries` and `streams.queries`.

Members' metadata are shown only for a Stable group, their assignments always: between generations, those of the
generation before.

Read: KIP-518 (states filter), KIP-848 (types filter), KIP-1043 (GROUP_ID_NOT_FOUND from v6), KIP-430 (operations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.group import Group
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kraftpy.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

FIRST_DESCRIBE_WITH_NOT_FOUND = 6
CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"

OPERATIONS_NOT_ASKED = -(2**31)
ALL_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""All operations on a group: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, by ACL operation code."""


def describe(message: DescribeGroupsRequest, api_version: int, groups: dict[str, Group]) -> DescribeGroupsResponse:
    """Describe the requested groups. A missing group is Dead, and an error from v6."""
    operations = ALL_OPERATIONS if message.include_authorized_operations else OPERATIONS_NOT_ASKED
    return DescribeGroupsResponse(
        groups=[
            _describe(group.kind, operations)
            if (group := groups.get(group_id)) is not None and isinstance(group.kind, ClassicGroup)
            else _not_found(group_id, api_version, operations)
            for group_id in message.groups
        ]
    )


def _type(group: Group) -> str:
    match group.kind:
        case ClassicGroup():
            return CLASSIC
        case ConsumerGroup():
            return CONSUMER
        case ShareGroup():
            return SHARE
        case StreamsGroup():
            return STREAMS
        case _:
            assert_never(group.kind)


def _not_found(group_id: str, api_version: int, operations: int) -> DescribedGroup:
    is_error = api_version >= FIRST_DESCRIBE_WITH_NOT_FOUND
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=f"Group {group_id[:249]} not found." if is_error else None,
        group_id=group_id,
        group_state=State.DEAD.value,
        authorized_operations=OPERATIONS_NOT_ASKED if is_error else operations,
    )


def _describe(group: ClassicGroup, operations: int) -> DescribedGroup:
    stable = group.state is State.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment or b"",
            )
            for member in group.members.values()
        ],
        authorized_operations=operations,
    )


def list_groups(
    message: ListGroupsRequest, groups: Mapping[str, Group], among: Sequence[str] | None = None
) -> ListGroupsResponse:
    """List this partition's groups, sorted by id; with `among`, only those.

    Filters apply to states and types, ignore case, and select everything if empty.
    """
    if among is not None:
        groups = {group_id: groups[group_id] for group_id in among if group_id in groups}
    states = {state.lower() for state in message.states_filter}
    types = {each.lower() for each in message.types_filter}
    listed = [
        ListedGroup(
            group_id=group_id,
            protocol_type=(group.kind.protocol_type or "") if isinstance(group.kind, ClassicGroup) else _type(group),
            group_state=group.state_name,
            group_type=_type(group),
        )
        for group_id, group in sorted(groups.items())
        if not (isinstance(group.kind, ClassicGroup) and group.is_changing)  # a group not yet stored does not exist yet
    ]
    return ListGroupsResponse(
        groups=[
            each
            for each in listed
            if (not states or each.group_state.lower() in states) and (not types or each.group_type in types)
        ]
    )
