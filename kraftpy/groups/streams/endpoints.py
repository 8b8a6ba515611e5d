"""The partitions whose state each member of a streams group holds, for queries at its endpoint."""

from __future__ import annotations

from bisect import bisect_left

from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.records import TaskSet, by_subtopology
from kraftpy.groups.topics import Topics
from kraftpy.protocol.messages.streams_group_heartbeat import Endpoint, EndpointToPartitions, TopicPartitions


def endpoints(group: StreamsGroup, topics: Topics) -> list[EndpointToPartitions]:
    """Return, for each member with an endpoint, the source partitions of its active and standby tasks."""
    found = []
    for member_id, member in sorted(group.members.items()):
        if member.user_endpoint is None:
            continue
        assigned = group.current(member_id).assigned
        host, port = member.user_endpoint
        found.append(
            EndpointToPartitions(
                user_endpoint=Endpoint(host=host, port=port),
                active_partitions=_partitions(group, assigned.active, topics),
                standby_partitions=_partitions(group, assigned.standby, topics),
            )
        )
    return found


def _partitions(group: StreamsGroup, tasks: TaskSet, topics: Topics) -> list[TopicPartitions]:
    sources = group.volatile.configured.sources if group.volatile.configured is not None else {}
    found: dict[str, set[int]] = {}
    for subtopology_id, numbers in by_subtopology(tasks):
        for name in sources.get(subtopology_id, ()):
            info = topics.topic(name)
            if info is not None and (of_topic := numbers[: bisect_left(numbers, info.partition_count)]):
                found.setdefault(name, set()).update(of_topic)
    return [TopicPartitions(topic=name, partitions=sorted(partitions)) for name, partitions in sorted(found.items())]
