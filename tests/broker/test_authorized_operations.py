"""Authorized operations (KIP-430): without ACLs, everything is authorized, as Kafka 4.3 tells without an authorizer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from broker_wire import ask, connect, create_topic

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.testing.cluster import EmbeddedBroker

NOT_ASKED = -(2**31)
TOPIC = 3576  # READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
CLUSTER = 8096  # CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE


@pytest.fixture(scope="module")
def connection() -> Iterator[socket.socket]:
    with EmbeddedBroker() as broker, connect(broker.bootstrap) as made:
        create_topic(made, "t")
        create_topic(made, "large", 600)
        yield made


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("topics", [True, False])
@pytest.mark.parametrize("cluster", [True, False])
@pytest.mark.parametrize("is_for_all", [True, False])
def test_metadata_tells_them_if_asked(
    connection: socket.socket, version: int, topics: bool, cluster: bool, is_for_all: bool
) -> None:
    request = MetadataRequest(
        topics=None if is_for_all else [MetadataRequestTopic(name="t")],
        include_topic_authorized_operations=topics,
        include_cluster_authorized_operations=cluster and version <= 10,
    )
    answered = ask(connection, ApiKey.METADATA, version, request)
    assert {topic.topic_authorized_operations for topic in answered.topics} == {TOPIC if topics else NOT_ASKED}
    expected = CLUSTER if cluster and version <= 10 else NOT_ASKED
    assert answered.cluster_authorized_operations == expected


@pytest.mark.parametrize("is_asked", [True, False])
def test_describe_cluster_tells_them_if_asked(connection: socket.socket, is_asked: bool) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=is_asked)
    answered = ask(connection, ApiKey.DESCRIBE_CLUSTER, 1, request)
    assert answered.cluster_authorized_operations == (CLUSTER if is_asked else NOT_ASKED)


def test_describe_topic_partitions_always_tells_them(connection: socket.socket) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t"), TopicRequest(name="no.such")])
    answered = ask(connection, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [topic.topic_authorized_operations for topic in answered.topics] == [TOPIC, TOPIC]
