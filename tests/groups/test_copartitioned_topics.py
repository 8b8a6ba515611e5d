"""Topics of a copartition group have the same number of partitions, or the status says which have not (KIP-1071)."""

from __future__ import annotations

import pytest
from topics_now import TopicsNow

from kraftpy.groups.streams.topology import (
    INCORRECTLY_PARTITIONED_TOPICS,
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
    configure,
)

REPARTITION = (
    "Number of partitions [{}] of repartition topic [{}] doesn't match number of partitions [{}] of the source topic."
)
DIFFERENT = "Following topics do not have the same number of partitions: [{{{}}}]"


def configured(sources: dict[str, int], made: dict[str, int]) -> tuple[str, dict[str, int]]:
    """Configure one subtopology: return its problem, and the sizes of repartition topics. 0 is not specified."""
    topics = TopicsNow()
    topics.become({**sources, "written-from": 7})
    repartition = tuple(InternalTopic(name=name, partitions=count) for name, count in made.items())
    group = CopartitionGroup(
        source_topics=tuple(range(len(sources))), repartition_source_topics=tuple(range(len(repartition)))
    )
    reading = Subtopology(
        subtopology_id="1",
        source_topics=tuple(sources),
        repartition_source_topics=repartition,
        copartition_groups=(group,),
    )
    writing = Subtopology(subtopology_id="0", source_topics=("written-from",), repartition_sink_topics=tuple(made))
    found = configure(Topology(epoch=1, subtopologies=(writing, reading)), topics, {})
    return (found.detail if found.status == INCORRECTLY_PARTITIONED_TOPICS else ""), dict(found.internal)


@pytest.mark.parametrize(
    ("sources", "made", "problem"),
    [
        ({"b": 6}, {"r": 2}, REPARTITION.format(2, "r", 6)),
        ({"b": 6, "c": 6}, {"r": 6, "s": 2}, REPARTITION.format(2, "s", 6)),
        ({"b": 6, "c": 2}, {"r": 2}, DIFFERENT.format("b=6, c=2")),
        ({}, {"r": 2, "s": 3}, DIFFERENT.format("r=2, s=3")),
        ({}, {"r": 2, "s": 3, "u": 0}, DIFFERENT.format("r=2, s=3, u=7")),
    ],
)
def test_topics_that_differ_are_named(sources: dict[str, int], made: dict[str, int], problem: str) -> None:
    assert configured(sources, made)[0] == problem


@pytest.mark.parametrize(
    ("sources", "made", "sizes"),
    [
        ({"b": 6}, {"r": 0}, {"r": 6}),
        ({"b": 6}, {"r": 6, "s": 0}, {"r": 6, "s": 6}),
        ({}, {"r": 2, "s": 0}, {"r": 2, "s": 2}),
        ({}, {"r": 0, "s": 0}, {"r": 7, "s": 7}),
    ],
)
def test_repartition_topics_take_the_size_of_the_others(
    sources: dict[str, int], made: dict[str, int], sizes: dict[str, int]
) -> None:
    assert configured(sources, made) == ("", sizes)
