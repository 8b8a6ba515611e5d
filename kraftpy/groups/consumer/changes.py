"""Groups of the consumer protocol, whose line is that of `change_queue`: what is decided in it, and what it comes to.

A group passes from one protocol to the other, with members (`migration`) or while it has none: its offsets stay,
what the other protocol stored of it is deleted in the same batch. Of members that speak the classic protocol nobody
waits for others, and who was told to join again has its rebalance timeout for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter

from kraftpy.groups.appends import Answers, StoreConsumerGroup
from kraftpy.groups.change_queue import Reconsider, Turns
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer import migration
from kraftpy.groups.consumer.classic_members import ClassicMembers
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.consumer.protocol import ConsumerProtocol, heartbeat_error
from kraftpy.groups.deadlines import Key
from kraftpy.groups.events import GroupResponse, Request
from kraftpy.groups.group import Group, State
from kraftpy.groups.member_epochs import JOINING
from kraftpy.groups.member_timers import MemberClocks
from kraftpy.groups.step import Turn
from kraftpy.groups.topic_matches import AGAIN_MS, TopicMatches
from kraftpy.groups.topics import NEVER, Topics
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
REGEXES = "regexes"


class ConsumerTurns(Turns[Draft, StoreConsumerGroup]):
    """The groups of the consumer protocol of one partition."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        rebalance: Rebalance,
        topics: Topics,
        new_id: Callable[[], str],
        reconsider: Reconsider,
        matches: TopicMatches,
    ) -> None:
        """`reconsider` handles a request of the classic protocol, or of an administrator, whose turn has come."""
        clocks = MemberClocks(
            rebalance.deadlines,
            session=CONSUMER_SESSION,
            revocation=REVOCATION,
            held="partitions",
            of=attrgetter("consumer"),
            session_ms=self._session_ms,
        )
        super().__init__(clocks, reconsider)
        self._settings = settings
        self._config = config
        self._rebalance = rebalance
        self._deadlines = rebalance.deadlines
        self.protocol = ConsumerProtocol(config, settings, topics, new_id, matches)
        self._classic = ClassicMembers(self.protocol)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Sessions, what members have to do in time, and regular expressions that are not looked up to the end."""
        return (*super().kinds, CLASSIC_REBALANCE, REGEXES)

    def of(self, group: Group) -> ConsumerGroup | None:
        """The group as one of the consumer protocol."""
        return group.consumer

    def empty_out(self, group: Group, event: Request, turn: Turn) -> None:
        """An empty group becomes one of no protocol, for `event`, which comes first afterwards."""
        assert group.consumer is not None
        draft = Draft(group.consumer)
        draft.delete_all()
        group.waiting.appendleft(event)
        self._store(group, draft, (), turn)

    # ---- what is decided

    def _draft(self, group: Group) -> Draft:
        return Draft(group.consumer or ConsumerGroup(group_id=group.group_id))

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
        if key.kind == REGEXES:
            if draft.group.members:
                self.protocol.look_at_topics(draft, turn.timestamp)
            return
        why = self._clocks.why_removed(draft.group, key)
        if key.kind == CLASSIC_REBALANCE and why is not None:
            why = None if draft.group.members[key.member_id].classic is None else "did not join again in time"
        if why is not None:
            turn.note(group, f"member {key.member_id} {why}")
            self.protocol.remove(draft, key.member_id)

    def _ends(self, draft: Draft, turn: Turn) -> bool:
        """A group that has become a classic one is one."""
        if not migration.may_downgrade(draft.group, self._config):
            return False
        migration.downgrade(draft, self.protocol.topics, turn.timestamp)
        return True

    def _purpose(self, group: Group, draft: Draft, answers: Answers) -> StoreConsumerGroup:
        return StoreConsumerGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=answers,
            looked_up=draft.group.looked_up,
            is_resolving=draft.group.is_resolving,
        )

    # ---- what is stored

    def _is_stored(self, group: Group, purpose: StoreConsumerGroup, turn: Turn) -> None:
        if group.consumer is not None:
            group.consumer.looked_up, group.consumer.is_resolving = purpose.looked_up, purpose.is_resolving
        self._pass_over(group, turn)
        for member_id in purpose.changed:
            if group.consumer is None or member_id not in group.consumer.members:
                self._deadlines.cancel(Key(group.group_id, CLASSIC_REBALANCE, member_id))
        for _, response in purpose.answers:
            if isinstance(response, JoinGroupResponse) and not response.error_code:
                self._must_sync(group, response.member_id, turn)

    def _reply(self, group: Group, answers: Answers, turn: Turn) -> None:
        super()._reply(group, answers, turn)
        for text in self.protocol.matches.take_broken():
            turn.note(group, text)
        key = Key(group.group_id, REGEXES)
        if group.consumer is None or not group.consumer.is_resolving:
            self._deadlines.cancel(key)
        elif key not in self._deadlines and key not in group.waiting:
            self._deadlines.set(key, Millis(turn.now + AGAIN_MS))

    def _pass_over(self, group: Group, turn: Turn) -> None:
        """What the log now says of the group may have made it one of the other protocol."""
        if group.consumer is not None:
            self._rebalance.dissolve(group, turn)
        elif group.persisted is not None and group.state is State.EMPTY and not group.members:
            self._rebalance.resume(group, turn, "its last member of the consumer protocol has gone")

    def _give_up(self, group: Group, waited: deque[Request | Key], turn: Turn) -> None:
        if group.consumer is not None:
            group.consumer.topics_version = NEVER
            group.consumer.looked_up = {}

    # ---- clocks

    def again(self, group: Group, key: Key, turn: Turn) -> None:
        """Set the clock of `key` again, for a little later, if it is still needed: the event could not be decided."""
        super().again(group, key, turn)
        member = None if group.consumer is None else group.consumer.members.get(key.member_id)
        if key.kind == CLASSIC_REBALANCE and member is not None and member.classic is not None:
            self._clocks.again(key, turn)

    def _session_ms(self, group: Group, member_id: str, draft: Draft | None = None) -> int:
        """Of a member as the log says it is, or as it will be."""
        known = group.consumer if draft is None else draft.group
        assert known is not None
        classic = known.members[member_id].classic
        if classic is not None:
            return max(classic.session_timeout_ms, 1)
        return self._settings(group.group_id).consumer_session_timeout_ms

    def _touch_classic(self, group: Group, draft: Draft, member_id: str, turn: Turn) -> None:
        """A member was heard of that may be about to become a classic one."""
        if group.consumer is not None and member_id in group.consumer.members:
            self._clocks.begin_session(group, member_id, self._session_ms(group, member_id, draft), turn)

    def expected_deadlines(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so. For tests and simulations."""
        expected = super().expected_deadlines(group)
        for member_id, member in group.consumer.members.items() if group.consumer is not None else ():
            key = Key(group.group_id, CLASSIC_REBALANCE, member_id)
            if member.classic is not None and key in self._deadlines:  # while it was told to join again
                expected.add(key)
        regexes = Key(group.group_id, REGEXES)
        if regexes in self._deadlines:
            assert group.consumer is not None, group
            expected.add(regexes)
        return expected
