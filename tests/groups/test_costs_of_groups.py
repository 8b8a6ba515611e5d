"""The work of a coordinator for one request grows with the request's size, and not with the square of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest
from topics_now import TopicsNow

from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.change_queue import MOST_COST
from kraftpy.groups.classic.group import ClassicGroup, Member
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.assignors import Assignor, Subscriber, assign_range, assign_uniform
from kraftpy.groups.consumer.group import Draft
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import Append, Appended, Compute, Computed, Effect, Reply, Request
from kraftpy.groups.share.assignor import ShareSubscriber, assign_simple
from kraftpy.groups.share.partitions import asked, initializing
from kraftpy.groups.share.records import ShareStateValue
from kraftpy.groups.streams.assignor import Worker, assign
from kraftpy.groups.streams.records import Task
from kraftpy.groups.streams.topology import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_SOURCE_TOPICS,
    MOST_TASKS,
    InternalTopic,
    Subtopology,
    Topology,
    configure,
    hash_of,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.types import Millis, TopicId


def lines(function: Callable[[], Any]) -> int:
    """Count the lines of Python that are executed, loops in comprehensions included."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def grows_with_its_size(make: Callable[[int], Callable[[], Any]]) -> bool:
    small, large = lines(make(100)), lines(make(400))
    return large < 6 * small + 1_000


def test_a_topology_is_configured_in_time_linear_in_its_subtopologies() -> None:
    def chain(length: int) -> Callable[[], Any]:
        """Each writes what the next reads, the last one first, so that partitions are known from the end."""
        topics = TopicsNow()
        topics.become({"t": 3})
        parts = [
            Subtopology(
                subtopology_id=f"{length - number:06}",
                source_topics=("t",) if number == 0 else (),
                repartition_source_topics=(InternalTopic(name=f"r{number}"),) if number else (),
                repartition_sink_topics=(f"r{number + 1}",),
            )
            for number in reversed(range(length))
        ]
        topology = Topology(epoch=1, subtopologies=tuple(parts))
        found = configure(topology, topics, {})
        assert {topic.partitions for topic in found.missing} == {3}
        assert len(found.missing) == length - 1
        return lambda: configure(topology, topics, {})

    assert grows_with_its_size(chain)


class Looked(str):
    """A topic's name that counts how often names are looked up: what a set operation does is no line of Python."""

    times = 0

    def __hash__(self) -> int:
        Looked.times += 1
        return super().__hash__()

    __eq__ = str.__eq__


def test_a_topology_is_configured_with_lookups_linear_in_its_subtopologies() -> None:
    def lookups(count: int) -> int:
        names = [Looked(f"topic-{number:05}") for number in range(count)]
        topics = TopicsNow()
        topics.become(dict.fromkeys(names, 1))
        parts = (Subtopology(subtopology_id=name.upper(), source_topics=(name,)) for name in names)
        topology = Topology(epoch=1, subtopologies=tuple(parts))
        Looked.times = 0
        assert len(configure(topology, topics, {}).tasks) == count
        hash_of(topology, topics, {})
        return Looked.times

    assert lookups(400) < 6 * lookups(100) + 1_000


def test_the_tasks_of_a_topology_are_bounded() -> None:
    topics = TopicsNow()
    topics.become({"t": 1_000})
    parts = [Subtopology(subtopology_id=f"{number:03}", source_topics=("t",)) for number in range(101)]
    assert configure(Topology(epoch=1, subtopologies=tuple(parts[:100])), topics, {}).is_ready
    too_many = configure(Topology(epoch=1, subtopologies=tuple(parts)), topics, {})
    assert not too_many.is_ready
    assert too_many.status == INCORRECTLY_PARTITIONED_TOPICS
    assert too_many.detail == f"The topology has 101000 tasks, and there can be at most {MOST_TASKS}."


def test_a_status_names_a_few_topics() -> None:
    names = tuple(f"topic-{number:05}" for number in range(1_000))
    part = Subtopology(subtopology_id="0", source_topics=names)
    found = configure(Topology(epoch=1, subtopologies=(part,)), TopicsNow(), {})
    assert found.status == MISSING_SOURCE_TOPICS
    assert found.detail == f"Source topics {', '.join(names[:20])} and 980 more are missing."


def test_a_protocol_is_chosen_in_time_linear_in_how_many_a_member_knows() -> None:
    def group(count: int) -> Callable[[], Any]:
        found = ClassicGroup(group_id="g")
        protocols = tuple((f"p{number}", b"") for number in range(count))
        for name in ("a", "b"):
            member = Member(
                member_id=name,
                group_instance_id=None,
                client_id="c",
                client_host="/",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                protocols=protocols if name == "a" else protocols[::-1],
            )
            found.add(member)
        assert found.select_protocol() == "p0"
        return found.select_protocol

    assert grows_with_its_size(group)


def test_the_state_of_a_share_group_changes_in_time_linear_in_its_partitions() -> None:
    def state(count: int) -> Callable[[], Any]:
        topics = TopicsNow()
        wanted = frozenset(TopicIdPartition(TopicId(number.to_bytes(16, "big")), 0) for number in range(count))
        value = initializing(ShareStateValue(), wanted, topics, Millis(0))
        assert len(asked(value, wanted, frozenset()).initialized) == count

        def change() -> None:
            asked(initializing(ShareStateValue(), wanted, topics, Millis(0)), wanted, frozenset())

        return change

    assert grows_with_its_size(state)


def topic(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


@pytest.mark.parametrize("assignor", [assign_range, assign_uniform])
def test_members_that_read_the_same_are_assigned_to_in_time_linear_in_members_and_topics(assignor: Assignor) -> None:
    def many(count: int) -> Callable[[], Any]:
        """Set up as many members as topics; each topic has one partition, and every member subscribes to it."""
        topics = frozenset(map(topic, range(count)))
        members = {f"member-{number:04}": Subscriber(topics=topics) for number in range(count)}
        return lambda: assignor(members, dict.fromkeys(topics, 1))

    assert grows_with_its_size(many)


class Compared(bytes):
    """A topic's id that counts how often ids are compared: sorting is no line of Python."""

    times = 0

    def __lt__(self, other: Any) -> bool:
        Compared.times += 1
        return bytes(self) < bytes(other)


def test_a_group_that_grows_is_assigned_to_in_time_almost_linear_in_its_topics() -> None:
    def comparisons(count: int) -> int:
        """The second member comes: the first has every topic, and keeps half of them."""
        topics = frozenset(TopicId(Compared(topic(number))) for number in range(count))
        target = frozenset(TopicIdPartition(each, 0) for each in topics)
        members = {"a": Subscriber(topics=topics, target=target), "b": Subscriber(topics=topics)}
        Compared.times = 0
        assert len(assign_uniform(members, dict.fromkeys(topics, 1))["b"]) == count // 2
        return Compared.times

    assert comparisons(400) < 8 * comparisons(100) + 1_000


@pytest.mark.parametrize("standby_replicas", [0, 1])
def test_tasks_are_assigned_in_time_linear_in_tasks_and_members(standby_replicas: int) -> None:
    def many(count: int) -> Callable[[], Any]:
        tasks = [Task("0", number) for number in range(2 * count)]
        workers = {f"member-{number:04}": Worker(process_id=f"process-{number:04}") for number in range(count)}
        return lambda: assign(workers, tasks, tasks, standby_replicas)

    assert grows_with_its_size(many)


def test_a_share_group_that_grows_is_assigned_to_in_time_linear_in_its_partitions() -> None:
    def second(count: int) -> Callable[[], Any]:
        """The second member comes: the first has every partition, and keeps half of them."""
        partitions = frozenset(TopicIdPartition(topic(0), number) for number in range(count))
        topics = frozenset((topic(0),))
        members = {"a": ShareSubscriber(topics=topics, target=partitions), "b": ShareSubscriber(topics=topics)}
        return lambda: assign_simple(members, partitions)

    assert grows_with_its_size(second)


def test_what_waited_is_not_all_decided_in_one_step_where_each_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that join while a record is on its way wait for it; each of them then needs new targets for all."""
    topics, made = TopicsNow(), 0
    topics.become({"t": MOST_COST // 2})
    retarget = ConsumerProtocol._retarget

    def counted(protocol: ConsumerProtocol, draft: Draft) -> None:
        nonlocal made
        made += 1
        retarget(protocol, draft)

    monkeypatch.setattr(ConsumerProtocol, "_retarget", counted)
    coordinator = GroupCoordinator(GroupConfig(), lambda: "new", topics)
    now = Millis(0)
    coordinator.loaded(now)
    tokens: list[int] = []
    answered = 0

    def take(effects: Iterable[Effect]) -> None:
        nonlocal answered
        for each in effects:
            if isinstance(each, Compute):
                done = Computed(group_id=each.group_id, token=each.token, result=each.function())
                take(coordinator.step(done, now))
        tokens.extend(each.token for each in effects if isinstance(each, Append))
        answered += sum(isinstance(each, Reply) for each in effects)

    for number in range(12):
        join = ConsumerGroupHeartbeatRequest(
            group_id="group",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        take(coordinator.step(Request(request_id=number, api_version=1, message=join), now))
    assert made == 1, "the others wait"
    while tokens:
        made = 0
        take(coordinator.step(Appended(token=tokens.pop(0)), now))
        assert made <= 2
    assert answered == 12
