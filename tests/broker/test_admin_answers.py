"""Administration over the wire: what each request answers where Kafka 4.3.1, asked the same, was found to answer so."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import ask, connect, create_topic

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing.cluster import EmbeddedBroker

NO_ID = bytes(16)


@pytest.fixture
def asking(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    return f"admin-{time.time_ns()}"


def partitions_of(asking: socket.socket) -> dict[str, int]:
    topics = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    return {found.name: len(found.partitions) for found in topics}


# --- no time ---


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_without_time_does_nothing(
    asking: socket.socket, topic: str, timeout_ms: int, validate_only: bool
) -> None:
    create_topic(asking, topic)
    new = CreatableTopic(name=f"{topic}-new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    more = CreatePartitionsTopic(name=topic, count=3, assignments=None)
    several: Any = [
        ask(
            asking,
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[new], timeout_ms=timeout_ms, validate_only=validate_only),
        ).topics,
        ask(
            asking,
            ApiKey.CREATE_PARTITIONS,
            3,
            CreatePartitionsRequest(topics=[more], timeout_ms=timeout_ms, validate_only=validate_only),
        ).results,
        ask(
            asking,
            ApiKey.DELETE_TOPICS,
            6,
            DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=NO_ID)], timeout_ms=timeout_ms),
        ).responses,
        ask(
            asking,
            ApiKey.DELETE_TOPICS,
            5,
            DeleteTopicsRequest(topic_names=[topic], timeout_ms=timeout_ms),
        ).responses,
    ]
    assert [result.error_code for results in several for result in results] == [ErrorCode.REQUEST_TIMED_OUT] * 4
    found = partitions_of(asking)
    assert (found.get(topic), f"{topic}-new" in found) == (1, False)
