"""Maps groups to partitions of `__consumer_offsets`, splits requests that concern several, and builds error responses.

Left out: translating topic ids to names, and the partitions' leaders, both of which the shell knows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kraftpy.groups.classic.rebalance import join_error
from kraftpy.groups.events import GroupRequest, GroupResponse
from kraftpy.groups.offsets import FIRST_FETCH_WITH_GROUPS, refuse_commit
from kraftpy.groups.transactional_offsets import refuse as refuse_in_transaction
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kraftpy.protocol.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kraftpy.protocol.messages.streams_group_describe import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

FIRST_FETCH_WITH_ERROR = 2


def partition_for_group(group_id: str, count: int) -> int:
    """Return the partition of `__consumer_offsets`, out of `count`, for the group: Java's hash, made positive."""
    code_units = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for (unit,) in struct.iter_unpack(">H", code_units):
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    return 0 if signed == -(2**31) else abs(signed) % count


def group_ids(message: GroupRequest, api_version: int) -> list[str] | None:
    """Return the groups a request names; None for ListGroups, which means all."""
    match message:
        case DescribeGroupsRequest():
            return list(message.groups)
        case DeleteGroupsRequest():
            return list(message.groups_names)
        case ConsumerGroupDescribeRequest() | ShareGroupDescribeRequest() | StreamsGroupDescribeRequest():
            return list(message.group_ids)
        case ListGroupsRequest():
            return None
        case OffsetFetchRequest() if api_version >= FIRST_FETCH_WITH_GROUPS:
            return [group.group_id for group in message.groups]
        case _:
            return [message.group_id]


def split(message: GroupRequest, api_version: int, partition_count: int) -> dict[int, GroupRequest]:
    """Split a request by partition of `__consumer_offsets`, each with its own groups. ListGroups goes to all."""
    named = group_ids(message, api_version)
    if named is None:
        return dict.fromkeys(range(partition_count), message)
    by_partition: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(named):
        by_partition.setdefault(partition_for_group(group_id, partition_count), []).append(group_id)
    if len(by_partition) == 1:
        return dict.fromkeys(by_partition, message)
    return {partition: _only(message, frozenset(ids)) for partition, ids in sorted(by_partition.items())}


def _only(message: GroupRequest, ids: frozenset[str]) -> GroupRequest:
    match message:
        case DescribeGroupsRequest():
            return DescribeGroupsRequest(
                groups=[group_id for group_id in message.groups if group_id in ids],
                include_authorized_operations=message.include_authorized_operations,
            )
        case ConsumerGroupDescribeRequest():
            return ConsumerGroupDescribeRequest(
                group_ids=[each for each in message.group_ids if each in ids],
                include_authorized_operations=message.include_authorized_operations,
            )
        case ShareGroupDescribeRequest():
            return ShareGroupDescribeRequest(
                group_ids=[each for each in message.group_ids if each in ids],
                include_authorized_operations=message.include_authorized_operations,
            )
        case StreamsGroupDescribeRequest():
            return StreamsGroupDescribeRequest(
                group_ids=[each for each in message.group_ids if each in ids],
                include_authorized_operations=message.include_authorized_operations,
            )
        case DeleteGroupsRequest():
            return DeleteGroupsRequest(groups_names=[each for each in message.groups_names if each in ids])
        case OffsetFetchRequest():
            return OffsetFetchRequest(
                groups=[group for group in message.groups if group.group_id in ids],
                require_stable=message.require_stable,
            )
    return message


def merge(responses: Sequence[GroupResponse]) -> GroupResponse:
    """Merge the partitions' responses to a split request. Raises ValueError if there are none."""
    if not responses:
        raise ValueError("nothing to merge")
    first = responses[0]
    if len(responses) == 1:
        return first
    match first:
        case DescribeGroupsResponse():
            described = [each for r in responses if isinstance(r, DescribeGroupsResponse) for each in r.groups]
            return DescribeGroupsResponse(groups=described)
        case ConsumerGroupDescribeResponse():
            found = [each for r in responses if isinstance(r, ConsumerGroupDescribeResponse) for each in r.groups]
            return ConsumerGroupDescribeResponse(groups=found)
        case ShareGroupDescribeResponse():
            shares = [each for r in responses if isinstance(r, ShareGroupDescribeResponse) for each in r.groups]
            return ShareGroupDescribeResponse(groups=shares)
        case StreamsGroupDescribeResponse():
            streams = [each for r in responses if isinstance(r, StreamsGroupDescribeResponse) for each in r.groups]
            return StreamsGroupDescribeResponse(groups=streams)
        case DeleteGroupsResponse():
            results = [each for r in responses if isinstance(r, DeleteGroupsResponse) for each in r.results]
            return DeleteGroupsResponse(results=results)
        case OffsetFetchResponse():
            fetched = [each for r in responses if isinstance(r, OffsetFetchResponse) for each in r.groups]
            return OffsetFetchResponse(groups=fetched)
        case ListGroupsResponse():
            # A partition that is no longer ours has nothing to list; one that is loading makes the list incomplete.
            parts = [r for r in responses if isinstance(r, ListGroupsResponse)]
            errors = [r.error_code for r in parts if r.error_code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)]
            listed = sorted((each for r in parts for each in r.groups), key=lambda each: each.group_id)
            return ListGroupsResponse(error_code=errors[0] if errors else ErrorCode.NONE, groups=listed)
    raise ValueError(f"{type(first).__name__} never comes in several parts")


def while_loading(message: GroupRequest, api_version: int) -> GroupResponse:
    """Return the response of a coordinator that has not finished loading its partition.

    Heartbeats succeed. SyncGroup gets REBALANCE_IN_PROGRESS: old clients know no better error there.
    """
    match message:
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=ErrorCode.NONE)
        case SyncGroupRequest():
            return refuse(message, api_version, ErrorCode.REBALANCE_IN_PROGRESS)
    return refuse(message, api_version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def refuse(message: GroupRequest, api_version: int, error_code: ErrorCode, why: str | None = None) -> GroupResponse:
    """Return a response with this error, wherever the version of the response has room for it.

    `why` replaces the error code's own message, if the response has a message about the whole request.
    """
    response = _REFUSALS[type(message)](message, api_version, error_code)
    if why is not None and hasattr(response, "error_message"):
        response.error_message = why
    return response


# ---- what refuses which request

_Refusal = Callable[[Any, int, ErrorCode], GroupResponse]
"""Builds a response from a request, its version and the error."""


def _plainly(response: Callable[..., GroupResponse]) -> _Refusal:
    return lambda _, __, error_code: response(error_code=error_code)


def _with_meaning(response: Callable[..., GroupResponse]) -> _Refusal:
    return lambda _, __, error_code: response(error_code=error_code, error_message=error_code.meaning)


def _heartbeat(response: Callable[..., GroupResponse]) -> _Refusal:
    """Refuse a heartbeat. As in Kafka, an error with its usual meaning has no message."""

    def refusal(message: Any, _: int, error_code: ErrorCode) -> GroupResponse:
        has_no_name = error_code is ErrorCode.INVALID_REQUEST and not message.group_id.strip()
        return response(error_code=error_code, error_message="GroupId can't be empty." if has_no_name else None)

    return refusal


def _for_each_group(response: Callable[..., GroupResponse], described: Callable[..., object]) -> _Refusal:
    return lambda message, _, error_code: response(
        groups=[described(error_code=error_code, group_id=each) for each in message.group_ids]
    )


def _for_each_share_group(message: ShareGroupDescribeRequest, _: int, error_code: ErrorCode) -> GroupResponse:
    """Refuse a description. As in Kafka, an error has a message unless there are no share groups at all."""
    meaning = None if error_code is ErrorCode.UNSUPPORTED_VERSION else error_code.meaning
    return ShareGroupDescribeResponse(
        groups=[
            DescribedShareGroup(error_code=error_code, error_message=meaning, group_id=each)
            for each in message.group_ids
        ]
    )


def _refuse_description(message: DescribeGroupsRequest, _: int, error_code: ErrorCode) -> GroupResponse:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(error_code=error_code, group_id=group_id) for group_id in message.groups]
    )


def _refuse_deletion(message: DeleteGroupsRequest, _: int, error_code: ErrorCode) -> GroupResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error_code) for group_id in message.groups_names]
    )


def _refuse_fetch(message: OffsetFetchRequest, api_version: int, error_code: ErrorCode) -> OffsetFetchResponse:
    if api_version >= FIRST_FETCH_WITH_GROUPS:
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=each.group_id, error_code=error_code) for each in message.groups]
        )
    if api_version >= FIRST_FETCH_WITH_ERROR:
        return OffsetFetchResponse(error_code=error_code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=partition, error_code=error_code)
                    for partition in topic.partition_indexes
                ],
            )
            for topic in message.topics or []
        ]
    )


_REFUSALS: Mapping[type[GroupRequest], _Refusal] = {
    JoinGroupRequest: lambda _, api_version, error: join_error(api_version, "", error),
    SyncGroupRequest: _plainly(SyncGroupResponse),
    HeartbeatRequest: _plainly(HeartbeatResponse),
    LeaveGroupRequest: _plainly(LeaveGroupResponse),
    OffsetCommitRequest: lambda message, _, error: refuse_commit(message, error),
    TxnOffsetCommitRequest: lambda message, _, error: refuse_in_transaction(message, error),
    OffsetFetchRequest: _refuse_fetch,
    OffsetDeleteRequest: _plainly(OffsetDeleteResponse),
    DescribeGroupsRequest: _refuse_description,
    ListGroupsRequest: _plainly(ListGroupsResponse),
    DeleteGroupsRequest: _refuse_deletion,
    ConsumerGroupHeartbeatRequest: _heartbeat(ConsumerGroupHeartbeatResponse),
    ConsumerGroupDescribeRequest: _for_each_group(ConsumerGroupDescribeResponse, DescribedConsumerGroup),
    ShareGroupHeartbeatRequest: _heartbeat(ShareGroupHeartbeatResponse),
    ShareGroupDescribeRequest: _for_each_share_group,
    AlterShareGroupOffsetsRequest: _with_meaning(AlterShareGroupOffsetsResponse),
    DeleteShareGroupOffsetsRequest: _with_meaning(DeleteShareGroupOffsetsResponse),
    StreamsGroupHeartbeatRequest: _heartbeat(StreamsGroupHeartbeatResponse),
    StreamsGroupDescribeRequest: _for_each_group(StreamsGroupDescribeResponse, DescribedStreamsGroup),
}
