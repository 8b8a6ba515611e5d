"""The assignors of the server: which member shall have which partitions (KIP-848).

    range     the partitions of each topic side by side in ranges, members in one order for all topics, so that equal
              partitions of topics go to the same member where they have as many and the same subscribers
    uniform   as many partitions for everybody as can be, and as few moved from who had them as that allows

Both give every partition of a topic somebody reads to exactly one of its readers, and the same again for the same
question. Members come in the order of their instance ids, then of their own ids, so a static member keeps its place.

Left out: racks, which Kafka's own assignors do not look at either since 4.0 (KIP-1101 leaves them to come back);
assignors of one's own, which in Kafka are classes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.types import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it: the topics it reads that exist, and what it was to have until now."""

    instance_id: str | None = None
    topics: frozenset[TopicId]
    target: Assignment = NOTHING


Question = Mapping[str, Subscriber]
"""The members by id."""

Counts = Mapping[TopicId, int]
"""How many partitions each topic has."""

Answer = dict[str, Assignment]
"""What each member shall have."""

Assignor = Callable[[Question, Counts], Answer]


def _in_order(members: Question) -> list[str]:
    return sorted(members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or "", each))


def _readers(members: Question) -> dict[TopicId, list[str]]:
    """Who reads each topic; both in order. Topics with the same readers have the same list.

    Costs what the subscriptions name that differ, and not members times topics: as a rule all members read the same.
    """
    order = _in_order(members)
    numbers: dict[frozenset[TopicId], int] = {}
    for member_id in order:
        numbers.setdefault(members[member_id].topics, len(numbers))
    subscribing: dict[TopicId, list[int]] = {}
    for subscription, number in numbers.items():
        for topic in subscription:
            subscribing.setdefault(topic, []).append(number)
    lists: dict[tuple[int, ...], list[str]] = {}
    readers: dict[TopicId, list[str]] = {}
    for topic, found in sorted(subscribing.items()):
        key = tuple(found)
        if key not in lists:
            chosen = frozenset(key)
            lists[key] = [each for each in order if numbers[members[each].topics] in chosen]
        readers[topic] = lists[key]
    return readers


def assign_range(members: Question, counts: Counts) -> Answer:
    """Each topic's partitions in ranges, the first members having one more where they do not come out even."""
    given: dict[str, list[TopicIdPartition]] = {each: [] for each in members}
    for topic, readers in _readers(members).items():
        share, more = divmod(counts[topic], len(readers))
        first = 0
        for place, member_id in enumerate(readers):
            if not share and place >= more:  # nor has anybody after it any
                break
            end = first + share + (place < more)
            given[member_id] += [TopicIdPartition(topic, partition) for partition in range(first, end)]
            first = end
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def assign_uniform(members: Question, counts: Counts) -> Answer:
    """Even numbers, with as few changes as they allow.

    Everybody keeps what it may keep, the partitions nobody has go to the reader with the fewest, and then partitions
    move from who has more to a reader of theirs who has at least two fewer, until there is none: where all read the
    same, the numbers then differ by one at most.
    """
    readers = _readers(members)
    loads = {each: _Load() for each in _in_order(members)}
    free: list[TopicIdPartition] = []
    holder = {each: member_id for member_id in loads for each in members[member_id].target}
    sets: dict[int, frozenset[str]] = {}
    for topic, of_topic in sorted(readers.items(), key=lambda item: (len(item[1]), item[0])):
        reading = sets.get(id(of_topic)) or sets.setdefault(id(of_topic), frozenset(of_topic))
        for number in range(counts[topic]):
            partition = TopicIdPartition(topic, number)
            if holder.get(partition) in reading:
                loads[holder[partition]].take(topic, number)
            else:
                free.append(partition)
    _hand_out(free, loads, readers)
    while _move_one(loads, readers):
        pass
    return {member_id: load.partitions() for member_id, load in loads.items()}


class _Load:
    """What one member is to have, by topic, and how much that is."""

    __slots__ = ("by_topic", "count")

    def __init__(self) -> None:
        self.count = 0
        self.by_topic: dict[TopicId, list[int]] = {}

    def take(self, topic: TopicId, number: int) -> None:
        self.by_topic.setdefault(topic, []).append(number)
        self.count += 1

    def give(self, topic: TopicId) -> int:
        number = self.by_topic[topic].pop()
        if not self.by_topic[topic]:
            del self.by_topic[topic]
        self.count -= 1
        return number

    def partitions(self) -> Assignment:
        return frozenset(TopicIdPartition(topic, number) for topic, held in self.by_topic.items() for number in held)


def _hand_out(free: list[TopicIdPartition], loads: dict[str, _Load], readers: Mapping[TopicId, list[str]]) -> None:
    """Give each partition nobody has to the reader with the fewest, the first in order of equals."""
    place = {member_id: number for number, member_id in enumerate(loads)}
    heaps: dict[int, list[tuple[int, int, str]]] = {}  # one for all topics that have the same list of readers
    for topic, partition in free:
        heap = heaps.get(id(readers[topic]))
        if heap is None:
            heap = heaps[id(readers[topic])] = [(loads[each].count, place[each], each) for each in readers[topic]]
            heapq.heapify(heap)
        while heap[0][0] != loads[heap[0][2]].count:  # it has got some of another topic since
            _, number, member_id = heap[0]
            heapq.heapreplace(heap, (loads[member_id].count, number, member_id))
        count, number, member_id = heap[0]
        loads[member_id].take(topic, partition)
        heapq.heapreplace(heap, (count + 1, number, member_id))


def _move_one(loads: dict[str, _Load], readers: Mapping[TopicId, list[str]]) -> bool:
    """Move one partition from a member to a reader of it that has at least two fewer, if there is one.

    The member with the most that can gives it, so nobody gives what it then gets back. Every move makes the sum of the
    squares smaller: there is a last one.
    """
    fewest = min(load.count for load in loads.values())
    for giver in sorted(loads, key=lambda each: -loads[each].count):
        load = loads[giver]
        if load.count < fewest + 2:
            return False  # nor has any other after it enough
        for topic in sorted(load.by_topic):
            taker = min(readers[topic], key=lambda each: loads[each].count)
            if loads[taker].count + 2 <= load.count:
                loads[taker].take(topic, load.give(topic))
                return True
    return False


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "uniform": assign_uniform}
"""What a member may ask for, and `group.consumer.assignors` may name."""
