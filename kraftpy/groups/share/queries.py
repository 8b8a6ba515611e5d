"""Read-only requests about share groups: ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.groups.assignment import Assignment, by_topic
from kraftpy.groups.group import Group
from kraftpy.groups.queries import ALL_OPERATIONS, OPERATIONS_NOT_ASKED
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.share.protocol import ShareProtocol
from kraftpy.groups.topics import Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.share_group_describe import (
    DescribedShareAssignment,
    DescribedShareGroup,
    DescribedShareGroupMember,
    DescribedShareTopicPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


def describe(
    message: ShareGroupDescribeRequest, groups: Mapping[str, Group], protocol: ShareProtocol
) -> ShareGroupDescribeResponse:
    """Describe the requested groups. A missing group, or one of another type, gets its own error."""
    operations = ALL_OPERATIONS if message.include_authorized_operations else OPERATIONS_NOT_ASKED
    described = []
    for group_id in dict.fromkeys(message.group_ids):
        group = groups.get(group_id)
        if group is None:
            described.append(_not_found(group_id, "not found"))
        elif not isinstance(group.kind, ShareGroup) or group.is_dead:
            described.append(_not_found(group_id, "is not a share group"))
        else:
            described.append(_describe(group.kind, protocol, operations))
    return ShareGroupDescribeResponse(groups=described)


def _not_found(group_id: str, why: str) -> DescribedShareGroup:
    return DescribedShareGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id[:249]} {why}.", group_id=group_id
    )


def _describe(group: ShareGroup, protocol: ShareProtocol, operations: int) -> DescribedShareGroup:
    return DescribedShareGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=protocol.config.group_share_assignors[0],
        members=[
            DescribedShareGroupMember(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.subscribed_topic_names),
                assignment=_assignment(group.current(member_id).assigned, protocol.topics),
            )
            for member_id, member in sorted(group.members.items())
        ],
        authorized_operations=operations,
    )


def _assignment(assignment: Assignment, topics: Topics) -> DescribedShareAssignment:
    """Return the partitions by topic; deleted topics have no name any more and are omitted."""
    named = ((topic_id, topics.name(topic_id), partitions) for topic_id, partitions in by_topic(assignment))
    return DescribedShareAssignment(
        topic_partitions=[
            DescribedShareTopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions)
            for topic_id, name, partitions in named
            if name is not None
        ]
    )
