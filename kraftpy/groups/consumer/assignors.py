"""The server-side assignors: which member gets which partitions (KIP-848).

    range     contiguous ranges of each topic's partitions, with members in the same order for all topics, so that equal
              partitions of topics go to the same member if the topics have as many and the same subscribers
    uniform   as even as possible, moving as few partitions as possible

Both assign every partition of a subscribed topic to exactly one of its subscribers, and are deterministic. Members are
ordered by instance id, then by member id, so a static member keeps its place.

Left out: racks, which Kafka's own assignors have ignored since 4.0 as well (KIP-1101 leaves them for later); custom
assignors, which in Kafka are classes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.types import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it: the existing topics it subscribes to, and its previous target."""

    instance_id: str | None = None
    topics: frozenset[TopicId]
    target: Assignment = NOTHING


Question = Mapping[str, Subscriber]
"""The members by id."""

Counts = Mapping[TopicId, int]
"""The number of partitions of each topic."""

Answer = dict[str, Assignment]
"""The target assignment of each member."""

Assignor = Callable[[Question, Counts], Answer]


def _in_order(members: Question) -> list[str]:
    return sorted(members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or "", each))


def _readers(members: Question) -> dict[TopicId, list[str]]:
    """Return the subscribers of each topic, both in order. Topics with the same subscribers share a list.

    The cost depends on the number of distinct subscriptions, not on members times topics: usually all members subscribe
    to the same topics.
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
    """Assign each topic's partitions in ranges. The first members get one more if the division is not even."""
    given: dict[str, list[TopicIdPartition]] = {each: [] for each in members}
    for topic, readers in _readers(members).items():
        share, more = divmod(counts[topic], len(readers))
        first = 0
        for place, member_id in enumerate(readers):
            if not share and place >= more:  # nor do the members after it get any
                break
            end = first + share + (place < more)
            given[member_id] += [TopicIdPartition(topic, partition) for partition in range(first, end)]
            first = end
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def assign_uniform(members: Question, counts: Counts) -> Answer:
    """Assign partitions evenly, with as few moves as possible.

    Every member keeps the partitions it may keep, and unassigned partitions go to the subscriber with the fewest. Then
    partitions move to a subscriber that has at least two fewer than the holder, until no such pair is left. If all
    members subscribe to the same topics, their counts then differ by at most one.
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
    """The partitions given to one member, by topic, and their number."""

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
    """Give each unassigned partition to the subscriber with the fewest; the first in order wins a tie."""
    place = {member_id: number for number, member_id in enumerate(loads)}
    heaps: dict[int, list[tuple[int, int, str]]] = {}  # one for all topics with the same list of subscribers
    for topic, partition in free:
        heap = heaps.get(id(readers[topic]))
        if heap is None:
            heap = heaps[id(readers[topic])] = [(loads[each].count, place[each], each) for each in readers[topic]]
            heapq.heapify(heap)
        while heap[0][0] != loads[heap[0][2]].count:  # it received partitions of another topic since
            _, number, member_id = heap[0]
            heapq.heapreplace(heap, (loads[member_id].count, number, member_id))
        count, number, member_id = heap[0]
        loads[member_id].take(topic, partition)
        heapq.heapreplace(heap, (count + 1, number, member_id))


def _move_one(loads: dict[str, _Load], readers: Mapping[TopicId, list[str]]) -> bool:
    """Move one partition from a member to a subscriber that has at least two fewer, if there is such a pair.

    The giver is the member with the most that can give one, so a partition is not moved back and forth. Every move
    reduces the sum of the squared counts, so the process terminates.
    """
    fewest = min(load.count for load in loads.values())
    for giver in sorted(loads, key=lambda each: -loads[each].count):
        load = loads[giver]
        if load.count < fewest + 2:
            return False  # nor does any later one have enough
        for topic in sorted(load.by_topic):
            taker = min(readers[topic], key=lambda each: loads[each].count)
            if loads[taker].count + 2 <= load.count:
                loads[taker].take(topic, load.give(topic))
                return True
    return False


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "uniform": assign_uniform}
"""The assignors a member may request, and `group.consumer.assignors` may list."""
