"""One streams group (KIP-1071): its durable state and queries about it.

As with consumer groups, only `apply` changes durable state, record by record, and a decision works on a `StreamsDraft`:
the group as it will be once the draft's records are in the log. The epochs are the same three: the group's, the
assignment's, and each member's.

Volatile state is not in the log and is lost with the coordinator: how far members have restored, which member requested
a shutdown, the epoch of the endpoints, and the result of configuring the topology for the existing topics.

Invariants (`validate`): a task is active on at most one member; within a process, only one member has a task, in any
role, because the process holds the state on its disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from kraftpy.groups.assignment_interval import NEVER_ASSIGNED
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.streams.records import (
    NO_TASKS,
    StreamsCurrentKey,
    StreamsCurrentValue,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsKey,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsState,
    StreamsTargetKey,
    StreamsTargetMetadataKey,
    StreamsTargetMetadataValue,
    StreamsTargetValue,
    StreamsTopologyKey,
    StreamsValue,
    Task,
    Tasks,
    streams_record,
)
from kraftpy.groups.streams.topology import Configured, Topology
from kraftpy.groups.topics import NEVER

TaskOffsets = dict[Task, int]


_NO_TARGETS = StreamsTargetMetadataValue(assignment_epoch=0)


@dataclass(slots=True, kw_only=True)
class Volatile:
    """State that a coordinator has about a group outside the log. Drafts of the group share it."""

    configured: Configured | None = None
    topics_version: int = NEVER  # the version of the topics it was configured with
    configured_for: Topology | None = None
    topics_hash: int = 0  # of the topics it was configured with
    shutdown_by: str | None = None
    endpoint_epoch: int = 0
    is_delayed: bool = False  # the first assignment waits for more members
    offsets: dict[str, TaskOffsets] = field(default_factory=dict)  # by member
    end_offsets: dict[str, TaskOffsets] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StreamsGroup:
    """The durable state of one group."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    validated_topology_epoch: int = -1
    assignment_configs: tuple[tuple[str, str], ...] = ()
    assignment_epoch: int = 0
    assigned_at: int = NEVER_ASSIGNED  # wall clock
    topology: Topology | None = None
    members: dict[str, StreamsMemberValue] = field(default_factory=dict)
    targets: dict[str, Tasks] = field(default_factory=dict)
    currents: dict[str, StreamsCurrentValue] = field(default_factory=dict)
    volatile: Volatile = field(default_factory=Volatile, compare=False)

    # ---- what records say

    def apply(self, key: StreamsKey, value: StreamsValue | None) -> None:
        """Apply one record."""
        match key:
            case StreamsGroupKey():
                group = value if isinstance(value, StreamsGroupValue) else StreamsGroupValue(epoch=0)
                self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
                self.validated_topology_epoch = group.validated_topology_epoch
                self.assignment_configs = group.assignment_configs
            case StreamsTargetMetadataKey():
                made = value if isinstance(value, StreamsTargetMetadataValue) else _NO_TARGETS
                self.assignment_epoch, self.assigned_at = made.assignment_epoch, made.assigned_at
            case StreamsTopologyKey():
                self.topology = value if isinstance(value, Topology) else None
            case StreamsMemberKey(member_id=member_id):
                _put(self.members, member_id, value if isinstance(value, StreamsMemberValue) else None)
            case StreamsTargetKey(member_id=member_id):
                _put(self.targets, member_id, value.tasks if isinstance(value, StreamsTargetValue) else None)
            case StreamsCurrentKey(member_id=member_id):
                _put(self.currents, member_id, value if isinstance(value, StreamsCurrentValue) else None)
            case _:
                assert_never(key)

    def copy(self) -> StreamsGroup:
        """Return a copy that can be changed independently; volatile state is shared."""
        return replace(self, members=dict(self.members), targets=dict(self.targets), currents=dict(self.currents))

    @property
    def is_gone(self) -> bool:
        """True if nothing of the group is left in the log."""
        is_something = self.members or self.targets or self.currents or self.topology is not None
        return self.epoch == 0 and not is_something

    # ---- questions

    @property
    def state(self) -> str:
        """The name of its state as clients see it."""
        if not self.members:
            return "Empty"
        configured = self.volatile.configured
        if self.validated_topology_epoch == -1 or (configured is not None and not configured.is_ready):
            return "NotReady"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        stable = all(
            current.state is StreamsState.STABLE and current.member_epoch == self.assignment_epoch
            for current in (self.current(member_id) for member_id in self.members)
        )
        return "Stable" if stable else "Reconciling"

    def current(self, member_id: str) -> StreamsCurrentValue:
        """Return the member's current tasks; empty for a new member."""
        return self.currents.get(member_id, _NEW)

    def revocation_ms(self, member_id: str) -> int | None:
        """How long the member may take to give up what was revoked; None if nothing was."""
        if self.current(member_id).state is not StreamsState.UNREVOKED_TASKS:
            return None
        return max(self.members[member_id].rebalance_timeout_ms, 1)

    @property
    def task_count(self) -> int:
        """The number of tasks that members have in any role, or have not given up yet."""
        return sum(len(each.assigned) + len(each.pending_revocation) for each in self.currents.values())

    def target(self, member_id: str) -> Tasks:
        """Return the member's target."""
        return self.targets.get(member_id, NO_TASKS)

    def process(self, member_id: str) -> str:
        """Return the member's process; a member that named none counts as a process of its own."""
        member = self.members.get(member_id)
        return (member.process_id if member is not None else "") or member_id

    def active_holders(self) -> dict[Task, str]:
        """Return the member that works on each task, or has not given it up yet."""
        held: dict[Task, str] = {}
        for member_id, current in self.currents.items():
            for task in current.assigned.active | current.pending_revocation.active:
                held[task] = member_id
        return held

    def process_holders(self) -> dict[tuple[Task, str], str]:
        """Return the member in each process that has a task in any role, or has not given it up yet."""
        held: dict[tuple[Task, str], str] = {}
        for member_id, current in self.currents.items():
            process_id = self.process(member_id)
            for task in (current.assigned | current.pending_revocation).all():
                held[task, process_id] = member_id
        return held

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that the members read by name, including their repartition topics."""
        found: set[str] = set()
        for each in self.topology.subtopologies if self.topology is not None else ():
            found.update(each.source_topics)
            found.update(topic.name for topic in each.repartition_source_topics)
        if self.volatile.configured is not None:
            for topics in self.volatile.configured.sources.values():
                found.update(topics)
        return frozenset(found)

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        active: dict[Task, str] = {}
        by_process: dict[tuple[Task, str], str] = {}
        for member_id, current in self.currents.items():
            has = current.assigned | current.pending_revocation
            for task in sorted(has.active):
                assert task not in active, f"{task} is worked on by {active[task]} and by {member_id}"
                active[task] = member_id
            for task in has.all():
                place = (task, self.process(member_id))
                assert place not in by_process, f"{task} is with {by_process[place]} and {member_id} of one process"
                by_process[place] = member_id
            assert current.member_epoch <= self.assignment_epoch, (member_id, current)
            revokes = current.state is StreamsState.UNREVOKED_TASKS
            assert revokes == bool(current.pending_revocation), current
        assert self.assignment_epoch <= self.epoch
        assert self.currents.keys() == self.members.keys(), (self.currents.keys(), self.members.keys())
        assert self.targets.keys() <= self.members.keys()
        targeted = [task for target in self.targets.values() for task in target.active]
        assert len(targeted) == len(set(targeted)), "a task is the target of two members"


_NEW = StreamsCurrentValue()


T = TypeVar("T")


def _put(place: dict[str, T], member_id: str, value: T | None) -> None:
    if value is None:
        place.pop(member_id, None)
    else:
        place[member_id] = value


class StreamsDraft(AnyDraft[StreamsGroup, StreamsKey, StreamsValue]):
    """A streams group as it will be."""

    current_key = StreamsCurrentKey
    _record = staticmethod(streams_record)

    def _keys_of(self, member_id: str) -> tuple[StreamsKey, ...]:
        group_id = self.group.group_id
        return (
            StreamsCurrentKey(group_id, member_id),
            StreamsTargetKey(group_id, member_id),
            StreamsMemberKey(group_id, member_id),
        )

    def _keys(self) -> tuple[StreamsKey, ...]:
        group_id = self.group.group_id
        return StreamsTargetMetadataKey(group_id), StreamsTopologyKey(group_id), StreamsGroupKey(group_id)
