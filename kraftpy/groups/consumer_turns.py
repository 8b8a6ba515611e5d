"""Groups of the consumer protocol, one change after the other: what waits, what is stored, what is answered then.

A decision is made on what the log says. So while records of a group are on the way there, whatever else is asked of
that group waits in its line (`Group.waiting`); when they are durable, all that waits is decided on one draft, stored as
one batch and answered together. Heartbeats that change nothing are answered at once.

A group passes from one protocol to the other, with members (`migration.py`) or while it has none: its offsets stay,
what the other protocol stored of it is deleted in the same batch. Of members that speak the classic protocol nobody
waits for others, and who was told to join again has its rebalance timeout for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kraftpy.groups import migration
from kraftpy.groups.appends import StoreConsumerGroup, group_error
from kraftpy.groups.classic_members import ClassicMembers
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer_group import NEVER, ConsumerGroup, Draft, Topics
from kraftpy.groups.consumer_protocol import JOINING, ConsumerProtocol, heartbeat_error
from kraftpy.groups.consumer_records import MemberState, MemberValue
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import GroupResponse, Request
from kraftpy.groups.group import Group, State
from kraftpy.groups.rebalance import Rebalance
from kraftpy.groups.records import group_record
from kraftpy.groups.routing import refuse
from kraftpy.groups.turn import Turn
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest
from kraftpy.types import Millis

CONSUMER_SESSION = "consumer-session"
REVOCATION = "revocation"
CLASSIC_REBALANCE = "classic-rebalance"
MOST_RECORDS = 1_000
"""When a draft has so many, what waits goes into the next one."""
_AGAIN_MS = 1_000

Answers = list[tuple[Request, GroupResponse]]


class ConsumerTurns:
    """The groups of the consumer protocol of one partition."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        rebalance: Rebalance,
        topics: Topics,
        new_id: Callable[[], str],
        reconsider: Callable[[Request, Turn], None],
    ) -> None:
        """`reconsider` handles a request of the classic protocol, or of an administrator, whose turn has come."""
        self._settings = settings
        self._config = config
        self._rebalance = rebalance
        self._deadlines: Deadlines = rebalance.deadlines
        self._reconsider = reconsider
        self.protocol = ConsumerProtocol(config, settings, topics, new_id)
        self._classic = ClassicMembers(self.protocol)

    # ---- what comes in

    def submit(self, group: Group, item: Request | Key, turn: Turn) -> None:
        """Decide it now, or when all that came before it is stored."""
        if isinstance(item, Request) and isinstance(item.message, ConsumerGroupHeartbeatRequest):
            self._touch(group, item.message.member_id, turn)
        group.waiting.append(item)
        if not group.is_changing:
            self._work(group, turn)

    def restore(self, group: Group, turn: Turn) -> None:
        """The group was loaded: its members' clocks begin now."""
        assert group.consumer is not None
        for member_id in sorted(group.consumer.members):
            self._touch(group, member_id, turn)
        self._arm_revocations(group, tuple(sorted(group.consumer.members)), turn)

    def empty_out(self, group: Group, event: Request, turn: Turn) -> None:
        """An empty group becomes one of no protocol, for `event`, which comes first afterwards."""
        assert group.consumer is not None
        draft = Draft(group.consumer)
        draft.delete_all()
        group.waiting.appendleft(event)
        self._store(group, draft, [], turn)

    # ---- the line

    def _work(self, group: Group, turn: Turn) -> None:
        """Decide what waits, until records have to be stored first or nothing waits any more."""
        while group.waiting and not group.is_changing:
            draft = Draft(group.consumer or ConsumerGroup(group_id=group.group_id))
            answers: Answers = []
            while group.waiting and len(draft.records) < MOST_RECORDS:
                item = group.waiting[0]
                if isinstance(item, Key):
                    group.waiting.popleft()
                    self._is_due(group, draft, item, turn)
                elif (answer := self._answer(group, draft, item, turn)) is not None:
                    group.waiting.popleft()
                    answers.append((item, answer))
                else:
                    break
                if draft.records and migration.may_downgrade(draft.group, self._config):
                    migration.downgrade(draft, self.protocol.topics, turn.timestamp)
                    break
            if draft.records:
                self._store(group, draft, answers, turn)
                return
            for request, response in answers:
                turn.reply(request.request_id, response)
            if group.waiting and isinstance(group.waiting[0], Request) and not answers:
                event = group.waiting.popleft()
                assert isinstance(event, Request)
                self._reconsider(event, turn)

    def _answer(self, group: Group, draft: Draft, event: Request, turn: Turn) -> GroupResponse | None:
        """What a member's request comes to; None where it is for the classic half, or an administrator's."""
        message = event.message
        if isinstance(message, ConsumerGroupHeartbeatRequest):
            return self._heartbeat(group, draft, event, message, turn)
        if not draft.group.members:
            return None
        match message:
            case JoinGroupRequest():
                joined = self._classic.join(draft, event, message, turn.timestamp)
                if not joined.error_code:
                    self._must_sync(group, joined.member_id, turn)
                    self._touch_classic(group, draft, joined.member_id, turn)
                return joined
            case SyncGroupRequest():
                synced = self._classic.sync(draft, message)
                self._heard(group, draft, message, synced.error_code, turn)
                if not synced.error_code:
                    self._deadlines.cancel(Key(group.group_id, CLASSIC_REBALANCE, message.member_id))
                return synced
            case HeartbeatRequest():
                beat = self._classic.heartbeat(draft, message, turn.timestamp)
                self._heard(group, draft, message, beat.error_code, turn)
                return beat
            case LeaveGroupRequest():
                return self._classic.leave(draft, event, message)
        return None

    def _heard(
        self, group: Group, draft: Draft, message: SyncGroupRequest | HeartbeatRequest, error_code: int, turn: Turn
    ) -> None:
        """A classic member's session begins anew; one that is told to join again has so long for it."""
        if error_code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return
        self._touch_classic(group, draft, message.member_id, turn)
        key = Key(group.group_id, CLASSIC_REBALANCE, message.member_id)
        if error_code == ErrorCode.REBALANCE_IN_PROGRESS and key not in self._deadlines:
            self._must_sync(group, message.member_id, turn)

    def _must_sync(self, group: Group, member_id: str, turn: Turn) -> None:
        """A classic member has its rebalance timeout to ask for its assignment, from when it is one."""
        member = None if group.consumer is None else group.consumer.members.get(member_id)
        if member is not None:
            deadline = Millis(turn.now + max(member.rebalance_timeout_ms, 1))
            self._deadlines.set(Key(group.group_id, CLASSIC_REBALANCE, member_id), deadline)

    def _heartbeat(
        self, group: Group, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, turn: Turn
    ) -> ConsumerGroupHeartbeatResponse:
        if group.state is State.DEAD:
            return heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group.state is not State.EMPTY and not draft.group.members:
            return self._upgrade(group, draft, event, message, turn)
        return self.protocol.heartbeat(draft, event, message, turn.timestamp)

    def _upgrade(
        self, group: Group, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, turn: Turn
    ) -> ConsumerGroupHeartbeatResponse:
        """A classic group with members becomes a consumer group, if there is nothing against whoever joins it so.

        A member of the time before it became a classic group is told that it is none, so that it joins again, and not
        GROUP_ID_NOT_FOUND as by Kafka, which clients take for final.
        """
        problem = migration.why_not_upgraded(group, self._config)
        if problem is not None:
            return heartbeat_error(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        if message.member_epoch != JOINING:  # it was removed, and the group passed back
            if message.instance_id is not None and message.instance_id in group.static_members:
                return heartbeat_error(ErrorCode.FENCED_INSTANCE_ID, f"{message.instance_id} is somebody else now")
            return heartbeat_error(ErrorCode.UNKNOWN_MEMBER_ID, f"{message.member_id} is not a member: it may join")
        upgraded = Draft(ConsumerGroup(group_id=group.group_id))
        migration.upgrade(upgraded, group, self.protocol.topics)
        answer = self.protocol.heartbeat(upgraded, event, message, turn.timestamp)
        if not answer.error_code:
            turn.note(group, f"passes to the consumer protocol with {len(group.members)} members")
            draft.become(upgraded)
        return answer

    def _is_due(self, group: Group, draft: Draft, key: Key, turn: Turn) -> None:
        member_id = key.member_id
        if member_id not in draft.group.members or key in self._deadlines:  # gone, or heard of meanwhile
            return
        if key.kind == REVOCATION:
            if draft.group.current(member_id).state is not MemberState.UNREVOKED_PARTITIONS:
                return
            why = "did not give up its partitions in time"
        elif key.kind == CLASSIC_REBALANCE:
            if draft.group.members[member_id].classic is None:
                return
            why = "did not join again in time"
        else:
            why = "was silent for too long"
        turn.note(group, f"member {member_id} {why}")
        self.protocol.remove(draft, member_id)

    def _store(self, group: Group, draft: Draft, answers: Answers, turn: Turn) -> None:
        records = list(draft.records)
        if group.consumer is None and (group.persisted is not None or group.records_in_flight):
            records.insert(0, group_record(group.group_id, None))
        group.is_changing = True
        purpose = StoreConsumerGroup(group_id=group.group_id, changed=tuple(draft.changed), answers=tuple(answers))
        turn.append(records, purpose)

    # ---- what is stored

    def stored(self, group: Group, purpose: StoreConsumerGroup, error_code: ErrorCode, turn: Turn) -> None:
        """The records are in the log and have been replayed, or it is known that they are not there."""
        group.is_changing = False
        if error_code is ErrorCode.NONE:
            self._pass_over(group, turn)
            for member_id in purpose.changed:
                self._reset_clocks(group, member_id, turn)
            self._arm_revocations(group, purpose.changed, turn)
            for _, response in purpose.answers:
                if isinstance(response, JoinGroupResponse) and not response.error_code:
                    self._must_sync(group, response.member_id, turn)
        else:
            self._give_up(group, group_error(error_code), turn)
        for request, response in purpose.answers:
            failed = error_code is not ErrorCode.NONE and not getattr(response, "error_code", 0)
            refusal = refuse(request.message, request.api_version, group_error(error_code)) if failed else None
            turn.reply(request.request_id, refusal or response)
        self._work(group, turn)

    def _pass_over(self, group: Group, turn: Turn) -> None:
        """What the log now says of the group may have made it one of the other protocol."""
        if group.consumer is not None:
            self._rebalance.dissolve(group, turn)
        elif group.persisted is not None and group.state is State.EMPTY and not group.members:
            self._rebalance.resume(group, turn, "its last member of the consumer protocol has gone")

    def _give_up(self, group: Group, error_code: ErrorCode, turn: Turn) -> None:
        """Nothing has changed: who waits is told, and members that were to be removed are so a little later."""
        waiting, group.waiting = group.waiting, deque()
        for item in waiting:
            if isinstance(item, Request):
                turn.reply(item.request_id, refuse(item.message, item.api_version, error_code))
        if group.consumer is None:
            return
        group.consumer.topics_version = NEVER
        for member_id, current in group.consumer.currents.items():
            keys = [Key(group.group_id, CONSUMER_SESSION, member_id)]
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                keys.append(Key(group.group_id, REVOCATION, member_id))
            for key in keys:
                if key not in self._deadlines:
                    self._deadlines.set(key, Millis(turn.now + _AGAIN_MS))

    # ---- clocks

    def _touch(self, group: Group, member_id: str, turn: Turn) -> None:
        """It was heard of."""
        if group.consumer is not None and member_id in group.consumer.members:
            self._begin_session(group, group.consumer.members[member_id], member_id, turn)

    def _touch_classic(self, group: Group, draft: Draft, member_id: str, turn: Turn) -> None:
        """The same, of one that may be about to become a member."""
        if group.consumer is not None and member_id in group.consumer.members:
            self._begin_session(group, draft.group.members[member_id], member_id, turn)

    def _begin_session(self, group: Group, member: MemberValue, member_id: str, turn: Turn) -> None:
        if member.classic is not None:
            timeout_ms = max(member.classic.session_timeout_ms, 1)
        else:
            timeout_ms = self._settings(group.group_id).consumer_session_timeout_ms
        self._deadlines.set(Key(group.group_id, CONSUMER_SESSION, member_id), Millis(turn.now + timeout_ms))

    def _reset_clocks(self, group: Group, member_id: str, turn: Turn) -> None:
        session = Key(group.group_id, CONSUMER_SESSION, member_id)
        if group.consumer is None or member_id not in group.consumer.members:
            self._deadlines.cancel(session)
            self._deadlines.cancel(Key(group.group_id, CLASSIC_REBALANCE, member_id))
        elif session not in self._deadlines and session not in group.waiting:
            self._touch(group, member_id, turn)

    def _arm_revocations(self, group: Group, member_ids: tuple[str, ...], turn: Turn) -> None:
        """Members asked to give up partitions have their rebalance timeout for it, the others none."""
        for member_id in member_ids:
            key = Key(group.group_id, REVOCATION, member_id)
            consumer = group.consumer
            revokes = consumer is not None and (consumer.current(member_id).state is MemberState.UNREVOKED_PARTITIONS)
            if consumer is not None and revokes:
                timeout_ms = max(consumer.members[member_id].rebalance_timeout_ms, 1)
                self._deadlines.set(key, Millis(turn.now + timeout_ms))
            else:
                self._deadlines.cancel(key)

    def expected_deadlines(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so. For tests and simulations."""
        if group.consumer is None:
            return set()
        expected = {Key(group.group_id, CONSUMER_SESSION, member_id) for member_id in group.consumer.members}
        for member_id, current in group.consumer.currents.items():
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                expected.add(Key(group.group_id, REVOCATION, member_id))
        for member_id, member in group.consumer.members.items():
            key = Key(group.group_id, CLASSIC_REBALANCE, member_id)
            if member.classic is not None and key in self._deadlines:  # while it was told to join again
                expected.add(key)
        if group.is_changing:  # what is due waits, or is being stored
            return {key for key in expected if key in self._deadlines}
        return expected
