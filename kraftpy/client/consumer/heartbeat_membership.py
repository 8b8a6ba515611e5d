"""One member of a group of the consumer protocol (KIP-848): the client side as a state machine, without I/O.

The coordinator assigns; a member only sends heartbeats and follows their answers. The interface is that of
`classic_membership.Membership`, so that the shell (`group_member`) drives either.

```
UNJOINED --heartbeat, epoch 0--> JOINING --answered--> STABLE --must give up--> REVOKING --Revoked--> STABLE
 ^                                                    |                        (heartbeats continue)
 +--- fenced, or unknown: everything held is lost ----+
 +--- LEAVING <-Revoke- from anywhere
```

A member reports what it holds only after a change, and reports a partition as given up once the user no longer has it
(`Revoked`). If an answer is lost, the next heartbeat is a full one and gets a full answer. The epoch is the
`generation_id` under which offsets are committed.

Invariants: a partition that was not given up is reported as held; nothing is assigned while something is being given
up.

Differences from the Java client: an instance id that another member still holds (UNRELEASED_INSTANCE_ID) is asked for
again until the other's session is over.

Left out: regular expressions evaluated by the coordinator (the consumer resolves its pattern itself).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from kraftpy.client.consumer.classic_membership import MembershipOptions, State
from kraftpy.client.consumer.membership_events import (
    Assign,
    Close,
    CommitRefused,
    ConsumerHeartbeatAnswered,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    HeartbeatAnswered,
    Joined,
    Left,
    MetadataChanged,
    PollOverdue,
    Resume,
    Revoke,
    Revoked,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    Subscribed,
    Synced,
    Tick,
    TopicsDescribed,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

LEAVING = -1
LEAVING_FOR_NOW = -2

_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_WITHOUT_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_FOLLOWS = {
    State.UNJOINED: frozenset({State.JOINING, State.REVOKING, State.LEAVING, State.FAILED}),
    State.JOINING: frozenset({State.STABLE, State.REVOKING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.STABLE: frozenset({State.REVOKING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.REVOKING: frozenset({State.STABLE, State.UNJOINED, State.JOINING, State.LEAVING, State.FAILED}),
    State.LEAVING: frozenset({State.UNJOINED, State.FAILED}),
    State.FAILED: frozenset[State](),
}


@dataclass(slots=True)
class HeartbeatMembership:
    """The state machine. Everything a test wants to see is an attribute. `new_id` creates the member's id."""

    options: MembershipOptions
    new_id: Callable[[], str]
    state: State = State.UNJOINED
    topics: tuple[str, ...] = ()
    member_id: str = ""
    generation_id: int = -1
    held: tuple[TopicPartition, ...] = ()
    heartbeat_at_ms: float | None = None  # when the next heartbeat is due
    heartbeat_sent_ms: float | None = None  # set while one is on the wire
    interval_ms: float = 0
    _target: frozenset[TopicPartition] = frozenset()  # the coordinator's latest target assignment
    _giving_up: frozenset[TopicPartition] = frozenset()
    _says_all: bool = True  # the next heartbeat is a full one
    _said_topics: tuple[str, ...] = ()
    _said_held: frozenset[TopicPartition] = frozenset()
    _number: int = 0  # of the last heartbeat
    _revoking: int = 0  # the number of `Revoke`s not yet answered

    # --- entry ----------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and return the effects to carry out."""
        if self.state is State.FAILED:
            return [Left()] if isinstance(event, Close) else []
        match event:
            case Subscribed():
                return self._subscribed(event, now)
            case Tick():
                return self._tick(now)
            case Revoked():
                return self._revoked(now)
            case ConsumerHeartbeatAnswered():
                return self._answered(event, now)
            case CommitRefused():
                return self._refused(event.error, now)
            case PollOverdue():
                return self._leave(now, lost=True)
            case Resume():
                if self.state is State.UNJOINED and self.topics and self.heartbeat_at_ms is None:
                    self.heartbeat_at_ms = now
                return self._tick(now)
            case Close():
                self.topics = ()
                return self._leave(now, lost=False)
            case Joined() | Synced() | TopicsDescribed() | HeartbeatAnswered() | MetadataChanged():
                return []
        assert_never(event)

    @property
    def deadline_ms(self) -> float | None:
        """The time at which the next `Tick` is needed.

        The wait for an answer has no deadline: an answer or an error comes.
        """
        return self.heartbeat_at_ms if self._may_send_heartbeat else None

    @property
    def _may_send_heartbeat(self) -> bool:
        if self.heartbeat_sent_ms is not None or self.state is State.LEAVING or not self.topics:
            return False
        # A fenced member first gives up what it had.
        return self.state is not State.REVOKING or self.generation_id >= 0

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def _subscribed(self, event: Subscribed, now: float) -> list[Effect]:
        self.topics = tuple(sorted(set(event.topics)))
        if not self.topics:
            return self._leave(now, lost=False)
        if self.state is not State.LEAVING and self.topics != self._said_topics:
            self.heartbeat_at_ms = now
        return self._tick(now)

    def _tick(self, now: float) -> list[Effect]:
        if not self._may_send_heartbeat or self.heartbeat_at_ms is None or now < self.heartbeat_at_ms:
            return []
        if self.state is State.UNJOINED:
            self._become(State.JOINING)
            self.member_id = self.member_id or self.new_id()
            self.generation_id = 0
            self._says_all = True
        holds = frozenset(self.held)
        joins = self.generation_id == 0
        everything = self._says_all or joins
        self.heartbeat_sent_ms = now
        self._number += 1
        effect = SendConsumerHeartbeat(
            number=self._number,
            member_id=self.member_id,
            member_epoch=self.generation_id,
            topics=self.topics if everything or self.topics != self._said_topics else None,
            owned=tuple(sorted(holds)) if everything or holds != self._said_held else None,
            is_full=everything,
        )
        self._said_topics, self._said_held = self.topics, holds
        return [effect]

    def _answered(self, event: ConsumerHeartbeatAnswered, now: float) -> list[Effect]:
        if self.heartbeat_sent_ms is None or event.number != self._number:
            return []
        self.heartbeat_sent_ms = None
        if event.error is not ErrorCode.NONE:
            self._says_all = True
            self.heartbeat_at_ms = now + self.options.retry_backoff_ms
            return self._refused(event.error, now)
        self._says_all = False
        self.generation_id = event.member_epoch
        self.interval_ms = event.heartbeat_interval_ms
        self.heartbeat_at_ms = now + self.interval_ms
        if self.topics != self._said_topics:
            self.heartbeat_at_ms = now
        if event.assignment is not None:
            self._target = frozenset(event.assignment)
        if self.state is State.JOINING:
            self._become(State.STABLE)
            return self._reconcile(now, joined=True)
        return self._reconcile(now)

    def _reconcile(self, now: float, *, joined: bool = False) -> list[Effect]:
        """Give up what is no longer ours; once that is done, take what is new."""
        if self.state is not State.STABLE:
            return []
        leaving = tuple(partition for partition in self.held if partition not in self._target)
        if leaving:
            self._become(State.REVOKING)
            self._giving_up = frozenset(leaving)
            return self._revoke(leaving)
        added = tuple(sorted(self._target - frozenset(self.held)))
        if not added and not joined:
            return []
        self.held = tuple(sorted(self._target))
        if added:
            self.heartbeat_at_ms = now  # to report it as held
        return [Assign(added=added, held=self.held)]

    def _revoke(self, partitions: tuple[TopicPartition, ...], *, lost: bool = False) -> list[Effect]:
        if not partitions:
            return []
        self._revoking += 1
        return [Revoke(partitions=partitions, lost=lost)]

    def _revoked(self, now: float) -> list[Effect]:
        self._revoking -= 1
        if self._revoking:
            return []
        match self.state:
            case State.REVOKING:
                self.held = tuple(partition for partition in self.held if partition not in self._giving_up)
                self._giving_up = frozenset()
                self.heartbeat_at_ms = now  # others may be waiting for it
                if self.generation_id < 0:  # everything was lost: join again
                    self._become(State.UNJOINED)
                    return self._tick(now)
                self._become(State.STABLE)
                return [*self._reconcile(now), *self._tick(now)]
            case State.LEAVING:
                effects = self._left()
                if self.topics:  # subscribed again meanwhile
                    self.heartbeat_at_ms = now
                return effects
        return []

    def _refused(self, error: ErrorCode, now: float) -> list[Effect]:
        """Handle an error in the answer to a heartbeat or commit."""
        if error in _LOST:
            return self._lost(now)
        if error is ErrorCode.STALE_MEMBER_EPOCH:
            if self.heartbeat_at_ms is not None:
                self.heartbeat_at_ms = now
            return self._tick(now)
        if error in _WITHOUT_COORDINATOR:
            return [ForgetCoordinator()]
        if error is ErrorCode.UNRELEASED_INSTANCE_ID:
            self.heartbeat_at_ms = now + max(self.options.heartbeat_interval_ms, self.options.retry_backoff_ms)
            return []
        if error.retriable:
            return []
        if error is ErrorCode.FENCED_INSTANCE_ID:
            return self._fail(error, "another consumer has taken over this group_instance_id")
        return self._fail(error, "the group's coordinator refused this member")

    def _lost(self, now: float) -> list[Effect]:
        """Lose everything held: the coordinator has removed this member, and others may own its partitions."""
        if self.state not in (State.JOINING, State.STABLE, State.REVOKING):
            return []
        rest = tuple(partition for partition in self.held if partition not in self._giving_up)
        self.held = ()
        self._target = self._giving_up = frozenset()
        self.generation_id = -1
        self.heartbeat_sent_ms = None  # an answer to the outstanding one no longer matters
        self.heartbeat_at_ms = now
        if rest or self._revoking:
            self._become(State.REVOKING)
            return self._revoke(rest, lost=True)
        self._become(State.UNJOINED)
        return self._tick(now)

    # --- going ----------------------------------------------------------------------------------------------------

    def _leave(self, now: float, *, lost: bool) -> list[Effect]:
        """Give everything up and leave. If it is lost already, leave at once: the user may take long to notice."""
        if self.state is State.LEAVING:
            return []
        rest = tuple(partition for partition in self.held if partition not in self._giving_up)
        self.held = ()
        if (rest or self._revoking) and not lost:
            self._become(State.LEAVING)
            return self._revoke(rest)
        return [*self._left(), *self._revoke(rest, lost=True)]

    def _left(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.generation_id >= 0:  # at 0 it has asked to join
            epoch = LEAVING if self.options.group_instance_id is None else LEAVING_FOR_NOW
            effects.append(SendConsumerLeave(member_id=self.member_id, member_epoch=epoch))
        self.member_id = ""
        self.generation_id = -1
        self.heartbeat_at_ms = self.heartbeat_sent_ms = None
        self._target = self._giving_up = self._said_held = frozenset()
        self._said_topics = ()
        self._become(State.UNJOINED)
        return [*effects, Left()]

    def _fail(self, code: ErrorCode, text: str) -> list[Effect]:
        self._become(State.FAILED)
        rest = tuple(partition for partition in self.held if partition not in self._giving_up)
        self.held = ()
        self.generation_id = -1
        self.heartbeat_at_ms = self.heartbeat_sent_ms = None
        return [*self._revoke(rest, lost=True), Fail(error=KafkaError(code, text))]

    def _become(self, state: State) -> None:
        assert state in _FOLLOWS[self.state] or state is self.state, f"{self.state} -> {state}"
        self.state = state
