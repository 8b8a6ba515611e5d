"""Changes of share groups, one after the other (`change_queue`), and what share coordinators are asked (KIP-932).

Besides the log there are the share coordinators. What heartbeats have initialized is asked for beside everything else,
and how it went comes into the line like a session that ran out. What an administrator asks (`operations`) has the
group for itself until it is done: it begins when no question is under way, and the line waits for it.

A share group is one from its first record to its deletion: it passes to no other protocol, nor another group to this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import attrgetter

from kraftpy.groups.appends import Answers, StoreShareGroup
from kraftpy.groups.assignment import Assignment, TopicIdPartition
from kraftpy.groups.change_queue import Reconsider, Turns
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import ChangeState, Deletion, GroupResponse, Initialization, Request, StateChanged
from kraftpy.groups.group import Group, State
from kraftpy.groups.member_timers import MemberClocks
from kraftpy.groups.routing import refuse
from kraftpy.groups.share import partitions as share_partitions
from kraftpy.groups.share.group import ShareDraft, ShareGroup
from kraftpy.groups.share.operations import Alteration, OffsetDeletion, Operation, StateDeletion
from kraftpy.groups.share.protocol import ShareProtocol, share_heartbeat_error
from kraftpy.groups.step import Turn
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.types import TopicId

SHARE_SESSION = "share-session"
STATE_CHANGED = "share-state-changed"
TOPICS_GONE = "share-topics-gone"


class _Asked:
    """What heartbeats of a group had the share coordinators asked for; `failed` once they have been."""

    def __init__(self, group_id: str, partitions: Assignment) -> None:
        self.group_id = group_id
        self.partitions = partitions
        self.failed: Mapping[TopicIdPartition, ErrorCode] = {}


class ShareTurns(Turns[ShareDraft, StoreShareGroup]):
    """The share groups of one partition of `__consumer_offsets`."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        deadlines: Deadlines,
        topics: Topics,
        reconsider: Reconsider,
    ) -> None:
        """`reconsider` handles a request that is none of share groups alone, whose turn has come."""
        clocks = MemberClocks(
            deadlines,
            session=SHARE_SESSION,
            of=attrgetter("share"),
            session_ms=lambda group, _: settings(group.group_id).share_session_timeout_ms,
        )
        super().__init__(clocks, reconsider)
        self._topics = topics
        self._next_token = 1
        self._asked: dict[int, _Asked | Operation] = {}  # under way to the share coordinators, by token
        self._answered: dict[int, _Asked] = {}  # waits in the line of its group
        self._deferred: dict[str, list[Request]] = {}  # of administrators, until nothing of the group is under way
        self._gone: dict[str, set[TopicId]] = {}
        self._undeleted: dict[int, dict[str, ErrorCode]] = {}  # by request, groups that could not be deleted
        self.protocol = ShareProtocol(config, settings, topics)

    # ---- what comes in

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of deadlines and of events that it submits itself."""
        return (*super().kinds, STATE_CHANGED, TOPICS_GONE)

    def of(self, group: Group) -> ShareGroup | None:
        """The group as a share group."""
        return group.share

    def topics_deleted(self, groups: Mapping[str, Group], topic_ids: frozenset[TopicId], turn: Turn) -> None:
        """The share coordinators forget these topics by themselves, and so do the groups."""
        for group_id, group in sorted(groups.items()):
            if group.share is None or group.state is State.DEAD:
                continue
            if topic_ids.isdisjoint(share_partitions.topic_ids(group.share.partitions)):
                continue
            self._gone.setdefault(group_id, set()).update(topic_ids)
            self.submit(group, Key(group_id, TOPICS_GONE), turn)

    def delete_state(self, group: Group, event: Request, turn: Turn) -> bool:
        """Whether, before the empty group is deleted, its state is: then `event` is considered again afterwards."""
        share = group.share
        if share is None or share.partitions.is_nothing or group.group_id in self._undeleted.get(event.request_id, {}):
            return False
        self._begin(group, StateDeletion(group.group_id, event), turn)
        return True

    def undeleted(self, request_id: int) -> dict[str, ErrorCode]:
        """The groups this request cannot delete, since their state could not be. It is told once."""
        return self._undeleted.pop(request_id, {})

    def is_deferred(self, group: Group, event: Request) -> bool:
        """Whether what an administrator asks has to wait: it does, until nothing of the group is under way."""
        if group.share is None or not self._is_asking(group.group_id):
            return False
        self._deferred.setdefault(group.group_id, []).append(event)
        return True

    # ---- what is decided

    def _draft(self, group: Group) -> ShareDraft:
        return ShareDraft(group.share or ShareGroup(group_id=group.group_id))

    def _answer(self, group: Group, draft: ShareDraft, event: Request, turn: Turn) -> GroupResponse | None:
        message = event.message
        if not isinstance(message, ShareGroupHeartbeatRequest):
            return None
        if group.state is State.DEAD:
            return share_heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if _is_of_another_type(group):
            return share_heartbeat_error(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id} is not a share group")
        return self.protocol.heartbeat(draft, event, message, turn.timestamp)

    def _is_due(self, group: Group, draft: ShareDraft, key: Key, turn: Turn) -> None:
        if key.kind == STATE_CHANGED:
            asked = self._answered.pop(int(key.member_id))
            failed = frozenset(each for each in asked.partitions if each in asked.failed)
            for each in sorted(failed)[:1]:
                error = asked.failed[each].name
                turn.note(group, f"{len(failed)} partitions could not be initialized, the first because of {error}")
            done = asked.partitions - failed
            draft.put_partitions(share_partitions.asked(draft.group.partitions, done, failed))
        elif key.kind == TOPICS_GONE:
            gone = self._gone.pop(group.group_id, ())
            draft.put_partitions(share_partitions.deleted(draft.group.partitions, gone))
        elif (why := self._clocks.why_removed(draft.group, key)) is not None:
            turn.note(group, f"member {key.member_id} {why}")
            self.protocol.remove(draft, key.member_id)

    def _purpose(self, group: Group, draft: ShareDraft, answers: Answers) -> StoreShareGroup:
        return StoreShareGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=answers,
            initialize=draft.initialize,
            state_epoch=draft.group.epoch,
        )

    # ---- what an administrator asks

    def _consider(self, group: Group, event: Request, turn: Turn) -> None:
        message = event.message
        if not isinstance(message, AlterShareGroupOffsetsRequest | DeleteShareGroupOffsetsRequest):
            self._reconsider(event, turn)
            return
        error = self._check(group, event)
        if error is not ErrorCode.NONE:
            turn.reply(event.request_id, refuse(message, event.api_version, error))
        elif isinstance(message, AlterShareGroupOffsetsRequest):
            if not self.is_deferred(group, event):
                self._begin(group, Alteration(event, message), turn)
        elif not self.is_deferred(group, event):
            self._begin(group, OffsetDeletion(event, message), turn)

    def _check(self, group: Group, event: Request) -> ErrorCode:
        if group.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if _is_of_another_type(group):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.share is None and isinstance(event.message, DeleteShareGroupOffsetsRequest):
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def _begin(self, group: Group, operation: Operation, turn: Turn) -> None:
        """The group belongs to the operation until `_finish`."""
        draft = self._draft(group)
        try:
            change = operation.begin(draft, self._topics, turn.timestamp)
        except Exception as error:
            self._abandon(group, operation, error, turn)
            return
        group.is_changing = True
        if draft.records:
            turn.append(draft.records, StoreShareGroup(group_id=group.group_id, operation=operation, change=change))
        else:
            self._go_on(group, operation, change, turn)

    def _abandon(self, group: Group, operation: Operation, error: Exception, turn: Turn) -> None:
        """An unexpected error ends the operation: it costs its request, and the group goes on."""
        group.is_changing = False
        event = operation.event
        self._undeleted.pop(event.request_id, None)
        turn.survived(type(event.message).__name__, group.group_id, error)
        turn.reply(event.request_id, refuse(event.message, event.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
        self._work(group, turn)

    def _go_on(self, group: Group, operation: Operation, change: Initialization | Deletion | None, turn: Turn) -> None:
        """What is about to happen is stored."""
        if change is None:
            self._finish(group, operation, turn)
        elif isinstance(change, Deletion) and not change.partitions:
            self._end(group, operation, {}, turn)
        else:
            self._ask(operation, change, turn)

    def _end(
        self, group: Group, operation: Operation, failed: Mapping[TopicIdPartition, ErrorCode], turn: Turn
    ) -> None:
        draft = self._draft(group)
        try:
            operation.end(draft, failed)
        except Exception as error:
            self._abandon(group, operation, error, turn)
            return
        if draft.records:
            turn.append(draft.records, StoreShareGroup(group_id=group.group_id, operation=operation))
        else:
            self._finish(group, operation, turn)

    def _finish(self, group: Group, operation: Operation, turn: Turn) -> None:
        """It is done: answered, or what it was part of goes on, before anybody else's turn."""
        group.is_changing = False
        event, response = operation.event, operation.response
        if response is not None:
            turn.reply(event.request_id, response)
        else:
            assert isinstance(operation, StateDeletion)
            if operation.error_code is not ErrorCode.NONE:
                self._undeleted.setdefault(event.request_id, {})[group.group_id] = operation.error_code
            group.waiting.appendleft(event)
        self._work(group, turn)

    # ---- what is stored

    def stored(self, group: Group, purpose: StoreShareGroup, error_code: ErrorCode, turn: Turn) -> None:
        """The records are in the log and have been replayed, or it is known that they are not there."""
        operation = purpose.operation
        if operation is None:
            super().stored(group, purpose, error_code, turn)
        elif error_code is ErrorCode.NONE:
            self._go_on(group, operation, purpose.change, turn)
        else:
            group.waiting.appendleft(operation.event)  # the first of those who are told
            super().stored(group, purpose, error_code, turn)

    def _is_answered(self, group: Group, purpose: StoreShareGroup, turn: Turn) -> None:
        if purpose.initialize:
            offsets = dict.fromkeys(sorted(purpose.initialize), -1)
            change = Initialization(state_epoch=purpose.state_epoch, start_offsets=offsets)
            self._ask(_Asked(group.group_id, purpose.initialize), change, turn)

    def _give_up(self, group: Group, waited: deque[Request | Key], turn: Turn) -> None:
        for item in waited:
            if isinstance(item, Request):
                self._undeleted.pop(item.request_id, None)
            elif item.kind == STATE_CHANGED:  # asked for again after a while
                self._answered.pop(int(item.member_id), None)
        if group.share is not None:
            group.share.topics_version = NEVER

    # ---- the share coordinators

    def _ask(self, what: _Asked | Operation, change: Initialization | Deletion, turn: Turn) -> None:
        token = self._next_token
        self._next_token += 1
        self._asked[token] = what
        turn.effects.append(ChangeState(group_id=what.group_id, token=token, change=change))

    def is_asking(self, group: Group) -> bool:
        """Whether share coordinators are asked for something of the group."""
        return self._is_asking(group.group_id)

    def _is_asking(self, group_id: str) -> bool:
        return any(what.group_id == group_id for what in self._asked.values())

    def state_changed(self, event: StateChanged, groups: Mapping[str, Group], turn: Turn) -> None:
        """The share coordinators have been asked."""
        what = self._asked.pop(event.token)
        group = groups.get(what.group_id)
        if isinstance(what, Operation):
            assert group is not None, "it was held for the operation"
            self._end(group, what, event.failed, turn)
            return
        if group is not None and group.share is not None:
            what.failed = event.failed
            self._answered[event.token] = what
            self.submit(group, Key(what.group_id, STATE_CHANGED, str(event.token)), turn)
        if not self._is_asking(what.group_id):
            for deferred in self._deferred.pop(what.group_id, []):
                self._reconsider(deferred, turn)

    def waiting(self) -> list[Request]:
        """Requests that wait neither in a line nor for the log."""
        asked = [what.event for what in self._asked.values() if isinstance(what, Operation)]
        return asked + [event for events in self._deferred.values() for event in events]


def _is_of_another_type(group: Group) -> bool:
    """Whether there is a group of that id and it is no share group, be it only one that stores offsets."""
    if group.share is not None:
        return False
    return (
        group.state is not State.EMPTY
        or group.persisted is not None
        or group.consumer is not None
        or group.streams is not None
        or bool(group.offsets or group.unstable or group.pending_members or group.records_in_flight)
    )
