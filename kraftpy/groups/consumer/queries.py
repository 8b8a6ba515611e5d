"""Read-only requests about groups of the consumer protocol: ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.groups.assignment import Assignment, by_topic
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.consumer.records import CurrentValue
from kraftpy.groups.group import Group
from kraftpy.groups.queries import ALL_OPERATIONS, OPERATIONS_NOT_ASKED
from kraftpy.groups.topics import Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)

OF_THE_CLASSIC_PROTOCOL, OF_THE_CONSUMER_PROTOCOL = 0, 1
"""The protocol that a member speaks, as version 1 of the response encodes it."""


def describe(
    message: ConsumerGroupDescribeRequest, groups: Mapping[str, Group], protocol: ConsumerProtocol
) -> ConsumerGroupDescribeResponse:
    """Describe the requested groups. A missing group, or one of the classic protocol, gets its own error."""
    operations = ALL_OPERATIONS if message.include_authorized_operations else OPERATIONS_NOT_ASKED
    described = []
    for group_id in dict.fromkeys(message.group_ids):
        group = groups.get(group_id)
        if group is None:
            described.append(not_found(group_id, "not found"))
        elif not isinstance(group.kind, ConsumerGroup) or group.is_dead:
            described.append(not_found(group_id, "is not a consumer group"))
        else:
            described.append(_describe(group.kind, protocol, operations))
    return ConsumerGroupDescribeResponse(groups=described)


def not_found(group_id: str, why: str) -> DescribedConsumerGroup:
    """Return the error for one group."""
    return DescribedConsumerGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id[:249]} {why}.", group_id=group_id
    )


def _describe(group: ConsumerGroup, protocol: ConsumerProtocol, operations: int) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=protocol.assignor_name(group),
        members=[
            DescribedConsumerGroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.subscribed_topic_names),
                subscribed_topic_regex=member.subscribed_topic_regex or "",
                assignment=_assignment(_held(group.current(member_id)), protocol.topics),
                target_assignment=_assignment(group.target(member_id), protocol.topics),
                member_type=OF_THE_CONSUMER_PROTOCOL if member.classic is None else OF_THE_CLASSIC_PROTOCOL,
            )
            for member_id, member in sorted(group.members.items())
        ],
        authorized_operations=operations,
    )


def _held(current: CurrentValue) -> Assignment:
    """Return the partitions that a member holds: those it may read, and those it has yet to give up."""
    return current.assigned | current.pending_revocation


def _assignment(assignment: Assignment, topics: Topics) -> DescribedAssignment:
    """Return the partitions by topic; deleted topics have no name any more and are omitted."""
    named = ((topic_id, topics.name(topic_id), partitions) for topic_id, partitions in by_topic(assignment))
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions)
            for topic_id, name, partitions in named
            if name is not None
        ]
    )
