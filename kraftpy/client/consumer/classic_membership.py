"""One member of a consumer group: the client side of the classic protocol as a state machine, without I/O.

`step(event, now)` returns effects. The shell (`group_member`) carries them out and hands back each result as an event.
Times are milliseconds of a clock that never goes back.

```
UNJOINED --Revoke done--> JOINING --Joined--> [leader: DESCRIBING] --> SYNCING --Synced--> STABLE
 ^                        ^                                            |                  |
 |                        +--------------- rebalance, retry -----------+------------------+
 +--- member or generation unknown: everything held is lost ------------------------------+
 +--- LEAVING <-Revoke- from anywhere ----------------------------------------------------+
```

Eager members give up everything before they join. Cooperative ones keep it, learn from the assignment what to give up,
do so and join again (KIP-429). A static member (KIP-345) leaves without notice. A member without an id gets one from
the first answer and joins again with it (KIP-394). Heartbeats run while SYNCING and STABLE.

Invariants: a partition is never both held and being given up; `Revoke` is answered by `Revoked` before the machine
moves on; a `FENCED_INSTANCE_ID` is final.

`heartbeat_membership` implements the protocol of KIP-848, in which the coordinator assigns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from kraftpy.client.assignors import Assignment, Assignor, RebalanceProtocol
from kraftpy.client.consumer.membership_events import (
    Assign,
    Close,
    CommitRefused,
    ConsumerHeartbeatAnswered,
    DescribeTopics,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    HeartbeatAnswered,
    Joined,
    JoinedMember,
    Left,
    MetadataChanged,
    PollOverdue,
    Resume,
    Revoke,
    Revoked,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    Subscribed,
    Synced,
    Tick,
    TopicsDescribed,
)
from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.types import TopicPartition


class State(Enum):
    """The member's place in the protocol."""

    UNJOINED = "unjoined"  # not in the group: not started, left, thrown out, or waiting to try again
    REVOKING = "revoking"  # the shell takes partitions away from the user; then the machine joins
    JOINING = "joining"  # JoinGroup is on the wire
    DESCRIBING = "describing"  # this member leads: the shell looks up how many partitions there are
    SYNCING = "syncing"  # SyncGroup is on the wire
    RECONCILING = "reconciling"  # cooperative: giving up what moves, then taking what is new
    STABLE = "stable"
    LEAVING = "leaving"  # the shell takes everything away from the user; then the machine leaves
    FAILED = "failed"  # an error that no retry fixes


FOLLOWS: Mapping[State, frozenset[State]] = {
    State.UNJOINED: frozenset({State.REVOKING, State.JOINING, State.LEAVING, State.FAILED}),
    State.REVOKING: frozenset({State.JOINING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.JOINING: frozenset({State.DESCRIBING, State.SYNCING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.DESCRIBING: frozenset({State.SYNCING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.SYNCING: frozenset({State.STABLE, State.RECONCILING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.RECONCILING: frozenset({State.STABLE, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.STABLE: frozenset({State.REVOKING, State.JOINING, State.UNJOINED, State.LEAVING, State.FAILED}),
    State.LEAVING: frozenset({State.UNJOINED, State.FAILED}),
    State.FAILED: frozenset(),
}


_WITHOUT_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_THROWN_OUT = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """The consumer's options that concern membership."""

    assignors: tuple[Assignor, ...]
    group_instance_id: str | None = None
    rack_id: str | None = None
    heartbeat_interval_ms: float = 3_000
    session_timeout_ms: float = 45_000
    retry_backoff_ms: float = 100


@dataclass(slots=True)
class Membership:
    """The state machine. Everything a test wants to see is an attribute."""

    options: MembershipOptions
    state: State = State.UNJOINED
    topics: tuple[str, ...] = ()
    member_id: str = ""
    generation_id: int = -1
    protocol_name: str | None = None
    is_leader: bool = False
    held: tuple[TopicPartition, ...] = ()
    next_attempt_ms: float | None = None  # when to join again, in UNJOINED
    heartbeat_at_ms: float | None = None  # when the next heartbeat is due
    heartbeat_sent_ms: float | None = None  # set while one is on the wire
    last_heard_ms: float = 0.0  # when the coordinator last answered
    _rejoin: str | None = None  # why to join again as soon as possible
    _lost: bool = False
    _incoming: tuple[TopicPartition, ...] = ()
    _previous: tuple[tuple[TopicPartition, ...], int] = (
        (),
        -1,
    )  # user data for `sticky`: the last assignment and its generation
    _members: tuple[JoinedMember, ...] = ()
    _counts: dict[str, int] | None = None  # the counts on which this leader based the group's assignment, if known
    _joined_topics: tuple[str, ...] = ()
    _leaving_for: str = ""

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
            case Joined():
                return self._joined(event, now) if self.state is State.JOINING else []
            case TopicsDescribed():
                return self._described(event) if self.state is State.DESCRIBING else []
            case Synced():
                return self._synced(event, now) if self.state is State.SYNCING else []
            case HeartbeatAnswered():
                return self._heartbeat_answered(event, now)
            case ConsumerHeartbeatAnswered():
                return []
            case CommitRefused():
                return self._membership_error(event.error, now)
            case MetadataChanged():
                return self._metadata_changed(event, now)
            case PollOverdue():
                return self._leave("the user stopped polling", now, lost=True)
            case Resume():
                if self.state is State.UNJOINED and self.topics and self.next_attempt_ms is None:
                    self.next_attempt_ms = now
                return self._tick(now)
            case Close():
                self.topics = ()
                return self._leave("the consumer is being closed", now, lost=False)
        assert_never(event)

    @property
    def deadline_ms(self) -> float | None:
        """The time at which the next `Tick` is needed."""
        if self.state is State.UNJOINED:
            return self.next_attempt_ms
        if self.heartbeat_sent_ms is not None:
            return self.last_heard_ms + self.options.session_timeout_ms
        return self.heartbeat_at_ms

    # --- events ---------------------------------------------------------------------------------------------------

    def _subscribed(self, event: Subscribed, now: float) -> list[Effect]:
        self.topics = tuple(sorted(set(event.topics)))
        if not self.topics:
            return self._leave("nothing is subscribed", now, lost=False)
        if self.state is State.UNJOINED:
            if self.next_attempt_ms is None:
                self.next_attempt_ms = now
            return self._tick(now)
        if self._joined_topics != self.topics:
            return self._request_rejoin("the subscription changed", now)
        return []

    def _tick(self, now: float) -> list[Effect]:
        if self.state is State.UNJOINED:
            if self.next_attempt_ms is None or now < self.next_attempt_ms or not self.topics:
                return []
            return self._begin_join(self._rejoin or "joining", now)
        if self.heartbeat_at_ms is None:
            return []
        if now - self.last_heard_ms >= self.options.session_timeout_ms:
            self.last_heard_ms, self.heartbeat_sent_ms, self.heartbeat_at_ms = now, None, now
            return [ForgetCoordinator()]
        if self.heartbeat_sent_ms is None and now >= self.heartbeat_at_ms:
            self.heartbeat_sent_ms = now
            return [SendHeartbeat(member_id=self.member_id, generation_id=self.generation_id)]
        return []

    def _begin_join(self, reason: str, now: float) -> list[Effect]:
        """Give up what cannot be kept, then join."""
        self._rejoin = reason
        self.next_attempt_ms = None
        if self._lost or not self._cooperative():
            leaving = self.held
        else:
            wanted = frozenset(self.topics)
            leaving = tuple(partition for partition in self.held if partition.topic not in wanted)
        if leaving:
            self._become(State.REVOKING)
            lost, self._lost = self._lost, False
            self._drop(leaving)
            return [Revoke(partitions=leaving, lost=lost)]
        self._lost = False
        return self._send_join(now)

    def _revoked(self, now: float) -> list[Effect]:
        if self.state is State.REVOKING:
            return self._send_join(now)
        if self.state is State.RECONCILING:
            return self._reconcile(now)
        if self.state is State.LEAVING:
            effects = self._left()
            if self.topics:  # subscribed again meanwhile
                self.next_attempt_ms = now
            return effects
        return []

    def _send_join(self, now: float) -> list[Effect]:
        self._become(State.JOINING)
        reason, self._rejoin = self._rejoin or "joining", None
        self._stop_heartbeats()
        self._joined_topics = self.topics
        protocols = tuple((assignor.name, self._subscription(assignor)) for assignor in self.options.assignors)
        return [SendJoin(member_id=self.member_id, protocols=protocols, reason=reason)]

    def _subscription(self, assignor: Assignor) -> bytes:
        return encode_subscription(
            Subscription(
                topics=self.topics,
                owned=self.held,
                generation_id=self.generation_id,
                rack_id=self.options.rack_id,
                user_data=assignor.user_data(*self._previous),
            )
        )

    def _joined(self, event: Joined, now: float) -> list[Effect]:
        match event.error:
            case ErrorCode.NONE:
                pass
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = event.member_id
                self._become(State.UNJOINED)
                self.next_attempt_ms = now
                return self._tick(now)
            case _:
                return self._join_failed(event.error, now)
        self.member_id, self.generation_id = event.member_id, event.generation_id
        self.protocol_name = event.protocol_name or ""
        self.is_leader = event.leader == event.member_id
        self._start_heartbeats(now)
        if self._assignor(self.protocol_name) is None:
            return self._fail(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {self.protocol_name!r}, which is not offered"
            )
        if self.is_leader:
            self._members = event.members
            self._counts = None
            if not event.skip_assignment:
                return self._describe()
        self._become(State.SYNCING)
        return [self._sync(())]

    def _describe(self) -> list[Effect]:
        try:
            topics = {topic for member in self._members for topic in decode_subscription(member.metadata).topics}
        except ProtocolError as bad:
            return self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's subscription is unreadable: {bad}")
        self._become(State.DESCRIBING)
        return [DescribeTopics(topics=tuple(sorted(topics)))]

    def _described(self, event: TopicsDescribed) -> list[Effect]:
        assignor = self._assignor(self.protocol_name)
        assert assignor is not None, "checked when the group chose it"
        subscriptions = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id) for member in self._members
        }
        self._counts = {topic: count for topic, count in event.partition_counts.items() if count > 0}
        assignment: Assignment = assignor.assign(event.partition_counts, subscriptions)
        self._become(State.SYNCING)
        return [self._sync(tuple((member, encode_assignment(assignment[member])) for member in sorted(assignment)))]

    def _sync(self, assignments: tuple[tuple[str, bytes], ...]) -> SendSync:
        return SendSync(
            member_id=self.member_id,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name or "",
            assignments=assignments,
        )

    def _synced(self, event: Synced, now: float) -> list[Effect]:
        match event.error:
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._become(State.UNJOINED)
                return self._begin_join("the group is rebalancing", now)
            case _:
                return self._join_failed(event.error, now)
        try:
            self._incoming = tuple(sorted(set(decode_assignment(event.assignment))))
        except ProtocolError as bad:
            return self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignment is unreadable: {bad}")
        self._start_heartbeats(now)
        self._become(State.RECONCILING)
        leaving = tuple(partition for partition in self.held if partition not in frozenset(self._incoming))
        if leaving:
            if self._cooperative():
                self._rejoin = "partitions were given up for others"
            self._drop(leaving)
            return [Revoke(partitions=leaving)]
        return self._reconcile(now)

    def _reconcile(self, now: float) -> list[Effect]:
        added = tuple(partition for partition in self._incoming if partition not in frozenset(self.held))
        self.held, self._incoming = self._incoming, ()
        self._previous = (self.held, self.generation_id)
        self._become(State.STABLE)
        effects: list[Effect] = [Assign(added=added, held=self.held)]
        if self._rejoin is None and self._joined_topics != self.topics:
            self._rejoin = "the subscription changed"
        if self._rejoin is not None:
            effects += self._begin_join(self._rejoin, now)
        return effects

    def _heartbeat_answered(self, event: HeartbeatAnswered, now: float) -> list[Effect]:
        if self.heartbeat_sent_ms is None:
            return []
        self.heartbeat_sent_ms = None
        self.heartbeat_at_ms = now + self.options.heartbeat_interval_ms
        match event.error:
            case ErrorCode.NONE:
                self.last_heard_ms = now
                return []
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.last_heard_ms = now
                return self._request_rejoin("the group is rebalancing", now)
            case _:
                return self._membership_error(event.error, now)

    def _membership_error(self, error: ErrorCode, now: float) -> list[Effect]:
        """Handle an error in the answer to a heartbeat or commit."""
        if self.state not in (State.STABLE, State.SYNCING, State.REVOKING, State.RECONCILING, State.DESCRIBING):
            return []
        if error is ErrorCode.FENCED_INSTANCE_ID:
            return self._fail(error, "another consumer has taken over this group_instance_id")
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            return self._request_rejoin("the group is rebalancing", now)
        if error in _THROWN_OUT:
            if self.state is not State.STABLE:
                return []  # the outstanding join or sync gets the same answer
            return self._thrown_out(error, now)
        if error in _WITHOUT_COORDINATOR:
            if self.heartbeat_at_ms is not None:
                self.heartbeat_at_ms = now + self.options.retry_backoff_ms
            return [ForgetCoordinator()]
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or error.retriable:
            if self.heartbeat_at_ms is not None:
                self.heartbeat_at_ms = now + self.options.retry_backoff_ms
            return []
        return self._fail(error, "the group's coordinator refused this member")

    def _join_failed(self, error: ErrorCode, now: float) -> list[Effect]:
        """Handle an error in the answer to JoinGroup or SyncGroup."""
        if error in _THROWN_OUT:
            return self._thrown_out(error, now)
        if error in _WITHOUT_COORDINATOR or error.retriable or error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._become(State.UNJOINED)
            self._stop_heartbeats()
            self.next_attempt_ms = now + self.options.retry_backoff_ms
            return [ForgetCoordinator()] if error in _WITHOUT_COORDINATOR else []
        if error is ErrorCode.FENCED_INSTANCE_ID:
            return self._fail(error, "another consumer has taken over this group_instance_id")
        return self._fail(error, "the group cannot be joined")

    def _thrown_out(self, error: ErrorCode, now: float) -> list[Effect]:
        """Lose everything held: the coordinator no longer knows this member, or its generation."""
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.generation_id = -1
        self._incoming = ()
        self._stop_heartbeats()
        self._lost = bool(self.held)
        self._become(State.UNJOINED)
        self.next_attempt_ms = now
        return self._begin_join(f"thrown out with {error.name}", now)

    def _metadata_changed(self, event: MetadataChanged, now: float) -> list[Effect]:
        if self.state is not State.STABLE or not self.is_leader:
            return []
        watched = {topic for member in self._members for topic in decode_subscription(member.metadata).topics}
        present = {topic: count for topic, count in event.partition_counts.items() if topic in watched and count > 0}
        if self._counts is None:
            self._counts = present  # the assignment is older than this membership (KIP-814)
        if present == self._counts:
            return []
        return self._request_rejoin("partitions were added or removed", now)

    def _request_rejoin(self, reason: str, now: float) -> list[Effect]:
        if self.state is not State.STABLE:
            if self.state in (State.SYNCING, State.RECONCILING, State.DESCRIBING):
                self._rejoin = self._rejoin or reason
            return []
        return self._begin_join(reason, now)

    def _leave(self, reason: str, now: float, *, lost: bool) -> list[Effect]:
        """Give everything up and leave. If it is lost already, leave at once: the user may take long to notice."""
        if self.state is State.LEAVING:
            return []
        held = self.held
        self._drop(held)
        self._leaving_for = reason
        if held and not lost:
            self._become(State.LEAVING)
            return [Revoke(partitions=held)]
        effects = self._left()
        return [*effects, Revoke(partitions=held, lost=True)] if held else effects

    def _left(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.member_id and self.state is not State.UNJOINED and self.options.group_instance_id is None:
            effects.append(SendLeave(member_id=self.member_id, reason=self._leaving_for))
            self.member_id = ""
        self._stop_heartbeats()
        self._become(State.UNJOINED)
        self.generation_id, self._incoming, self._rejoin, self._lost = -1, (), None, False
        self.next_attempt_ms = None
        return [*effects, Left()]

    # --- small things ---------------------------------------------------------------------------------------------

    def _become(self, state: State) -> None:
        assert state in FOLLOWS[self.state] or state is self.state, f"{self.state} -> {state}"
        self.state = state

    def _fail(self, code: ErrorCode, text: str) -> list[Effect]:
        self._become(State.FAILED)
        self._stop_heartbeats()
        held = self.held
        self._drop(held)
        self.generation_id = -1
        lost: list[Effect] = [Revoke(partitions=held, lost=True)] if held else []
        return [*lost, Fail(error=KafkaError(code, text))]

    def _drop(self, partitions: tuple[TopicPartition, ...]) -> None:
        gone = frozenset(partitions)
        self.held = tuple(partition for partition in self.held if partition not in gone)

    def _assignor(self, name: str | None) -> Assignor | None:
        return next((assignor for assignor in self.options.assignors if assignor.name == name), None)

    def _cooperative(self) -> bool:
        """Return whether partitions are kept while joining: the group's choice, or else every assignor, allows it."""
        chosen = self._assignor(self.protocol_name)
        if chosen is not None and self.generation_id >= 0:
            return chosen.rebalance_protocol is RebalanceProtocol.COOPERATIVE
        return all(assignor.rebalance_protocol is RebalanceProtocol.COOPERATIVE for assignor in self.options.assignors)

    def _start_heartbeats(self, now: float) -> None:
        self.last_heard_ms = now
        self.heartbeat_sent_ms = None
        self.heartbeat_at_ms = now + self.options.heartbeat_interval_ms

    def _stop_heartbeats(self) -> None:
        self.heartbeat_at_ms = self.heartbeat_sent_ms = None
