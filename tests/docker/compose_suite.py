"""The image and the compose file, for real: run by `make docker-test` alone, for it needs a Docker engine.

The settings of Kafka's own examples are those of its documentation, so that only the `image:` differs, and the ports of
this machine, of which some may be taken.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from docker_engine import (
    ROOT,
    SECONDS,
    Commits,
    Compose,
    Container,
    Load,
    command,
    compose_file,
    free_port,
    read_all,
    round_trip,
    wait_until,
)

from kraftpy.broker.containment import UNEXPECTED

pytestmark = pytest.mark.timeout(900)

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
FACTORS_OF_ONE = {
    "CLUSTER_ID": CLUSTER_ID,
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": 1,
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": 0,
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": 1,
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": 1,
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": 1,
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": 1,
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    "KAFKA_HEAP_OPTS": "-Xmx256M",
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
}
FOR_CLIENTS = {
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
}
SECRET = {"KAFKA_KRAFTPY_QUORUM_SECRET": "a secret that the nodes share"}
"""Settings that Kafka's examples of several nodes lack, and nodes on several hosts need here."""


# --- one container ----------------------------------------------------------------------------------------------------


@pytest.fixture
def one(image: str, project: str) -> Iterator[tuple[Container, str]]:
    """A container of the image with a port and a volume, and its bootstrap address."""
    port = free_port()
    address = f"localhost:{port}"
    command(
        "docker", "run", "--detach", "--name", project, "--publish", f"127.0.0.1:{port}:{port}",
        "--volume", f"{project}:/var/lib/kafka/data",
        "--env", f"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://{address}", image,
    )  # fmt: skip
    yield Container(project), address
    command("docker", "rm", "--force", "--volumes", project)
    command("docker", "volume", "rm", project)


def test_it_serves_runs_as_a_plain_user_and_stops_cleanly(one: tuple[Container, str]) -> None:
    container, address = one
    container.wait_healthy()
    assert container.run("id", "--user", "--name") == "appuser"
    assert container.run("id", "--user") == "1000"
    assert "python" in Path(container.run("readlink", "/proc/1/exe")).name, "the server itself gets the signals"
    round_trip(address, "kept")

    container.stop()
    assert container.state()["ExitCode"] == 0
    assert "Traceback" not in container.logs()
    assert UNEXPECTED not in container.logs()
    command("docker", "start", container.name)
    container.wait_healthy()
    assert read_strings(address, "kept") == [b"a", b"b", b"c"]
    assert ".kafka_cleanshutdown" not in container.run("ls", "-A", "/var/lib/kafka/data"), "taken at the start"
    container.stop()
    volume = command(
        "docker", "run", "--rm", "--volumes-from", container.name, "kraftpy", "ls", "-A", "/var/lib/kafka/data"
    )
    assert ".kafka_cleanshutdown" in volume.split()


def test_it_has_only_what_it_runs_with(image: str) -> None:
    installed = json.loads(
        command(
            "docker", "run", "--rm", image, "python3", "-c",
            "import json, importlib.metadata as m; print(json.dumps([d.name for d in m.distributions()]))",
        )
    )  # fmt: skip
    assert {"kraftpy", "click", "msgpack"} <= set(installed)
    assert not {"pip", "hatchling", "pytest", "numpy", "pyarrow", "pyspark"} & set(installed)


def test_a_bad_setting_is_one_line_and_ends_the_container(image: str, project: str) -> None:
    command("docker", "run", "--detach", "--name", project, "--env", "KAFKA_NUM_PARTITIONS=many", image)
    try:
        assert command("docker", "wait", project) == "2"
        complaint = "kraftpy: Invalid value many for configuration num.partitions: Not a number of type INT\n"
        assert Container(project).logs() == complaint
    finally:
        command("docker", "rm", "--force", "--volumes", project)


def test_settings_come_from_a_mounted_file_and_from_arguments(image: str, project: str, tmp_path: Path) -> None:
    port = free_port()
    address = f"localhost:{port}"
    (tmp_path / "server.properties").write_text(
        "node.id=4\nprocess.roles=broker,controller\nnum.partitions=3\nssl.client.auth=required\n"
        f"advertised.listeners=PLAINTEXT://{address}\n"
    )
    tmp_path.chmod(0o755)
    command(
        "docker", "run", "--detach", "--name", project, "--publish", f"127.0.0.1:{port}:{port}",
        "--volume", f"{tmp_path}:/mnt/shared/config:ro", "--env", "KAFKA_NODE_ID=5",
        image, "/etc/kafka/docker/run", "KAFKA_NUM_PARTITIONS=4",
    )  # fmt: skip
    try:
        container = Container(project)
        container.wait_healthy()
        assert f"ready: node 5, PLAINTEXT://{address}" in container.logs()
        assert "ssl.client.auth is ignored" in container.logs()
        round_trip(address, "four")
        assert len(AdminClient({"bootstrap.servers": address}).list_topics("four").topics["four"].partitions) == 4
    finally:
        command("docker", "rm", "--force", "--volumes", project)


def read_strings(bootstrap: str, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "again"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(3, 30)
    consumer.close()
    return [message.value() for message in messages]


# --- Kafka's examples -------------------------------------------------------------------------------------------------


def test_kafka_s_example_of_one_node(image: str, project: str, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        **FACTORS_OF_ONE,
        **FOR_CLIENTS,
        "KAFKA_NODE_ID": 1,
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT_HOST://localhost:{port},PLAINTEXT://broker:19092",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
        "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    }
    service = {"image": image, "hostname": "broker", "ports": [f"{port}:9092"], "environment": settings}
    with Compose(compose_file(tmp_path / "docker-compose.yml", {"broker": service}), project) as compose:
        broker = compose.container("broker")
        broker.wait_healthy()
        round_trip(f"localhost:{port}", "example")
        assert "example" in broker.run("/opt/kafka/bin/kafka-topics.sh", "--bootstrap-server", "broker:19092", "--list")
        inside = json.loads(broker.run("kraftpy", "ping", "-b", "broker:19092"))
        assert (inside["cluster"], inside["brokers"]) == (CLUSTER_ID, [1])
        broker.stop()
        assert broker.state()["ExitCode"] == 0


def try_three(compose: Compose, ports: dict[int, int]) -> None:
    """A topic over three brokers is served to clients outside, and every container stops cleanly."""
    bootstrap = ",".join(f"localhost:{port}" for port in ports.values())
    brokers = [compose.container(f"kafka-{number}") for number in (1, 2, 3)]
    for broker in brokers:
        broker.wait_healthy()
    create_topic(bootstrap, "example", partitions=6, replicas=3)
    round_trip(bootstrap, "example")
    (partitions,) = AdminClient({"bootstrap.servers": bootstrap}).list_topics("example").topics.values()
    assert {partition.leader for partition in partitions.partitions.values()} == {
        broker_id for partition in partitions.partitions.values() for broker_id in partition.isrs
    }
    inside = json.loads(brokers[0].run("kraftpy", "ping", "-b", "kafka-2:19092"))
    assert inside["cluster"] == CLUSTER_ID
    assert len(inside["brokers"]) == 3
    compose("stop", "--timeout", 60)
    for broker in brokers:
        assert broker.state()["ExitCode"] == 0, broker.logs()
        assert "Traceback" not in broker.logs()
        assert UNEXPECTED not in broker.logs()


def create_topic(bootstrap: str, name: str, *, partitions: int, replicas: int, **settings: str) -> None:
    topic = NewTopic(name, partitions, replicas, config=settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([topic]).values():
        created.result(60)


def test_kafka_s_example_of_three_nodes(image: str, project: str, tmp_path: Path) -> None:
    ports = {number: free_port() for number in (1, 2, 3)}
    services = {
        f"kafka-{number}": {
            "image": image,
            "hostname": f"kafka-{number}",
            "ports": [f"{port}:9092"],
            "environment": {
                **FACTORS_OF_ONE,
                **FOR_CLIENTS,
                "KAFKA_NODE_ID": number,
                "KAFKA_PROCESS_ROLES": "broker,controller",
                "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093",
                **SECRET,
                "KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093,PLAINTEXT_HOST://:9092",
                "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://kafka-{number}:19092,PLAINTEXT_HOST://localhost:{port}",
            },
        }
        for number, port in ports.items()
    }
    with Compose(compose_file(tmp_path / "docker-compose.yml", services), project) as compose:
        try_three(compose, ports)


def test_kafka_s_example_of_three_controllers_and_three_brokers(image: str, project: str, tmp_path: Path) -> None:
    ports = {number: free_port() for number in (1, 2, 3)}
    voters = "1@controller-1:9093,2@controller-2:9093,3@controller-3:9093"
    controllers = {
        f"controller-{number}": {
            "image": image,
            "environment": {
                **FACTORS_OF_ONE,
                "KAFKA_NODE_ID": number,
                "KAFKA_PROCESS_ROLES": "controller",
                **SECRET,
                "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
                "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
                "KAFKA_LISTENERS": "CONTROLLER://:9093",
            },
        }
        for number in (1, 2, 3)
    }
    brokers = {
        f"kafka-{number}": {
            "image": image,
            "hostname": f"kafka-{number}",
            "ports": [f"{port}:9092"],
            "depends_on": list(controllers),
            "environment": {
                **FACTORS_OF_ONE,
                **FOR_CLIENTS,
                "KAFKA_NODE_ID": number + 3,
                "KAFKA_PROCESS_ROLES": "broker",
                **SECRET,
                "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
                "KAFKA_LISTENERS": "PLAINTEXT://:19092,PLAINTEXT_HOST://:9092",
                "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://kafka-{number}:19092,PLAINTEXT_HOST://localhost:{port}",
            },
        }
        for number, port in ports.items()
    }
    with Compose(compose_file(tmp_path / "docker-compose.yml", {**controllers, **brokers}), project) as compose:
        for controller in controllers:
            compose.container(controller).wait_healthy()
        try_three(compose, ports)


# --- our own three nodes ----------------------------------------------------------------------------------------------

COMPOSE = ROOT / "docker" / "compose.yaml"
NODES = ("kafka1", "kafka2", "kafka3")
OUTSIDE = "localhost:9092,localhost:9094,localhost:9096"
PARTITIONS = 6


@pytest.fixture
def cluster(image: str, project: str) -> Iterator[Compose]:
    with Compose(COMPOSE, project) as compose:
        for node in NODES:
            compose.container(node).wait_healthy()
        yield compose
        for node in NODES:
            assert "Traceback" not in compose.container(node).logs()
            assert UNEXPECTED not in compose.container(node).logs()


def test_killed_containers_lose_nothing_that_was_acknowledged(cluster: Compose) -> None:
    """Each in turn, under load: none of the records that were acknowledged is missing, twice there or out of order."""
    create_topic(OUTSIDE, "load", partitions=PARTITIONS, replicas=3, **{"min.insync.replicas": "2"})
    with Load(OUTSIDE, "load", PARTITIONS) as load, Commits(OUTSIDE, "load", PARTITIONS) as commits:
        for node in NODES:
            container = cluster.container(node)
            load.wait_for_more()
            commits.wait_for_more()
            command("docker", "kill", container.name)
            load.wait_for_more()
            commits.wait_for_more()
            command("docker", "start", container.name)
            container.wait_healthy()
            wait_until(lambda: all(len(isr) == 3 for isr in in_sync(OUTSIDE, "load")), "all replicas are in sync")
    assert load.failed == []

    found = read_all(OUTSIDE, "load", PARTITIONS)
    for partition in range(PARTITIONS):
        assert found[partition] == load.acknowledged[partition]
    assert all(found >= kept for found, kept in zip(commits.committed(), commits.last, strict=True))


def in_sync(bootstrap: str, topic: str) -> list[list[int]]:
    (described,) = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=60).topics.values()
    return [list(partition.isrs) for partition in described.partitions.values()]


def test_it_is_stopped_and_started_with_its_data(cluster: Compose) -> None:
    create_topic(OUTSIDE, "kept", partitions=1, replicas=3)
    round_trip(OUTSIDE, "kept")
    cluster("stop")
    for node in NODES:
        assert cluster.container(node).state()["ExitCode"] == 0
    cluster("up", "--detach")
    for node in NODES:
        cluster.container(node).wait_healthy()
    assert read_strings(OUTSIDE, "kept") == [b"a", b"b", b"c"]


# --- three nodes with TLS and passwords -------------------------------------------------------------------------------

SECURE = ROOT / "docker" / "compose.secure.yaml"
SECURE_OUTSIDE = "localhost:9092,localhost:9102,localhost:9112"


@pytest.fixture
def secure(image: str, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Compose, Path]]:
    """The nodes, and the directory with their keys, both made as the compose file says."""
    file = tmp_path / "docker" / SECURE.name
    file.parent.mkdir()
    file.write_text(SECURE.read_text())
    keys = file.parent / "secure"
    command(sys.executable, "-m", "kraftpy", "init", keys, "--nodes", 3, "--secure")
    monkeypatch.setenv("NODE_USER", f"{os.getuid()}:{os.getgid()}")
    with Compose(file, project) as compose:
        for node in NODES:
            compose.container(node).wait_healthy()
        yield compose, keys
        for node in NODES:
            assert "Traceback" not in compose.container(node).logs()
            assert UNEXPECTED not in compose.container(node).logs()


def client_settings(keys: Path) -> dict[str, Any]:
    """librdkafka's settings of the first administrator."""
    found = re.search(r'username="(\S+)" password="(\S+)"', (keys / "client.properties").read_text())
    assert found is not None
    return {
        "bootstrap.servers": SECURE_OUTSIDE,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(keys / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": found[1],
        "sasl.password": found[2],
    }


def read_one(settings: dict[str, Any], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**settings, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes | None] = []
    wait_until(
        lambda: received.extend(each.value() for each in consumer.consume(count, 1.0)) or len(received) >= count,
        f"{count} records of {topic}",
    )
    consumer.close()
    return received


def test_three_secure_nodes_let_in_whom_they_know_and_survive_a_kill(secure: tuple[Compose, Path]) -> None:
    compose, keys = secure
    administrator = client_settings(keys)
    admin = AdminClient(administrator)
    admin.create_topics([NewTopic("t", 1, 3)])["t"].result(60)
    command("docker", "kill", compose.container("kafka2").name)
    producer = Producer({**administrator, "acks": "all"})
    failed: list[KafkaError] = []
    for value in (b"a", b"b", b"c"):
        producer.produce("t", value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(SECONDS) == 0
    assert failed == []
    assert read_one(administrator, "t", 3) == [b"a", b"b", b"c"]
    command("docker", "start", compose.container("kafka2").name)
    compose.container("kafka2").wait_healthy()
    wait_until(
        lambda: [len(each.isrs) for each in admin.list_topics("t", 10).topics["t"].partitions.values()] == [3],
        "the node that was killed is in sync again",
    )


def test_three_secure_nodes_refuse_whom_they_do_not_know(secure: tuple[Compose, Path]) -> None:
    _, keys = secure
    administrator = client_settings(keys)
    for wrong in ({"sasl.password": "wrong"}, {"sasl.username": "nobody"}):
        errors: list[KafkaError] = []
        refused = AdminClient({**administrator, **wrong, "error_cb": errors.append})
        wait_until(
            lambda client=refused, found=errors: (  # type: ignore[misc]
                client.poll(0.1) or any(each.code() == KafkaError._AUTHENTICATION for each in found)
            ),
            "the login is refused",
        )
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": SECURE_OUTSIDE}).list_topics(timeout=5)
    properties = keys / "client.properties"
    command(
        sys.executable, "-m", "kraftpy", "topic", "create", "mine", "--bootstrap-server", SECURE_OUTSIDE,
        "--command-config", properties,
    )  # fmt: skip
    listed = command(
        sys.executable, "-m", "kraftpy", "topic", "list", "--bootstrap-server", SECURE_OUTSIDE,
        "--command-config", properties,
    )  # fmt: skip
    assert "mine" in listed
