"""Moves a member from its current assignment to its target, one heartbeat at a time (KIP-848).

The member is first asked to revoke partitions that are not in its target, and stays at its epoch. When its heartbeat
reports that it has done so, it moves to the epoch of the target and gets the partitions that no other member holds; the
remaining ones follow as the others give them up. A partition therefore never has two holders, regardless of what is
lost or late on the way.
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.groups.assignment import NOTHING, Assignment
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.consumer.records import CurrentValue, MemberState
from kraftpy.groups.topics import Topics
from kraftpy.types import TopicId


def reconciled(
    group: ConsumerGroup, member_id: str, owned: Assignment | None, topics: Topics, *, resubscribed: bool
) -> CurrentValue:
    """Return the member's next assignment. `owned` is what it reports as owned, None if it reports nothing.

    `resubscribed`: its own subscription has just changed, so topics it dropped are revoked even if nothing else
    changes.
    """
    current = group.current(member_id)
    match current.state:
        case MemberState.STABLE:
            if current.member_epoch == group.assignment_epoch and not resubscribed:
                return current
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_owned(owned, current.pending_revocation):
                return current
        case MemberState.UNRELEASED_PARTITIONS | MemberState.UNKNOWN:
            pass
    return _next(group, member_id, current, owned, topics)


def _still_owned(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return True if the member may still have some of these: one that reports nothing still has all of them."""
    return owned is None or bool(owned & partitions)


def _next(
    group: ConsumerGroup, member_id: str, current: CurrentValue, owned: Assignment | None, topics: Topics
) -> CurrentValue:
    reads = _subscribed_ids(group, member_id, topics)
    target = frozenset(each for each in group.target(member_id) if each.topic_id in reads)
    kept = current.assigned & target
    revoked = current.assigned - target
    if revoked and _still_owned(owned, revoked):
        return replace(
            current,
            previous_member_epoch=current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    wanted = target - kept
    free = frozenset(each for each in wanted if group.holders.get(each, member_id) == member_id)
    after = CurrentValue(
        member_epoch=group.assignment_epoch,
        previous_member_epoch=current.member_epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | free,
        pending_revocation=NOTHING,
    )
    waits_on = replace(after, previous_member_epoch=current.previous_member_epoch) == current
    return current if waits_on else after


def _subscribed_ids(group: ConsumerGroup, member_id: str, topics: Topics) -> frozenset[TopicId]:
    found = (topics.topic(name) for name in group.topics_of(group.members[member_id]))
    return frozenset(info.topic_id for info in found if info is not None)
