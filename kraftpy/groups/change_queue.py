"""The queue of changes to a group that the coordinator assigns to: one change at a time.

Decisions are based on what the log says. While records of a group are being written, further requests for that group
wait in its queue (`Group.waiting`). Once the records are durable, everything in the queue is decided on one draft,
stored as one batch and answered together. Heartbeats that change nothing are answered at once.

A decision that needs a large computation pauses until that is done (`apart`).

An unexpected error in a decision costs only the request that hit it (UNKNOWN_SERVER_ERROR); the group continues with
the next one.

All kinds of groups share this queue. Their differences are in `consumer.changes`, `streams.changes` and
`share.changes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from kraftpy.groups.apart import UNITS_AT_ONCE, Deciding, Decision, Work
from kraftpy.groups.appends import Answers, StoreConsumerGroup, StoreShareGroup, StoreStreamsGroup, group_error
from kraftpy.groups.deadlines import Key
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import Compute, Computed, GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.member_timers import MemberClocks, Members
from kraftpy.groups.records import group_record
from kraftpy.groups.routing import refuse
from kraftpy.groups.step import Step
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

MOST_RECORDS = 1_000
"""A draft with this many records is stored; the rest of the queue goes into the next one."""
MOST_COST = 10_000
"""The same limit for work: members, partitions and topics examined to compute targets. Takes 20 ms or more."""
_HEARTBEATS = (ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest, StreamsGroupHeartbeatRequest)


Reconsider = Callable[[Request | Key, Step], None]
D = TypeVar("D", bound=AnyDraft[Any, Any, Any])
P = TypeVar("P", StoreConsumerGroup, StoreShareGroup, StoreStreamsGroup)


class ChangeQueue(ABC, Generic[D, P]):
    """Applies changes to the groups of one kind in one partition of `__consumer_offsets`."""

    _draft_class: ClassVar[type[AnyDraft[Any, Any, Any]]]

    def __init__(self, clocks: MemberClocks, reconsider: Reconsider) -> None:
        """`reconsider` handles requests and timers at the head of a queue that do not belong to this kind of group."""
        self._clocks = clocks
        self._reconsider = reconsider
        self._last_token = 0

    # ---- what differs

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of deadlines that are submitted to this queue when they fall due."""
        return self._clocks.kinds

    @abstractmethod
    def of(self, group: Group) -> Members | None:
        """Return the group's durable state as a group of this kind, or None if it is of another kind."""

    @abstractmethod
    def _draft(self, group: Group) -> D:
        """Return a draft of the group; a new one if the group is not of this kind yet."""

    @abstractmethod
    def _answer(self, group: Group, draft: D, event: Request, step: Step) -> Deciding[GroupResponse | None]:
        """Decide a member's request. None if the request does not come from a member of this kind of group."""

    @abstractmethod
    def _on_due(self, group: Group, draft: D, key: Key, step: Step) -> Deciding[None]:
        """Handle a timer that has fallen due, unless something has made it obsolete in the meantime."""

    def _ends(self, draft: D, step: Step) -> Deciding[bool]:
        """Return True if nothing more may be decided on this draft."""
        yield from ()
        return False

    @abstractmethod
    def _purpose(self, group: Group, draft: D, answers: Answers) -> P:
        """Say what the draft's records are for."""

    def _consider(self, group: Group, event: Request, step: Step) -> None:
        """Handle a request that this queue has no answer for, now that it has reached the head."""
        self._reconsider(event, step)

    def _on_stored(self, group: Group, purpose: P, step: Step) -> None:
        """Called when the records are in the log and replayed, before the answers are sent."""

    def _on_answered(self, group: Group, purpose: P, step: Step) -> None:
        """Called after the answers have been sent."""

    @abstractmethod
    def _give_up(self, group: Group, waited: deque[Request | Key], step: Step) -> None:
        """Forget what was learned for a change that failed. The waiting requests have been refused."""

    def _reply(self, group: Group, answers: Answers, step: Step) -> None:
        for request, response in answers:
            step.reply(request.request_id, response)

    # ---- the queue

    def submit(self, group: Group, item: Request | Key, step: Step) -> None:
        """Decide the item now, or once everything ahead of it is stored."""
        if isinstance(item, Request) and isinstance(item.message, _HEARTBEATS):
            self._clocks.touch(group, item.message.member_id, step)
        if item is group.handing:  # handed over by another kind's queue: it keeps its place at the head
            group.waiting.appendleft(item)
            group.handed_to = self
            return
        group.waiting.append(item)
        if not group.is_changing:
            self._work(group, step)

    def empty_out(self, group: Group, event: Request, step: Step) -> None:
        """Turn an empty group into one of no protocol, for `event`, which is handled right afterwards."""
        draft = self._draft(group)
        draft.delete_all()
        group.waiting.appendleft(event)
        self._store(group, draft, (), step)

    def again(self, group: Group, key: Key, step: Step) -> None:
        """Set the clock of `key` again for a little later, if it is still needed: the event could not be decided."""
        if key in self._clocks.all(group):
            self._clocks.again(key, step)

    def restore(self, group: Group, now: Callable[[], Step]) -> Iterator[int]:
        """Start the clocks of the members of a group just loaded; yield their number after every few of them."""
        return self._clocks.restore(group, now)

    def _work(self, group: Group, step: Step) -> None:
        """Work through the queue until records have to be stored first or the queue is empty.

        One loop serves requests of all kinds. A request handed over while the loop runs is left to the loop, so the
        stack does not grow with the queue.
        """
        if group.handing is not None:
            return
        queue: ChangeQueue[Any, Any] = self
        handed: Request | Key | None = None
        handed_by: list[ChangeQueue[Any, Any]] = []
        while group.waiting and not group.is_changing:
            following = queue._advance(group, step)
            if following is None:
                continue
            if group.waiting[0] is not handed:
                handed, handed_by = group.waiting[0], []
            handed_by.append(queue)
            if following in handed_by:
                error = RuntimeError("no kind of group accepts the request")
                following._fail(group, group.waiting.popleft(), error, step)
            queue = following

    def _advance(self, group: Group, step: Step) -> ChangeQueue[Any, Any] | None:
        """Decide as much as one draft can hold. Returns the other kind's queue if the next request belongs there."""
        draft = self._draft(group)
        answers: list[tuple[Request, GroupResponse]] = []
        steps = self._decide(group, draft, answers, step)
        return self._start(group, Decision(token=0, draft=draft, answers=answers, steps=steps, step=step))

    def _start(self, group: Group, decision: Decision) -> ChangeQueue[Any, Any] | None:
        """Begin a decision, and continue until it pauses or is done."""
        self._last_token += 1
        decision.token = self._last_token
        return self._go_on(group, decision, partial(next, decision.steps))

    def _go_on(self, group: Group, decision: Decision, resume: Callable[[], Work]) -> ChangeQueue[Any, Any] | None:
        """Continue a decision, and have its result stored. If it has to pause, nothing follows for now."""
        step: Step = decision.step
        while True:
            try:
                work = resume()
            except StopIteration as end:
                if decision.then is not None:
                    decision.then(end.value, step)
                    return None
                return self._decided(group, decision.draft, decision.answers, end.value, step)
            if work.units > UNITS_AT_ONCE:
                group.decision, group.is_changing = decision, True
                compute = Compute(group_id=group.group_id, token=decision.token, function=work.function)
                step.effects.append(compute)
                return None
            try:
                result = work.function()
            except Exception as error:
                resume = partial(decision.steps.throw, error)
            else:
                resume = partial(decision.steps.send, result)

    def is_deciding(self, group: Group) -> bool:
        """Return True if a decision about the group is paused here."""
        return group.decision is not None and isinstance(group.decision.draft, self._draft_class)

    def computed(self, group: Group, event: Computed, step: Step) -> None:
        """Continue the group's decision with the result of the computation that it waits for."""
        decision = group.decision
        assert decision is not None, group
        group.decision, group.is_changing = None, False
        decision.step.renew(step)
        if event.error is not None:
            following = self._go_on(group, decision, partial(decision.steps.throw, event.error))
        else:
            following = self._go_on(group, decision, partial(decision.steps.send, event.result))
        (following or self)._work(group, step)

    def _decided(
        self, group: Group, draft: D, answers: Answers, is_for_others: bool, step: Step
    ) -> ChangeQueue[Any, Any] | None:
        if draft.records:
            self._try_to_store(group, draft, answers, step)
            return None
        self._reply(group, answers, step)
        if not is_for_others or answers:
            return None
        item = group.waiting.popleft()
        group.handing, group.handed_to = item, None
        try:
            if isinstance(item, Key):
                self._reconsider(item, step)
            else:
                self._consider(group, item, step)
        finally:
            group.handing = None
        following, group.handed_to = group.handed_to, None
        assert following is None or isinstance(following, ChangeQueue)
        return following

    def _decide(
        self, group: Group, draft: D, answers: list[tuple[Request, GroupResponse]], step: Step
    ) -> Deciding[bool]:
        """Decide what fits on the draft. Collects the answers; returns True if the next item belongs to another queue.

        An unexpected error costs only the request that hit it: the records it put on the draft are taken back.
        """
        waiting = group.waiting
        while waiting and len(draft.records) < MOST_RECORDS and draft.cost < MOST_COST:
            item, count = waiting[0], len(draft.records)
            answer: GroupResponse | None = None
            try:
                if isinstance(item, Key):
                    if item.kind not in self.kinds:  # belongs to another kind's queue
                        return True
                    yield from self._on_due(group, draft, item, step)
                else:
                    answer = yield from self._answer(group, draft, item, step)
                    if answer is None:
                        return True
                is_over = bool(draft.records) and (yield from self._ends(draft, step))
            except Exception as error:
                waiting.popleft()
                draft.take_back(count)
                self._fail(group, item, error, step)
                return False
            waiting.popleft()
            if isinstance(item, Request) and answer is not None:
                answers.append((item, answer))
            if is_over:
                break
        return False

    def _fail(self, group: Group, item: Request | Key, error: Exception, step: Step) -> None:
        """Drop this request or timer after an unexpected error; the group continues without it."""
        self._give_up(group, deque((item,)), step)
        if isinstance(item, Request):
            step.survived(type(item.message).__name__, group.group_id, error)
            step.reply(item.request_id, refuse(item.message, item.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        step.survived(item.kind, group.group_id, error)
        self.again(group, item, step)

    def _try_to_store(self, group: Group, draft: D, answers: Answers, step: Step) -> None:
        """Have the draft stored. An unexpected error fails all requests on the draft."""
        try:
            self._store(group, draft, answers, step)
        except Exception as error:
            step.survived("storing a group", group.group_id, error)
            self._give_up(group, deque(), step)
            self._clocks.give_up(group, step)
            for event, _ in answers:
                refusal = refuse(event.message, event.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
                step.reply(event.request_id, refusal)

    def _store(self, group: Group, draft: D, answers: Answers, step: Step) -> None:
        records = list(draft.records)
        group.stored = draft if len(records) == draft.count else None
        classic = group.classic
        if classic is not None and (classic.persisted is not None or group.records_in_flight):
            records.insert(0, group_record(group.group_id, None))
        step.append(records, self._purpose(group, draft, tuple(answers)))
        group.is_changing = True

    def take_over(self, group: Group) -> bool:
        """Make the draft whose records are in the log now the state of the group; False if they must be replayed.

        It is what they would be replayed to, and to parse the records of a large group again takes long.
        """
        draft, known = group.stored, self.of(group)
        if draft is None or not isinstance(draft, self._draft_class):
            return False
        if not (known is draft.before or (known is None and draft.before.is_gone)):
            return False
        group.put_generation(None)  # the generation of the classic group that it was
        group.kind = group.classic_or_empty() if draft.group.is_gone else draft.group
        if draft.successor is not None:
            group.put_generation(draft.successor)
        return True

    def stored(self, group: Group, purpose: P, error_code: ErrorCode, step: Step) -> None:
        """Handle the outcome of an append: the records are in the log and replayed, or known not to be in the log."""
        group.is_changing, group.stored = False, None
        if error_code is ErrorCode.NONE:
            self._on_stored(group, purpose, step)
            self._clocks.stored(group, purpose.changed, step)
            self._reply(group, purpose.answers, step)
            self._on_answered(group, purpose, step)
        else:
            self._refuse(group, purpose, group_error(error_code), step)
        self._work(group, step)

    def _refuse(self, group: Group, purpose: P, error_code: ErrorCode, step: Step) -> None:
        """Refuse all waiting requests: nothing was stored. Members due for removal are removed a little later."""
        waited, group.waiting = group.waiting, deque()
        for item in waited:
            if isinstance(item, Request):
                step.reply(item.request_id, refuse(item.message, item.api_version, error_code))
        self._give_up(group, waited, step)
        self._clocks.give_up(group, step)
        refused: list[tuple[Request, GroupResponse]] = []
        for request, response in purpose.answers:
            has_failed = bool(getattr(response, "error_code", 0))
            refusal = response if has_failed else refuse(request.message, request.api_version, error_code)
            refused.append((request, refusal))
        self._reply(group, refused, step)

    def is_asking(self, group: Group) -> bool:
        """Return True if the group waits for something other than the log."""
        return False

    # ---- for tests and simulations

    def expected_deadlines(self, group: Group) -> set[Key]:
        """The deadlines the group must have, apart from those already in its queue."""
        return self._clocks.expected(group)
