"""One share group (KIP-932): its durable state and queries about it.

All of it is durable: only `apply` changes it, record by record, whether the records were just written or are being
replayed. A decision works on a `ShareDraft`: the group as it will be once the draft's records are in the log.

Epochs work as in the consumer protocol. The group epoch goes up whenever its members or their subscriptions change; the
assignment epoch is the group epoch for which the targets were computed; a member epoch is the assignment epoch that the
member has reached. A partition may be read by several members, so members need not wait for each other: a member
reaches its target at once.

Only partitions whose state the share coordinators keep are assigned. A partition is initializing from its first
subscription until the share coordinator confirms it, and initialized from then on, even while no member reads it. A
topic being deleted has no state, or will soon have none.

Invariant (`validate`): targets and assigned partitions are initialized, unless their topic is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from kraftpy.groups.assignment import NOTHING, Assignment
from kraftpy.groups.assignment_interval import NEVER_ASSIGNED
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.share.records import (
    ShareCurrentKey,
    ShareCurrentValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareKey,
    ShareMemberKey,
    ShareMemberValue,
    ShareStateKey,
    ShareStateValue,
    ShareTargetMemberKey,
    ShareTargetMemberValue,
    ShareTargetMetadataKey,
    ShareTargetMetadataValue,
    ShareValue,
    partitions_of,
    share_record,
)
from kraftpy.groups.topics import NEVER

_NEW = ShareCurrentValue()
_NO_STATE = ShareStateValue()


_NO_TARGETS = ShareTargetMetadataValue(assignment_epoch=0)


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    """The durable state of one group."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assigned_at: int = NEVER_ASSIGNED  # wall clock
    members: dict[str, ShareMemberValue] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    currents: dict[str, ShareCurrentValue] = field(default_factory=dict)
    partitions: ShareStateValue = _NO_STATE
    topics_version: int = NEVER  # volatile: the version of the topics its hash was last compared with
    assigned: ShareStateValue | None = None  # volatile: the partitions its targets were last compared with
    complete_for: tuple[int, int] | None = None  # volatile: topics' version and epoch at which nothing lacked state

    # ---- what records say

    def apply(self, key: ShareKey, value: ShareValue | None) -> None:
        """Apply one record."""
        match key:
            case ShareGroupKey():
                group = value if isinstance(value, ShareGroupValue) else ShareGroupValue(epoch=0)
                self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
            case ShareTargetMetadataKey():
                made = value if isinstance(value, ShareTargetMetadataValue) else _NO_TARGETS
                self.assignment_epoch, self.assigned_at = made.assignment_epoch, made.assigned_at
            case ShareMemberKey(member_id=member_id):
                if isinstance(value, ShareMemberValue):
                    self.members[member_id] = value
                else:
                    self.members.pop(member_id, None)
            case ShareTargetMemberKey(member_id=member_id):
                if isinstance(value, ShareTargetMemberValue):
                    self.targets[member_id] = value.partitions
                else:
                    self.targets.pop(member_id, None)
            case ShareCurrentKey(member_id=member_id):
                if isinstance(value, ShareCurrentValue):
                    self.currents[member_id] = value
                else:
                    self.currents.pop(member_id, None)
            case ShareStateKey():
                self.partitions = value if isinstance(value, ShareStateValue) else _NO_STATE
                self.complete_for = None
            case _:
                assert_never(key)

    def copy(self) -> ShareGroup:
        """Return a copy that can be changed independently."""
        return replace(self, members=dict(self.members), targets=dict(self.targets), currents=dict(self.currents))

    def durable(self) -> ShareGroup:
        """Return a copy without volatile state."""
        return replace(self, topics_version=NEVER, assigned=None, complete_for=None)

    @property
    def is_gone(self) -> bool:
        """True if nothing of the group is left in the log."""
        return self.epoch == 0 and not (self.members or self.targets or self.currents) and self.partitions.is_nothing

    # ---- questions

    @property
    def state(self) -> str:
        """The name of its state as clients see it."""
        return "Stable" if self.members else "Empty"

    def current(self, member_id: str) -> ShareCurrentValue:
        """Return the member's current assignment; empty for a new member."""
        return self.currents.get(member_id, _NEW)

    def revocation_ms(self, member_id: str) -> None:
        """Return None: share groups wait for no revocations."""

    def target(self, member_id: str) -> Assignment:
        """Return the member's target."""
        return self.targets.get(member_id, NOTHING)

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that any member subscribes to, whether they exist or not."""
        return frozenset(name for member in self.members.values() for name in member.subscribed_topic_names)

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        assert self.assignment_epoch <= self.epoch, (self.assignment_epoch, self.epoch)
        assert self.currents.keys() == self.members.keys(), (self.currents.keys(), self.members.keys())
        assert self.targets.keys() <= self.members.keys()
        known = self.partitions.initialized
        for partitions in self.targets.values():
            of_known = frozenset(each for each in partitions if each.topic_id in known)
            assert of_known <= partitions_of(known), (of_known, known)
        for current in self.currents.values():
            assert current.member_epoch <= self.assignment_epoch, current
            assert current.previous_member_epoch <= current.member_epoch, current
        assert not self.partitions.deleting.keys() & known.keys(), self.partitions


class ShareDraft(AnyDraft[ShareGroup, ShareKey, ShareValue]):
    """A share group as it will be."""

    current_key = ShareCurrentKey
    _record = staticmethod(share_record)

    def __init__(self, group: ShareGroup) -> None:
        super().__init__(group)
        self.initialize: Assignment = NOTHING  # requested from the share coordinators once the records are stored

    def take_back(self, count: int) -> None:
        """Keep only the first `count` records. `initialize` keeps only partitions that they still list."""
        super().take_back(count)
        self.initialize &= partitions_of(self.group.partitions.initializing)

    def put_partitions(self, partitions: ShareStateValue) -> None:
        """Store which partitions have state, if that has changed."""
        if partitions != self.group.partitions:
            self.put(ShareStateKey(self.group.group_id), partitions)

    def _keys_of(self, member_id: str) -> tuple[ShareKey, ...]:
        group_id = self.group.group_id
        return (
            ShareCurrentKey(group_id, member_id),
            ShareTargetMemberKey(group_id, member_id),
            ShareMemberKey(group_id, member_id),
        )

    def _keys(self) -> tuple[ShareKey, ...]:
        group_id = self.group.group_id
        return ShareTargetMetadataKey(group_id), ShareStateKey(group_id), ShareGroupKey(group_id)
