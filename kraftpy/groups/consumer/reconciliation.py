"""Moves a member of a consumer group from its current partitions to its target (KIP-848).

Read: `groups.reconciliation`, whose steps these are.
"""

from __future__ import annotations

from functools import partial

from kraftpy.groups.assignment import Assignment
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.consumer.records import CurrentValue, MemberState
from kraftpy.groups.reconciliation import Current, Phase, reconcile
from kraftpy.groups.topics import Topics
from kraftpy.types import TopicId

_PHASES = {
    MemberState.STABLE: Phase.STABLE,
    MemberState.UNREVOKED_PARTITIONS: Phase.UNREVOKED,
    MemberState.UNRELEASED_PARTITIONS: Phase.UNRELEASED,
    MemberState.UNKNOWN: Phase.UNKNOWN,
}
_STATES = {
    Phase.STABLE: MemberState.STABLE,
    Phase.UNREVOKED: MemberState.UNREVOKED_PARTITIONS,
    Phase.UNRELEASED: MemberState.UNRELEASED_PARTITIONS,
}


def reconciled(
    group: ConsumerGroup, member_id: str, owned: Assignment | None, topics: Topics, *, resubscribed: bool
) -> CurrentValue:
    """Return the member's next assignment. `owned` is what it reports as owned, None if it reports nothing.

    `resubscribed`: its own subscription has just changed, so topics it dropped are revoked even if nothing else
    changes.
    """
    current = group.current(member_id)
    after = reconcile(
        Current(_PHASES[current.state], current.member_epoch, current.assigned, current.pending_revocation),
        group.assignment_epoch,
        partial(_target, group, member_id, topics),
        owned,
        partial(_free, group, member_id),
        is_changed=resubscribed,
    )
    if after is None:
        return current
    return CurrentValue(
        member_epoch=after.member_epoch,
        previous_member_epoch=current.member_epoch,
        state=_STATES[after.phase],
        assigned=after.assigned,
        pending_revocation=after.pending_revocation,
    )


def _target(group: ConsumerGroup, member_id: str, topics: Topics) -> Assignment:
    """Return the member's target, without topics that it does not subscribe to any more."""
    reads = _subscribed_ids(group, member_id, topics)
    return frozenset(each for each in group.target(member_id) if each.topic_id in reads)


def _free(group: ConsumerGroup, member_id: str, wanted: Assignment) -> Assignment:
    return frozenset(each for each in wanted if group.holders.get(each, member_id) == member_id)


def _subscribed_ids(group: ConsumerGroup, member_id: str, topics: Topics) -> frozenset[TopicId]:
    found = (topics.topic(name) for name in group.topics_of(group.members[member_id]))
    return frozenset(info.topic_id for info in found if info is not None)
