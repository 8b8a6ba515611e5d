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

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kraftpy.groups.consumer_records import NOTHING, Assignment, TopicIdPartition
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
    """Who reads each topic; both in order."""
    order = _in_order(members)
    topics = sorted(frozenset().union(*(member.topics for member in members.values())))
    return {topic: [each for each in order if topic in members[each].topics] for topic in topics}


def assign_range(members: Question, counts: Counts) -> Answer:
    """Each topic's partitions in ranges, the first members having one more where they do not come out even."""
    given: dict[str, list[TopicIdPartition]] = {each: [] for each in members}
    for topic, readers in _readers(members).items():
        share, more = divmod(counts[topic], len(readers))
        first = 0
        for place, member_id in enumerate(readers):
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
    loads: dict[str, set[TopicIdPartition]] = {each: set() for each in _in_order(members)}
    free: list[TopicIdPartition] = []
    holder = {each: member_id for member_id in loads for each in members[member_id].target}
    for topic, of_topic in sorted(readers.items(), key=lambda item: (len(item[1]), item[0])):
        reading = frozenset(of_topic)
        for number in range(counts[topic]):
            partition = TopicIdPartition(topic, number)
            if holder.get(partition) in reading:
                loads[holder[partition]].add(partition)
            else:
                free.append(partition)
    for partition in free:
        loads[min(readers[partition.topic_id], key=lambda each: len(loads[each]))].add(partition)
    _level(loads, readers)
    return {member_id: frozenset(load) for member_id, load in loads.items()}


def _level(loads: dict[str, set[TopicIdPartition]], readers: Mapping[TopicId, list[str]]) -> None:
    """Move partitions from the loaded to the less loaded. Every move makes the sum of squares smaller, so it ends."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(loads, key=lambda each: -len(loads[each])):
            for topic in sorted({partition.topic_id for partition in loads[giver]}):
                moved |= _give_away(giver, topic, loads, readers[topic])


def _give_away(giver: str, topic: TopicId, loads: dict[str, set[TopicIdPartition]], of_topic: list[str]) -> bool:
    """Give this topic's partitions away, the last ones first, as long as that makes the numbers more even."""
    own = sorted(each for each in loads[giver] if each.topic_id == topic)
    moved = False
    while own:
        taker = min(of_topic, key=lambda each: len(loads[each]))
        if len(loads[taker]) + 2 > len(loads[giver]):
            return moved
        partition = own.pop()
        loads[giver].remove(partition)
        loads[taker].add(partition)
        moved = True
    return moved


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "uniform": assign_uniform}
"""What a member may ask for, and `group.consumer.assignors` may name."""
