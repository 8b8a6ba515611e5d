"""The assignors of the server: complete, even, and moving little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.consumer.assignors import ASSIGNORS, Answer, Subscriber, assign_range, assign_uniform
from kraftpy.types import TopicId

IDS = [TopicId(name.encode().ljust(16, b"\x00")) for name in "tuvw"]


@st.composite
def questions(draw: st.DrawFn, *, alike: bool = False) -> tuple[dict[str, Subscriber], dict[TopicId, int]]:
    counts = {topic: draw(st.integers(1, 12)) for topic in IDS[: draw(st.integers(1, 4))]}
    subscriptions = st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    common = draw(subscriptions)
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    members = {name: Subscriber(topics=common if alike else draw(subscriptions)) for name in names}
    if draw(st.booleans()):  # as it was before a member joined or left
        before = draw(st.lists(st.sampled_from([*names, "y", "z"]), min_size=1, unique=True))
        old = {name: members.get(name, Subscriber(topics=common)) for name in before}
        for name, target in assign_uniform(old, counts).items():
            if name in members:
                members[name] = Subscriber(topics=members[name].topics, target=target)
    return members, counts


def check(members: dict[str, Subscriber], counts: dict[TopicId, int], answer: Answer) -> None:
    assert answer.keys() == members.keys()
    given_out = sorted(each for target in answer.values() for each in target)
    read = frozenset().union(*(member.topics for member in members.values()))
    assert given_out == sorted(TopicIdPartition(topic, n) for topic in read for n in range(counts[topic]))
    for name, target in answer.items():
        assert {each.topic_id for each in target} <= members[name].topics


@given(questions())
def test_every_partition_goes_to_one_reader_of_its_topic(
    question: tuple[dict[str, Subscriber], dict[TopicId, int]],
) -> None:
    for assignor in ASSIGNORS.values():
        answer = assignor(*question)
        check(*question, answer)
        assert assignor(dict(reversed(question[0].items())), question[1]) == answer


@given(questions(alike=True))
def test_uniform_differs_by_one_at_most_where_all_read_the_same(
    question: tuple[dict[str, Subscriber], dict[TopicId, int]],
) -> None:
    sizes = [len(target) for target in assign_uniform(*question).values()]
    assert max(sizes) - min(sizes) <= 1


@given(questions())
def test_uniform_moves_nothing_when_asked_again(question: tuple[dict[str, Subscriber], dict[TopicId, int]]) -> None:
    members, counts = question
    first = assign_uniform(members, counts)
    again = {name: Subscriber(topics=m.topics, target=first[name]) for name, m in members.items()}
    assert assign_uniform(again, counts) == first


@given(questions(alike=True))
def test_uniform_moves_only_what_evenness_takes(question: tuple[dict[str, Subscriber], dict[TopicId, int]]) -> None:
    members, counts = question
    answer = assign_uniform(members, counts)
    fewest = min(len(target) for target in answer.values())
    for name, member in members.items():
        kept = frozenset(each for each in member.target if each.topic_id in member.topics)
        lost = kept - answer[name]
        assert not lost or len(answer[name]) in (fewest, fewest + 1)
        assert not lost or not answer[name] - kept, "nobody both gives up and gets"


def test_range_puts_equal_partitions_of_topics_together_and_keeps_the_order_of_instances() -> None:
    topics = frozenset(IDS[:2])
    members = {
        "z": Subscriber(topics=topics, instance_id="1"),
        "a": Subscriber(topics=topics),
        "b": Subscriber(topics=topics),
    }
    answer = assign_range(members, dict.fromkeys(IDS[:2], 5))
    assert {
        name: [(each.topic_id[:1], each.partition) for each in sorted(target)] for name, target in answer.items()
    } == {
        "z": [(b"t", 0), (b"t", 1), (b"u", 0), (b"u", 1)],
        "a": [(b"t", 2), (b"t", 3), (b"u", 2), (b"u", 3)],
        "b": [(b"t", 4), (b"u", 4)],
    }
