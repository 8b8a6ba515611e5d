"""One group of the consumer protocol (KIP-848): its durable state and queries about it.

All of it is durable: only `apply` changes it, record by record, whether the records were just written or are being
replayed. A decision works on a `Draft`: the group as it will be once the draft's records are in the log.

There are three epochs. The group epoch goes up whenever its members or their subscriptions change; the assignment epoch
is the group epoch for which the targets were computed; a member epoch is the assignment epoch that the member has
reached. All of them only go up.

Invariant (`validate`): no partition is held by two members. A member holds the partitions it may read and those it was
asked to revoke but still has; only partitions that no member holds are assigned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import assert_never

from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.groups.assignment_interval import NEVER_ASSIGNED
from kraftpy.groups.consumer.records import (
    ConsumerKey,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberState,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    consumer_record,
)
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import TopicRights
from kraftpy.groups.topics import NEVER, Topics, hash_of_topics

_NO_TARGETS = TargetMetadataValue(assignment_epoch=0)


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """The durable state of one group."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assigned_at: int = NEVER_ASSIGNED  # wall clock
    members: dict[str, MemberValue] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    currents: dict[str, CurrentValue] = field(default_factory=dict)
    regexes: dict[str, RegexValue] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    holders: dict[TopicIdPartition, str] = field(default_factory=dict)
    topics_version: int = NEVER  # volatile: the version of the topics its hash was last compared with
    looked_up: Mapping[str, int] = field(default_factory=dict, compare=False)  # volatile: topics' version by regex
    rights: TopicRights | None = field(default=None, compare=False)  # volatile: a member's, for matching expressions
    are_rights_known: bool = field(default=False, compare=False)  # volatile
    is_resolving: bool = field(default=False, compare=False)  # volatile: a regex is not resolved for this version yet

    # ---- what records say

    def apply(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Apply one record."""
        match key:
            case GroupKey():
                group = value if isinstance(value, GroupValue) else GroupValue(epoch=0)
                self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
            case TargetMetadataKey():
                made = value if isinstance(value, TargetMetadataValue) else _NO_TARGETS
                self.assignment_epoch, self.assigned_at = made.assignment_epoch, made.assigned_at
            case MemberKey(member_id=member_id):
                self._apply_member(member_id, value if isinstance(value, MemberValue) else None)
            case TargetMemberKey(member_id=member_id):
                if isinstance(value, TargetMemberValue):
                    self.targets[member_id] = value.partitions
                else:
                    self.targets.pop(member_id, None)
            case CurrentKey(member_id=member_id):
                self._apply_current(member_id, value if isinstance(value, CurrentValue) else None)
            case RegexKey(regex=regex):
                if isinstance(value, RegexValue):
                    self.regexes[regex] = value
                else:
                    self.regexes.pop(regex, None)
            case _:
                assert_never(key)

    def _apply_member(self, member_id: str, value: MemberValue | None) -> None:
        old = self.members.pop(member_id, None) if value is None else self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        if value is not None:
            self.members[member_id] = value
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id

    def _apply_current(self, member_id: str, value: CurrentValue | None) -> None:
        old = self.currents.pop(member_id, None) if value is None else self.currents.get(member_id)
        if old is not None:
            for each in old.assigned | old.pending_revocation:  # the order does not matter: each is a separate key
                if self.holders.get(each) == member_id:
                    del self.holders[each]
        if value is not None:
            self.currents[member_id] = value
            self.holders.update(dict.fromkeys(value.assigned | value.pending_revocation, member_id))

    def copy(self) -> ConsumerGroup:
        """Return a copy that can be changed independently."""
        return replace(
            self,
            members=dict(self.members),
            targets=dict(self.targets),
            currents=dict(self.currents),
            regexes=dict(self.regexes),
            static_members=dict(self.static_members),
            holders=dict(self.holders),
        )

    @property
    def is_gone(self) -> bool:
        """True if nothing of the group is left in the log."""
        return self.epoch == 0 and not (self.members or self.targets or self.currents or self.regexes)

    # ---- questions

    @property
    def state(self) -> str:
        """The name of its state as clients see it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        stable = all(
            current.state is MemberState.STABLE and current.member_epoch == self.assignment_epoch
            for current in (self.current(member_id) for member_id in self.members)
        )
        return "Stable" if stable else "Reconciling"

    def current(self, member_id: str) -> CurrentValue:
        """Return the member's current assignment; empty for a new member."""
        return self.currents.get(member_id, _NEW)

    def revocation_ms(self, member_id: str) -> int | None:
        """How long the member may take to give up what was revoked; None if nothing was."""
        if self.current(member_id).state is not MemberState.UNREVOKED_PARTITIONS:
            return None
        return max(self.members[member_id].rebalance_timeout_ms, 1)

    def target(self, member_id: str) -> Assignment:
        """Return the member's target."""
        return self.targets.get(member_id, NOTHING)

    def topics_of(self, member: MemberValue) -> frozenset[str]:
        """Return the topics a member subscribes to, whether they exist or not."""
        matched = self.regexes.get(member.subscribed_topic_regex or "")
        return frozenset(member.subscribed_topic_names) | frozenset(matched.topics if matched is not None else ())

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that any member subscribes to."""
        found = {name for member in self.members.values() for name in member.subscribed_topic_names}
        for regex in {member.subscribed_topic_regex for member in self.members.values()}:
            matched = self.regexes.get(regex or "")
            found.update(matched.topics if matched is not None else ())
        return frozenset(found)

    def hash_of(self, topics: Topics) -> int:
        """Hash the subscribed topics that exist, their ids and their partition counts."""
        return hash_of_topics(self.subscribed_topics(), topics)

    def assignor(self, default: str) -> str:
        """Return the assignor most members ask for. The first by name wins a tie; the default applies if none asks."""
        asked = Counter(m.server_assignor for m in self.members.values() if m.server_assignor is not None)
        return max(sorted(asked), key=lambda name: asked[name], default=default)

    def shared_protocols(self, names: AbstractSet[str]) -> set[str]:
        """Return those of these protocols that every member of the classic protocol supports."""
        shared = set(names)
        for member in self.members.values():
            if member.classic is not None:
                shared.intersection_update(name for name, _ in member.classic.protocols)
        return shared

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        held: dict[TopicIdPartition, str] = {}
        for member_id, current in self.currents.items():
            assert not current.assigned & current.pending_revocation, (member_id, current)
            for each in current.assigned | current.pending_revocation:
                assert each not in held, f"{each} is held by {held[each]} and by {member_id}"
                held[each] = member_id
            assert current.member_epoch <= self.assignment_epoch, (member_id, current)
            assert (current.state is MemberState.UNREVOKED_PARTITIONS) == bool(current.pending_revocation), current
        assert held == self.holders
        assert self.assignment_epoch <= self.epoch
        assert self.currents.keys() == self.members.keys(), (self.currents.keys(), self.members.keys())
        assert self.targets.keys() <= self.members.keys()
        assert {regex for m in self.members.values() if (regex := m.subscribed_topic_regex)} == self.regexes.keys()
        statics = {m.instance_id: member_id for member_id, m in self.members.items() if m.instance_id is not None}
        assert statics == self.static_members
        targeted = [each for target in self.targets.values() for each in target]
        assert len(targeted) == len(set(targeted)), "a partition is the target of two members"


_NEW = CurrentValue()


class Draft(AnyDraft[ConsumerGroup, ConsumerKey, ConsumerValue]):
    """A consumer group as it will be."""

    current_key = CurrentKey
    _record = staticmethod(consumer_record)

    def become(self, other: Draft) -> None:
        """Take over the contents of another draft of the same group. This one must still be empty."""
        assert not self.records, self.records
        self.group, self.records, self.changed = other.group, other.records, other.changed
        self._written, self.successor = other._written, other.successor
        self.cost += other.cost

    def _keys_of(self, member_id: str) -> tuple[ConsumerKey, ...]:
        group_id = self.group.group_id
        return CurrentKey(group_id, member_id), TargetMemberKey(group_id, member_id), MemberKey(group_id, member_id)

    def _keys(self) -> tuple[ConsumerKey, ...]:
        group_id = self.group.group_id
        regexes = (RegexKey(group_id, regex) for regex in sorted(self.group.regexes))
        return *regexes, TargetMetadataKey(group_id), GroupKey(group_id)
