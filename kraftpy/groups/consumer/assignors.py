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

from kraftpy.frozen import frozen
from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.types import TopicId


@frozen
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
    _even_out(loads, readers)
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


def _even_out(loads: dict[str, _Load], readers: Mapping[TopicId, list[str]]) -> None:
    """Move partitions from members to subscribers that have at least two fewer, until there is no such pair.

    The giver is always the member with the most that can give one, so a partition is not moved back and forth; it gives
    one of the first such topic to the subscriber with the fewest. Every move reduces the sum of the squared counts, so
    the process terminates.
    """
    lists = _Lists(loads, readers)
    place = {member_id: number for number, member_id in enumerate(loads)}
    givers = [(-load.count, place[member_id], member_id) for member_id, load in loads.items()]
    heapq.heapify(givers)
    passed_over: list[tuple[int, int, str]] = []
    while givers:
        count, number, giver = heapq.heappop(givers)
        if loads[giver].count != -count:  # it has given or taken since, and has another entry
            continue
        move = lists.move_from(giver)
        if move is None:
            passed_over.append((count, number, giver))
            if -count < lists.fewest + 2:  # nor does any later one have enough
                break
            continue
        topic, taker = move
        loads[taker].take(topic, loads[giver].give(topic))
        lists.moved(topic, giver, taker)
        for each in (giver, taker):
            heapq.heappush(givers, (-loads[each].count, place[each], each))
        for entry in passed_over:  # the giver has fewer now, and may take from them
            heapq.heappush(givers, entry)
        passed_over.clear()


class _Lists:
    """The distinct lists of subscribers: which topics of each a member holds, and who of each has the fewest."""

    def __init__(self, loads: dict[str, _Load], readers: Mapping[TopicId, list[str]]) -> None:
        self._loads = loads
        self._readers = readers
        self._place = {member_id: number for number, member_id in enumerate(loads)}
        lists = {id(of_topic): of_topic for of_topic in readers.values()}
        self._fewest = {
            key: [(loads[each].count, self._place[each], each) for each in members] for key, members in lists.items()
        }
        self._lists_of: dict[str, list[int]] = {each: [] for each in loads}
        for key, members in lists.items():
            heapq.heapify(self._fewest[key])
            for each in members:
                self._lists_of[each].append(key)
        self._held: dict[str, dict[int, list[TopicId]]] = {each: {} for each in loads}
        for member_id, load in loads.items():
            for topic in sorted(load.by_topic):
                self._held[member_id].setdefault(id(readers[topic]), []).append(topic)

    @property
    def fewest(self) -> int:
        """The smallest count of any member."""
        return min(load.count for load in self._loads.values())

    def move_from(self, giver: str) -> tuple[TopicId, str] | None:
        """Return the first topic of which the giver can give a partition, and the member that takes it."""
        best: tuple[TopicId, str] | None = None
        for key, topics in self._held[giver].items():
            while topics and topics[0] not in self._loads[giver].by_topic:
                heapq.heappop(topics)
            if topics and (best is None or topics[0] < best[0]):
                taker = self._taker(key)
                if self._loads[taker].count + 2 <= self._loads[giver].count:
                    best = topics[0], taker
        return best

    def _taker(self, key: int) -> str:
        heap = self._fewest[key]
        while heap[0][0] != self._loads[heap[0][2]].count:  # it has given or taken in the meantime
            _, place, member_id = heap[0]
            heapq.heapreplace(heap, (self._loads[member_id].count, place, member_id))
        return heap[0][2]

    def moved(self, topic: TopicId, giver: str, taker: str) -> None:
        """Follow a move that was made."""
        key = id(self._readers[topic])
        if len(self._loads[taker].by_topic[topic]) == 1:
            heapq.heappush(self._held[taker].setdefault(key, []), topic)
        for each in self._lists_of[giver]:
            heapq.heappush(self._fewest[each], (self._loads[giver].count, self._place[giver], giver))


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "uniform": assign_uniform}
"""The assignors a member may request, and `group.consumer.assignors` may list."""
