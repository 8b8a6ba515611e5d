"""Describes consumer groups: members, and the current and target assignment of each.

KIP-848; KIP-1099 (the protocol of a member, from version 1).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, nested, string, struct, uuid


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """The groups to describe."""

    group_ids: Annotated[list[str], array(string)] = []
    include_authorized_operations: Annotated[bool, boolean] = False


@struct
class DescribedTopicPartitions:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    topic_name: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class DescribedAssignment:
    """Partitions of a member."""

    topic_partitions: Annotated[list[DescribedTopicPartitions], array] = []


@struct
class DescribedConsumerGroupMember:
    """A member with its current and its target assignment."""

    member_id: Annotated[str, string]
    instance_id: Annotated[str | None, string] = None
    rack_id: Annotated[str | None, string] = None
    member_epoch: Annotated[int, int32] = 0
    client_id: Annotated[str, string] = ""
    client_host: Annotated[str, string] = ""
    subscribed_topic_names: Annotated[list[str], array(string)] = []
    subscribed_topic_regex: Annotated[str | None, string] = None
    assignment: Annotated[DescribedAssignment, nested]
    target_assignment: Annotated[DescribedAssignment, nested]
    member_type: Annotated[int, int8, "1+", ignorable] = -1


@struct
class DescribedConsumerGroup:
    """A group, or the error for it."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    group_id: Annotated[str, string]
    group_state: Annotated[str, string] = ""
    group_epoch: Annotated[int, int32] = 0
    assignment_epoch: Annotated[int, int32] = 0
    assignor_name: Annotated[str, string] = ""
    members: Annotated[list[DescribedConsumerGroupMember], array] = []
    authorized_operations: Annotated[int, int32] = -(2**31)


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """The described groups."""

    throttle_time_ms: Annotated[int, int32] = 0
    groups: Annotated[list[DescribedConsumerGroup], array] = []
