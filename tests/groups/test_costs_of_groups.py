"""The work of a coordinator for one request grows with the request's size, and not with the square of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from topics_now import TopicsNow

from kraftpy.groups.consumer_records import TopicIdPartition
from kraftpy.groups.group import Group, Member
from kraftpy.groups.share_partitions import asked, initializing
from kraftpy.groups.share_records import ShareStateValue
from kraftpy.groups.streams_topology import InternalTopic, Subtopology, Topology, configure
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.types import Millis, TopicId


def lines(function: Callable[[], Any]) -> int:
    """How many lines of Python are executed, loops in comprehensions included."""
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
        found = configure(topology, topics, TopicMatches(topics))
        assert {topic.partitions for topic in found.missing} == {3}
        assert len(found.missing) == length - 1
        return lambda: configure(topology, topics, TopicMatches(topics))

    assert grows_with_its_size(chain)


def test_a_protocol_is_chosen_in_time_linear_in_how_many_a_member_knows() -> None:
    def group(count: int) -> Callable[[], Any]:
        found = Group(group_id="g")
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
