"""The assignor of share groups, `simple` (KIP-932): which member reads which partitions.

A partition may go to several members; each goes to at least one subscriber of its topic. If there are more members than
partitions, each partition goes to enough members that none is left without. The numbers of partitions that members have
differ by at most one, and a member loses a partition only if that is necessary to keep it so.

If all members subscribe to the same topics, this holds for all their partitions together; otherwise for each topic and
its subscribers separately.

The assignor is deterministic, and stable: given its own result as input, it changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from kraftpy.frozen import frozen
from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.types import TopicId


@frozen
class ShareSubscriber:
    """A member as the assignor sees it: the existing topics it subscribes to, and its previous target."""

    topics: frozenset[TopicId]
    target: Assignment = NOTHING


def assign_simple(members: Mapping[str, ShareSubscriber], assignable: Assignment) -> dict[str, Assignment]:
    """Assign the assignable partitions to the members that subscribe to their topics."""
    order = sorted(members)
    partitions: dict[TopicId, list[TopicIdPartition]] = {}
    for each in sorted(assignable):
        partitions.setdefault(each.topic_id, []).append(each)
    if len({member.topics for member in members.values()}) == 1:
        topics = members[order[0]].topics
        together = [each for topic_id in sorted(topics) for each in partitions.get(topic_id, ())]
        return {member_id: frozenset(held) for member_id, held in _share(order, together, members).items()}
    given: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in order}
    for topic_id in sorted(partitions):
        readers = [member_id for member_id in order if topic_id in members[member_id].topics]
        readers.sort(key=lambda member_id: len(given[member_id]))  # members with the fewest get the extra one
        for member_id, held in _share(readers, partitions[topic_id], members).items():
            given[member_id] |= held
    return {member_id: frozenset(held) for member_id, held in given.items()}


def _share(
    readers: Sequence[str], partitions: Sequence[TopicIdPartition], members: Mapping[str, ShareSubscriber]
) -> dict[str, set[TopicIdPartition]]:
    """Assign the partitions, giving each reader the same number."""
    if not readers or not partitions:
        return {member_id: set() for member_id in readers}
    times = -(-len(readers) // len(partitions))  # the number of readers per partition
    known = frozenset(partitions)
    held = {member_id: set(members[member_id].target & known) for member_id in readers}
    holders: dict[TopicIdPartition, list[str]] = {each: [] for each in partitions}
    for member_id in readers:
        for each in held[member_id]:
            holders[each].append(member_id)
    _drop_readers(partitions, times, held, holders)
    wanted = _wanted(times * len(partitions), held)
    for member_id in readers:
        surplus = len(held[member_id]) - wanted[member_id]
        if surplus <= 0:
            continue
        by_readers = sorted(held[member_id], key=lambda each: (-len(holders[each]), each))
        for each in by_readers[:surplus]:  # those with the most readers
            held[member_id].remove(each)
            holders[each].remove(member_id)
    _add_readers(partitions, times, held, holders, wanted)
    return held


def _drop_readers(
    partitions: Sequence[TopicIdPartition],
    times: int,
    held: dict[str, set[TopicIdPartition]],
    holders: dict[TopicIdPartition, list[str]],
) -> None:
    """Take partitions with too many readers from the members that have most."""
    for each in partitions:
        while len(holders[each]) > times:
            loser = max(holders[each], key=lambda member_id: len(held[member_id]))
            holders[each].remove(loser)
            held[loser].remove(each)


def _wanted(total: int, held: Mapping[str, set[TopicIdPartition]]) -> dict[str, int]:
    """Return how many partitions each member should have: equal, plus one for those that have most now, in order."""
    least, more = divmod(total, len(held))
    by_count = sorted(held, key=lambda member_id: -len(held[member_id]))
    return {member_id: least + (place < more) for place, member_id in enumerate(by_count)}


def _add_readers(
    partitions: Sequence[TopicIdPartition],
    times: int,
    held: dict[str, set[TopicIdPartition]],
    holders: dict[TopicIdPartition, list[str]],
    wanted: Mapping[str, int],
) -> None:
    """Give partitions with too few readers to the members that lack most."""
    place = {member_id: number for number, member_id in enumerate(held)}
    wanting = [(len(mine) - wanted[each], place[each], each) for each, mine in held.items() if len(mine) < wanted[each]]
    heapq.heapify(wanting)
    for each in sorted(partitions, key=lambda each: len(holders[each])):
        while len(holders[each]) < times:
            passed_over = []
            while wanting and each in held[wanting[0][2]]:
                passed_over.append(heapq.heappop(wanting))
            if wanting:
                missing, number, member_id = heapq.heappop(wanting)
                taken = each
            else:
                missing, number, member_id = passed_over.pop(0)
                taken = _exchange(each, member_id, held, holders)
            held[member_id].add(taken)
            holders[taken].append(member_id)
            if missing + 1 < 0:
                passed_over.append((missing + 1, number, member_id))
            for again in passed_over:
                heapq.heappush(wanting, again)


def _exchange(
    given: TopicIdPartition,
    member_id: str,
    held: dict[str, set[TopicIdPartition]],
    holders: dict[TopicIdPartition, list[str]],
) -> TopicIdPartition:
    """Exchange `given`, which every member that lacks a partition already has, for another member's partition.

    Returns the partition that the member gets instead. There always is one: a member that does not have `given` has all
    it should have, so at least as many as this member, which in addition has `given`.
    """
    other, freed = next(
        (other, each)
        for other in held
        if given not in held[other]
        for each in sorted(held[other])
        if each not in held[member_id]
    )
    held[other].remove(freed)
    holders[freed].remove(other)
    held[other].add(given)
    holders[given].append(other)
    return freed
