"""Metadata, DescribeTopicPartitions and DescribeCluster of several brokers, as the clients of a listener see them."""

from __future__ import annotations

import pytest
from made_clusters import MadeCluster, context

from kraftpy.broker.handlers.cluster import describe_cluster
from kraftpy.broker.handlers.metadata import describe_topic_partitions, metadata
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataResponse

BOTH = ("INSIDE", "OUTSIDE")


async def seen(
    cluster: MadeCluster, *, version: int = 13, listener: str = "INSIDE", here: int = 1, controller: int | None = None
) -> MetadataResponse:
    broker = cluster.broker(here, controller=controller)
    return await metadata(broker, MetadataRequest(topics=None), context(ApiKey.METADATA, version, listener))


def partitions(answer: MetadataResponse) -> list[tuple[int, int, list[int], list[int], list[int]]]:
    return [
        (part.error_code, part.leader_id, part.replica_nodes, part.isr_nodes, part.offline_replicas)
        for part in answer.topics[0].partitions
    ]


async def test_a_client_gets_the_addresses_of_its_listener_and_no_others() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=("INSIDE",))
    inside, outside = await seen(cluster), await seen(cluster, listener="OUTSIDE")
    assert [(b.node_id, b.host, b.port, b.rack) for b in inside.brokers] == [
        (1, "inside-1", 9001, "r1"),
        (2, "inside-2", 9002, "r2"),
        (3, "inside-3", 9003, "r3"),
    ]
    assert [(b.node_id, b.host) for b in outside.brokers] == [(1, "outside-1"), (2, "outside-2")]


async def test_a_fenced_broker_is_hidden_and_its_replicas_are_offline() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=BOTH)
    cluster.topic("t", (2, 1, 3), (1, 3, 2))
    assert partitions(await seen(cluster)) == [(0, 2, [2, 1, 3], [2, 1, 3], []), (0, 1, [1, 3, 2], [1, 3, 2], [])]
    cluster.fence(2)
    answer = await seen(cluster)
    assert [b.node_id for b in answer.brokers] == [1, 3]
    assert partitions(answer) == [(0, 1, [2, 1, 3], [1, 3], [2]), (0, 1, [1, 3, 2], [1, 3], [2])]
    cluster.fence(2, fenced=False)
    assert partitions(await seen(cluster))[0] == (0, 1, [2, 1, 3], [1, 3], [])


async def test_a_partition_without_a_leader_says_so() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH)
    cluster.topic("t", (2,))
    cluster.fence(2)
    ((error, leader, replicas, _, offline),) = partitions(await seen(cluster))
    assert (error, leader, replicas, offline) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [2], [2])


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
async def test_a_leader_without_the_clients_listener_cannot_be_told(version: int, error: ErrorCode) -> None:
    cluster = MadeCluster(b1=BOTH, b2=("INSIDE",))
    cluster.topic("t", (2, 1))
    answer = await seen(cluster, version=version, listener="OUTSIDE")
    assert partitions(answer) == [(error, -1, [2, 1], [2, 1], [2])]


async def test_the_oldest_clients_are_told_only_replicas_they_can_reach() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=BOTH)
    cluster.topic("t", (1, 2, 3))
    cluster.fence(3)
    broker = cluster.broker(1)
    answer = await metadata(broker, MetadataRequest(topics=[]), context(ApiKey.METADATA, 0))
    (part,) = answer.topics[0].partitions
    assert (part.error_code, part.replica_nodes, part.isr_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1, 2], [1, 2])


@pytest.mark.parametrize(
    ("controller", "listener", "told"),
    [(3, "INSIDE", 3), (3, "OUTSIDE", 2), (None, "INSIDE", 2), (9, "INSIDE", 2), (1, "INSIDE", 1)],
)
async def test_the_controller_is_one_the_client_can_reach(controller: int | None, listener: str, told: int) -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=("INSIDE",))
    broker = cluster.broker(2)
    broker.controller_id = controller
    answer = await metadata(broker, MetadataRequest(topics=None), context(ApiKey.METADATA, 13, listener))
    assert answer.controller_id == told


async def test_partitions_are_described_with_what_is_offline() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=("INSIDE",))
    cluster.topic("t", (2, 1, 3), (3, 1, 2))
    cluster.fence(2)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    for listener, expected in (
        ("INSIDE", [(0, 1, [2]), (0, 3, [2])]),
        ("OUTSIDE", [(0, 1, [2, 3]), (ErrorCode.LISTENER_NOT_FOUND, -1, [3, 2])]),
    ):
        asked = context(ApiKey.DESCRIBE_TOPIC_PARTITIONS, listener=listener)
        (topic,) = (await describe_topic_partitions(cluster.broker(1), request, asked)).topics
        assert [(p.error_code, p.leader_id, p.offline_replicas) for p in topic.partitions] == expected


async def test_fenced_brokers_are_described_where_they_are_asked_for() -> None:
    cluster = MadeCluster(b1=BOTH, b2=BOTH, b3=("INSIDE",))
    cluster.fence(2)

    async def described(*, fenced: bool, listener: str = "INSIDE") -> DescribeClusterResponse:
        request = DescribeClusterRequest(include_fenced_brokers=fenced)
        return await describe_cluster(cluster.broker(1, controller=3), request, context(ApiKey.DESCRIBE_CLUSTER))

    hidden, shown = await described(fenced=False), await described(fenced=True)
    assert [(b.broker_id, b.rack, b.is_fenced) for b in hidden.brokers] == [(1, "r1", False), (3, "r3", False)]
    assert [(b.broker_id, b.is_fenced) for b in shown.brokers] == [(1, False), (2, True), (3, False)]
    assert (shown.cluster_id, shown.controller_id) == ("made", 3)


@pytest.mark.parametrize(
    ("kind", "error"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
async def test_controllers_are_not_described_on_a_brokers_listener(kind: int, error: ErrorCode) -> None:
    request = DescribeClusterRequest(endpoint_type=kind)
    answer = await describe_cluster(MadeCluster(b1=BOTH).broker(1), request, context(ApiKey.DESCRIBE_CLUSTER))
    assert (answer.error_code, answer.brokers) == (error, [])
