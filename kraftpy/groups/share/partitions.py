"""The partitions for which a share group has state at the share coordinators, and its transitions (KIP-932).

A partition is initialized for a group before any member reads it: from then on, the partition's share coordinator
stores where the group's records in flight begin, and the state of each. The group itself keeps the list of these
partitions (`ShareStateValue`), so that it can repeat uncertain requests, and delete everything when it goes.

Plain functions from one value to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.groups.assignment import Assignment, TopicIdPartition, by_topic
from kraftpy.groups.share.records import ShareStateValue, TopicState, partitions_of
from kraftpy.groups.topics import Topics
from kraftpy.types import Millis, TopicId

UNKNOWN_TOPIC = "<UNKNOWN>"
"""The topic name that Kafka writes if it no longer knows the real one."""

TopicStates = Mapping[TopicId, TopicState]


def missing(
    partitions: ShareStateValue, subscribed: Iterable[str], topics: Topics, timestamp: Millis, retry_ms: int
) -> Assignment:
    """Return subscribed partitions that have no state and were not requested within that time."""
    found = []
    for name in subscribed:
        info = topics.topic(name)
        if info is None:
            continue
        known = _numbers(partitions.initialized, info.topic_id)
        asked = partitions.initializing.get(info.topic_id)
        if asked is not None and timestamp - asked.timestamp < retry_ms:
            known |= asked.partitions
        found += [
            TopicIdPartition(info.topic_id, number) for number in range(info.partition_count) if number not in known
        ]
    return frozenset(found)


def initializing(partitions: ShareStateValue, more: Assignment, topics: Topics, timestamp: Millis) -> ShareStateValue:
    """Mark partitions as being initialized."""
    ids = {each.topic_id for each in more}
    return ShareStateValue(
        initializing=_with(partitions.initializing, more, topics, timestamp),
        initialized=partitions.initialized,
        deleting={topic_id: name for topic_id, name in partitions.deleting.items() if topic_id not in ids},
    )


def asked(partitions: ShareStateValue, done: Assignment, failed: Assignment) -> ShareStateValue:
    """Record the share coordinators' answer: some partitions are initialized, the others must be requested again.

    Partitions no longer being initialized, because their topic was or is being deleted, stay as they are.
    """
    wanted = partitions_of(partitions.initializing)
    numbers = dict(by_topic(done & wanted))
    moved = {
        topic_id: TopicState(state.name, frozenset(numbers[topic_id]), state.timestamp)
        for topic_id, state in partitions.initializing.items()
        if topic_id in numbers
    }
    return ShareStateValue(
        initializing=_without(partitions.initializing, done | failed),
        initialized={
            topic_id: _joined(partitions.initialized.get(topic_id), moved.get(topic_id))
            for topic_id in (*partitions.initialized, *(each for each in moved if each not in partitions.initialized))
        },
        deleting=partitions.deleting,
    )


def deleting(partitions: ShareStateValue, topic_ids: Iterable[TopicId]) -> ShareStateValue:
    """Mark topics as being deleted."""
    gone = frozenset(topic_ids)
    names = {
        topic_id: state.name
        for states in (partitions.initializing, partitions.initialized)
        for topic_id, state in states.items()
        if topic_id in gone
    }
    return ShareStateValue(
        initializing={topic_id: s for topic_id, s in partitions.initializing.items() if topic_id not in gone},
        initialized={topic_id: s for topic_id, s in partitions.initialized.items() if topic_id not in gone},
        deleting={**partitions.deleting, **names},
    )


def deleted(partitions: ShareStateValue, topic_ids: Iterable[TopicId]) -> ShareStateValue:
    """Forget the state of deleted topics."""
    gone = frozenset(topic_ids)
    return ShareStateValue(
        initializing={topic_id: s for topic_id, s in partitions.initializing.items() if topic_id not in gone},
        initialized={topic_id: s for topic_id, s in partitions.initialized.items() if topic_id not in gone},
        deleting={topic_id: name for topic_id, name in partitions.deleting.items() if topic_id not in gone},
    )


def to_delete(partitions: ShareStateValue, topic_ids: Iterable[TopicId], topics: Topics) -> Assignment:
    """Return the partitions of these topics for which the share coordinators may have state.

    If a topic was already being deleted, the list is no longer known: all its partitions. For a topic deleted from the
    cluster they keep nothing.
    """
    found = []
    for topic_id in topic_ids:
        name = topics.name(topic_id)
        info = None if name is None else topics.topic(name)
        if info is None:
            continue
        numbers = _numbers(partitions.initializing, topic_id) | _numbers(partitions.initialized, topic_id)
        if topic_id in partitions.deleting:
            numbers |= frozenset(range(info.partition_count))
        found += [TopicIdPartition(topic_id, number) for number in numbers]
    return frozenset(found)


def topic_ids(partitions: ShareStateValue) -> list[TopicId]:
    """Return every topic mentioned, in order."""
    return sorted({*partitions.initializing, *partitions.initialized, *partitions.deleting})


def _numbers(states: TopicStates, topic_id: TopicId) -> frozenset[int]:
    state = states.get(topic_id)
    return frozenset() if state is None else state.partitions


def _with(states: TopicStates, more: Assignment, topics: Topics, timestamp: Millis) -> dict[TopicId, TopicState]:
    found = dict(states)
    for topic_id, numbers in by_topic(more):
        name = topics.name(topic_id) or UNKNOWN_TOPIC
        found[topic_id] = TopicState(name, _numbers(states, topic_id) | frozenset(numbers), timestamp)
    return found


def _without(states: TopicStates, partitions: Assignment) -> dict[TopicId, TopicState]:
    gone = dict(by_topic(partitions))
    left = {
        topic_id: TopicState(state.name, state.partitions - frozenset(gone.get(topic_id, ())), state.timestamp)
        for topic_id, state in states.items()
    }
    return {topic_id: state for topic_id, state in left.items() if state.partitions}


def _joined(one: TopicState | None, other: TopicState | None) -> TopicState:
    if one is None or other is None:
        both = one or other
        assert both is not None
        return both
    return TopicState(other.name, one.partitions | other.partitions, other.timestamp)
