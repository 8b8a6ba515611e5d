"""One classic group: its members and generation, with queries and small changes.

`membership` and `rebalance` decide what to change and when; this module keeps the parts of a group consistent with each
other.

`persisted` is durable and changed by `GroupCoordinator.replay` alone. Everything else is volatile, rebuilt from it by
`restore` when the partition is loaded. A group that only stores offsets is a classic group that never had members.

Invariants (`validate` checks them): there are no members in Empty and Dead; the leader is a member; an instance id
belongs to one member; in Stable every member has an assignment; no request waits for a barrier of another phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.groups.memory import MEMBER_BYTES
from kraftpy.groups.records import NO_TIMESTAMP, GroupMetadataValue, MemberMetadata
from kraftpy.groups.subscription import topics_of_all
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import Millis

CONSUMER_PROTOCOL_TYPE = "consumer"
READ_BYTES_AT_ONCE: Final = 1 << 16
"""The most bytes of subscriptions that are read without a pause: some milliseconds."""

Protocols = tuple[tuple[str, bytes], ...]
"""A member's protocols with its metadata for each, in order of preference."""


class State(Enum):
    """The state of a group; the values are the names that clients see in DescribeGroups."""

    EMPTY = "Empty"  # no members; committed offsets may be kept
    PREPARING_REBALANCE = "PreparingRebalance"  # members are asked to join again; JoinGroup requests wait
    COMPLETING_REBALANCE = (
        "CompletingRebalance"  # a generation exists; SyncGroup requests wait for the leader's assignment
    )
    STABLE = "Stable"  # every member has an assignment, and it is durable
    DEAD = "Dead"  # its tombstones are being written to the log


FOLLOWS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE}),
    State.DEAD: frozenset(),
}


@frozen
class Waiting:
    """A JoinGroup or SyncGroup that will be answered later."""

    request_id: int
    api_version: int


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `assignment` is the last one it was given: between generations, that of the generation before."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes | None = None
    is_new: bool = False  # has not received a generation yet, so it cannot send heartbeats
    join: Waiting | None = None
    sync: Waiting | None = None

    @property
    def weight(self) -> int:
        """The member's weight in bytes (`memory`)."""
        return MEMBER_BYTES + sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for the protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def supports(self, protocol_name: str) -> bool:
        """Return True if the member supports the protocol."""
        return any(name == protocol_name for name, _ in self.protocols)


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """A group whose members agree on a generation among themselves. Only `membership` and `rebalance` change it."""

    group_id: str
    persisted: GroupMetadataValue | None = None

    state: State = State.EMPTY
    previous_state: State = State.EMPTY
    current_state_timestamp: int = NO_TIMESTAMP  # wall-clock time at which `state` was entered
    generation_id: int = 0
    protocol_type: str | None = None  # None: the group never had members and only stores offsets
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending_members: set[str] = field(default_factory=set)  # ids handed out that have not joined yet (KIP-394)
    pending_sync: set[str] = field(default_factory=set)  # members of this generation that have not sent SyncGroup
    joined_while_initial: bool = False  # a member joined since the initial rebalance delay was last extended
    initial_delay_left_ms: int = 0
    assignment_in_flight: bool = False  # this generation's assignment is being written to the log
    members_weight: int = 0  # total weight of the members
    awaiting_join: int = 0  # the members waiting at the join barrier
    read: tuple[tuple[bytes, ...], frozenset[str] | None] | None = None  # subscriptions, and the topics in them

    # ---- state

    def become(self, state: State, timestamp: Millis) -> None:
        """Enter a state that may follow the present one."""
        assert state in FOLLOWS[self.state], f"group {self.group_id}: {state.value} cannot follow {self.state.value}"
        self.previous_state, self.state = self.state, state
        self.current_state_timestamp = timestamp

    @property
    def holds_nothing(self) -> bool:
        """True if the group has neither members, nor ids handed out, nor a stored generation."""
        return self.state in (State.EMPTY, State.DEAD) and self.persisted is None and not self.pending_members

    # ---- members

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader."""
        self.pending_members.discard(member.member_id)
        self.members[member.member_id] = member
        self.members_weight += member.weight
        self.awaiting_join += member.join is not None
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member or pending member. If it was the leader, the longest-standing member takes over."""
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self.members_weight -= member.weight
            self.awaiting_join -= member.join is not None
        if member is not None and member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id after a restart, keeping its place and role (KIP-345)."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {new_id if each == old_id else each: m for each, m in self.members.items()}
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        return member

    def resubscribe(self, member: Member, protocols: Protocols) -> None:
        """Replace a member's protocols and metadata."""
        self.members_weight -= member.weight
        member.protocols = protocols
        self.members_weight += member.weight

    @property
    def weight(self) -> int:
        """The weight of its members in bytes, and of the ids handed out (`memory`)."""
        return self.members_weight + MEMBER_BYTES * len(self.pending_members)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check a member's identity. FENCED_INSTANCE_ID if another member has taken over its instance id."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def wait_for_join(self, member: Member, join: Waiting | None) -> None:
        """Set the request with which a member waits at the join barrier; None once it is answered."""
        self.awaiting_join += (join is not None) - (member.join is not None)
        member.join = join

    @property
    def all_joined(self) -> bool:
        """True if the join barrier may be lifted: every member waits, and every id handed out has joined."""
        return not self.pending_members and self.awaiting_join == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member. At least 1, so that a new barrier is not lifted at once."""
        return max((1, *(member.rebalance_timeout_ms for member in self.members.values())))

    def elect_joined_leader(self) -> bool:
        """Make sure the leader has joined, electing another member if necessary. False if no member has joined."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.join is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    # ---- protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a member with these protocols could work with all present members."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and bool(self._common({name for name, _ in protocols}))

    def _common(self, names: set[str]) -> set[str]:
        """Narrow the names to protocols that all members support, in time linear in the number of protocols."""
        for member in self.members.values():
            names = names.intersection(name for name, _ in member.protocols)
        return names

    def select_protocol(self) -> str:
        """Return the protocol with most votes among those all members support. The oldest member breaks ties."""
        members = list(self.members.values())
        names = self._common({name for name, _ in members[0].protocols})
        common = [name for name, _ in members[0].protocols if name in names]
        votes = Counter(next(name for name, _ in member.protocols if name in names) for member in members)
        return max(common, key=lambda name: votes[name])  # the first wins a tie

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics the members subscribe to; None if unknown or if they do not use the consumer protocol.

        The subscriptions of a large group should be read before (`must_be_read`).
        """
        if not self.members and self.state is not State.PREPARING_REBALANCE:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return None
        encoded = self.encoded_subscriptions()
        if self.read is not None and self.read[0] == encoded:
            return self.read[1]
        return topics_of_all(encoded)

    def encoded_subscriptions(self) -> tuple[bytes, ...]:
        """Return the members' metadata for the group's protocol."""
        return tuple(member.metadata(self.protocol_name) for member in self.members.values())

    @property
    def must_be_read(self) -> bool:
        """True if `subscribed_topics` would take long."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return False
        is_large = self.members_weight - MEMBER_BYTES * len(self.members) > READ_BYTES_AT_ONCE
        return is_large and (self.read is None or self.read[0] != self.encoded_subscriptions())

    # ---- the durable part

    def to_value(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """Return the generation as a record value, with these assignments by member id."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.current_state_timestamp,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def restore(self) -> None:
        """Rebuild the volatile part from the durable one: Stable with members, else Empty."""
        value = self.persisted
        if value is None:
            return
        self.state = State.STABLE if value.members else State.EMPTY
        self.previous_state = State.EMPTY
        self.current_state_timestamp = value.current_state_timestamp
        self.generation_id = value.generation_id
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.leader_id = None
        for stored in value.members:
            self.add(_restored(stored, value.protocol))
        if value.leader in self.members:
            self.leader_id = value.leader

    def clear(self) -> None:
        """Forget the members and the generation's protocol; what is stored stays."""
        self.state = self.previous_state = State.EMPTY
        self.current_state_timestamp = NO_TIMESTAMP
        self.protocol_type = self.protocol_name = self.leader_id = None
        self.members, self.static_members, self.members_weight, self.awaiting_join = {}, {}, 0, 0
        self.pending_members, self.pending_sync = set(), set()
        self.assignment_in_flight = False

    def revert_static(self, group_instance_id: str) -> None:
        """Reset a static member of a Stable group to its durable state, in place."""
        value = self.persisted
        assert value is not None
        stored = next(each for each in value.members if each.group_instance_id == group_instance_id)
        member = self.rename(self.static_members[group_instance_id], stored.member_id)
        durable = _restored(stored, value.protocol)
        member.client_id = durable.client_id
        member.client_host = durable.client_host
        member.rebalance_timeout_ms = durable.rebalance_timeout_ms
        member.session_timeout_ms = durable.session_timeout_ms
        self.resubscribe(member, durable.protocols)

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        members = self.members.values()
        assert self.members_weight == sum(member.weight for member in members)
        assert self.awaiting_join == sum(member.join is not None for member in members)
        assert self.members or self.state in (State.EMPTY, State.DEAD, State.PREPARING_REBALANCE), self.state
        assert not self.members or self.state not in (State.EMPTY, State.DEAD), self.state
        assert (self.leader_id is None) == (not self.members)
        assert self.leader_id is None or self.leader_id in self.members
        assert self.static_members == _unique((m.group_instance_id, m.member_id) for m in members)
        assert self.pending_sync <= self.members.keys()
        assert not self.pending_members & self.members.keys()
        assert not self.pending_sync or self.state in (State.COMPLETING_REBALANCE, State.STABLE)
        assert self.state is State.COMPLETING_REBALANCE or not self.assignment_in_flight
        for member in members:
            assert member.sync is None or self.state is State.COMPLETING_REBALANCE, member
            assert member.join is None or self.state is not State.COMPLETING_REBALANCE, member
            assert (member.assignment is not None) or self.state is not State.STABLE, member
            assert not member.is_new or self.state is State.PREPARING_REBALANCE, member
        if members and self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            assert self.protocol_name is not None
            assert all(member.supports(self.protocol_name) for member in members)


def _restored(stored: MemberMetadata, protocol_name: str | None) -> Member:
    """Rebuild a stored member. Only its chosen protocol is known; the next rebalance asks for the rest."""
    return Member(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols=((protocol_name or "", stored.subscription),),
        assignment=stored.assignment,
    )


def _unique(pairs: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    """Build a dictionary from pairs, asserting that the keys are unique."""
    result: dict[str, str] = {}
    for key, value in pairs:
        if key is not None:
            assert key not in result, f"{key} belongs to {result[key]} and to {value}"
            result[key] = value
    return result
