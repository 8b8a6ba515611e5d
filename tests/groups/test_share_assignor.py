"""The assignor of share groups: everything is read, evenly, and remaining members keep what they can (KIP-932)."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.assignment import Assignment, TopicIdPartition
from kraftpy.groups.share.assignor import ShareSubscriber, assign_simple
from kraftpy.types import TopicId

T, U, V = (TopicId(name * 16) for name in (b"t", b"u", b"v"))


def partitions(**counts: int) -> Assignment:
    ids = {"t": T, "u": U, "v": V}
    return frozenset(TopicIdPartition(ids[name], number) for name, count in counts.items() for number in range(count))


def assigned(
    topics: dict[str, frozenset[TopicId]], assignable: Assignment, before: dict[str, Assignment] | None = None
) -> dict[str, Assignment]:
    had = before or {}
    members = {
        member_id: ShareSubscriber(topics=reads, target=had.get(member_id, frozenset()))
        for member_id, reads in topics.items()
    }
    return assign_simple(members, assignable)


def alike(count: int, *topics: TopicId) -> dict[str, frozenset[TopicId]]:
    return {f"m{number:03}": frozenset(topics) for number in range(count)}


def test_fewer_members_than_partitions_share_none() -> None:
    given = assigned(alike(2, T, U), partitions(t=3, u=2))
    assert sorted(len(each) for each in given.values()) == [2, 3]
    assert frozenset().union(*given.values()) == partitions(t=3, u=2)


def test_more_members_than_partitions_leave_nobody_without() -> None:
    given = assigned(alike(5, T), partitions(t=2))
    readers = Counter(each for held in given.values() for each in held)
    assert readers == Counter(dict.fromkeys(partitions(t=2), 3))
    assert sorted(len(each) for each in given.values()) == [1, 1, 1, 1, 2]


def test_only_what_may_be_assigned_is() -> None:
    assert assigned(alike(2, T), frozenset()) == {"m000": frozenset(), "m001": frozenset()}
    assert assigned(alike(1, T), partitions(t=1, u=1)) == {"m000": partitions(t=1)}
    assert assigned({}, partitions(t=1)) == {}


def test_topics_with_other_readers_are_shared_apart() -> None:
    given = assigned({"a": frozenset({T}), "b": frozenset({U}), "c": frozenset({T, U})}, partitions(t=4, u=4))
    assert [len(given[each]) for each in "abc"] == [2, 2, 4]


def test_who_comes_takes_no_more_than_his_share() -> None:
    before = assigned(alike(2, T), partitions(t=6))
    after = assigned(alike(3, T), partitions(t=6), before)
    assert all(after[member_id] <= before[member_id] for member_id in before)
    assert len(after["m002"]) == 2


def test_who_stays_keeps_all_when_another_goes() -> None:
    before = assigned(alike(3, T), partitions(t=6))
    del before["m001"]
    after = assigned({each: frozenset({T}) for each in before}, partitions(t=6), before)
    assert all(after[member_id] >= before[member_id] for member_id in before)


def test_a_topic_that_grows_moves_nothing() -> None:
    before = assigned(alike(2, T), partitions(t=4))
    after = assigned(alike(2, T), partitions(t=6), before)
    assert all(after[member_id] >= before[member_id] for member_id in before)


topic_sets = st.frozensets(st.sampled_from([T, U, V]))
held = st.frozensets(st.builds(TopicIdPartition, st.sampled_from([T, U, V]), st.integers(0, 9)))
questions = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.tuples(topic_sets, held), max_size=9)
counts = st.fixed_dictionaries({"t": st.integers(0, 7), "u": st.integers(0, 3), "v": st.integers(0, 1)})


@given(questions, counts)
def test_everything_is_read_evenly_and_asking_again_changes_nothing(
    members: dict[str, tuple[frozenset[TopicId], Assignment]], counts: dict[str, int]
) -> None:
    topics = {member_id: reads for member_id, (reads, _) in members.items()}
    assignable = partitions(**counts)
    given = assigned(topics, assignable, {member_id: had for member_id, (_, had) in members.items()})
    assert given.keys() == topics.keys()
    for member_id, mine in given.items():
        assert mine <= frozenset(each for each in assignable if each.topic_id in topics[member_id])
    groups = [frozenset({T, U, V})] if len(set(topics.values())) == 1 else [frozenset({each}) for each in (T, U, V)]
    for of_topics in groups:
        readers = [member_id for member_id, reads in topics.items() if reads & of_topics]
        wanted = [each for each in assignable if any(each.topic_id in topics[member] for member in readers)]
        wanted = [each for each in wanted if each.topic_id in of_topics]
        if not wanted or not readers:
            continue
        times = -(-len(readers) // len(wanted))
        shared = Counter(each for member, each in product(readers, wanted) if each in given[member])
        assert shared == Counter(dict.fromkeys(wanted, times))
        loads = [len(given[member] & frozenset(wanted)) for member in readers]
        assert max(loads) - min(loads) <= 1
        assert min(loads) >= 1 or len(wanted) * times < len(readers)
    assert assigned(topics, assignable, given) == given
