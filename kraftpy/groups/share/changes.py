"""Changes to share groups in the `change_queue`, and requests to the share coordinators (KIP-932).

In addition to the log, a share group depends on the share coordinators. Partitions that heartbeats need initialized are
requested in the background, and the result enters the queue like an expired session. A request by an administrator
(`operations`) has the group exclusively until it is done: it starts when no background request is in flight, and the
queue waits for it.

A share group remains one from its first record until it is deleted: groups do not migrate to or from this kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from kraftpy.groups.apart import Deciding, Decision, Work
from kraftpy.groups.appends import Answers, StoreShareGroup
from kraftpy.groups.assignment import Assignment, TopicIdPartition
from kraftpy.groups.change_queue import ChangeQueue, Reconsider
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import ChangeState, Deletion, GroupResponse, Initialization, Request, StateChanged
from kraftpy.groups.group import Group
from kraftpy.groups.member_timers import MemberClocks
from kraftpy.groups.routing import refuse
from kraftpy.groups.share import partitions as share_partitions
from kraftpy.groups.share.group import ShareDraft, ShareGroup
from kraftpy.groups.share.operations import Alteration, OffsetDeletion, Operation, StateDeletion
from kraftpy.groups.share.protocol import ShareProtocol, share_heartbeat_error
from kraftpy.groups.step import Step
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode, shortened
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.types import TopicId

SHARE_SESSION = "share-session"
STATE_CHANGED = "share-state-changed"
TOPICS_GONE = "share-topics-gone"

T = TypeVar("T")


class _Asked:
    """Partitions requested from the share coordinators for a group's heartbeats; `failed` is set once they answer."""

    def __init__(self, group_id: str, partitions: Assignment) -> None:
        self.group_id = group_id
        self.partitions = partitions
        self.failed: Mapping[TopicIdPartition, ErrorCode] = {}


class ShareChangeQueue(ChangeQueue[ShareDraft, StoreShareGroup]):
    """The share groups in one partition of `__consumer_offsets`."""

    _draft_class = ShareDraft

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        deadlines: Deadlines,
        topics: Topics,
        reconsider: Reconsider,
    ) -> None:
        """`reconsider` handles requests at the head of a queue that do not concern share groups alone."""
        clocks = MemberClocks(
            deadlines,
            session=SHARE_SESSION,
            of=self.of,
            session_ms=lambda group, _: settings(group.group_id).share_session_timeout_ms,
        )
        super().__init__(clocks, reconsider)
        self._topics = topics
        self._next_token = 1
        self._asked: dict[int, _Asked | Operation] = {}  # in flight to the share coordinators, by token
        self._answered: dict[int, _Asked] = {}  # answered, and waiting in the group's queue
        self._deferred: dict[str, list[Request]] = {}  # from administrators, until nothing of the group is in flight
        self._gone: dict[str, set[TopicId]] = {}
        self._undeleted: dict[int, dict[str, ErrorCode]] = {}  # by request, groups that could not be deleted
        self.protocol = ShareProtocol(config, settings, topics)

    # ---- what comes in

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of deadlines and of internal events that are submitted here."""
        return (*super().kinds, STATE_CHANGED, TOPICS_GONE)

    def of(self, group: Group) -> ShareGroup | None:
        """Return the group as a share group."""
        return group.kind if isinstance(group.kind, ShareGroup) else None

    def topics_deleted(self, group: Group, topic_ids: frozenset[TopicId], step: Step) -> None:
        """Make a group forget deleted topics. The share coordinators do so on their own."""
        if not isinstance(group.kind, ShareGroup) or group.is_dead:
            return
        partitions = group.kind.partitions
        if any(not topic_ids.isdisjoint(of) for of in (partitions.initializing, partitions.initialized)) or (
            not topic_ids.isdisjoint(partitions.deleting)
        ):
            self._gone.setdefault(group.group_id, set()).update(topic_ids)
            self.submit(group, Key(group.group_id, TOPICS_GONE), step)

    def delete_state(self, group: Group, event: Request, step: Step) -> bool:
        """Start deleting an empty group's state. False if it has none; otherwise `event` is reconsidered afterwards."""
        share = self.of(group)
        if share is None or share.partitions.is_nothing or group.group_id in self._undeleted.get(event.request_id, {}):
            return False
        self._begin(group, StateDeletion(group.group_id, event), step)
        return True

    def undeleted(self, request_id: int) -> dict[str, ErrorCode]:
        """Take the groups that this request cannot delete because their state could not be deleted."""
        return self._undeleted.pop(request_id, {})

    def defer(self, group: Group, event: Request) -> bool:
        """Defer an administrator's request while something of the group is in flight. True if deferred."""
        if not (isinstance(group.kind, ShareGroup) and self._is_asking(group.group_id)):
            return False
        self._deferred.setdefault(group.group_id, []).append(event)
        return True

    # ---- what is decided

    def _draft(self, group: Group) -> ShareDraft:
        return ShareDraft(self.of(group) or ShareGroup(group_id=group.group_id))

    def _answer(self, group: Group, draft: ShareDraft, event: Request, step: Step) -> Deciding[GroupResponse | None]:
        message = event.message
        if not isinstance(message, ShareGroupHeartbeatRequest):
            return None
        if group.is_dead:
            return share_heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if _is_of_another_type(group):
            return share_heartbeat_error(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a share group.")
        return (yield from self.protocol.heartbeat(draft, event, message, step.timestamp))

    def _on_due(self, group: Group, draft: ShareDraft, key: Key, step: Step) -> Deciding[None]:
        if key.kind == STATE_CHANGED:
            asked = self._answered.pop(int(key.member_id))
            failed = asked.partitions & frozenset(asked.failed)
            if failed:
                error = asked.failed[min(failed)].name
                step.note(group, f"{len(failed)} partitions could not be initialized, the first because of {error}")
            done = asked.partitions - failed

            def record() -> None:
                draft.put_partitions(share_partitions.asked(draft.group.partitions, done, failed))

            yield Work(len(asked.partitions) + draft.group.partitions.size, record)
        elif key.kind == TOPICS_GONE:
            gone = self._gone.pop(group.group_id, ())

            def forget() -> None:
                draft.put_partitions(share_partitions.deleted(draft.group.partitions, gone))

            yield Work(draft.group.partitions.size, forget)
        elif (why := self._clocks.why_removed(draft.group, key)) is not None:
            step.note(group, f"member {key.member_id} {why}")
            yield from self.protocol.remove(draft, key.member_id)

    def _purpose(self, group: Group, draft: ShareDraft, answers: Answers) -> StoreShareGroup:
        return StoreShareGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=answers,
            initialize=draft.initialize,
            state_epoch=draft.group.epoch,
        )

    # ---- what an administrator asks

    def _consider(self, group: Group, event: Request, step: Step) -> None:
        message = event.message
        if not isinstance(message, AlterShareGroupOffsetsRequest | DeleteShareGroupOffsetsRequest):
            self._reconsider(event, step)
            return
        error, why = self._check(group, event)
        if error is not ErrorCode.NONE:
            step.reply(event.request_id, refuse(message, event.api_version, error, why))
        elif isinstance(message, AlterShareGroupOffsetsRequest):
            if not self.defer(group, event):
                self._begin(group, Alteration(event, message), step)
        elif not self.defer(group, event):
            self._begin(group, OffsetDeletion(event, message), step)

    def _check(self, group: Group, event: Request) -> tuple[ErrorCode, str | None]:
        if group.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        if _is_of_another_type(group):
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {shortened(group.group_id)} is not a share group."
        if not isinstance(group.kind, ShareGroup) and isinstance(event.message, DeleteShareGroupOffsetsRequest):
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {shortened(group.group_id)} not found."
        return (ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP), None

    def _begin(self, group: Group, operation: Operation, step: Step) -> None:
        """Give the group to the operation until `_finish`."""
        draft = self._draft(group)

        def begin() -> Initialization | Deletion | None:
            return operation.begin(draft, self._topics, step.timestamp)

        def begun(change: Initialization | Deletion | None, now: Step) -> None:
            if draft.records:
                purpose = StoreShareGroup(group_id=group.group_id, operation=operation, change=change)
                self._store_operation(group, draft, purpose, now)
            else:
                self._proceed(group, operation, change, now)

        self._operate(group, operation, draft, begin, begun, step)

    def _operate(
        self,
        group: Group,
        operation: Operation,
        draft: ShareDraft,
        function: Callable[[], T],
        then: Callable[[T, Step], None],
        step: Step,
    ) -> None:
        """Do a part of an operation, apart if it is large, and continue with its result."""
        group.is_changing = True

        def steps() -> Deciding[T | Exception]:
            try:
                result: T = yield Work(operation.size + draft.group.partitions.size, function)
            except Exception as error:
                return error
            return result

        def ended(result: T | Exception, now: Step) -> None:
            group.is_changing = True  # as before it paused
            if isinstance(result, Exception):
                self._abandon(group, operation, result, now)
            else:
                then(result, now)

        answers = [(operation.event, None)]
        self._start(group, Decision(token=0, draft=draft, answers=answers, steps=steps(), step=step, then=ended))

    def _store_operation(self, group: Group, draft: ShareDraft, purpose: StoreShareGroup, step: Step) -> None:
        group.stored = draft
        step.append(draft.records, purpose)

    def _abandon(self, group: Group, operation: Operation, error: Exception, step: Step) -> None:
        """End an operation after an unexpected error: its request fails, and the group continues."""
        group.is_changing = False
        event = operation.event
        self._undeleted.pop(event.request_id, None)
        step.survived(type(event.message).__name__, group.group_id, error)
        step.reply(event.request_id, refuse(event.message, event.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
        self._work(group, step)

    def _proceed(
        self, group: Group, operation: Operation, change: Initialization | Deletion | None, step: Step
    ) -> None:
        """Ask the share coordinators, now that the operation's intent is stored."""
        if change is None:
            self._finish(group, operation, step)
        elif isinstance(change, Deletion) and not change.partitions:
            self._end(group, operation, {}, step)
        else:
            self._ask(operation, change, step)

    def _end(
        self, group: Group, operation: Operation, failed: Mapping[TopicIdPartition, ErrorCode], step: Step
    ) -> None:
        draft = self._draft(group)

        def end() -> None:
            operation.end(draft, failed)

        def ended(_: None, now: Step) -> None:
            if draft.records:
                purpose = StoreShareGroup(group_id=group.group_id, operation=operation)
                self._store_operation(group, draft, purpose, now)
            else:
                self._finish(group, operation, now)

        self._operate(group, operation, draft, end, ended, step)

    def _finish(self, group: Group, operation: Operation, step: Step) -> None:
        """Finish the operation: answer it, or continue the request it was part of, ahead of everything in the queue."""
        group.is_changing = False
        event, response = operation.event, operation.response
        if response is not None:
            step.reply(event.request_id, response)
        else:
            assert isinstance(operation, StateDeletion)
            if operation.error_code is not ErrorCode.NONE:
                self._undeleted.setdefault(event.request_id, {})[group.group_id] = operation.error_code
            group.waiting.appendleft(event)
        self._work(group, step)

    # ---- what is stored

    def stored(self, group: Group, purpose: StoreShareGroup, error_code: ErrorCode, step: Step) -> None:
        """Handle the outcome of an append: the records are in the log and replayed, or known not to be in the log."""
        operation = purpose.operation
        if operation is None:
            super().stored(group, purpose, error_code, step)
        elif error_code is ErrorCode.NONE:
            group.stored = None
            self._proceed(group, operation, purpose.change, step)
        else:
            group.waiting.appendleft(operation.event)  # it is refused first
            super().stored(group, purpose, error_code, step)

    def _on_answered(self, group: Group, purpose: StoreShareGroup, step: Step) -> None:
        if purpose.initialize:
            offsets = dict.fromkeys(sorted(purpose.initialize), -1)
            change = Initialization(state_epoch=purpose.state_epoch, start_offsets=offsets)
            self._ask(_Asked(group.group_id, purpose.initialize), change, step)

    def _give_up(self, group: Group, waited: deque[Request | Key], step: Step) -> None:
        for item in waited:
            if isinstance(item, Request):
                self._undeleted.pop(item.request_id, None)
            elif item.kind == STATE_CHANGED:  # will be requested again after a while
                self._answered.pop(int(item.member_id), None)
        if isinstance(group.kind, ShareGroup):
            group.kind.topics_version = NEVER

    # ---- the share coordinators

    def _ask(self, what: _Asked | Operation, change: Initialization | Deletion, step: Step) -> None:
        token = self._next_token
        self._next_token += 1
        self._asked[token] = what
        step.effects.append(ChangeState(group_id=what.group_id, token=token, change=change))

    def is_asking(self, group: Group) -> bool:
        """Return True if the share coordinators are being asked about the group."""
        return self._is_asking(group.group_id)

    def _is_asking(self, group_id: str) -> bool:
        return any(what.group_id == group_id for what in self._asked.values())

    def state_changed(self, event: StateChanged, groups: Mapping[str, Group], step: Step) -> None:
        """Handle the answer of the share coordinators."""
        what = self._asked.pop(event.token)
        group = groups.get(what.group_id)
        if isinstance(what, Operation):
            assert group is not None, "it was held for the operation"
            self._end(group, what, event.failed, step)
            return
        if group is not None and isinstance(group.kind, ShareGroup):
            what.failed = event.failed
            self._answered[event.token] = what
            self.submit(group, Key(what.group_id, STATE_CHANGED, str(event.token)), step)
        if not self._is_asking(what.group_id):
            for deferred in self._deferred.pop(what.group_id, []):
                self._reconsider(deferred, step)

    def waiting(self) -> list[Request]:
        """The requests that wait neither in a queue nor for the log."""
        asked = [what.event for what in self._asked.values() if isinstance(what, Operation)]
        return asked + [event for events in self._deferred.values() for event in events]


def _is_of_another_type(group: Group) -> bool:
    """Return True if a group with this id exists and is not a share group, even if it only stores offsets."""
    return not isinstance(group.kind, ShareGroup) and not group.holds_nothing
