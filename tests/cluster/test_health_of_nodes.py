"""Nodes with one role each as monitors see them, and what health says while some of them are gone.

Each test that stops nodes starts them again, so that any order of tests will do.
"""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

import pytest
from scraped import Scraped, health, scraped
from waiting import eventually

from kraftpy.client import BlockingAdmin, NewTopic
from kraftpy.testing import Cluster
from kraftpy.testing.ports import HOST, ReservedPorts

pytestmark = [pytest.mark.timeout(300)]

ONE, TWO, CONTROLLER = 1, 2, 3
OF_CONTROLLERS = ("kafka_controller_", "kafka_broker")
OF_BROKERS = ("kafka_log_log_", "kafka_topic_", "kafka_cluster_partition_", "kafka_server_replica")
NO_LEADER = "the metadata quorum has no leader that this node knows"


class Nodes(NamedTuple):
    cluster: Cluster
    ports: dict[int, int]

    def page(self, node: int) -> Scraped:
        return scraped(self.ports[node])

    def health(self, node: int, path: str) -> dict[str, Any]:
        """The answer, whose HTTP status agrees with its own."""
        status, found = health(self.ports[node], path)
        assert status == (HTTPStatus.OK if found["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE)
        assert found["node_id"] == node
        return found

    def says(self, node: int, path: str, *reasons: str) -> None:
        """Wait until a node gives these reasons, and no others."""
        last: object = None

        def has_said_so() -> bool:
            nonlocal last
            try:
                last = self.health(node, path)["reasons"]
            except urllib.error.URLError as error:  # its listener is not open yet
                last = error
            return last == list(reasons)

        try:
            eventually(has_said_so)
        except AssertionError:
            raise AssertionError(f"node {node}, {path}: {last}, not {list(reasons)}") from None

    def shows(self, node: int, name: str, value: float) -> None:
        """Wait until a node's page has this value: a page is made again only after a second."""
        wanted = f"node {node} shows {name} {value:g}"
        eventually(lambda: [*self.page(node).samples.get(name, {}).values()] == [value], wanted)

    def are_well(self) -> None:
        for node in self.ports:
            for path in ("/livez", "/readyz", "/clusterz"):
                self.says(node, path)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two brokers and a controller; `on-1` and `on-2` have a partition on one broker each."""
    with ReservedPorts() as reserved:
        ports = {node: reserved.reserve() for node in (ONE, TWO, CONTROLLER)}
        settings = {node: {"kraftpy.metrics.listener": f"{HOST}:{port}"} for node, port in ports.items()}
        with Cluster(brokers=2, controllers=1, node_settings=settings, keep_on_failure=True) as cluster:
            with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                admin.create_topics([NewTopic(name=f"on-{node}", replica_assignment={0: [node]}) for node in (1, 2)])
            found = Nodes(cluster, ports)
            found.are_well()
            yield found


def test_nodes_with_one_role_show_what_belongs_to_it(nodes: Nodes) -> None:
    nodes.are_well()
    nodes.shows(CONTROLLER, "kafka_brokers", 2)
    for node in (ONE, TWO):
        nodes.shows(node, "kafka_server_replicamanager_leadercount", 1)
    pages = {node: nodes.page(node) for node in nodes.ports}
    for node, page in pages.items():
        (info,) = map(dict, page.samples["kraftpy_info"])
        assert (info["node_id"], info["roles"]) == (str(node), "controller" if node == CONTROLLER else "broker")
        shown = [name for name in page.samples if name.startswith(OF_CONTROLLERS if node != CONTROLLER else OF_BROKERS)]
        assert shown == [], f"node {node} shows what the other role has"
        assert page.of("kafka_server_raftmetrics_current_leader") == CONTROLLER
        state = "leader" if node == CONTROLLER else "observer"
        assert page.of("kafka_server_raftmetrics_current_state", current_state=state) == 1
        assert page.of("kafka_server_kafkaserver_brokerstate") == 3
        assert page.of("process_open_fds") > 0
    of_the_cluster = pages[CONTROLLER]
    assert of_the_cluster.of("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert of_the_cluster.of("kafka_controller_kafkacontroller_globaltopiccount") == 2
    known = {labels["id"]: labels["address"] for labels in map(dict, of_the_cluster.samples["kafka_broker_info"])}
    assert known.keys() == {"1", "2"}
    for node in (ONE, TWO):
        assert {dict(labels)["topic"] for labels in pages[node].samples["kafka_topic_partitions"]} == {f"on-{node}"}


def test_partitions_whose_only_replica_is_gone_have_no_leader(nodes: Nodes) -> None:
    with nodes.cluster.kill(TWO):
        for node in (ONE, CONTROLLER):
            nodes.says(node, "/clusterz", "partitions without a leader: 1", "fenced brokers: 1 (2)")
            found = nodes.health(node, "/clusterz")
            assert (found["offline_partition_count"], found["offline_partitions"]) == (1, ["on-2-0"])
            assert (found["brokers"], found["fenced_brokers"], found["leader"]) == (1, [TWO], CONTROLLER)
            nodes.says(node, "/readyz")
        nodes.shows(CONTROLLER, "kafka_controller_kafkacontroller_offlinepartitionscount", 1)
    nodes.are_well()


def test_a_cluster_whose_brokers_are_all_gone_serves_no_one(nodes: Nodes) -> None:
    with nodes.cluster.kill(ONE), nodes.cluster.kill(TWO):
        nodes.says(
            CONTROLLER,
            "/clusterz",
            "partitions without a leader: 2",
            "fenced brokers: 2 (1, 2)",
            "no broker serves clients",
        )
        assert nodes.health(CONTROLLER, "/clusterz")["brokers"] == 0
        for path in ("/livez", "/readyz"):  # the controller itself is in order
            nodes.says(CONTROLLER, path)
        nodes.shows(CONTROLLER, "kafka_brokers", 0)
    nodes.are_well()


def test_brokers_without_a_quorum_are_alive_and_not_ready(nodes: Nodes) -> None:
    """The one that was started meanwhile does not know either what it should do; it serves once there is a quorum."""
    cluster = nodes.cluster
    cluster.kill(CONTROLLER)
    for node in (ONE, TWO):
        nodes.says(node, "/readyz", NO_LEADER)
        nodes.says(node, "/clusterz", NO_LEADER)
        nodes.says(node, "/livez")
        assert nodes.health(node, "/clusterz")["leader"] is None
    cluster.kill(TWO)
    cluster.start(TWO, wait=False)
    nodes.says(
        TWO,
        "/readyz",
        "the node is starting",
        NO_LEADER,
        "this node has not caught up with the metadata",
        "this broker is not registered",
    )
    nodes.says(TWO, "/livez")
    cluster.start(CONTROLLER)
    nodes.are_well()
