"""Settings in the file of the active controller decide elections if no dynamic setting does, as in Kafka.

The brokers' files say the opposite, so each test has its own cluster: the file of the node that decides counts alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kraftpy.client import BlockingAdmin, BlockingProducer, NewTopic
from kraftpy.testing import Cluster

CONTROLLER = 3
UNCLEAN = "unclean.leader.election.enable"
SETTINGS = {"replica.lag.time.max.ms": "1500", "replica.fetch.wait.max.ms": "200"}
BOUND_SECONDS = 30.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def lose_the_only_copy(cluster: Cluster) -> None:
    """Leave node 2 alone alive, which lacks a committed record that node 1 has."""
    with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
        admin.create_topics([NewTopic(name="t", replica_assignment={0: [1, 2]})])
        cluster.kill(2)
        until(lambda: in_sync(admin) == (1,), "node 2 leaves the in-sync replicas")
    with BlockingProducer(bootstrap_servers=cluster.address(1)) as producer:
        producer.send("t", b"only here")
    cluster.kill(1)
    cluster.start(2)  # ready once it is unfenced: the partitions that it may lead are decided by then


def in_sync(admin: BlockingAdmin) -> tuple[int, ...]:
    return tuple(admin.describe_topics(["t"])[0].partitions[0].in_sync_replicas)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_an_unclean_election_is_the_controller_s_to_allow(is_allowed: bool) -> None:
    files = {node: {UNCLEAN: str(is_allowed == (node == CONTROLLER)).lower()} for node in (1, 2, CONTROLLER)}
    with Cluster(brokers=2, controllers=1, settings=SETTINGS, node_settings=files, keep_on_failure=True) as cluster:
        lose_the_only_copy(cluster)
        assert cluster.leader_of("t") == (2 if is_allowed else None)
