"""The four classic assignors as pure functions: they decide which member reads which partition.

    assign(partition_counts, subscriptions) -> {member: partitions}

`partition_counts` holds every subscribed topic that exists. Every partition of these topics goes to exactly one of the
topic's subscribers. Members are ordered as in Kafka (static ones by instance id, before dynamic ones by member id), so
`range` and `roundrobin` agree with other clients to the partition.

`sticky` and `cooperative-sticky` first balance, then move as little as possible. The balance is optimal: as long as
some chain of moves takes one partition from a member to another that holds at least two fewer, that chain is carried
out. The cooperative assignor withholds a partition from its new owner while the old one still claims it; the old owner
gives it up, and all members join again (KIP-429).

Left out: rack awareness (KIP-881).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_generation,
    decode_sticky_user_data,
    encode_generation,
    encode_sticky_user_data,
)
from kraftpy.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Member id to its partitions."""

PartitionCounts = Mapping[str, int]
Subscriptions = Mapping[str, Subscription]


class RebalanceProtocol(Enum):
    """How members treat their partitions while they rejoin."""

    EAGER = "eager"  # every member gives up everything first
    COOPERATIVE = "cooperative"  # keep all, give up only what must move (KIP-429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignor:
    """An assignor, under the name that members agree on."""

    name: str
    assign: Callable[[PartitionCounts, Subscriptions], Assignment]
    rebalance_protocol: RebalanceProtocol = RebalanceProtocol.EAGER
    user_data: Callable[[tuple[TopicPartition, ...], int], bytes | None] = lambda owned, generation_id: None


def _ordered(subscriptions: Subscriptions) -> list[str]:
    """Return the members in Kafka's order."""

    def key(member: str) -> tuple[bool, str]:
        instance = subscriptions[member].group_instance_id
        return (instance is None, member if instance is None else instance)

    return sorted(subscriptions, key=key)


def _subscribers(counts: PartitionCounts, subscriptions: Subscriptions) -> dict[str, list[str]]:
    """Map each topic that exists to its subscribers, both in order."""
    members = _ordered(subscriptions)
    wanted: dict[str, list[str]] = {}
    for member in members:
        for topic in set(subscriptions[member].topics):
            if counts.get(topic, 0) > 0:
                wanted.setdefault(topic, []).append(member)
    return {topic: wanted[topic] for topic in sorted(wanted)}


def assign_range(counts: PartitionCounts, subscriptions: Subscriptions) -> Assignment:
    """Give each subscriber neighbouring partitions, topic by topic.

    The first members get one more if they do not divide.
    """
    assignment: Assignment = {member: [] for member in subscriptions}
    for topic, members in _subscribers(counts, subscriptions).items():
        each, extra = divmod(counts[topic], len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + each + (index < extra)
            assignment[member].extend(TopicPartition(topic, partition) for partition in range(start, end))
            start = end
    return assignment


def assign_round_robin(counts: PartitionCounts, subscriptions: Subscriptions) -> Assignment:
    """Deal all partitions in order to the members, skipping those that are not subscribed to the topic."""
    assignment: Assignment = {member: [] for member in subscriptions}
    members = _ordered(subscriptions)
    topics = {member: frozenset(subscriptions[member].topics) for member in members}
    turn = 0
    for topic in _subscribers(counts, subscriptions):
        for partition in range(counts[topic]):
            while topic not in topics[members[turn % len(members)]]:
                turn += 1
            assignment[members[turn % len(members)]].append(TopicPartition(topic, partition))
            turn += 1
    return assignment


def assign_sticky(counts: PartitionCounts, subscriptions: Subscriptions) -> Assignment:
    """Balance the partitions, moving as few as possible. The assignor's own user data says who owned what."""
    claims = {}
    for member, subscription in subscriptions.items():
        owned, generation_id = decode_sticky_user_data(subscription.user_data)
        if not owned and subscription.owned:
            owned, generation_id = subscription.owned, subscription.generation_id
        claims[member] = (owned, generation_id)
    return _assign_stickily(counts, subscriptions, claims)


def assign_cooperative_sticky(counts: PartitionCounts, subscriptions: Subscriptions) -> Assignment:
    """Like sticky, but give a member nothing that another still holds."""
    claims = {
        member: (
            subscription.owned,
            subscription.generation_id
            if subscription.generation_id >= 0
            else decode_generation(subscription.user_data),
        )
        for member, subscription in subscriptions.items()
    }
    target = _assign_stickily(counts, subscriptions, claims)
    holders: dict[TopicPartition, set[str]] = {}
    for member, (owned, _) in claims.items():
        for partition in owned:
            holders.setdefault(partition, set()).add(member)
    return {
        member: [partition for partition in partitions if holders.get(partition, set()) <= {member}]
        for member, partitions in target.items()
    }


Claims = Mapping[str, tuple[tuple[TopicPartition, ...], int]]


def _accepted_claims(claims: Claims, subscribers: Mapping[str, list[str]], counts: PartitionCounts) -> Assignment:
    """Map each partition to the claimant of the highest generation, or to none in a tie: one of the two is a zombie."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    eligible = {topic: frozenset(members) for topic, members in subscribers.items()}
    for member in sorted(claims):
        owned, generation_id = claims[member]
        for partition in owned:
            topic, index = partition
            if member not in eligible.get(topic, ()) or not 0 <= index < counts[topic]:
                continue
            generation, holder = best.get(partition, (-2, None))
            if generation_id > generation:
                best[partition] = (generation_id, member)
            elif generation_id == generation and holder != member:
                best[partition] = (generation, None)
    accepted: Assignment = {member: [] for member in claims}
    for partition, (_, holder) in sorted(best.items()):
        if holder is not None:
            accepted[holder].append(partition)
    return accepted


def _assign_stickily(counts: PartitionCounts, subscriptions: Subscriptions, claims: Claims) -> Assignment:
    subscribers = _subscribers(counts, subscriptions)
    assignment = _accepted_claims(claims, subscribers, counts)
    held = {partition for partitions in assignment.values() for partition in partitions}
    unassigned = [
        partition
        for topic in subscribers
        for index in range(counts[topic])
        if (partition := TopicPartition(topic, index)) not in held
    ]
    members = _ordered(subscriptions)
    if all(len(subscribed) == len(members) for subscribed in subscribers.values()):
        _fill_quotas(assignment, members, unassigned)
    else:
        _balance(assignment, subscribers, unassigned)
    return {member: sorted(partitions) for member, partitions in assignment.items()}


def _fill_quotas(assignment: Assignment, members: list[str], unassigned: list[TopicPartition]) -> None:
    """Every member may have any partition: cut each to the quota, then fill it up."""
    total = len(unassigned) + sum(map(len, assignment.values()))
    if not members:
        return
    low, extra = divmod(total, len(members))
    for member in sorted(members, key=lambda name: (-len(assignment[name]), name)):
        quota = low
        if extra and len(assignment[member]) > low:
            quota, extra = low + 1, extra - 1
        unassigned.extend(assignment[member][quota:])
        del assignment[member][quota:]
    spare = deque(sorted(unassigned))
    for member in members:
        while len(assignment[member]) < low:
            assignment[member].append(spare.popleft())
    for member in members:
        if spare and len(assignment[member]) == low:
            assignment[member].append(spare.popleft())


def _balance(assignment: Assignment, subscribers: Mapping[str, list[str]], unassigned: list[TopicPartition]) -> None:
    """Subscriptions differ: give to the least loaded, then shift along the shortest chains until nothing improves."""
    for partition in sorted(unassigned, key=lambda item: (len(subscribers[item.topic]), item)):
        least = min(subscribers[partition.topic], key=lambda member: (len(assignment[member]), member))
        assignment[least].append(partition)
    improved = True
    while improved:
        improved = False
        for member in sorted(assignment, key=lambda name: (-len(assignment[name]), name)):
            while _shift_one(assignment, subscribers, member):
                improved = True


def _shift_one(assignment: Assignment, subscribers: Mapping[str, list[str]], start: str) -> bool:
    """Take a partition from `start` and give one, through as few members as possible, to a member with two fewer."""
    came_by: dict[str, tuple[str, TopicPartition]] = {}
    seen = {start}
    queue = deque([start])
    goal = len(assignment[start]) - 2
    while queue:
        giver = queue.popleft()
        one_per_topic = {partition.topic: partition for partition in assignment[giver]}
        for topic, partition in one_per_topic.items():
            for taker in subscribers[topic]:
                if taker in seen:
                    continue
                seen.add(taker)
                came_by[taker] = (giver, partition)
                if len(assignment[taker]) <= goal:
                    _carry_out(assignment, came_by, start, taker)
                    return True
                queue.append(taker)
    return False


def _carry_out(
    assignment: Assignment, came_by: Mapping[str, tuple[str, TopicPartition]], start: str, taker: str
) -> None:
    while taker != start:
        giver, partition = came_by[taker]
        assignment[giver].remove(partition)
        assignment[taker].append(partition)
        taker = giver


RANGE = Assignor(name="range", assign=assign_range)
ROUND_ROBIN = Assignor(name="roundrobin", assign=assign_round_robin)
STICKY = Assignor(name="sticky", assign=assign_sticky, user_data=encode_sticky_user_data)
COOPERATIVE_STICKY = Assignor(
    name="cooperative-sticky",
    assign=assign_cooperative_sticky,
    rebalance_protocol=RebalanceProtocol.COOPERATIVE,
    user_data=lambda owned, generation_id: encode_generation(generation_id),
)

ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)
}
"""The assignors by the name a user gives in `partition_assignment_strategy`."""
