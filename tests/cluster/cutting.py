"""A node that is cut off from the others while clients still reach it: what the tests of it share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from kraftpy.testing import Cluster
from kraftpy.testing.asking import ask

BOUND_SECONDS: Final = 60.0
ASK_SECONDS: Final = 15.0
SETTINGS: Final = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "min.insync.replicas": "2",
}
T = TypeVar("T")


def ask_node(cluster: Cluster, node: int, key: ApiKey, version: int, request: object) -> Any:
    """Ask a node over a new connection, and return its answer."""
    host, _, port = cluster.address(node).rpartition(":")
    return ask((host, int(port)), key, version, request, timeout=ASK_SECONDS)


def until(what: Callable[[], T], told: str) -> T:
    """Poll until `what` returns something true, and return that."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    return found


def create(cluster: Cluster, name: str, replicas: Sequence[int] = ()) -> bytes:
    """A topic of one partition that all three nodes have, the first of `replicas` as its leader; its id."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
    if replicas:
        placed = CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[placed])
    made = ask_node(cluster, 1, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    return bytes(made.topics[0].topic_id)


def cut_off(cluster: Cluster, old: int, leader: Callable[[int], int | None]) -> int:
    """Cut a node off and wait for its successor; `leader` returns the current leader as a node knows it."""
    others = [node for node in cluster.nodes if node != old]
    cluster.partition([old], others)

    def successor() -> int | None:
        now = leader(others[0])
        return now if now in others else None

    found = until(successor, "nobody took over")
    assert found is not None
    return found
