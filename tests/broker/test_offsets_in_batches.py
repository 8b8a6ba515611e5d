"""Several groups in one request, and topics by their ids: OffsetFetch 8 to 10, OffsetCommit 10, FindCoordinator 4."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kraftpy.testing.asking import ask
from kraftpy.testing.cluster import EmbeddedBroker

SECONDS = 20.0
UNKNOWN_ID = bytes(range(16))
_numbers = itertools.count()


class Wire:
    """One broker, a topic of two partitions, and three groups of its own."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        host, _, port = broker.bootstrap.partition(":")
        self._address = host, int(port)
        self.topic = f"batched-{next(_numbers)}"
        self.groups = [f"{self.topic}-{name}" for name in "abc"]
        made = self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[CreatableTopic(name=self.topic, num_partitions=2, replication_factor=1)]),
        )
        self.topic_id = made.topics[0].topic_id
        self.find()

    def ask(self, key: ApiKey, version: int, message: object) -> Any:
        return ask(self._address, key, version, message, timeout=SECONDS)

    def find(self) -> Any:
        """Find the groups' coordinators in one request, once there are coordinators."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = self.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=self.groups))
            if all(each.error_code == 0 for each in found.coordinators):
                return found.coordinators
            assert time.monotonic() < deadline, found

    def commit(self, group: str, offset: int, *, topic_id: bytes) -> list[ErrorCode]:
        """Commit to both partitions by the topic's id."""
        parts = [OffsetCommitRequestPartition(partition_index=each, committed_offset=offset + each) for each in (0, 1)]
        topics = [OffsetCommitRequestTopic(topic_id=topic_id, partitions=parts)]
        answer = self.ask(ApiKey.OFFSET_COMMIT, 10, OffsetCommitRequest(group_id=group, member_id="", topics=topics))
        assert [topic.topic_id for topic in answer.topics] == [topic_id]
        return [ErrorCode.of(each.error_code) for topic in answer.topics for each in topic.partitions]


@pytest.fixture
def wire(kraftpy_server: EmbeddedBroker) -> Wire:
    return Wire(kraftpy_server)


def test_coordinators_of_several_groups_are_found_at_once(wire: Wire) -> None:
    found = wire.find()
    assert [each.key for each in found] == wire.groups
    assert {each.node_id for each in found} == {1}


def test_topics_are_named_by_their_ids(wire: Wire) -> None:
    group = wire.groups[0]
    assert wire.commit(group, 5, topic_id=wire.topic_id) == [ErrorCode.NONE] * 2
    assert wire.commit(group, 9, topic_id=UNKNOWN_ID) == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    topics = [
        OffsetFetchRequestTopics(topic_id=wire.topic_id, partition_indexes=[0, 1]),
        OffsetFetchRequestTopics(topic_id=UNKNOWN_ID, partition_indexes=[0]),
    ]
    for asked in (topics, None):
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])
        (told,) = wire.ask(ApiKey.OFFSET_FETCH, 10, request).groups
        offsets = {topic.topic_id: [each.committed_offset for each in topic.partitions] for topic in told.topics}
        assert offsets[wire.topic_id] == [5, 6]
        errors = [ErrorCode.of(e.error_code) for t in told.topics if t.topic_id == UNKNOWN_ID for e in t.partitions]
        assert errors == ([ErrorCode.UNKNOWN_TOPIC_ID] if asked is not None else [])


def test_offsets_of_several_groups_are_fetched_at_once(wire: Wire) -> None:
    first, second, nobody = wire.groups
    wire.commit(first, 5, topic_id=wire.topic_id)
    wire.commit(second, 7, topic_id=wire.topic_id)
    groups = [
        OffsetFetchRequestGroup(group_id=first, topics=None),
        OffsetFetchRequestGroup(
            group_id=second, topics=[OffsetFetchRequestTopics(name=wire.topic, partition_indexes=[1])]
        ),
        OffsetFetchRequestGroup(group_id=nobody, topics=None),
    ]
    for version in (8, 9):
        answer = wire.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups, require_stable=True))
        told = {
            group.group_id: [each.committed_offset for topic in group.topics for each in topic.partitions]
            for group in answer.groups
        }
        assert told == {first: [5, 6], second: [8], nobody: []}
        assert [group.error_code for group in answer.groups] == [0, 0, 0]
