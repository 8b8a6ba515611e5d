"""`kraftpy cluster` and `kraftpy topic reassign|describe` against three real nodes, and with unmodified clients."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingProducer
from kraftpy.testing import Cluster, EmbeddedBroker
from tests.waiting import known_topics

BOUND_SECONDS = 60.0
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, racks=("a", "b", "c"), can_partition=False, start_timeout=90.0) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: Cluster) -> Run:
    """Run a command against the cluster; it must succeed unless `status` says otherwise."""

    def run(*arguments: object, status: int = 0) -> Result:
        environment = {"KRAFTPY_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def topic(run: Run) -> Iterator[str]:
    name = f"moves-{secrets.token_hex(4)}"
    yield name
    run("topic", "delete", "--if-exists", name)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)
    return found


def described(run: Run, topic: str) -> list[tuple[int, list[int], list[int]]]:
    return [
        (row["leader"], row["replicas"], sorted(row["in_sync_replicas"]))
        for row in rows(run("topic", "describe", topic))
    ]


def test_three_nodes_are_well(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    assert described(run, topic) == [(1, [1, 2, 3], [1, 2, 3]), (2, [2, 3, 1], [1, 2, 3]), (3, [3, 1, 2], [1, 2, 3])]

    whole, *brokers = rows(run("cluster", "status"))
    assert (whole["brokers"], whole["fenced"], whole["voters"]) == (3, [], [1, 2, 3])
    assert whole["controller"] == whole["quorum_leader"] in (1, 2, 3)
    assert (whole["offline"], whole["under_replicated"], whole["below_min_isr"], whole["moving"]) == (0, 0, 0, 0)
    assert [(row["broker"], row["rack"], row["state"]) for row in brokers] == [
        (1, "a", "active"),
        (2, "b", "active"),
        (3, "c", "active"),
    ]
    assert sorted(row["quorum"] for row in brokers) == ["leader", "voter", "voter"]
    assert sum(row["leaders"] for row in brokers) == whole["partitions"]
    table = run("cluster", "status", "--format", "table").stdout
    assert "3 brokers" in table
    assert "voters 1,2,3" in table

    first, *others = rows(run("cluster", "quorum"))
    assert (first["role"], first["lag"]) == ("leader", 0)
    assert first["last_fetch_ms"] == first["last_caught_up_ms"] > 0
    assert first["node"] == whole["quorum_leader"]
    assert [row["role"] for row in others] == ["voter", "voter"]
    assert all(row["endpoints"][0].startswith("CONTROLLER://127.0.0.1:") for row in (first, *others))
    assert "high watermark" in run("cluster", "quorum", "--format", "table").stdout

    assert [row["broker"] for row in rows(run("cluster", "log-dirs"))] == [1, 2, 3]
    assert [row["broker"] for row in rows(run("cluster", "log-dirs", "--broker", 2))] == [2]


def test_a_node_that_is_killed_is_missed_and_comes_back(cluster: Cluster, run: Run, topic: str) -> None:
    run("topic", "create", topic, "--replica-assignment", "3:1,1:2")
    alone = f"{topic}-alone"
    run("topic", "create", alone, "--replica-assignment", "3")
    cluster.kill(3)
    try:
        whole = until(
            lambda: (row := rows(run("cluster", "status"))[0])["fenced"] == [3] and row["voters"] and row, "3 is fenced"
        )
        assert whole["quorum_leader"] in (1, 2)
        states = {row["broker"]: row["state"] for row in rows(run("cluster", "status"))[1:]}
        assert states == {1: "active", 2: "active", 3: "fenced"}
        lacking = rows(run("topic", "describe", topic, "--under-replicated"))
        assert [(row["partition"], row["leader"]) for row in lacking] == [(0, 1)]
        (unavailable,) = rows(run("topic", "describe", alone, "--unavailable"))
        assert (unavailable["leader"], unavailable["in_sync_replicas"], unavailable["end_offset"]) == (-1, [], None)
        assert unavailable["eligible_replicas"] == [3]
        assert len(rows(run("topic", "describe", alone, "--under-min-isr"))) == 1
        refused = run("cluster", "unregister", 1, "--yes", status=1)
        assert "broker 1 is alive" in refused.stderr
        (result,) = rows(run("cluster", "elect-leaders", f"{topic}:0", status=1))
        assert result["result"] == "failed"
    finally:
        cluster.start(3)
    until(lambda: not rows(run("topic", "describe", topic, alone, "--under-replicated")), "3 is in sync again")
    run("topic", "delete", alone)
    until(
        lambda: rows(run("cluster", "elect-leaders", topic)) and described(run, topic)[0][0] == 3,
        "3 leads what it should",
    )
    assert rows(run("cluster", "elect-leaders", topic)) == [
        {"topic": topic, "partition": number, "result": "not needed", "message": None} for number in range(2)
    ]
    assert not [row for row in rows(run("cluster", "elect-leaders", "--all")) if row["topic"] == topic]


def test_partitions_move(cluster: Cluster, run: Run, topic: str, tmp_path: Path) -> None:
    run("topic", "create", topic, "--replica-assignment", "1:2,1:2,1:2")
    with BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number)

    planned = run("topic", "reassign", topic, "--brokers", "2,3")
    assert "nothing was changed" in planned.stderr
    assert all(set(row["new_replicas"]) == {2, 3} for row in rows(planned))
    assert described(run, topic) == [(1, [1, 2], [1, 2])] * 3

    moved = rows(run("topic", "reassign", topic, "--brokers", "2,3", "--execute", "--wait", "--throttle", 100_000_000))
    assert len(moved) == 3
    assert all(set(replicas) == {2, 3} == set(in_sync) for _, replicas, in_sync in described(run, topic))
    assert rows(run("topic", "reassign", topic, "--brokers", "2,3")) == []
    settings = {row["setting"]: row["value"] for row in rows(run("topic", "describe", topic, "--configs"))}
    assert settings["leader.replication.throttled.replicas"] == ""  # the throttle is gone
    assert len(rows(run("consume", topic))) == 300

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 1, "replicas": [1]}]}))
    assert rows(run("topic", "reassign", "--plan", plan, "--execute", "--wait"))[0]["new_replicas"] == [1]
    assert described(run, topic)[1] == (1, [1], [1])
    assert rows(run("topic", "reassign", "--verify")) == []


def test_a_move_that_cannot_end_is_given_up(cluster: Cluster, run: Run, topic: str) -> None:
    run("topic", "create", topic, "--replica-assignment", "1:2")
    cluster.kill(3)
    try:
        until(lambda: rows(run("cluster", "status"))[0]["fenced"] == [3], "3 is fenced")
        missing = run("topic", "reassign", topic, "--brokers", "1,3", status=1)
        assert missing.stderr == "kraftpy: broker 3 is not alive\n"
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            (name,) = [part.topic_partition for part in known_topics(admin, topic)[topic].partitions]
            admin.alter_partition_reassignments({name: [1, 3]})
            move = admin.list_partition_reassignments([name])[name]
            assert (move.adding, move.removing) == ((3,), (2,))
        (row,) = rows(run("topic", "reassign", topic, "--verify"))
        assert (row["adding"], row["removing"]) == ([3], [2])
        assert rows(run("cluster", "status"))[0]["moving"] == 1
        assert rows(run("topic", "describe", topic, "--under-replicated")) == []  # a replica being added is not missing
        assert len(rows(run("topic", "reassign", topic, "--cancel"))) == 1
        assert rows(run("topic", "reassign", "--verify")) == []
        assert described(run, topic) == [(1, [1, 2], [1, 2])]
    finally:
        cluster.start(3)


def test_a_throttle_is_set_before_the_move_and_lifted_after(run: Run, cluster: Cluster, topic: str) -> None:
    run("topic", "create", topic, "--replica-assignment", "1")
    with BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(topic, secrets.token_bytes(100_000))
    run("topic", "reassign", topic, "--brokers", "2", "--execute", "--throttle", "1000")
    assert len(rows(run("topic", "reassign", topic, "--verify"))) == 1
    settings = {row["setting"]: row["value"] for row in rows(run("topic", "describe", topic, "--configs"))}
    assert settings["leader.replication.throttled.replicas"] == "0:1"
    assert settings["follower.replication.throttled.replicas"] == "0:2"
    run(
        "topic",
        "alter",
        topic,
        "-d",
        "leader.replication.throttled.replicas",
        "-d",
        "follower.replication.throttled.replicas",
    )
    until(lambda: rows(run("topic", "reassign", "--verify")) == [], "the move is done, and the throttle lifted")
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        from kraftpy.client import ResourceType

        resource = (ResourceType.BROKER, "1")
        entries = admin.describe_configs([resource])[resource]
        assert "leader.replication.throttled.rate" not in entries, "it is told where it is set"


def test_a_voter_goes_and_comes_back(run: Run) -> None:
    leader, chosen, _ = rows(run("cluster", "quorum"))
    node, address = chosen["node"], chosen["endpoints"][0].partition("://")[2]
    assert run("cluster", "remove-voter", node, "--yes").stdout == f"removed voter {node}\n"
    roles = {row["node"]: row["role"] for row in rows(run("cluster", "quorum"))}
    assert sorted(roles.values())[:1] + sorted(roles.values())[-1:] == ["leader", "voter"]
    assert roles.get(node) != "voter"
    assert "VOTER_NOT_FOUND" in run("cluster", "remove-voter", node, status=1).stderr
    assert rows(run("cluster", "status"))[0]["voters"] == sorted({1, 2, 3} - {node})

    wrong = run("cluster", "add-voter", node, address, "--listener", "OTHER", status=1)
    assert "INVALID_REQUEST" in wrong.stderr
    assert run("cluster", "add-voter", node, address).stdout == f"added voter {node}\n"
    assert "DUPLICATE_VOTER" in run("cluster", "add-voter", node, address, status=1).stderr
    assert rows(run("cluster", "status"))[0]["voters"] == [1, 2, 3]
    assert leader["node"] in (1, 2, 3)


def test_a_new_node_follows_votes_leaves_and_is_forgotten(cluster: Cluster, run: Run) -> None:
    voters = rows(run("cluster", "quorum"))
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    known = ",".join(f"{row['node']}@{row['endpoints'][0].partition('://')[2]}" for row in voters)
    settings = {
        "node.id": "4",
        "listeners": f"PLAINTEXT://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROLLER://{address}",
        "inter.broker.listener.name": "REPLICATION",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": known,
        "broker.rack": "d",
    }
    with EmbeddedBroker(settings=settings, start_timeout=90.0) as new:
        roles = {row["node"]: row["role"] for row in rows(run("cluster", "quorum"))}
        assert roles[4] == "observer"
        assert rows(run("cluster", "status"))[0]["brokers"] == 4
        until(
            lambda: CliRunner().invoke(cli, ["cluster", "add-voter", "4", address, "-b", new.bootstrap]).exit_code == 0,
            "4 has caught up and is a voter",
        )
        assert rows(run("cluster", "status"))[0]["voters"] == [1, 2, 3, 4]
        (row,) = [row for row in rows(run("cluster", "quorum")) if row["node"] == 4]
        assert row["endpoints"] == [f"CONTROLLER://{address}"]
        refused = run("cluster", "unregister", 4, "--yes", status=1)
        assert "broker 4 is alive" in refused.stderr
        new.kill()
        until(lambda: rows(run("cluster", "status"))[0]["fenced"] == [4], "4 is fenced")
        run("cluster", "remove-voter", 4, "--yes")
    assert run("cluster", "unregister", 4, "--yes").stdout == "unregistered broker 4\n"
    assert [row["broker"] for row in rows(run("cluster", "status"))[1:]] == [1, 2, 3]
    assert rows(run("cluster", "status"))[0]["voters"] == [1, 2, 3]
    assert "BROKER_ID_NOT_REGISTERED" in run("cluster", "unregister", 4, "--yes", status=1).stderr


def test_features_are_shown_and_changed(run: Run) -> None:
    name = "eligible.leader.replicas.version"

    def level() -> int:
        found: int = {row["feature"]: row["level"] for row in rows(run("cluster", "features"))}[name]
        return found

    assert level() == 1
    assert "INVALID_UPDATE_VERSION" in run("cluster", "features", "--set", f"{name}=0", status=1).stderr
    assert "nothing was changed" in run("cluster", "features", "--set", f"{name}=0", "--downgrade", "--dry-run").stderr
    assert level() == 1
    run("cluster", "features", "--set", f"{name}=0", "--downgrade")
    until(lambda: level() == 0, "the level is known")
    run("cluster", "features", "--set", f"{name}=1")
    until(lambda: level() == 1, "the level is known")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "elect-leaders"),
        ("cluster", "elect-leaders", "--all", "t"),
        ("cluster", "elect-leaders", "t:x"),
        ("cluster", "features", "--downgrade"),
        ("cluster", "features", "--set", "x"),
        ("cluster", "features", "--set", "x=1", "--unsafe"),
        ("cluster", "add-voter", "4", "nowhere"),
        ("cluster", "remove-voter", "4", "--directory-id", "x"),
        ("topic", "reassign"),
        ("topic", "reassign", "t", "--wait"),
        ("topic", "reassign", "t", "--throttle", "5"),
        ("topic", "reassign", "t", "--brokers", "a"),
        ("topic", "reassign", "t", "--verify", "--cancel"),
        ("topic", "reassign", "t", "--verify", "--execute"),
        ("topic", "describe", "t", "--configs", "--unavailable"),
        ("topic", "create", "t", "--replica-assignment", "1:x"),
        ("topic", "create", "t", "--replica-assignment", "1", "-p", "3"),
    ],
)
def test_a_wrong_command_is_status_2(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_confluents_admin(cluster: Cluster, topic: str, run: Run) -> None:
    run("topic", "create", topic, "--replica-assignment", "2:1:3,3:1:2")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partition = confluent_kafka.TopicPartition(topic, 0)
    kinds = confluent_kafka.ElectionType
    found = admin.elect_leaders(kinds.PREFERRED, [partition]).result(BOUND_SECONDS)
    assert found[partition].code() == confluent_kafka.KafkaError.ELECTION_NOT_NEEDED
    unknown = confluent_kafka.TopicPartition(topic, 7)
    found = admin.elect_leaders(kinds.UNCLEAN, [unknown]).result(BOUND_SECONDS)
    assert found[unknown].code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    described = admin.describe_cluster().result(BOUND_SECONDS)
    assert sorted((node.id, node.rack) for node in described.nodes) == [(1, "a"), (2, "b"), (3, "c")]
    topics = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(BOUND_SECONDS)
    assert [(part.leader.id, [node.id for node in part.replicas]) for part in topics.partitions] == [
        (2, [2, 1, 3]),
        (3, [3, 1, 2]),
    ]


def test_kafka_pythons_admin(cluster: Cluster, topic: str, run: Run) -> None:
    run("topic", "create", topic, "--replica-assignment", "1:2")
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    partition = kafka.TopicPartition(topic, 0)
    try:
        admin.alter_partition_reassignments({partition: [2, 3]})
        until(lambda: not admin.list_partition_reassignments(), "the partition has moved")
        assert described(run, topic) == [(2, [2, 3], [2, 3])]
        quorum = admin.describe_metadata_quorum()
        assert json.dumps(quorum, default=str).count("replica_id") == 3
        features = admin.describe_features()
        assert "metadata.version" in json.dumps(features, default=str)
        assert admin.describe_cluster()["controller_id"] in (1, 2, 3)
        assert len(admin.describe_topic_partitions([topic])) >= 1
        admin.elect_leaders(0, {topic: [0]})
    finally:
        admin.close()


async def test_aiokafkas_admin(cluster: Cluster, topic: str) -> None:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(topic, 3, 3)])
        async with asyncio.timeout(30):
            while (told := (await admin.describe_topics([topic]))[0])["error_code"]:  # noqa: ASYNC110 - any broker answers
                await asyncio.sleep(0.05)
        assert [sorted(part["replicas"]) for part in told["partitions"]] == [[1, 2, 3]] * 3
        brokers = (await admin.describe_cluster())["brokers"]
        assert sorted((broker["node_id"], broker["rack"]) for broker in brokers) == [(1, "a"), (2, "b"), (3, "c")]
        await admin.create_partitions({topic: aiokafka.admin.NewPartitions(4, [[3, 2, 1]])})
        async with asyncio.timeout(30):
            while len((await admin.describe_topics([topic]))[0]["partitions"]) < 4:  # noqa: ASYNC110 - any broker answers
                await asyncio.sleep(0.05)
        (told,) = await admin.describe_topics([topic])
        assert {part["partition"]: part["replicas"] for part in told["partitions"]}[3] == [3, 2, 1]
    finally:
        await admin.close()
