from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    STICKY,
    Assignment,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from kraftpy.protocol.consumer_protocol import Subscription, encode_sticky_user_data
from kraftpy.types import TopicPartition

counts = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 9), max_size=4)
subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(7)]),
    st.frozensets(st.sampled_from(["a", "b", "c", "d"]), max_size=4),
    min_size=1,
    max_size=7,
)


def subscribe(topics: dict[str, frozenset[str]]) -> dict[str, Subscription]:
    return {member: Subscription(topics=tuple(sorted(wanted))) for member, wanted in topics.items()}


def owning(
    assignment: Assignment, topics: dict[str, frozenset[str]], generation_id: int = 1
) -> dict[str, Subscription]:
    """The subscriptions that members send when they rejoin."""
    return {
        member: Subscription(
            topics=tuple(sorted(wanted)),
            owned=tuple(assignment.get(member, ())),
            generation_id=generation_id,
            user_data=encode_sticky_user_data(assignment.get(member, ()), generation_id),
        )
        for member, wanted in topics.items()
    }


def wanted_partitions(partition_counts: dict[str, int], topics: dict[str, frozenset[str]]) -> set[TopicPartition]:
    subscribed = frozenset[str]().union(*topics.values())
    return {TopicPartition(topic, n) for topic in subscribed for n in range(partition_counts.get(topic, 0))}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(partition_counts=counts, topics=subscriptions)
@settings(max_examples=60, deadline=None)
def test_every_partition_goes_to_exactly_one_subscriber(
    name: str, partition_counts: dict[str, int], topics: dict[str, frozenset[str]]
) -> None:
    assignment = ASSIGNORS[name].assign(partition_counts, subscribe(topics))
    assert set(assignment) == set(topics)
    given_out = Counter(partition for partitions in assignment.values() for partition in partitions)
    assert set(given_out) == wanted_partitions(partition_counts, topics)
    assert all(times == 1 for times in given_out.values())
    assert all(partition.topic in topics[member] for member, held in assignment.items() for partition in held)


@given(partition_counts=counts, topics=subscriptions)
@settings(max_examples=150, deadline=None)
def test_sticky_leaves_no_chain_of_moves_that_would_balance_better(
    partition_counts: dict[str, int], topics: dict[str, frozenset[str]]
) -> None:
    assignment = assign_sticky(partition_counts, subscribe(topics))
    for giver in assignment:
        reachable, frontier = {giver}, [giver]
        while frontier:
            holder = frontier.pop()
            for partition in assignment[holder]:
                for taker in sorted(topics):
                    if partition.topic in topics[taker] and taker not in reachable:
                        reachable.add(taker)
                        frontier.append(taker)
        fewest = min(len(assignment[member]) for member in reachable)
        assert len(assignment[giver]) - fewest <= 1


@given(partition_counts=counts, topics=subscriptions)
@settings(max_examples=100, deadline=None)
def test_sticky_changes_nothing_when_nothing_changed(
    partition_counts: dict[str, int], topics: dict[str, frozenset[str]]
) -> None:
    first = assign_sticky(partition_counts, subscribe(topics))
    assert assign_sticky(partition_counts, owning(first, topics)) == first
    assert assign_cooperative_sticky(partition_counts, owning(first, topics)) == first


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_sticky_moves_no_more_than_balance_demands(partitions: int, before: int, after: int) -> None:
    topics = {f"m{n}": frozenset({"a"}) for n in range(before)}
    first = assign_sticky({"a": partitions}, subscribe(topics))
    later = {f"m{n}": frozenset({"a"}) for n in range(after)}
    second = assign_sticky({"a": partitions}, owning(first, later))
    low, extra = divmod(partitions, after)
    sizes = sorted((len(first.get(member, ())) for member in later), reverse=True)
    could_keep = sum(min(size, low + (place < extra)) for place, size in enumerate(sizes))
    kept = sum(len(set(first.get(member, ())) & set(second[member])) for member in later)
    assert kept == could_keep


@given(partition_counts=counts, before=subscriptions, after=subscriptions)
@settings(max_examples=150, deadline=None)
def test_cooperative_members_converge_without_ever_sharing_a_partition(
    partition_counts: dict[str, int], before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]
) -> None:
    held = assign_sticky(partition_counts, subscribe(before))
    # Members give up topics they left before they join.
    held = {m: [p for p in held.get(m, ()) if p.topic in after[m]] for m in after}
    for generation_id in range(1, 4):
        target = assign_cooperative_sticky(partition_counts, owning(held, after, generation_id))
        for member, partitions in target.items():
            for other, other_held in held.items():
                assert other == member or not set(partitions) & set(other_held)
        if target == {member: sorted(partitions) for member, partitions in held.items()}:
            break
        held = target
    else:
        assert target == held
    assert {p for partitions in held.values() for p in partitions} == wanted_partitions(partition_counts, after)


def test_the_newer_generation_wins_a_partition_two_members_claim() -> None:
    zero = TopicPartition("a", 0)
    claims = {
        "m1": Subscription(topics=("a",), owned=(zero,), generation_id=3),
        "m2": Subscription(topics=("a",), owned=(zero,), generation_id=4),
        "m3": Subscription(topics=("a",)),
    }
    assert assign_cooperative_sticky({"a": 1}, claims)["m1"] == []
    assert assign_sticky({"a": 1}, claims)["m2"] == [zero]


def test_static_members_keep_their_order_when_their_member_ids_change() -> None:
    def group(*ids: str) -> dict[str, Subscription]:
        return {member: Subscription(topics=("a",), group_instance_id=f"i{place}") for place, member in enumerate(ids)}

    first = assign_range({"a": 2}, group("x", "y"))
    second = assign_range({"a": 2}, group("z", "b"))
    assert first["x"] == second["z"] == [TopicPartition("a", 0)]


def test_range_and_round_robin_agree_with_aiokafka() -> None:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    partition_counts = {"a": 7, "b": 3, "c": 4}
    topics = {"m1": frozenset("ab"), "m2": frozenset("abc"), "m3": frozenset("c")}
    known = SimpleNamespace(
        partitions_for_topic=lambda topic: set(range(partition_counts[topic])) if topic in partition_counts else None
    )
    group = {member: SimpleNamespace(subscription=sorted(wanted)) for member, wanted in topics.items()}
    for ours, theirs in ((assign_range, RangePartitionAssignor), (assign_round_robin, RoundRobinPartitionAssignor)):
        expected = {
            member: sorted(TopicPartition(topic, index) for topic, indexes in assigned.assignment for index in indexes)
            for member, assigned in theirs.assign(known, group).items()
        }
        assert {member: sorted(held) for member, held in ours(partition_counts, subscribe(topics)).items()} == expected


def test_a_thousand_partitions_among_a_hundred_members_are_quick_enough_to_assign() -> None:
    topics = {f"m{n:03}": frozenset({"a", "b"}) if n % 2 else frozenset({"a"}) for n in range(100)}
    assignment = assign_sticky({"a": 600, "b": 400}, subscribe(topics))
    assert max(map(len, assignment.values())) - min(map(len, assignment.values())) <= 1
    assert STICKY.assign is assign_sticky
    assert COOPERATIVE_STICKY.user_data((), 5) == b"\0\0\0\x05"
