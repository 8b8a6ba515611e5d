"""The counts of `kraftpy cluster status`, and which of them it reports as wrong."""

from __future__ import annotations

import pytest

from kraftpy.cli.health import cluster_health, partition_health, quorum_role
from kraftpy.client.admin.model import ClusterDescription, QuorumDescription, QuorumReplica, Reassignment
from kraftpy.client.model import Node, PartitionInfo, TopicInfo
from kraftpy.types import TopicPartition


def partition(leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...], number: int = 0) -> PartitionInfo:
    return PartitionInfo(topic="t", partition=number, leader=leader, replicas=replicas, in_sync_replicas=in_sync)


@pytest.mark.parametrize(
    ("told", "minimum", "wrong"),
    [
        (partition(1, (1, 2, 3), (1, 2, 3)), 2, set()),
        (partition(1, (1, 2, 3), (1, 2)), 2, {"is_under_replicated", "is_at_minimum"}),
        (partition(2, (1, 2, 3), (2,)), 2, {"is_under_replicated", "is_below_minimum", "is_led_by_another"}),
        (
            partition(-1, (1, 2, 3), (3,)),
            1,
            {"is_under_replicated", "is_offline", "is_at_minimum", "is_led_by_another"},
        ),
        (partition(1, (1,), (1,)), 2, {"is_at_minimum"}),  # it can have no more than it has replicas
        (partition(-1, (1, 2), ()), 1, {"is_under_replicated", "is_offline", "is_below_minimum", "is_led_by_another"}),
    ],
)
def test_what_is_wrong_with_a_partition(told: PartitionInfo, minimum: int, wrong: set[str]) -> None:
    health = partition_health(told, minimum=minimum)
    assert {name for name in health.__slots__ if getattr(health, name)} == wrong


def test_a_replica_that_a_move_adds_is_not_missed() -> None:
    told = partition(1, (1, 2, 3), (1, 2))
    moving = Reassignment(replicas=(1, 2, 3), adding=(3,), removing=(1,))
    assert not partition_health(told, move=moving).is_under_replicated
    assert partition_health(told).is_under_replicated


def test_the_sums() -> None:
    cluster = ClusterDescription(
        cluster_id="c",
        controller_id=1,
        nodes=tuple(Node(node_id=number, host="h", port=number) for number in (1, 2, 4)),
        fenced=frozenset((2,)),
    )
    topics = [
        TopicInfo(
            name="t",
            topic_id=bytes(16),
            is_internal=False,
            partitions=(partition(1, (1, 2), (1,)), partition(-1, (3, 2), (3,), 1), partition(1, (2, 1), (1, 2), 2)),
        )
    ]
    health = cluster_health(
        cluster, topics, {"t": 2}, {TopicPartition("t", 2): Reassignment(replicas=(2, 1), adding=(), removing=())}
    )
    assert (health.topics, health.partitions, health.offline, health.moving) == (1, 3, 1, 1)
    assert (health.under_replicated, health.below_minimum, health.led_by_another) == (2, 2, 2)
    loads = {
        broker: (load.leaders, load.preferred, load.replicas, load.in_sync) for broker, load in health.brokers.items()
    }
    assert loads == {1: (2, 1, 2, 2), 2: (0, 1, 3, 1), 3: (0, 1, 1, 1), 4: (0, 0, 0, 0)}


def test_who_is_what_in_the_quorum() -> None:
    def replica(number: int) -> QuorumReplica:
        return QuorumReplica(
            node_id=number, directory_id=bytes(16), log_end_offset=0, last_fetch_ms=-1, last_caught_up_ms=-1
        )

    quorum = QuorumDescription(
        leader_id=2,
        leader_epoch=1,
        high_watermark=0,
        voters=(replica(1), replica(2)),
        observers=(replica(3),),
        endpoints={},
    )
    assert [quorum_role(number, quorum) for number in (1, 2, 3, 4)] == ["voter", "leader", "observer", None]
    assert quorum_role(1, None) is None
