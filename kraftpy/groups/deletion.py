"""Groups that go: those that an administrator deletes, and those of which nothing is left.

A group that goes is Dead until its tombstones are durable, and is not seen any more; if they fail to be written, it is
there again as it was. Of a share group the share coordinators have forgotten everything before (`share.changes`).
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.groups import offsets
from kraftpy.groups.appends import DeleteGroupRecords, ExpireOffsets, group_error
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.consumer.group import Draft
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group, State
from kraftpy.groups.records import Record, group_record
from kraftpy.groups.share.changes import ShareTurns
from kraftpy.groups.share.group import ShareDraft
from kraftpy.groups.step import Turn
from kraftpy.groups.streams.group import StreamsDraft
from kraftpy.groups.unloading import failed_deletion
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

_MOST_TOGETHER = 100


class Deletions:
    """What deletes groups of one partition of `__consumer_offsets`."""

    def __init__(self, groups: dict[str, Group], rebalance: Rebalance, shares: ShareTurns) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._shares = shares

    def request(self, event: Request, message: DeleteGroupsRequest, turn: Turn) -> None:
        """Delete empty groups; one that is changing is waited for, since whether it is empty will be known then."""
        for group_id in message.groups_names:
            group = self._groups.get(group_id)
            if group is None or group.state is State.DEAD:
                continue
            if group.is_changing:
                group.waiting.append(event)
                return
            # When its state is gone, or nobody asks for more of it, all of this is considered again.
            if group.is_empty and (
                self._shares.is_deferred(group, event) or self._shares.delete_state(group, event, turn)
            ):
                return
        undeleted = self._shares.undeleted(event.request_id)
        results = []
        doomed: list[Group] = []
        for group_id in dict.fromkeys(message.groups_names):
            group = self._groups.get(group_id)
            if group is None or group.state is State.DEAD:
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
            self.bury(doomed, turn, event.request_id, response)
        else:
            turn.reply(event.request_id, response)

    def bury(
        self,
        doomed: list[Group],
        turn: Turn,
        request_id: int | None = None,
        response: DeleteGroupsResponse | None = None,
    ) -> None:
        """Empty groups become Dead until their tombstones are durable."""
        records = []
        for group in doomed:
            of_group = self._tombstones(group, turn)
            if len(of_group) > _MOST_TOGETHER:  # what several groups have must fit into one batch
                for some in offsets.in_batches(of_group[:-1]):
                    turn.append(some, ExpireOffsets(group_id=group.group_id))
                of_group = of_group[-1:]
            records += of_group
        ids = tuple(group.group_id for group in doomed)
        turn.append(records, DeleteGroupRecords(group_ids=ids, request_id=request_id, response=response))

    def _tombstones(self, group: Group, turn: Turn) -> list[Record]:
        for member_id in sorted(group.pending_members):
            self._rebalance.drop(group, member_id, turn)
        group.become(State.DEAD, turn.timestamp)
        turn.note(group, "deleted")
        if group.share is not None:
            share_draft = ShareDraft(group.share)
            share_draft.delete_all()
            return share_draft.records
        records = [*offsets.tombstones(group), group_record(group.group_id, None)]
        if group.streams is not None:
            streams_draft = StreamsDraft(group.streams)
            streams_draft.delete_all()
            records += streams_draft.records
        if group.consumer is not None:
            draft = Draft(group.consumer)
            draft.delete_all()
            records += draft.records
        return records

    def stored(self, purpose: DeleteGroupRecords, error_code: ErrorCode, turn: Turn) -> None:
        """The tombstones are in the log, or it is known that they are not there."""
        response = purpose.response
        if error_code is not ErrorCode.NONE:
            for group_id in purpose.group_ids:  # nothing leads back from Dead itself
                self._groups[group_id] = replace(self._groups[group_id], state=State.EMPTY)
            response = None if response is None else failed_deletion(response, group_error(error_code))
        if purpose.request_id is not None and response is not None:
            turn.reply(purpose.request_id, response)
