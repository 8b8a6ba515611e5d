"""Groups of the consumer protocol in the `change_queue`: the decisions made there, and their results.

A group migrates between the protocols with its members (`migration`) or while it is empty. Its offsets stay; the other
protocol's records are deleted in the same batch. Members that speak the classic protocol do not wait for each other
here: a member that is asked to rejoin has its rebalance timeout to do so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kraftpy.groups.apart import Deciding, Work
from kraftpy.groups.appends import Answers, StoreConsumerGroup
from kraftpy.groups.change_queue import ChangeQueue, Reconsider
from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer import migration
from kraftpy.groups.consumer.classic_members import ClassicMembers
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.consumer.protocol import ConsumerProtocol, heartbeat_error
from kraftpy.groups.deadlines import Key
from kraftpy.groups.events import GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.member_epochs import JOINING
from kraftpy.groups.member_timers import MemberClocks
from kraftpy.groups.step import Step
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


class ConsumerChangeQueue(ChangeQueue[Draft, StoreConsumerGroup]):
    """The groups of the consumer protocol in one partition."""

    _draft_class = Draft

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
        """`reconsider` handles queued requests of the classic protocol and of administrators."""
        clocks = MemberClocks(
            rebalance.deadlines,
            session=CONSUMER_SESSION,
            revocation=REVOCATION,
            held="partitions",
            of=self.of,
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
        """Sessions, deadlines for what members must do, and regular expressions not fully resolved yet."""
        return (*super().kinds, CLASSIC_REBALANCE, REGEXES)

    def of(self, group: Group) -> ConsumerGroup | None:
        """Return the group as one of the consumer protocol."""
        return group.kind if isinstance(group.kind, ConsumerGroup) else None

    # ---- what is decided

    def _draft(self, group: Group) -> Draft:
        return Draft(self.of(group) or ConsumerGroup(group_id=group.group_id))

    def _answer(self, group: Group, draft: Draft, event: Request, step: Step) -> Deciding[GroupResponse | None]:
        """Decide a member's request; None if it is for a classic group or comes from an administrator."""
        message = event.message
        if isinstance(message, ConsumerGroupHeartbeatRequest):
            return (yield from self._heartbeat(group, draft, event, message, step))
        if not draft.group.members:
            return None
        match message:
            case JoinGroupRequest():
                joined = yield from self._classic.join(draft, event, message, step.timestamp)
                if not joined.error_code:
                    self._must_sync(group, joined.member_id, step)
                    self._touch_classic(group, draft, joined.member_id, step)
                return joined
            case SyncGroupRequest():
                synced = yield from self._classic.sync(draft, message, step.timestamp)
                self._renew_classic_session(group, draft, message, synced.error_code, step)
                if not synced.error_code:
                    self._deadlines.cancel(Key(group.group_id, CLASSIC_REBALANCE, message.member_id))
                return synced
            case HeartbeatRequest():
                beat = yield from self._classic.heartbeat(draft, message, step.timestamp)
                self._renew_classic_session(group, draft, message, beat.error_code, step)
                return beat
            case LeaveGroupRequest():
                return (yield from self._classic.leave(draft, event, message))
        return None

    def _renew_classic_session(
        self, group: Group, draft: Draft, message: SyncGroupRequest | HeartbeatRequest, error_code: int, step: Step
    ) -> None:
        """Restart a classic member's session. If it is asked to rejoin, its rebalance timeout starts."""
        if error_code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return
        self._touch_classic(group, draft, message.member_id, step)
        key = Key(group.group_id, CLASSIC_REBALANCE, message.member_id)
        if error_code == ErrorCode.REBALANCE_IN_PROGRESS and key not in self._deadlines:
            self._must_sync(group, message.member_id, step)

    def _must_sync(self, group: Group, member_id: str, step: Step) -> None:
        """Give a classic member its rebalance timeout to ask for its assignment, starting when it becomes a member."""
        member = group.kind.members.get(member_id) if isinstance(group.kind, ConsumerGroup) else None
        if member is not None:
            deadline = Millis(step.now + max(member.rebalance_timeout_ms, 1))
            self._deadlines.set(Key(group.group_id, CLASSIC_REBALANCE, member_id), deadline)

    def _heartbeat(
        self, group: Group, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, step: Step
    ) -> Deciding[ConsumerGroupHeartbeatResponse]:
        if group.is_dead:
            return heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        classic = group.classic
        if classic is not None and classic.state is not State.EMPTY and not draft.group.members:
            return (yield from self._upgrade(classic, draft, event, message, step))
        return (yield from self.protocol.heartbeat(draft, event, message, step.timestamp))

    def _upgrade(
        self, group: ClassicGroup, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, step: Step
    ) -> Deciding[ConsumerGroupHeartbeatResponse]:
        """Migrate a classic group with members to a consumer group, if the joining member may do so.

        A member from before the group became a classic one gets UNKNOWN_MEMBER_ID, so that it rejoins. Kafka sends
        GROUP_ID_NOT_FOUND, which clients consider final.
        """
        units = migration.units(group)
        problem: str | None = yield Work(units, lambda: migration.why_not_upgraded(group, self._config))
        if problem is not None:
            return heartbeat_error(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        if message.member_epoch != JOINING:  # it was removed when the group migrated back
            if message.instance_id is not None and message.instance_id in group.static_members:
                return heartbeat_error(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {message.member_id} with instance id {message.instance_id} was fenced.",
                )
            return heartbeat_error(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {message.member_id} is not a member of group {group.group_id}."
            )
        upgraded = Draft(ConsumerGroup(group_id=group.group_id))
        yield Work(units, lambda: migration.upgrade(upgraded, group, self.protocol.topics))
        answer = yield from self.protocol.heartbeat(upgraded, event, message, step.timestamp)
        if not answer.error_code:
            step.note(group, f"migrates to the consumer protocol with {len(group.members)} members")
            draft.become(upgraded)
        return answer

    def _on_due(self, group: Group, draft: Draft, key: Key, step: Step) -> Deciding[None]:
        if key.kind == REGEXES:
            if draft.group.members:
                yield from self.protocol.look_at_topics(draft, step.timestamp)
            return
        why = self._clocks.why_removed(draft.group, key)
        if key.kind == CLASSIC_REBALANCE and why is not None:
            why = None if draft.group.members[key.member_id].classic is None else "did not join again in time"
        if why is not None:
            step.note(group, f"member {key.member_id} {why}")
            yield from self.protocol.remove(draft, key.member_id)

    def _ends(self, draft: Draft, step: Step) -> Deciding[bool]:
        """A group that has become a classic one takes no more decisions here."""
        if not migration.may_downgrade(draft.group, self._config):
            return False
        units = len(draft.group.members) + len(draft.group.holders)
        yield Work(units, lambda: migration.downgrade(draft, self.protocol.topics, step.timestamp))
        return True

    def _purpose(self, group: Group, draft: Draft, answers: Answers) -> StoreConsumerGroup:
        return StoreConsumerGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=answers,
            looked_up=draft.group.looked_up,
            is_resolving=draft.group.is_resolving,
            replaces=group.classic,
        )

    # ---- what is stored

    def _on_stored(self, group: Group, purpose: StoreConsumerGroup, step: Step) -> None:
        known = self.of(group)
        if known is not None:
            known.looked_up, known.is_resolving = purpose.looked_up, purpose.is_resolving
        self._pass_over(group, purpose, step)
        for member_id in purpose.changed:
            if known is None or member_id not in known.members:
                self._deadlines.cancel(Key(group.group_id, CLASSIC_REBALANCE, member_id))
        for _, response in purpose.answers:
            if isinstance(response, JoinGroupResponse) and not response.error_code:
                self._must_sync(group, response.member_id, step)

    def _reply(self, group: Group, answers: Answers, step: Step) -> None:
        super()._reply(group, answers, step)
        for text in self.protocol.matches.take_broken():
            step.note(group, text)
        key = Key(group.group_id, REGEXES)
        if not (isinstance(group.kind, ConsumerGroup) and group.kind.is_resolving):
            self._deadlines.cancel(key)
        elif key not in self._deadlines and key not in group.waiting:
            self._deadlines.set(key, Millis(step.now + AGAIN_MS))

    def _pass_over(self, group: Group, purpose: StoreConsumerGroup, step: Step) -> None:
        """Adapt to the log: it may have moved the group to the other protocol."""
        if purpose.replaces is not group.kind:
            self._rebalance.dissolve_replaced(purpose, step)
        classic = group.classic
        if classic is not None and classic.persisted is not None and classic.state is State.EMPTY:
            self._rebalance.resume(classic, step, "its last member of the consumer protocol has left")

    def _give_up(self, group: Group, waited: deque[Request | Key], step: Step) -> None:
        if isinstance(group.kind, ConsumerGroup):
            group.kind.topics_version = NEVER
            group.kind.looked_up = {}

    # ---- clocks

    def again(self, group: Group, key: Key, step: Step) -> None:
        """Set the clock of `key` again for a little later, if it is still needed: the event could not be decided."""
        super().again(group, key, step)
        member = group.kind.members.get(key.member_id) if isinstance(group.kind, ConsumerGroup) else None
        if key.kind == CLASSIC_REBALANCE and member is not None and member.classic is not None:
            self._clocks.again(key, step)

    def _session_ms(self, group: Group, member_id: str, draft: Draft | None = None) -> int:
        """Return the session timeout of a member as it is or will be in the log."""
        known = self.of(group) if draft is None else draft.group
        assert known is not None
        classic = known.members[member_id].classic
        if classic is not None:
            return max(classic.session_timeout_ms, 1)
        return self._settings(group.group_id).consumer_session_timeout_ms

    def _touch_classic(self, group: Group, draft: Draft, member_id: str, step: Step) -> None:
        """Restart the session of a member that may be about to become a classic one."""
        if isinstance(group.kind, ConsumerGroup) and member_id in group.kind.members:
            self._clocks.begin_session(group, member_id, self._session_ms(group, member_id, draft), step)

    def expected_deadlines(self, group: Group) -> set[Key]:
        """The deadlines the group must have, apart from those already in its queue. For tests and simulations."""
        expected = super().expected_deadlines(group)
        for member_id, member in group.kind.members.items() if isinstance(group.kind, ConsumerGroup) else ():
            key = Key(group.group_id, CLASSIC_REBALANCE, member_id)
            if member.classic is not None and key in self._deadlines:  # if it was told to rejoin
                expected.add(key)
        regexes = Key(group.group_id, REGEXES)
        if regexes in self._deadlines:
            assert isinstance(group.kind, ConsumerGroup), group
            expected.add(regexes)
        return expected
