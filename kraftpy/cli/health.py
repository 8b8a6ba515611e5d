"""The arithmetic of `kraftpy cluster status`: a cluster's health from its brokers' answers, without a broker.

A partition is *offline* if it has no leader, *under-replicated* if a replica that is not being removed is not in sync,
*below its minimum* if acks=all is refused: fewer are in sync than `min.insync.replicas`, or than it has replicas.
Replicas that a reassignment adds are not counted as missing until they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kraftpy.client.admin.model import ClusterDescription, QuorumDescription, Reassignment
from kraftpy.client.model import PartitionInfo, TopicInfo
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """The problems of one partition."""

    is_offline: bool
    is_under_replicated: bool
    is_below_minimum: bool
    is_at_minimum: bool
    """If one more replica fell out of sync, the partition would be below its minimum."""
    is_led_by_another: bool
    """Its leader is not its preferred one."""


@dataclass(slots=True, kw_only=True)
class BrokerLoad:
    """The partitions and replicas of one broker."""

    leaders: int = 0
    preferred: int = 0
    replicas: int = 0
    in_sync: int = 0


@dataclass(slots=True, kw_only=True)
class ClusterHealth:
    """The totals of a cluster. A count of -1 is unknown."""

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    under_replicated: int = 0
    below_minimum: int = 0
    led_by_another: int = 0
    moving: int = 0
    brokers: dict[int, BrokerLoad] = field(default_factory=dict)
    """Every broker that is registered or has a replica."""


def partition_health(
    partition: PartitionInfo, *, minimum: int = 1, move: Reassignment | None = None
) -> PartitionHealth:
    """Return the problems of a partition whose topic has `minimum` as its min.insync.replicas."""
    adding = frozenset(move.adding) if move else frozenset()
    in_sync = frozenset(partition.in_sync_replicas)
    staying = [replica for replica in partition.replicas if replica not in adding]
    needed = min(minimum, len(partition.replicas))
    return PartitionHealth(
        is_offline=partition.leader < 0,
        is_under_replicated=not in_sync.issuperset(staying),
        is_below_minimum=len(in_sync) < needed,
        is_at_minimum=len(in_sync) == needed,
        is_led_by_another=bool(partition.replicas) and partition.leader != partition.replicas[0],
    )


def cluster_health(
    cluster: ClusterDescription,
    topics: Iterable[TopicInfo],
    minimums: Mapping[str, int],
    moves: Mapping[TopicPartition, Reassignment],
) -> ClusterHealth:
    """Return the totals over all partitions and the load of each broker."""
    health = ClusterHealth(moving=len(moves))
    for node in cluster.nodes:
        health.brokers[node.node_id] = BrokerLoad()
    for topic in topics:
        health.topics += 1
        for partition in topic.partitions:
            health.partitions += 1
            found = partition_health(
                partition, minimum=minimums.get(topic.name, 1), move=moves.get(partition.topic_partition)
            )
            health.offline += found.is_offline
            health.under_replicated += found.is_under_replicated
            health.below_minimum += found.is_below_minimum
            health.led_by_another += found.is_led_by_another
            _count(health.brokers, partition)
    return health


def _count(brokers: dict[int, BrokerLoad], partition: PartitionInfo) -> None:
    for place, replica in enumerate(partition.replicas):
        load = brokers.setdefault(replica, BrokerLoad())
        load.replicas += 1
        load.preferred += place == 0
        load.leaders += replica == partition.leader
        load.in_sync += replica in partition.in_sync_replicas


def quorum_role(node_id: int, quorum: QuorumDescription | None) -> str | None:
    """Return a node's role in the metadata quorum; None if it has none or the quorum is unknown."""
    if quorum is None:
        return None
    if node_id == quorum.leader_id:
        return "leader"
    if any(voter.node_id == node_id for voter in quorum.voters):
        return "voter"
    return "observer" if any(replica.node_id == node_id for replica in quorum.observers) else None
