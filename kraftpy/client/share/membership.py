"""One member of a share group (KIP-932): its heartbeats as a state machine, without I/O.

```
UNJOINED --heartbeat, epoch 0--> JOINING --answered--> STABLE
 ^                               ^                     |
 |                               +-- fenced, unknown --+
 +--- LEAVING <---------- Close, or nothing subscribed ----- from anywhere
```

The coordinator assigns, and may assign a partition to several members. No member has to give anything up first, so an
assignment is in force as soon as it arrives. If an answer is lost, the member repeats its subscription.

Invariant: while a heartbeat is outstanding, or none may be sent, there is no deadline: nothing wakes up needlessly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

JOINING_EPOCH = 0
LEAVING_EPOCH = -1

_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
_WITHOUT_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class State(Enum):
    """The member's place in the protocol."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"
    FAILED = "failed"


FOLLOWS = {
    State.UNJOINED: frozenset({State.JOINING, State.LEFT}),
    State.JOINING: frozenset({State.STABLE, State.UNJOINED, State.LEFT, State.FAILED}),
    State.STABLE: frozenset({State.JOINING, State.UNJOINED, State.LEFT, State.FAILED}),
    State.LEFT: frozenset[State](),
    State.FAILED: frozenset({State.LEFT}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """The topics to read; with none, leave the group."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to the heartbeat with that number. No assignment means that it has not changed."""

    number: int
    error: ErrorCode = ErrorCode.NONE
    member_epoch: int = 0
    heartbeat_interval_ms: float = 0
    assignment: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The consumer is being closed."""


Event = Subscribe | Tick | Answered | Close


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    """Send ShareGroupHeartbeat; answer with `Answered`. Topics of None have not changed."""

    number: int
    member_epoch: int
    topics: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLeave:
    """Send ShareGroupHeartbeat with the epoch that leaves; its answer does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCoordinator:
    """Look the coordinator up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Read exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Report an error that no retry fixes to the application."""

    error: KafkaError


Effect = SendHeartbeat | SendLeave | ForgetCoordinator | Assigned | Fail


@dataclass(slots=True)
class ShareMembership:
    """The state machine. Everything a test wants to see is an attribute."""

    retry_backoff_ms: float = 100
    state: State = State.UNJOINED
    topics: tuple[str, ...] = ()
    member_epoch: int = JOINING_EPOCH
    assigned: tuple[TopicPartition, ...] = ()
    heartbeat_at_ms: float | None = None
    is_waiting: bool = False  # a heartbeat is outstanding
    interval_ms: float = 0
    _said: tuple[str, ...] | None = None  # the subscription that the coordinator knows
    _number: int = 0

    def step(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and return the effects to carry out."""
        match event:
            case Subscribe():
                return self._subscribe(event.topics, now)
            case Tick():
                return self._tick(now)
            case Answered():
                return self._answered(event, now)
            case Close():
                return self._leave(State.LEFT)

    @property
    def deadline_ms(self) -> float | None:
        """The time at which the next `Tick` is needed."""
        return self.heartbeat_at_ms if self._may_send else None

    @property
    def _may_send(self) -> bool:
        return not self.is_waiting and bool(self.topics) and self.state not in (State.LEFT, State.FAILED)

    def _subscribe(self, topics: tuple[str, ...], now: float) -> list[Effect]:
        if self.state in (State.LEFT, State.FAILED):
            return []
        self.topics = tuple(sorted(set(topics)))
        if not self.topics:
            return self._leave(State.UNJOINED)
        if self.topics != self._said:
            self.heartbeat_at_ms = now
        return self._tick(now)

    def _tick(self, now: float) -> list[Effect]:
        if not self._may_send or self.heartbeat_at_ms is None or now < self.heartbeat_at_ms:
            return []
        if self.state is State.UNJOINED:
            self._become(State.JOINING)
            self.member_epoch = JOINING_EPOCH
        says = None if self.topics == self._said and self.member_epoch != JOINING_EPOCH else self.topics
        self._said = self.topics
        self._number += 1
        self.is_waiting = True
        return [SendHeartbeat(number=self._number, member_epoch=self.member_epoch, topics=says)]

    def _answered(self, event: Answered, now: float) -> list[Effect]:
        if not self.is_waiting or event.number != self._number:
            return []
        self.is_waiting = False
        if event.error is not ErrorCode.NONE:
            return self._refused(event.error, now)
        self.member_epoch = event.member_epoch
        self.interval_ms = event.heartbeat_interval_ms
        self.heartbeat_at_ms = now + self.interval_ms if self.topics == self._said else now
        if self.state is State.JOINING:
            self._become(State.STABLE)
        effects = self._assign(event.assignment) if event.assignment is not None else []
        return effects + self._tick(now)

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> list[Effect]:
        partitions = tuple(sorted(partitions))
        if partitions == self.assigned:
            return []
        self.assigned = partitions
        return [Assigned(partitions=partitions)]

    def _refused(self, error: ErrorCode, now: float) -> list[Effect]:
        self._said = None  # it may or may not have arrived: the next heartbeat is a full one
        self.heartbeat_at_ms = now + self.retry_backoff_ms
        is_of_another_kind = error is ErrorCode.GROUP_ID_NOT_FOUND and self.member_epoch == JOINING_EPOCH
        if error in _LOST and not is_of_another_kind:
            self.member_epoch = JOINING_EPOCH
            if self.state is State.STABLE:
                self._become(State.JOINING)
            return self._assign(())
        if error in _WITHOUT_COORDINATOR:
            return [ForgetCoordinator()]
        if error.retriable:
            return []
        self._become(State.FAILED)
        failure = KafkaError(error, f"the share group's coordinator refused this member: {error.meaning}")
        return [*self._assign(()), Fail(error=failure)]

    def _leave(self, after: State) -> list[Effect]:
        if self.state is State.LEFT:
            return []
        is_member = self.state in (State.JOINING, State.STABLE)
        effects = self._assign(())
        self.member_epoch, self._said, self.heartbeat_at_ms, self.is_waiting = JOINING_EPOCH, None, None, False
        if self.state is not after:
            self._become(after)
        return [*effects, SendLeave()] if is_member else effects

    def _become(self, state: State) -> None:
        assert state in FOLLOWS[self.state], f"{self.state} -> {state}"
        self.state = state
