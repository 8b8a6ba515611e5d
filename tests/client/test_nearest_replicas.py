"""The replicas to which leaders point a client (KIP-392): how long they are used, and when they are left."""

from __future__ import annotations

from kraftpy.client.nearest import NearestReplicas
from kraftpy.types import TopicPartition

LEADER, NEAR, OTHER = 1, 2, 3
NODES = frozenset({LEADER, NEAR, OTHER})
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_replica_is_used_until_its_lease_ends() -> None:
    nearest = NearestReplicas("rack", 1_000)
    assert nearest.source(ONE, LEADER, NODES, 0) == LEADER
    nearest.point(ONE, NEAR, 0)
    assert nearest.source(ONE, LEADER, NODES, 999) == NEAR
    assert nearest.source(TWO, LEADER, NODES, 999) == LEADER
    assert nearest.source(ONE, LEADER, NODES, 1_000) == LEADER
    assert nearest.source(ONE, LEADER, NODES, 0) == LEADER, "it is forgotten"


def test_a_replica_on_a_node_that_metadata_no_longer_name_is_left() -> None:
    nearest = NearestReplicas("rack", 1_000)
    nearest.point(ONE, NEAR, 0)
    assert nearest.source(ONE, LEADER, {LEADER}, 1) == LEADER
    assert nearest.source(ONE, LEADER, NODES, 1) == LEADER
    assert nearest.rack(1) == "", "else the leader points there again, and nothing is ever read"
    assert nearest.rack(1_001) == "rack"


def test_after_an_error_the_leader_is_asked_and_is_told_the_rack() -> None:
    nearest = NearestReplicas("rack", 1_000)
    assert not nearest.forget(ONE)
    nearest.point(ONE, NEAR, 0)
    assert nearest.forget(ONE)
    assert nearest.source(ONE, LEADER, NODES, 1) == LEADER
    assert nearest.rack(1) == "rack"


def test_no_rack_is_told_for_a_while_if_a_replica_cannot_be_reached() -> None:
    """Its leader would point to it again, and send no records."""
    nearest = NearestReplicas("rack", 1_000)
    nearest.point(ONE, NEAR, 0)
    nearest.point(TWO, OTHER, 0)
    assert not nearest.unreachable(LEADER, 5)
    assert nearest.rack(5) == "rack"
    assert nearest.unreachable(NEAR, 5)
    assert nearest.source(ONE, LEADER, NODES, 6) == LEADER
    assert nearest.source(TWO, LEADER, NODES, 6) == OTHER
    assert (nearest.rack(6), nearest.rack(1_004), nearest.rack(1_005)) == ("", "", "rack")
