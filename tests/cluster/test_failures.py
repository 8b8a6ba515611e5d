"""Third-party clients keep working through every failure of one node, and nothing acknowledged is lost (traffic.py).

pytest-randomly seeds everything random, and prints its seed. `KRAFTPY_CLUSTER_ROUNDS` asks for more rounds of
random failures than the three of an ordinary run.

Each test has its own cluster, because it kills nodes at chance moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from cluster.traffic import BOUND_SECONDS, LIBRARIES, Traffic
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

ROUNDS = int(os.environ.get("KRAFTPY_CLUSTER_ROUNDS", "3"))
SESSION_SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
"""So that a node that says nothing is given up in less than Kafka's 9 s."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SESSION_SETTINGS, keep_on_failure=True) as made:
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


def leader(cluster: Cluster, flow: str) -> int:
    found = cluster.leader_of(f"events-{flow}")
    assert found is not None
    return found


def test_all_nodes_are_killed_at_once_and_keep_what_was_acknowledged() -> None:
    """With a sync before each acknowledgement; by librdkafka, the one client here that survives having no broker."""
    settings = {**SESSION_SETTINGS, "kraftpy.flush.before.ack": "true"}
    acknowledged: list[bytes] = []

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            acknowledged.append(message.value() or b"")

    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("kept", 3, 3, config={"min.insync.replicas": "2"})])["kept"].result(BOUND_SECONDS)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        )
        sent = 0

        def send_until(enough: int) -> None:
            nonlocal sent
            deadline = time.monotonic() + BOUND_SECONDS
            while len(acknowledged) < enough:
                assert time.monotonic() < deadline, f"{len(acknowledged)} of {enough}"
                if sent < enough + 100:
                    producer.produce("kept", b"%d" % sent, on_delivery=delivered)
                    sent += 1
                producer.poll(0.001)

        send_until(300)
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start(node, wait=False)
        cluster.wait_in_sync()
        send_until(600)
        assert producer.flush(BOUND_SECONDS) == 0
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "all", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["kept"])
        found: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(found) < sent and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
        consumer.close()
        assert len(acknowledged) == sent
        assert sorted(found) == sorted(acknowledged), "all of it, once"
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node), cluster.logs(node)


def test_a_leader_a_coordinator_and_a_controller_are_killed(cluster: Cluster) -> None:
    with Traffic(cluster.bootstrap_servers) as traffic:
        for what, library in zip(("leader", "coordinator", "controller"), LIBRARIES, strict=True):
            node = {
                "leader": lambda library=library: leader(cluster, library),
                "coordinator": lambda library=library: cluster.coordinator_of(f"readers-{library}"),
                "controller": cluster.quorum_leader,
            }[what]()
            assert node is not None
            cluster.kill(node)
            traffic.goes_on(f"the death of node {node}, the {what} of {library}")
            cluster.start(node)
            cluster.wait_in_sync()
        traffic.goes_on("the last start")
    traffic.proof()


def test_a_rolling_restart_is_not_noticed(cluster: Cluster) -> None:
    with Traffic(cluster.bootstrap_servers) as traffic:
        for node in cluster.nodes:
            cluster.stop(node)
            traffic.goes_on(f"the stop of node {node}")
            cluster.start(node)
            cluster.wait_in_sync()
        traffic.goes_on("the last start")
    traffic.proof()


def test_a_paused_leader_is_replaced_and_follows_when_it_is_back(cluster: Cluster) -> None:
    library = random.choice(list(LIBRARIES))
    with Traffic(cluster.bootstrap_servers, library) as traffic:
        node = leader(cluster, library)
        cluster.pause(node)
        replaced(cluster, library, node)
        cluster.resume(node)
        traffic.goes_on(f"the pause of node {node}")
        cluster.wait_in_sync()
    traffic.proof()


def test_a_leader_cut_off_from_the_others_is_replaced(cluster: Cluster) -> None:
    with Traffic(cluster.bootstrap_servers, "confluent-kafka", "aiokafka") as traffic:
        node = leader(cluster, "aiokafka")
        others = [other for other in cluster.nodes if other != node]
        cluster.partition([node], others)
        replaced(cluster, "aiokafka", node)
        cluster.heal()
        traffic.goes_on(f"the cut of node {node}")
        cluster.wait_in_sync()
    traffic.proof()


def replaced(cluster: Cluster, library: str, node: int) -> None:
    """Wait until another broker says that another one leads."""
    deadline = time.monotonic() + BOUND_SECONDS
    other = min(each for each in cluster.brokers if each != node)
    while cluster.leader_of(f"events-{library}", ask=other) in (node, None):
        assert time.monotonic() < deadline, f"node {node} is not replaced as the leader"
        time.sleep(0.05)


def test_all_are_killed_at_once(cluster: Cluster) -> None:
    library = random.choice(list(LIBRARIES))
    with Traffic(cluster.bootstrap_servers, library) as traffic:
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start(node, wait=False)
        cluster.wait_ready()
        traffic.goes_on("the death of all")
        cluster.wait_in_sync()
    traffic.proof()


def test_random_failures(cluster: Cluster) -> None:
    libraries = list(LIBRARIES) if ROUNDS > 3 else [random.choice(list(LIBRARIES))]
    with Traffic(cluster.bootstrap_servers, *libraries) as traffic:
        for _ in range(ROUNDS):
            node = random.choice(cluster.nodes)
            what = random.choice(["kill", "stop", "pause", "cut"])
            seconds = random.choice([0.0, 0.5, 2.5])
            if what == "pause":
                cluster.pause(node)
                time.sleep(seconds)
                cluster.resume(node)
            elif what == "cut":
                cluster.partition([node], [other for other in cluster.nodes if other != node])
                time.sleep(seconds)
                cluster.heal()
            else:
                getattr(cluster, what)(node)
                time.sleep(seconds)
                cluster.start(node)
            traffic.goes_on(f"{what} of node {node} for {seconds} s")
            cluster.wait_in_sync()
    traffic.proof()
