"""One group of any kind: the state that all kinds have in common, and the state of one of the four kinds.

A group of any kind has offsets and a queue. Members and epochs are those of its `kind`: a classic group, a group
of the consumer protocol (KIP-848), a share group (KIP-932) or a streams group (KIP-1071). A group that was never
anything else is a classic one without members. Only `GroupCoordinator.replay` changes the kind, as records say.

Invariants (`validate` checks them): those of the kind; a share group stores no offsets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from kraftpy.groups.apart import Decision
from kraftpy.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, State
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.deadlines import Key
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import Request
from kraftpy.groups.memory import GROUP_BYTES
from kraftpy.groups.records import GroupMetadataValue, OffsetCommitValue
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.topics import NEVER
from kraftpy.types import Millis, TopicPartition

Kind = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


@dataclass(slots=True, kw_only=True)
class Group:
    """A group. Only the coordinator, the queues of changes and `offsets.py` change it."""

    group_id: str
    kind: Kind = field(init=False)
    offsets: dict[TopicPartition, OffsetCommitValue] = field(default_factory=dict)
    records_in_flight: int = 0  # unanswered appends that involve this group
    offsets_in_flight: Counter[TopicPartition] = field(default_factory=Counter)
    unstable: Counter[TopicPartition] = field(default_factory=Counter)  # committed in open transactions
    is_losing_offsets: bool = False  # it is being deleted, and some of its offsets are gone already

    is_dead: bool = False  # its tombstones are being written to the log
    is_changing: bool = False  # records that say its kind's state are being written, or that state is being changed
    waiting: deque[Request | Key] = field(default_factory=deque)  # queued until the change is done
    stored: AnyDraft[Any, Any, Any] | None = None  # the draft whose records are being written
    decision: Decision | None = None  # paused, while something large is computed for it
    handing: Request | Key | None = None  # an item being passed on to another kind's queue
    handed_to: object = None  # the queue that took it
    counted: int = 0  # bytes counted for it in the coordinator's usage, without offsets and records

    def __post_init__(self) -> None:
        self.kind = ClassicGroup(group_id=self.group_id)

    # ---- its kind

    @property
    def classic(self) -> ClassicGroup | None:
        """The group as a classic one, or None."""
        return self.kind if isinstance(self.kind, ClassicGroup) else None

    def classic_or_empty(self) -> ClassicGroup:
        """Return the group as a classic one. A group of another kind has no classic members and knows none."""
        if isinstance(self.kind, ClassicGroup):
            return self.kind
        return ClassicGroup(group_id=self.group_id, state=State.DEAD if self.is_dead else State.EMPTY)

    def put_generation(self, value: GroupMetadataValue | None) -> None:
        """Take over a classic group's generation from the log, replayed or just stored; None if it was deleted."""
        if isinstance(self.kind, ClassicGroup):
            self.kind.persisted = value
        elif value is not None:
            self.kind = ClassicGroup(group_id=self.group_id, persisted=value)

    @property
    def may_become_another_kind(self) -> bool:
        """True if this is a classic group without members: its offsets stay with what it becomes."""
        return isinstance(self.kind, ClassicGroup) and self.kind.state is State.EMPTY

    @property
    def holds_nothing(self) -> bool:
        """True if the group is of no particular kind and has neither members nor offsets."""
        is_nothing = isinstance(self.kind, ClassicGroup) and self.kind.holds_nothing
        return is_nothing and not (self.offsets or self.unstable or self.records_in_flight)

    @property
    def is_vacant(self) -> bool:
        """True if nothing would be lost by dropping the group."""
        return self.holds_nothing and not self.waiting and self.decision is None and not self.is_losing_offsets

    # ---- state

    def bury(self, timestamp: Millis) -> None:
        """Make an empty group dead until its tombstones are written."""
        if isinstance(self.kind, ClassicGroup):
            self.kind.become(State.DEAD, timestamp)
        self.is_dead = True

    def unbury(self) -> None:
        """Restore a dead group as it was: its tombstones were not written."""
        if isinstance(self.kind, ClassicGroup):
            self.kind.state = State.EMPTY  # there is no transition out of Dead
        self.is_dead = self.is_losing_offsets = False

    @property
    def state_name(self) -> str:
        """The name of its state as clients see it, for any kind of group."""
        if self.is_dead:
            return State.DEAD.value
        return self.kind.state.value if isinstance(self.kind, ClassicGroup) else self.kind.state

    @property
    def is_empty(self) -> bool:
        """True if the group exists and has no members, for any kind of group."""
        if isinstance(self.kind, ClassicGroup):
            return self.kind.state is State.EMPTY
        return not self.is_dead and not self.kind.members

    @property
    def weight(self) -> int:
        """The weight in bytes, without offsets and records (`memory`)."""
        of_members = self.kind.weight if isinstance(self.kind, ClassicGroup) else 0
        return GROUP_BYTES + 2 * len(self.group_id) + of_members

    @property
    def size(self) -> int:
        """The number of members, assigned partitions or tasks and committed offsets: roughly the cost of describing the
        group."""
        match self.kind:
            case ClassicGroup():
                assigned = 0
            case ConsumerGroup():
                assigned = len(self.kind.holders)
            case ShareGroup():
                assigned = sum(len(current.assigned) for current in self.kind.currents.values())
            case StreamsGroup():
                assigned = self.kind.task_count + (0 if self.kind.topology is None else self.kind.topology.size)
            case _:
                assert_never(self.kind)
        return len(self.kind.members) + assigned + len(self.offsets)

    def snapshot(self) -> Group:
        """Return a copy that can be read while the group changes."""
        found = copy(self)
        if not isinstance(self.kind, ClassicGroup):
            found.kind = self.kind.copy()
        return found

    # ---- topics

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics the members subscribe to; None if unknown or if they do not use the consumer protocol."""
        match self.kind:
            case ClassicGroup():
                return self.kind.subscribed_topics()
            case ConsumerGroup() | StreamsGroup():
                return self.kind.subscribed_topics() if self.kind.members else frozenset()
            case ShareGroup():
                return frozenset()
            case _:
                assert_never(self.kind)

    def subscription(self) -> Callable[[str], bool]:
        """Return a predicate that says whether some member reads a topic. If a consumer group's topics are unknown, it
        reads all.

        The members' subscriptions are evaluated once, not for each topic.
        """
        topics = self.subscribed_topics()
        if topics is None:
            reads_all = isinstance(self.kind, ClassicGroup) and self.kind.protocol_type == CONSUMER_PROTOCOL_TYPE
            return lambda topic: reads_all
        return topics.__contains__

    # ---- the durable part, and checks

    def durable_kind(self) -> ConsumerGroup | ShareGroup | StreamsGroup | None:
        """Return the durable state of a group that the coordinator assigns to; None for a classic one."""
        match self.kind:
            case ClassicGroup():
                return None
            case ConsumerGroup():
                return replace(self.kind, topics_version=NEVER)
            case ShareGroup():
                return self.kind.durable()
            case StreamsGroup():
                return self.kind
            case _:
                assert_never(self.kind)

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        self.kind.validate()
        match self.kind:
            case ClassicGroup():
                assert self.is_dead == (self.kind.state is State.DEAD), self
            case ShareGroup():
                assert not self.offsets, "a share group stores no offsets"
                assert not self.unstable, "a share group stores no offsets"
            case ConsumerGroup() | StreamsGroup():
                assert not self.kind.is_gone
            case _:
                assert_never(self.kind)
