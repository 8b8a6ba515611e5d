"""Groups the coordinator itself assigns to, one change after the other: what waits, what is stored, what is answered.

A decision is made on what the log says. So while records of a group are on the way there, whatever else is asked of
that group waits in its line (`Group.waiting`); when they are durable, all that waits is decided on one draft, stored as
one batch and answered together. Heartbeats that change nothing are answered at once.

An unexpected error in a decision costs the request that met it (UNKNOWN_SERVER_ERROR); the group goes on with the next.

Every kind of group has the same line. What differs is decided in `consumer.changes`, `streams.changes` and
`share.changes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kraftpy.groups.appends import Answers, StoreConsumerGroup, StoreShareGroup, StoreStreamsGroup, group_error
from kraftpy.groups.deadlines import Key
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.member_timers import MemberClocks, Members
from kraftpy.groups.records import group_record
from kraftpy.groups.routing import refuse
from kraftpy.groups.step import Turn
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

MOST_RECORDS = 1_000
"""When a draft has so many, what waits goes into the next one."""
MOST_COST = 10_000
"""The same, of members, partitions and topics that were looked at for targets: 20 ms and more."""
_HEARTBEATS = (ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest, StreamsGroupHeartbeatRequest)


Reconsider = Callable[[Request | Key, Turn], None]
D = TypeVar("D", bound=AnyDraft[Any, Any, Any])
P = TypeVar("P", StoreConsumerGroup, StoreShareGroup, StoreStreamsGroup)


class Turns(ABC, Generic[D, P]):
    """The groups of one kind of one partition of `__consumer_offsets`."""

    def __init__(self, clocks: MemberClocks, reconsider: Reconsider) -> None:
        """`reconsider` handles what is not for this kind of groups alone, a request or what is due, at its turn."""
        self._clocks = clocks
        self._reconsider = reconsider

    # ---- what differs

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of deadlines: a key of one of them that is due is submitted here."""
        return self._clocks.kinds

    @abstractmethod
    def of(self, group: Group) -> Members | None:
        """What the log says of the group as one of this kind; None where it is none."""

    @abstractmethod
    def _draft(self, group: Group) -> D:
        """To decide on; of a new group where it is none of this kind yet."""

    @abstractmethod
    def _answer(self, group: Group, draft: D, event: Request, turn: Turn) -> GroupResponse | None:
        """What a member's request comes to; None where it is no member's of this kind, to be considered by itself."""

    @abstractmethod
    def _is_due(self, group: Group, draft: D, key: Key, turn: Turn) -> None:
        """What waited for its time comes to pass, unless something has happened meanwhile."""

    def _ends(self, draft: D, turn: Turn) -> bool:
        """Whether nothing more may be decided on this draft."""
        return False

    @abstractmethod
    def _purpose(self, group: Group, draft: D, answers: Answers) -> P:
        """What the draft's records are for."""

    def _consider(self, group: Group, event: Request, turn: Turn) -> None:
        """The turn of a request without an answer here has come."""
        self._reconsider(event, turn)

    def _is_stored(self, group: Group, purpose: P, turn: Turn) -> None:
        """The records are in the log and have been replayed; the answers follow."""

    def _is_answered(self, group: Group, purpose: P, turn: Turn) -> None:
        """And have been given."""

    @abstractmethod
    def _give_up(self, group: Group, waited: deque[Request | Key], turn: Turn) -> None:
        """Nothing has changed, and whoever waited has been told so: what was found out meanwhile is not so."""

    def _reply(self, group: Group, answers: Answers, turn: Turn) -> None:
        for request, response in answers:
            turn.reply(request.request_id, response)

    # ---- the line

    def submit(self, group: Group, item: Request | Key, turn: Turn) -> None:
        """Decide it now, or when all that came before it is stored."""
        if isinstance(item, Request) and isinstance(item.message, _HEARTBEATS):
            self._clocks.touch(group, item.message.member_id, turn)
        if item is group.handing:  # by the turns of another kind: it keeps its place at the head of the line
            group.waiting.appendleft(item)
            group.handed_to = self
            return
        group.waiting.append(item)
        if not group.is_changing:
            self._work(group, turn)

    def again(self, group: Group, key: Key, turn: Turn) -> None:
        """Set the clock of `key` again, for a little later, if it is still needed: the event could not be decided."""
        if key in self._clocks.all(group):
            self._clocks.again(key, turn)

    def restore(self, group: Group, turn: Turn) -> None:
        """The group was loaded: its members' clocks begin now."""
        self._clocks.restore(group, turn)

    def _work(self, group: Group, turn: Turn) -> None:
        """Decide what waits, until records have to be stored first or nothing waits any more.

        One loop serves the requests of all kinds: a request that is handed over while the loop runs is left to it, so
        the stack does not grow with the queue.
        """
        if group.handing is not None:
            return
        turns: Turns[Any, Any] = self
        handed: Request | Key | None = None
        handed_by: list[Turns[Any, Any]] = []
        while group.waiting and not group.is_changing:
            following = turns._advance(group, turn)
            if following is None:
                continue
            if group.waiting[0] is not handed:
                handed, handed_by = group.waiting[0], []
            handed_by.append(turns)
            if following in handed_by:
                error = RuntimeError("no kind of group takes the request")
                following._fail(group, group.waiting.popleft(), error, turn)
            turns = following

    def _advance(self, group: Group, turn: Turn) -> Turns[Any, Any] | None:
        """Decide as much as one draft can hold; the turns of another kind if the next request is theirs."""
        draft = self._draft(group)
        answers, is_for_others = self._decide(group, draft, turn)
        if draft.records:
            self._try_to_store(group, draft, answers, turn)
            return None
        self._reply(group, answers, turn)
        if not is_for_others or answers:
            return None
        item = group.waiting.popleft()
        group.handing, group.handed_to = item, None
        try:
            if isinstance(item, Key):
                self._reconsider(item, turn)
            else:
                self._consider(group, item, turn)
        finally:
            group.handing = None
        following, group.handed_to = group.handed_to, None
        assert following is None or isinstance(following, Turns)
        return following

    def _decide(self, group: Group, draft: D, turn: Turn) -> tuple[Answers, bool]:
        """Decide on the draft as much as may be: the answers, and whether the next request is none of a member's.

        An unexpected error costs the request it was met in: what that has put on the draft is taken back.
        """
        waiting = group.waiting
        answers: list[tuple[Request, GroupResponse]] = []
        while waiting and len(draft.records) < MOST_RECORDS and draft.cost < MOST_COST:
            item, count = waiting[0], len(draft.records)
            answer: GroupResponse | None = None
            try:
                if isinstance(item, Key):
                    if item.kind not in self.kinds:  # of another kind's turns
                        return answers, True
                    self._is_due(group, draft, item, turn)
                elif (answer := self._answer(group, draft, item, turn)) is None:
                    return answers, True
                is_over = bool(draft.records) and self._ends(draft, turn)
            except Exception as error:
                waiting.popleft()
                draft.take_back(count)
                self._fail(group, item, error, turn)
                return answers, False
            waiting.popleft()
            if isinstance(item, Request) and answer is not None:
                answers.append((item, answer))
            if is_over:
                break
        return answers, False

    def _fail(self, group: Group, item: Request | Key, error: Exception, turn: Turn) -> None:
        """Give up this request or clock event after an unexpected error: the group goes on without it."""
        self._give_up(group, deque((item,)), turn)
        if isinstance(item, Request):
            turn.survived(type(item.message).__name__, group.group_id, error)
            turn.reply(item.request_id, refuse(item.message, item.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        turn.survived(item.kind, group.group_id, error)
        self.again(group, item, turn)

    def _try_to_store(self, group: Group, draft: D, answers: Answers, turn: Turn) -> None:
        """Have the draft stored. An unexpected error costs those whose requests are on it."""
        try:
            self._store(group, draft, answers, turn)
        except Exception as error:
            turn.survived("storing a group", group.group_id, error)
            self._give_up(group, deque(), turn)
            self._clocks.give_up(group, turn)
            for event, _ in answers:
                refusal = refuse(event.message, event.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
                turn.reply(event.request_id, refusal)

    def _store(self, group: Group, draft: D, answers: Answers, turn: Turn) -> None:
        records = list(draft.records)
        if self.of(group) is None and (group.persisted is not None or group.records_in_flight):
            records.insert(0, group_record(group.group_id, None))
        turn.append(records, self._purpose(group, draft, tuple(answers)))
        group.is_changing = True

    def stored(self, group: Group, purpose: P, error_code: ErrorCode, turn: Turn) -> None:
        """The records are in the log and have been replayed, or it is known that they are not there."""
        group.is_changing = False
        if error_code is ErrorCode.NONE:
            self._is_stored(group, purpose, turn)
            self._clocks.stored(group, purpose.changed, turn)
            self._reply(group, purpose.answers, turn)
            self._is_answered(group, purpose, turn)
        else:
            self._refuse(group, purpose, group_error(error_code), turn)
        self._work(group, turn)

    def _refuse(self, group: Group, purpose: P, error_code: ErrorCode, turn: Turn) -> None:
        """Nothing has changed: who waits is told, and members that were to be removed are so a little later."""
        waited, group.waiting = group.waiting, deque()
        for item in waited:
            if isinstance(item, Request):
                turn.reply(item.request_id, refuse(item.message, item.api_version, error_code))
        self._give_up(group, waited, turn)
        self._clocks.give_up(group, turn)
        refused: list[tuple[Request, GroupResponse]] = []
        for request, response in purpose.answers:
            has_failed = bool(getattr(response, "error_code", 0))
            refusal = response if has_failed else refuse(request.message, request.api_version, error_code)
            refused.append((request, refusal))
        self._reply(group, refused, turn)

    def is_asking(self, group: Group) -> bool:
        """Whether the group waits for somebody else than the log."""
        return False

    # ---- for tests and simulations

    def expected_deadlines(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so."""
        return self._clocks.expected(group)
