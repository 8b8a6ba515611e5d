"""Share groups on three nodes: acknowledged records never come again and all others do, when any node dies.

Each test has its own cluster, because nodes are killed or silenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_wire import ask, connect, produce_values
from share_wire import ACCEPT, RELEASE, Member, acquired, begin

from kraftpy.broker.share.state_requests import coordinator_key
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.share.records import ShareKey
from kraftpy.testing import Cluster
from kraftpy.types import TopicId

pytestmark = [pytest.mark.timeout(240)]

BOUND_SECONDS = 60.0
SETTINGS = {
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "300",
    "min.insync.replicas": "2",
    "group.share.record.lock.duration.ms": "60000",  # no lock runs out in here
}

SILENT = {"controller.quorum.fetch.timeout.ms": "60000"}
"""Keeps silence on a connection from counting: only `broker.session.timeout.ms` detects a silent node."""


@pytest.fixture(autouse=True)
def _members_are_gone_afterwards() -> Iterator[None]:
    yield
    while Member.there:
        Member.there.pop().vanish()


def until(what: Callable[[], Any], told: str) -> Any:
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
    return found


def alive(cluster: Cluster) -> str:
    return cluster.address(next(node for node in cluster.nodes if cluster.is_running(node)))


def create(cluster: Cluster, name: str) -> bytes:
    with connect(alive(cluster)) as connection:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
        made = ask(connection, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert made.topics[0].error_code == ErrorCode.NONE
        return bytes(made.topics[0].topic_id)


def leader(cluster: Cluster, name: str) -> int:
    """Wait for the topic's partition to have a leader that is running, and return it."""

    def found() -> int | None:
        with connect(alive(cluster)) as connection:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            node = int(ask(connection, ApiKey.METADATA, 12, request).topics[0].partitions[0].leader_id)
        return node if node > 0 and cluster.is_running(node) else None

    return int(until(found, f"{name} has no leader"))


def coordinator(cluster: Cluster, group: str, topic_id: bytes) -> int:
    """Find the node that keeps the state of the group's share partition."""

    def found() -> int | None:
        key = coordinator_key(ShareKey(group, TopicId(topic_id), 0))
        with connect(alive(cluster)) as connection:
            request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
            answer = ask(connection, ApiKey.FIND_COORDINATOR, 6, request).coordinators[0]
        return None if answer.error_code or not cluster.is_running(answer.node_id) else int(answer.node_id)

    return int(until(found, f"{group} has no share coordinator"))


def join(cluster: Cluster, name: str, group: str, topic_id: bytes) -> Member:
    """Connect a member that fetches from the current leader."""

    def ready() -> Member | None:
        member = Member(cluster.address(leader(cluster, name)), group, topic_id)
        part = member.fetch(max_records=0)  # records that it took would count as delivered
        return None if part is not None and part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else member

    member = until(ready, "nobody leads")
    assert isinstance(member, Member)
    member.close()
    return Member(cluster.address(leader(cluster, name)), group, topic_id)


def produce(cluster: Cluster, name: str, count: int) -> None:
    with connect(cluster.address(leader(cluster, name))) as connection:
        produce_values(connection, name, *(b"%d" % number for number in range(count)))


def test_a_group_outlives_leaders_and_coordinators() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        with connect(alive(cluster)) as connection:
            begin(connection, "g", topic_id, data=cluster.node_directory(1) / "data", is_alone=False)
        cluster.wait_in_sync()
        produce(cluster, "t", 50)
        first = join(cluster, "t", "g", topic_id)
        assert first.take(50) == [(offset, 1) for offset in range(50)]
        assert first.acknowledge([(0, 19, [ACCEPT]), (20, 29, [RELEASE])]) == ErrorCode.NONE
        old = leader(cluster, "t")
        cluster.kill(old)
        second = join(cluster, "t", "g", topic_id)
        expected = [(offset, 2) for offset in range(20, 30)] + [(offset, 1) for offset in range(30, 50)]
        assert sorted(second.take(30)) == expected
        until(lambda: second.acknowledge([(20, 49, [ACCEPT])]) == ErrorCode.NONE, "nothing is acknowledged")
        cluster.start(old)
        cluster.wait_in_sync()

        keeper = coordinator(cluster, "g", topic_id)
        cluster.kill(keeper)
        produce(cluster, "t", 10)
        third = join(cluster, "t", "g", topic_id)
        assert third.take(10) == [(offset, 1) for offset in range(50, 60)]
        until(lambda: third.acknowledge([(50, 59, [ACCEPT])]) == ErrorCode.NONE, "nothing is acknowledged")
        cluster.start(keeper)
        cluster.wait_in_sync()

        cluster.kill(leader(cluster, "t"))
        last = join(cluster, "t", "g", topic_id)
        assert acquired(last.fetch(wait_ms=2000)) == [], "everything was acknowledged"


def test_who_does_not_lead_says_at_once_who_does() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        node = leader(cluster, "t")
        other = next(each for each in cluster.nodes if each != node)
        member = Member(cluster.address(other), "g", topic_id)

        def told() -> Any:  # until it has heard of the topic
            member.epoch = 0
            response = member.fetch_all(wait_ms=300_000)
            (part,) = response.responses[0].partitions
            return response if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None

        response = until(told, "it never heard of the topic")
        assert response.responses[0].partitions[0].current_leader.leader_id == node
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, f"{endpoint.host}:{endpoint.port}") == (node, cluster.address(node))
        assert member.acknowledge([(0, 0, [ACCEPT])]) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def kept_by_a_node_apart(cluster: Cluster, topic_id: bytes, node: int) -> tuple[str, int]:
    """A group whose state is kept neither by that node nor by the controller, and who keeps it."""
    others = {node, cluster.quorum_leader()}
    groups = (f"g{number}" for number in range(100))
    group = next(each for each in groups if coordinator(cluster, each, topic_id) not in others)
    with connect(alive(cluster)) as connection:
        begin(connection, group, topic_id, data=cluster.node_directory(1) / "data", is_alone=False)
    return group, coordinator(cluster, group, topic_id)


def test_a_silent_coordinator_holds_up_nobody_for_long() -> None:
    """Its connections stay open, and it says nothing: the leader gives up long before replica.socket.timeout.ms."""
    settings = {**SETTINGS, **SILENT, "share.coordinator.write.timeout.ms": "500", "broker.session.timeout.ms": "60000"}
    settings["replica.socket.timeout.ms"] = "120000"
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        node = leader(cluster, "t")
        group, keeper = kept_by_a_node_apart(cluster, topic_id, node)
        cluster.wait_in_sync()
        produce(cluster, "t", 3)
        member = Member(cluster.address(node), group, topic_id)
        assert member.take(3) == [(0, 1), (1, 1), (2, 1)]
        until(lambda: member.acknowledge([(0, 0, [ACCEPT])]) == ErrorCode.NONE, "nothing is acknowledged")
        with cluster.pause(keeper):
            assert member.acknowledge([(1, 1, [ACCEPT])]) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert member.fetch(acknowledge=[(2, 2, [ACCEPT])]).acknowledge_error_code == (
                ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        until(lambda: member.acknowledge([(1, 2, [ACCEPT])]) == ErrorCode.NONE, "still not to be had")


def test_an_acknowledgement_outlives_a_coordinator_that_dies_without_a_word() -> None:
    """Its place is another's only after `broker.session.timeout.ms`, longer than one write may take."""
    settings = {**SETTINGS, **SILENT, "share.coordinator.write.timeout.ms": "2000", "broker.session.timeout.ms": "4000"}
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        node = leader(cluster, "t")
        group, keeper = kept_by_a_node_apart(cluster, topic_id, node)
        cluster.wait_in_sync()
        produce(cluster, "t", 2)
        member = Member(cluster.address(node), group, topic_id)
        assert member.take(2) == [(0, 1), (1, 1)]
        with cluster.pause(keeper):
            assert member.acknowledge([(0, 1, [ACCEPT])]) == ErrorCode.NONE
