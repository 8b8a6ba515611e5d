"""The responses to pending requests when a coordinator is unloaded: clients must look for it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.groups import offsets
from kraftpy.groups import transactional_offsets as transactional
from kraftpy.groups.appends import (
    DeleteGroupRecords,
    DeleteOffsets,
    Purpose,
    StoreConsumerGroup,
    StoreOffsets,
    StoreShareGroup,
    StoreStreamsGroup,
    StoreTransactionalOffsets,
)
from kraftpy.groups.classic.rebalance import join_error
from kraftpy.groups.events import Reply, Request
from kraftpy.groups.group import Group
from kraftpy.groups.routing import refuse
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kraftpy.protocol.messages.sync_group import SyncGroupResponse

MOVED = ErrorCode.NOT_COORDINATOR


def refusals(groups: Mapping[str, Group], purposes: Iterable[Purpose], others: Iterable[Request]) -> list[Reply]:
    """Refuse all pending requests: at a barrier, in a group's queue, waiting for the log, or among the `others`."""
    replies: list[Reply] = []
    for _, group in sorted(groups.items()):
        for member in group.classic_or_empty().members.values():
            if member.join is not None:
                refused = join_error(member.join.api_version, member.member_id, MOVED)
                replies.append(Reply(request_id=member.join.request_id, response=refused))
            if member.sync is not None:
                replies.append(Reply(request_id=member.sync.request_id, response=SyncGroupResponse(error_code=MOVED)))
        replies += [_refusal(item) for item in group.waiting if isinstance(item, Request)]
        replies += [] if group.decision is None else [_refusal(event) for event, _ in group.decision.answers]
    for purpose in purposes:
        replies += _of_append(purpose)
    return replies + [_refusal(event) for event in others]


def _refusal(event: Request) -> Reply:
    return Reply(request_id=event.request_id, response=refuse(event.message, event.api_version, MOVED))


def _of_append(purpose: Purpose) -> list[Reply]:
    match purpose:
        case StoreConsumerGroup() | StoreStreamsGroup():
            return [_refusal(event) for event, _ in purpose.answers]
        case StoreShareGroup():
            members = [_refusal(event) for event, _ in purpose.answers]
            return members if purpose.operation is None else [*members, _refusal(purpose.operation.event)]
        case StoreOffsets():
            response = offsets.failed_commit(purpose.response, MOVED)
            return [Reply(request_id=purpose.request_id, response=response)]
        case StoreTransactionalOffsets():
            failed = transactional.failed(purpose.response, MOVED)
            return [Reply(request_id=purpose.request_id, response=failed)]
        case DeleteOffsets():
            return [Reply(request_id=purpose.request_id, response=offsets.failed_delete(MOVED))]
        case DeleteGroupRecords(request_id=int(request_id), response=DeleteGroupsResponse() as prepared):
            return [Reply(request_id=request_id, response=failed_deletion(prepared, MOVED))]
    return []


def failed_deletion(prepared: DeleteGroupsResponse, error_code: ErrorCode) -> DeleteGroupsResponse:
    """Put this error into a response prepared for success, wherever it says NONE."""
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=each.group_id, error_code=each.error_code or error_code)
            for each in prepared.results
        ]
    )
