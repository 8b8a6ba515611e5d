"""Describes share groups: members, and the partitions each one reads.

KIP-932.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, int16, int32, message, nested, string, struct, uuid


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """The groups to describe."""

    group_ids: Annotated[list[str], array(string)] = []
    include_authorized_operations: Annotated[bool, boolean] = False


@struct
class DescribedShareTopicPartitions:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    topic_name: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class DescribedShareAssignment:
    """Partitions of a member."""

    topic_partitions: Annotated[list[DescribedShareTopicPartitions], array] = []


@struct
class DescribedShareGroupMember:
    """A member: the topics it subscribes to, and the partitions it reads."""

    member_id: Annotated[str, string]
    rack_id: Annotated[str | None, string] = None
    member_epoch: Annotated[int, int32] = 0
    client_id: Annotated[str, string] = ""
    client_host: Annotated[str, string] = ""
    subscribed_topic_names: Annotated[list[str], array(string)] = []
    assignment: Annotated[DescribedShareAssignment, nested]


@struct
class DescribedShareGroup:
    """A group, or the error for it."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    group_id: Annotated[str, string]
    group_state: Annotated[str, string] = ""
    group_epoch: Annotated[int, int32] = 0
    assignment_epoch: Annotated[int, int32] = 0
    assignor_name: Annotated[str, string] = ""
    members: Annotated[list[DescribedShareGroupMember], array] = []
    authorized_operations: Annotated[int, int32] = -(2**31)


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """The described groups."""

    throttle_time_ms: Annotated[int, int32] = 0
    groups: Annotated[list[DescribedShareGroup], array] = []
