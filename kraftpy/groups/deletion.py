"""Deletion of groups, by an administrator or because nothing is left in them.

A group being deleted is Dead, and invisible, until its tombstones are durable; if writing them fails, the group is
restored as it was. Before a share group is deleted, the share coordinators have already dropped its state
(`share.changes`).

Many offsets are deleted in pieces (`offsets.pieces`): each one is appended when the one before it is durable, at a tick
of its own, so that other requests are served in between. The group's own records go last. If a piece cannot be written,
the group is restored with the offsets that are left. In the meantime its offsets cannot be fetched
(COORDINATOR_LOAD_IN_PROGRESS), because some of them are gone already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from kraftpy.groups import offsets
from kraftpy.groups.appends import DeleteDoomedOffsets, DeleteGroupRecords, group_error
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.deadlines import Key
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
from kraftpy.types import Millis, TopicPartition

DELETION: Final = "deletion"
_MOST_TOGETHER = 100
_SOON_MS: Final = 1


@dataclass(slots=True, kw_only=True)
class _Deletion:
    """The groups of one request, with the offsets that have to be deleted first, in pieces."""

    doomed: list[Group]
    event: Request | None
    response: DeleteGroupsResponse | None
    pieces: deque[tuple[Group, list[TopicPartition]]] = field(default_factory=deque)

    @property
    def key(self) -> Key:
        """The deadline of the next piece."""
        return Key(self.doomed[0].group_id, DELETION)


class Deletions:
    """Deletes groups in one partition of `__consumer_offsets`."""

    def __init__(self, groups: dict[str, Group], rebalance: Rebalance, shares: ShareChangeQueue) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._shares = shares
        self._in_pieces: dict[str, _Deletion] = {}
        """Deletions that are not finished, by the first group of each."""

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
            self.bury(doomed, step, event, response)
        else:
            step.reply(event.request_id, response)

    def bury(
        self,
        doomed: list[Group],
        step: Step,
        event: Request | None = None,
        response: DeleteGroupsResponse | None = None,
    ) -> None:
        """Make empty groups Dead until their tombstones are durable."""
        deletion = _Deletion(doomed=doomed, event=event, response=response)
        for group in doomed:
            if isinstance(group.kind, ClassicGroup):
                for member_id in sorted(group.kind.pending_members):
                    self._rebalance.drop(group.kind, member_id, step)
            group.bury(step.timestamp)
            step.note(group, "deleted")
            known = offsets.known(group)
            if len(known) >= _MOST_TOGETHER:  # tombstones of several groups must fit into one batch
                group.is_losing_offsets = True
                deletion.pieces += ((group, piece) for piece in offsets.pieces(group, known))
        if deletion.pieces:
            self._in_pieces[doomed[0].group_id] = deletion
            self._append_piece(deletion, step)
        else:
            self._append_last(deletion, step)

    def go_on(self, key: Key, step: Step) -> None:
        """Append the next tombstones of the deletion that this deadline belongs to."""
        deletion = self._in_pieces.get(key.group_id)
        if deletion is None:
            return
        if deletion.pieces:
            self._append_piece(deletion, step)
        else:
            del self._in_pieces[key.group_id]
            self._append_last(deletion, step)

    def _append_piece(self, deletion: _Deletion, step: Step) -> None:
        group, piece = deletion.pieces.popleft()
        records = [offsets.tombstone(group, each) for each in piece]
        first = deletion.doomed[0].group_id
        step.append(records, DeleteDoomedOffsets(group_id=group.group_id, first_group_id=first))

    def _append_last(self, deletion: _Deletion, step: Step) -> None:
        records: list[Record] = []
        for group in deletion.doomed:
            left = [] if group.is_losing_offsets else offsets.known(group)
            records += [offsets.tombstone(group, each) for each in sorted(left)]
            records += self._of_group(group)
            group.is_losing_offsets = False
        ids = tuple(group.group_id for group in deletion.doomed)
        request_id = None if deletion.event is None else deletion.event.request_id
        step.append(records, DeleteGroupRecords(group_ids=ids, request_id=request_id, response=deletion.response))

    def _of_group(self, group: Group) -> list[Record]:
        """Return the tombstones of a group other than those of its offsets."""
        records: list[Record] = []
        if not isinstance(group.kind, ShareGroup):
            records = [group_record(group.group_id, None)]
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

    def piece_stored(self, purpose: DeleteDoomedOffsets, error_code: ErrorCode, step: Step) -> None:
        """Handle the outcome of writing some tombstones: the rest follows, or the groups are restored."""
        deletion = self._in_pieces[purpose.first_group_id]
        if error_code is ErrorCode.NONE:
            self._rebalance.deadlines.set(deletion.key, Millis(step.now + _SOON_MS))
            return
        del self._in_pieces[purpose.first_group_id]
        self._restore(group.group_id for group in deletion.doomed)
        if deletion.event is not None and deletion.response is not None:
            step.reply(deletion.event.request_id, failed_deletion(deletion.response, group_error(error_code)))

    def _restore(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            self._groups[group_id].unbury()

    def stored(self, purpose: DeleteGroupRecords, error_code: ErrorCode, step: Step) -> None:
        """Handle the outcome of writing the tombstones: in the log, or known not to be there."""
        response = purpose.response
        if error_code is not ErrorCode.NONE:
            self._restore(purpose.group_ids)
            response = None if response is None else failed_deletion(response, group_error(error_code))
        if purpose.request_id is not None and response is not None:
            step.reply(purpose.request_id, response)

    # ---- what waits

    def waiting(self) -> list[Request]:
        """Return the requests whose deletions are not finished. Those of which only the last part is left wait for the
        log instead.
        """
        return [each.event for each in self._in_pieces.values() if each.event is not None]

    def expected_deadlines(self, group: Group) -> set[Key]:
        """The deadline of the next tombstones, unless others are being written."""
        deletion = self._in_pieces.get(group.group_id)
        if deletion is None or any(each.records_in_flight for each in deletion.doomed):
            return set()
        return {deletion.key}
