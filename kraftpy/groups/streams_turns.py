"""Streams groups, one change after the other: what waits, what is stored, what is answered then (KIP-1071).

The line is that of consumer groups (`consumer_turns.py`): while records of a group are on their way to the log,
whatever else is asked of it waits in `Group.waiting`; then all that waits is decided on one draft, stored as one batch
and answered together.

A group that only has offsets, or an empty classic group, becomes a streams group when somebody joins it so; a streams
group stays one until it is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kraftpy.groups.appends import StoreStreamsGroup, group_error
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer_group import Topics
from kraftpy.groups.deadlines import Key
from kraftpy.groups.events import GroupResponse, MakeTopics, Request
from kraftpy.groups.group import Group, State
from kraftpy.groups.rebalance import Rebalance
from kraftpy.groups.records import group_record
from kraftpy.groups.routing import refuse
from kraftpy.groups.streams_group import NEVER, StreamsDraft, StreamsGroup
from kraftpy.groups.streams_protocol import StreamsProtocol, streams_error
from kraftpy.groups.streams_records import StreamsState
from kraftpy.groups.turn import Turn
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.types import Millis

STREAMS_SESSION = "streams-session"
STREAMS_REVOCATION = "streams-revocation"
STREAMS_DELAY = "streams-delay"
STREAMS_KINDS = (STREAMS_SESSION, STREAMS_REVOCATION, STREAMS_DELAY)
MOST_RECORDS = 1_000
_AGAIN_MS = 1_000

Answers = list[tuple[Request, GroupResponse]]


class StreamsTurns:
    """The streams groups of one partition."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        rebalance: Rebalance,
        topics: Topics,
        reconsider: Callable[[Request, Turn], None],
    ) -> None:
        """`reconsider` handles an administrator's request whose turn has come."""
        self._settings = settings
        self._rebalance = rebalance
        self._deadlines = rebalance.deadlines
        self._reconsider = reconsider
        self.protocol = StreamsProtocol(config, settings, topics)

    # ---- what comes in

    def submit(self, group: Group, item: Request | Key, turn: Turn) -> None:
        """Decide it now, or when all that came before it is stored."""
        if isinstance(item, Request) and isinstance(item.message, StreamsGroupHeartbeatRequest):
            self._touch(group, item.message.member_id, turn)
        group.waiting.append(item)
        if not group.is_changing:
            self._work(group, turn)

    def restore(self, group: Group, turn: Turn) -> None:
        """The group was loaded: its members' clocks begin now."""
        assert group.streams is not None
        members = sorted(group.streams.members)
        for member_id in members:
            self._touch(group, member_id, turn)
        self._arm_revocations(group, members, turn)

    # ---- the line

    def _work(self, group: Group, turn: Turn) -> None:
        while group.waiting and not group.is_changing:
            draft = StreamsDraft(group.streams or StreamsGroup(group_id=group.group_id))
            answers: Answers = []
            while group.waiting and len(draft.records) < MOST_RECORDS:
                item = group.waiting[0]
                if isinstance(item, Key):
                    group.waiting.popleft()
                    self._is_due(group, draft, item, turn)
                elif isinstance(item.message, StreamsGroupHeartbeatRequest):
                    group.waiting.popleft()
                    answers.append((item, self._heartbeat(group, draft, item, item.message)))
                else:
                    break
            if draft.records:
                self._store(group, draft, answers, turn)
                return
            self._reply(group, answers, turn)
            if group.waiting and not answers:
                event = group.waiting.popleft()
                assert isinstance(event, Request)
                self._reconsider(event, turn)

    def _heartbeat(
        self, group: Group, draft: StreamsDraft, event: Request, message: StreamsGroupHeartbeatRequest
    ) -> GroupResponse:
        if group.state is State.DEAD:
            return streams_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group.state is not State.EMPTY or group.consumer is not None or group.share is not None:
            return streams_error(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id} is not a streams group")
        return self.protocol.heartbeat(draft, event, message)

    def _is_due(self, group: Group, draft: StreamsDraft, key: Key, turn: Turn) -> None:
        if key.kind == STREAMS_DELAY:
            draft.group.volatile.is_delayed = False
            if draft.group.members:
                self.protocol.retarget(draft)
            return
        member_id = key.member_id
        if member_id not in draft.group.members or key in self._deadlines:  # gone, or heard of meanwhile
            return
        if key.kind == STREAMS_REVOCATION:
            if draft.group.current(member_id).state is not StreamsState.UNREVOKED_TASKS:
                return
            why = "did not give up its tasks in time"
        else:
            why = "was silent for too long"
        turn.note(group, f"member {member_id} {why}")
        self.protocol.remove(draft, member_id)

    def _store(self, group: Group, draft: StreamsDraft, answers: Answers, turn: Turn) -> None:
        records = list(draft.records)
        if group.streams is None and (group.persisted is not None or group.records_in_flight):
            records.insert(0, group_record(group.group_id, None))
        group.is_changing = True
        purpose = StoreStreamsGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=tuple(answers),
            volatile=draft.group.volatile,
        )
        turn.append(records, purpose)

    # ---- what is stored

    def stored(self, group: Group, purpose: StoreStreamsGroup, error_code: ErrorCode, turn: Turn) -> None:
        """The records are in the log and have been replayed, or it is known that they are not there."""
        group.is_changing = False
        if error_code is ErrorCode.NONE:
            if group.streams is not None:
                group.streams.volatile = purpose.volatile
                self._rebalance.dissolve(group, turn)
            for member_id in purpose.changed:
                self._reset_clocks(group, member_id, turn)
            self._arm_revocations(group, list(purpose.changed), turn)
            self._arm_delay(group, turn)
        else:
            self._give_up(group, group_error(error_code), turn)
        refused: Answers = []
        for request, response in purpose.answers:
            failed = error_code is not ErrorCode.NONE and not getattr(response, "error_code", 0)
            refusal = refuse(request.message, request.api_version, group_error(error_code)) if failed else response
            refused.append((request, refusal))
        self._reply(group, refused, turn)
        self._work(group, turn)

    def _reply(self, group: Group, answers: Answers, turn: Turn) -> None:
        for request, response in answers:
            turn.reply(request.request_id, response)
        configured = None if group.streams is None else group.streams.volatile.configured
        if answers and configured is not None and configured.missing:
            turn.effects.append(MakeTopics(group_id=group.group_id, topics=configured.missing))

    def _give_up(self, group: Group, error_code: ErrorCode, turn: Turn) -> None:
        """Nothing has changed: who waits is told, and members that were to be removed are so a little later."""
        waiting, group.waiting = group.waiting, deque()
        for item in waiting:
            if isinstance(item, Request):
                turn.reply(item.request_id, refuse(item.message, item.api_version, error_code))
        streams = group.streams
        if streams is None:
            return
        streams.volatile.topics_version = NEVER
        streams.volatile.is_delayed = False
        self._deadlines.cancel(Key(group.group_id, STREAMS_DELAY))
        for member_id, current in streams.currents.items():
            keys = [Key(group.group_id, STREAMS_SESSION, member_id)]
            if current.state is StreamsState.UNREVOKED_TASKS:
                keys.append(Key(group.group_id, STREAMS_REVOCATION, member_id))
            for key in keys:
                if key not in self._deadlines:
                    self._deadlines.set(key, Millis(turn.now + _AGAIN_MS))

    # ---- clocks

    def _touch(self, group: Group, member_id: str, turn: Turn) -> None:
        """It was heard of."""
        if group.streams is not None and member_id in group.streams.members:
            timeout_ms = self._settings(group.group_id).streams_session_timeout_ms
            self._deadlines.set(Key(group.group_id, STREAMS_SESSION, member_id), Millis(turn.now + timeout_ms))

    def _reset_clocks(self, group: Group, member_id: str, turn: Turn) -> None:
        session = Key(group.group_id, STREAMS_SESSION, member_id)
        if group.streams is None or member_id not in group.streams.members:
            self._deadlines.cancel(session)
        elif session not in self._deadlines and session not in group.waiting:
            self._touch(group, member_id, turn)

    def _arm_revocations(self, group: Group, member_ids: list[str], turn: Turn) -> None:
        """Members asked to give up tasks have their rebalance timeout for it, the others none."""
        streams = group.streams
        for member_id in member_ids:
            key = Key(group.group_id, STREAMS_REVOCATION, member_id)
            if streams is not None and streams.current(member_id).state is StreamsState.UNREVOKED_TASKS:
                timeout_ms = max(streams.members[member_id].rebalance_timeout_ms, 1)
                self._deadlines.set(key, Millis(turn.now + timeout_ms))
            else:
                self._deadlines.cancel(key)

    def _arm_delay(self, group: Group, turn: Turn) -> None:
        key = Key(group.group_id, STREAMS_DELAY)
        if group.streams is None or not group.streams.volatile.is_delayed:
            self._deadlines.cancel(key)
        elif key not in self._deadlines and key not in group.waiting:
            delay_ms = self._settings(group.group_id).streams_initial_rebalance_delay_ms
            self._deadlines.set(key, Millis(turn.now + delay_ms))

    def expected_deadlines(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so. For tests and simulations."""
        streams = group.streams
        if streams is None:
            return set()
        expected = {Key(group.group_id, STREAMS_SESSION, member_id) for member_id in streams.members}
        for member_id, current in streams.currents.items():
            if current.state is StreamsState.UNREVOKED_TASKS:
                expected.add(Key(group.group_id, STREAMS_REVOCATION, member_id))
        delay = Key(group.group_id, STREAMS_DELAY)
        if streams.volatile.is_delayed or (group.is_changing and delay in self._deadlines):
            expected.add(delay)
        if group.is_changing:  # what is due waits, or is being stored
            return {key for key in expected if key in self._deadlines}
        return expected
