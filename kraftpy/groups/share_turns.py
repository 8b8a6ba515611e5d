"""Share groups, one change after the other: what waits, what is stored, what share coordinators are asked (KIP-932).

As in `consumer_turns.py` a decision is made on what the log says: while records of a group are on the way there,
whatever else is asked of it waits in its line (`Group.waiting`), and is then decided on one draft.

Besides the log there are the share coordinators. What heartbeats have initialized is asked for beside everything else,
and how it went comes into the line like a session that ran out. What an administrator asks (`share_operations`) has the
group for itself until it is done: it begins when no question is under way, and the line waits for it.

A share group is one from its first record to its deletion: it passes to no other protocol, nor another group to this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from kraftpy.groups import share_partitions
from kraftpy.groups.appends import StoreShareGroup, group_error
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer_group import NEVER, Topics
from kraftpy.groups.consumer_records import Assignment, TopicIdPartition
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import ChangeState, Deletion, Initialization, Request, StateChanged
from kraftpy.groups.group import Group, State
from kraftpy.groups.routing import refuse
from kraftpy.groups.share_group import ShareDraft, ShareGroup
from kraftpy.groups.share_operations import Alteration, OffsetDeletion, Operation, StateDeletion
from kraftpy.groups.share_protocol import ShareProtocol, share_heartbeat_error
from kraftpy.groups.turn import Turn
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kraftpy.types import Millis, TopicId

SHARE_SESSION = "share-session"
STATE_CHANGED = "share-state-changed"
TOPICS_GONE = "share-topics-gone"
MOST_RECORDS = 1_000
"""When a draft has so many, what waits goes into the next one."""
_AGAIN_MS = 1_000

Answers = list[tuple[Request, ShareGroupHeartbeatResponse]]


class _Asked:
    """What heartbeats of a group had the share coordinators asked for; `failed` once they have been."""

    def __init__(self, group_id: str, partitions: Assignment) -> None:
        self.group_id = group_id
        self.partitions = partitions
        self.failed: Mapping[TopicIdPartition, ErrorCode] = {}


class ShareTurns:
    """The share groups of one partition of `__consumer_offsets`."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        deadlines: Deadlines,
        topics: Topics,
        reconsider: Callable[[Request, Turn], None],
    ) -> None:
        """`reconsider` handles a request that is none of share groups alone, whose turn has come."""
        self._settings = settings
        self._deadlines = deadlines
        self._topics = topics
        self._reconsider = reconsider
        self._next_token = 1
        self._asked: dict[int, _Asked | Operation] = {}  # under way to the share coordinators, by token
        self._answered: dict[int, _Asked] = {}  # waits in the line of its group
        self._deferred: dict[str, list[Request]] = {}  # of administrators, until nothing of the group is under way
        self._gone: dict[str, set[TopicId]] = {}
        self._undeleted: dict[int, dict[str, ErrorCode]] = {}  # by request, groups that could not be deleted
        self.protocol = ShareProtocol(config, settings, topics)

    # ---- what comes in

    def submit(self, group: Group, item: Request | Key, turn: Turn) -> None:
        """Decide it now, or when all that came before it is stored."""
        if isinstance(item, Request) and isinstance(item.message, ShareGroupHeartbeatRequest):
            self._touch(group, item.message.member_id, turn)
        group.waiting.append(item)
        if not group.is_changing:
            self._work(group, turn)

    def restore(self, group: Group, turn: Turn) -> None:
        """The group was loaded: its members' clocks begin now."""
        assert group.share is not None
        for member_id in sorted(group.share.members):
            self._touch(group, member_id, turn)

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

    # ---- the line

    def _work(self, group: Group, turn: Turn) -> None:
        """Decide what waits, until records have to be stored first or nothing waits any more."""
        while group.waiting and not group.is_changing:
            draft = ShareDraft(group.share or ShareGroup(group_id=group.group_id))
            answers: Answers = []
            while group.waiting and len(draft.records) < MOST_RECORDS:
                item = group.waiting[0]
                if isinstance(item, Key):
                    group.waiting.popleft()
                    self._is_due(group, draft, item, turn)
                elif isinstance(item.message, ShareGroupHeartbeatRequest):
                    group.waiting.popleft()
                    answers.append((item, self._heartbeat(group, draft, item, item.message, turn)))
                else:
                    break
            if draft.records:
                self._store(group, draft, answers, turn)
                return
            for request, response in answers:
                turn.reply(request.request_id, response)
            if group.waiting and isinstance(group.waiting[0], Request) and not answers:
                event = group.waiting.popleft()
                assert isinstance(event, Request)
                self._consider(group, event, turn)

    def _heartbeat(
        self, group: Group, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest, turn: Turn
    ) -> ShareGroupHeartbeatResponse:
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
        elif key.member_id in draft.group.members and key not in self._deadlines:  # neither gone nor heard of meanwhile
            turn.note(group, f"member {key.member_id} was silent for too long")
            self.protocol.remove(draft, key.member_id)

    def _store(self, group: Group, draft: ShareDraft, answers: Answers, turn: Turn) -> None:
        group.is_changing = True
        purpose = StoreShareGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=tuple(answers),
            initialize=draft.initialize,
            state_epoch=draft.group.epoch,
        )
        turn.append(draft.records, purpose)

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
        draft = ShareDraft(group.share or ShareGroup(group_id=group.group_id))
        change = operation.begin(draft, self._topics, turn.timestamp)
        group.is_changing = True
        if draft.records:
            turn.append(draft.records, StoreShareGroup(group_id=group.group_id, operation=operation, change=change))
        else:
            self._go_on(group, operation, change, turn)

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
        draft = ShareDraft(group.share or ShareGroup(group_id=group.group_id))
        operation.end(draft, failed)
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
        if error_code is not ErrorCode.NONE:
            self._failed(group, purpose, group_error(error_code), turn)
        elif operation is None:
            group.is_changing = False
            for member_id in purpose.changed:
                self._reset_clock(group, member_id, turn)
            for request, response in purpose.answers:
                turn.reply(request.request_id, response)
            if purpose.initialize:
                offsets = dict.fromkeys(sorted(purpose.initialize), -1)
                change = Initialization(state_epoch=purpose.state_epoch, start_offsets=offsets)
                self._ask(_Asked(group.group_id, purpose.initialize), change, turn)
            self._work(group, turn)
        else:
            self._go_on(group, operation, purpose.change, turn)

    def _failed(self, group: Group, purpose: StoreShareGroup, error_code: ErrorCode, turn: Turn) -> None:
        """Nothing has changed: who waits is told, and members that were to be removed are so a little later."""
        group.is_changing = False
        for request, response in purpose.answers:
            turn.reply(request.request_id, response if response.error_code else share_heartbeat_error(error_code))
        refused = [item for item in group.waiting if isinstance(item, Request)]
        if purpose.operation is not None:
            refused.insert(0, purpose.operation.event)
        for item in group.waiting:
            if isinstance(item, Key) and item.kind == STATE_CHANGED:  # asked for again after a while
                self._answered.pop(int(item.member_id))
        group.waiting = deque()
        for item in refused:
            self._undeleted.pop(item.request_id, None)
            turn.reply(item.request_id, refuse(item.message, item.api_version, error_code))
        if group.share is not None:
            group.share.topics_version = NEVER
            for member_id in sorted(group.share.members):
                key = Key(group.group_id, SHARE_SESSION, member_id)
                if key not in self._deadlines:
                    self._deadlines.set(key, Millis(turn.now + _AGAIN_MS))

    # ---- the share coordinators

    def _ask(self, what: _Asked | Operation, change: Initialization | Deletion, turn: Turn) -> None:
        token = self._next_token
        self._next_token += 1
        self._asked[token] = what
        turn.effects.append(ChangeState(group_id=what.group_id, token=token, change=change))

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

    # ---- clocks

    def _touch(self, group: Group, member_id: str, turn: Turn) -> None:
        """It was heard of."""
        if group.share is not None and member_id in group.share.members:
            timeout_ms = self._settings(group.group_id).share_session_timeout_ms
            self._deadlines.set(Key(group.group_id, SHARE_SESSION, member_id), Millis(turn.now + timeout_ms))

    def _reset_clock(self, group: Group, member_id: str, turn: Turn) -> None:
        session = Key(group.group_id, SHARE_SESSION, member_id)
        if group.share is None or member_id not in group.share.members:
            self._deadlines.cancel(session)
        elif session not in self._deadlines and session not in group.waiting:
            self._touch(group, member_id, turn)

    def waiting(self) -> list[Request]:
        """Requests that wait neither in a line nor for the log."""
        asked = [what.event for what in self._asked.values() if isinstance(what, Operation)]
        return asked + [event for events in self._deferred.values() for event in events]

    # ---- for tests and simulations

    def expected_deadlines(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so."""
        if group.share is None:
            return set()
        expected = {Key(group.group_id, SHARE_SESSION, member_id) for member_id in group.share.members}
        if group.is_changing:  # what is due waits, or is being stored
            return {key for key in expected if key in self._deadlines}
        return expected


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
