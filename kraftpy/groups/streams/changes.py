"""Streams groups in the `change_queue`: the decisions made there, and their results (KIP-1071).

A group that only has offsets, or an empty classic group, becomes a streams group when a streams member joins, and an
empty streams group a classic one when a classic member joins. The offsets stay.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kraftpy.groups.apart import Deciding
from kraftpy.groups.appends import Answers, StoreStreamsGroup
from kraftpy.groups.change_queue import ChangeQueue, Reconsider
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import CreateInternalTopics, GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.member_timers import MemberClocks
from kraftpy.groups.step import Step
from kraftpy.groups.streams.group import StreamsDraft, StreamsGroup
from kraftpy.groups.streams.protocol import StreamsProtocol, streams_error
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.types import Millis

STREAMS_SESSION = "streams-session"
STREAMS_REVOCATION = "streams-revocation"
STREAMS_DELAY = "streams-delay"


class ClassicGroups(Protocol):
    """The part of the classic protocol needed when a classic group becomes a streams group."""

    @property
    def deadlines(self) -> Deadlines:
        """The timers of all groups."""

    def dissolve_replaced(self, purpose: StoreStreamsGroup, step: Step) -> None:
        """Tell the waiting members of a classic group that has turned into one of another kind to rejoin there."""


class StreamsChangeQueue(ChangeQueue[StreamsDraft, StoreStreamsGroup]):
    """The streams groups in one partition."""

    _draft_class = StreamsDraft

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        rebalance: ClassicGroups,
        topics: Topics,
        reconsider: Reconsider,
        matches: TopicMatches,
    ) -> None:
        """`reconsider` handles administrators' requests that reach the head of the queue."""
        clocks = MemberClocks(
            rebalance.deadlines,
            session=STREAMS_SESSION,
            revocation=STREAMS_REVOCATION,
            held="tasks",
            of=self.of,
            session_ms=lambda group, _: settings(group.group_id).streams_session_timeout_ms,
        )
        super().__init__(clocks, reconsider)
        self._settings = settings
        self._rebalance = rebalance
        self._deadlines = rebalance.deadlines
        self.protocol = StreamsProtocol(config, settings, topics, matches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Sessions, deadlines for giving up tasks, and the delay of a group's first assignment."""
        return (*super().kinds, STREAMS_DELAY)

    def of(self, group: Group) -> StreamsGroup | None:
        """Return the group as a streams group."""
        return group.kind if isinstance(group.kind, StreamsGroup) else None

    # ---- what is decided

    def _draft(self, group: Group) -> StreamsDraft:
        return StreamsDraft(self.of(group) or StreamsGroup(group_id=group.group_id))

    def _answer(self, group: Group, draft: StreamsDraft, event: Request, step: Step) -> Deciding[GroupResponse | None]:
        message = event.message
        if not isinstance(message, StreamsGroupHeartbeatRequest):
            return None
        if group.is_dead:
            return streams_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not (isinstance(group.kind, StreamsGroup) or group.may_become_another_kind):
            return streams_error(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a streams group.")
        return (yield from self.protocol.heartbeat(draft, event, message, step.timestamp))

    def _on_due(self, group: Group, draft: StreamsDraft, key: Key, step: Step) -> Deciding[None]:
        if key.kind == STREAMS_DELAY:
            draft.group.volatile.is_delayed = False  # the next heartbeat has the targets computed
        elif (why := self._clocks.why_removed(draft.group, key)) is not None:
            step.note(group, f"member {key.member_id} {why}")
            yield from self.protocol.remove(draft, key.member_id)

    def _purpose(self, group: Group, draft: StreamsDraft, answers: Answers) -> StoreStreamsGroup:
        return StoreStreamsGroup(
            group_id=group.group_id,
            changed=tuple(draft.changed),
            answers=answers,
            volatile=draft.group.volatile,
            replaces=group.classic,
        )

    # ---- what is stored

    def _on_stored(self, group: Group, purpose: StoreStreamsGroup, step: Step) -> None:
        if isinstance(group.kind, StreamsGroup):
            group.kind.volatile = purpose.volatile
            self._rebalance.dissolve_replaced(purpose, step)
        self._arm_delay(group, step)

    def _reply(self, group: Group, answers: Answers, step: Step) -> None:
        super()._reply(group, answers, step)
        for text in self.protocol.matches.take_broken():
            step.note(group, text)
        configured = group.kind.volatile.configured if isinstance(group.kind, StreamsGroup) else None
        if answers and configured is not None and configured.missing:
            step.effects.append(CreateInternalTopics(group_id=group.group_id, topics=configured.missing))

    def _give_up(self, group: Group, waited: deque[Request | Key], step: Step) -> None:
        if isinstance(group.kind, StreamsGroup):
            group.kind.volatile.topics_version = NEVER
            group.kind.volatile.is_delayed = False
            self._deadlines.cancel(Key(group.group_id, STREAMS_DELAY))

    # ---- clocks

    def again(self, group: Group, key: Key, step: Step) -> None:
        """Set the clock of `key` again for a little later, if it is still needed: the event could not be decided."""
        super().again(group, key, step)
        if key.kind == STREAMS_DELAY:
            self._arm_delay(group, step)

    def _arm_delay(self, group: Group, step: Step) -> None:
        key = Key(group.group_id, STREAMS_DELAY)
        if not (isinstance(group.kind, StreamsGroup) and group.kind.volatile.is_delayed):
            self._deadlines.cancel(key)
        elif key not in self._deadlines and key not in group.waiting:
            delay_ms = self._settings(group.group_id).streams_initial_rebalance_delay_ms
            self._deadlines.set(key, Millis(step.now + delay_ms))

    def expected_deadlines(self, group: Group) -> set[Key]:
        """The deadlines the group must have, apart from those already in its queue. For tests and simulations."""
        expected = super().expected_deadlines(group)
        delay = Key(group.group_id, STREAMS_DELAY)
        if isinstance(group.kind, StreamsGroup) and (
            delay in self._deadlines if group.is_changing else group.kind.volatile.is_delayed
        ):
            expected.add(delay)
        return expected
