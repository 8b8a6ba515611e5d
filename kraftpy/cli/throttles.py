"""Sets and removes a reassignment's throttle through settings, as Kafka's own tool does (KIP-73).

While a partition moves, each broker with a current replica may send, and each broker with a new replica may fetch, at
no more than the given rate. In-sync replicas are never throttled, even if the settings list them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kraftpy.client.model import ResourceType

if TYPE_CHECKING:
    from kraftpy.client import Admin, TopicPartition

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
Moves = Mapping["TopicPartition", Sequence[int]]


def throttled_replicas(current: Moves, planned: Moves) -> dict[str, dict[str, str]]:
    """Return each topic's throttle settings: the replicas copied from, and the replicas that copy."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for name, replicas in sorted(planned.items()):
        leaders.setdefault(name.topic, []).extend(f"{name.partition}:{broker}" for broker in current[name])
        added = [broker for broker in replicas if broker not in current[name]]
        followers.setdefault(name.topic, []).extend(f"{name.partition}:{broker}" for broker in added)
    return {topic: {LEADERS: ",".join(leaders[topic]), FOLLOWERS: ",".join(followers[topic])} for topic in leaders}


async def set_throttle(admin: Admin, rate: int, current: Moves, planned: Moves) -> None:
    """Throttle what these moves will copy, before they begin."""
    concerned = {broker for name, replicas in planned.items() for broker in (*current[name], *replicas)}
    # Each broker has its own setting; one that is gone copies nothing.
    brokers = [node.node_id for node in (await admin.describe_cluster()).nodes if node.node_id in concerned]
    await admin.alter_configs(
        {(ResourceType.BROKER, str(broker)): {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)} for broker in brokers}
    )
    await admin.alter_configs(
        {
            (ResourceType.TOPIC, topic): dict(settings)
            for topic, settings in throttled_replicas(current, planned).items()
        }
    )


async def lift_throttle(admin: Admin) -> None:
    """Remove the throttle from every topic that has no moves left, and from the brokers once nothing moves at all."""
    moving = {name.topic for name in await admin.list_partition_reassignments()}
    topics = [(ResourceType.TOPIC, info.name) for info in await admin.describe_topics() if info.name not in moving]
    brokers = [(ResourceType.BROKER, str(node.node_id)) for node in (await admin.describe_cluster()).nodes]
    resources = topics if moving else [*topics, *brokers]
    if not resources:
        return
    described = await admin.describe_configs(resources, names=[LEADER_RATE, FOLLOWER_RATE, LEADERS, FOLLOWERS])
    undo = {
        resource: dict.fromkeys(name for name, entry in entries.items() if not entry.is_default and entry.value)
        for resource, entries in described.items()
    }
    if undo := {resource: names for resource, names in undo.items() if names}:
        await admin.alter_configs(undo)
