"""Deletion of groups, by an administrator or because nothing is left in them.

A group being deleted is Dead, and invisible, until its tombstones are durable; if writing them fails, the group is
restored as it was. Before a share group is deleted, the share coordinators have already dropped its state
(`share.changes`).
"""

from __future__ import annotations

from typing import Any, assert_never

from kraftpy.groups import offsets
from kraftpy.groups.appends import DeleteGroupRecords, ExpireOffsets, group_error
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group
from kraftpy.groups.records import Record, group_record
from kraftpy.groups.share.changes import ShareChangeQueue
from kraftpy.groups.share.group import ShareDraft, ShareGroup
from kraftpy.groups.step import Step
from kraftpy.groups.streams.group import StreamsDraft, StreamsGroup
from kraftpy.groups.unloading import failed_deletion
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

_MOST_TOGETHER = 100


class Deletions:
    """Deletes groups in one partition of `__consumer_offsets`."""

    def __init__(self, groups: dict[str, Group], rebalance: Rebalance, shares: ShareChangeQueue) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._shares = shares

    def request(self, event: Request, message: DeleteGroupsRequest, step: Step) -> None:
        """Delete empty groups. Waits for a group that is changing, which may or may not turn out empty."""
        for group_id in message.groups_names:
            group = self._groups.get(group_id)
            if group is None or group.is_dead:
                continue
            if group.is_changing:
                group.waiting.append(event)
                return
            # Reconsider the whole request once the group's state is deleted, or once nothing of it is in flight.
            if group.is_empty and (self._shares.defer(group, event) or self._shares.delete_state(group, event, step)):
                return
        undeleted = self._shares.undeleted(event.request_id)
        results = []
        doomed: list[Group] = []
        for group_id in dict.fromkeys(message.groups_names):
            group = self._groups.get(group_id)
            if group is None or group.is_dead:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                error = ErrorCode.NON_EMPTY_GROUP
            elif group_id in undeleted:
                error = undeleted[group_id]
            else:
                error = ErrorCode.NONE
                doomed.append(group)
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        response = DeleteGroupsResponse(results=results)
        if doomed:
            self.bury(doomed, step, event.request_id, response)
        else:
            step.reply(event.request_id, response)

    def bury(
        self,
        doomed: list[Group],
        step: Step,
        request_id: int | None = None,
        response: DeleteGroupsResponse | None = None,
    ) -> None:
        """Make empty groups Dead until their tombstones are durable."""
        records = []
        for group in doomed:
            of_group = self._tombstones(group, step)
            if len(of_group) > _MOST_TOGETHER:  # tombstones of several groups must fit into one batch
                for some in offsets.in_batches(of_group[:-1]):
                    step.append(some, ExpireOffsets(group_id=group.group_id))
                of_group = of_group[-1:]
            records += of_group
        ids = tuple(group.group_id for group in doomed)
        step.append(records, DeleteGroupRecords(group_ids=ids, request_id=request_id, response=response))

    def _tombstones(self, group: Group, step: Step) -> list[Record]:
        if isinstance(group.kind, ClassicGroup):
            for member_id in sorted(group.kind.pending_members):
                self._rebalance.drop(group.kind, member_id, step)
        group.bury(step.timestamp)
        step.note(group, "deleted")
        records: list[Record] = []
        if not isinstance(group.kind, ShareGroup):
            records = [*offsets.tombstones(group), group_record(group.group_id, None)]
        match group.kind:
            case ClassicGroup():
                return records
            case ConsumerGroup():
                draft: AnyDraft[Any, Any, Any] = Draft(group.kind)
            case ShareGroup():
                draft = ShareDraft(group.kind)
            case StreamsGroup():
                draft = StreamsDraft(group.kind)
            case _:
                assert_never(group.kind)
        draft.delete_all()
        return records + draft.records

    def stored(self, purpose: DeleteGroupRecords, error_code: ErrorCode, step: Step) -> None:
        """Handle the outcome of writing the tombstones: in the log, or known not to be there."""
        response = purpose.response
        if error_code is not ErrorCode.NONE:
            for group_id in purpose.group_ids:
                self._groups[group_id].unbury()
            response = None if response is None else failed_deletion(response, group_error(error_code))
        if purpose.request_id is not None and response is not None:
            step.reply(purpose.request_id, response)
