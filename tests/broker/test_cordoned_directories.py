"""Cordoned log directories get no new replicas (KIP-1066): `cordoned.log.dirs` in the file, and while the broker runs.

Each test has its own cluster, since its settings are changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_wire import StartBroker
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, NewTopic
from kraftpy.client.admin.messages import AlterOperation, Resource, ResourceType
from kraftpy.client.admin.model import LogDir
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing import Cluster
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition
from tests.waiting import known_topics

SETTING = "cordoned.log.dirs"
ALL_CORDONED = "All brokers are currently fenced, or have all their log directories cordoned."


def cordon(admin: BlockingAdmin, directories: str | None, broker: int = 1) -> None:
    admin.alter_configs({(ResourceType.BROKER, str(broker)): {SETTING: directories}})


def cordoned(admin: BlockingAdmin, broker: int = 1) -> list[str]:
    return [each.path for each in admin.describe_log_dirs([broker]) if each.is_cordoned]


def held(admin: BlockingAdmin, path: Path) -> list[TopicPartition]:
    found: list[LogDir] = admin.describe_log_dirs([1])
    return sorted(name for each in found if each.path == str(path) for name in each.partitions)


def create(admin: BlockingAdmin, name: str, partitions: int = 1, factor: int = 1) -> None:
    admin.create_topics([NewTopic(name=name, num_partitions=partitions, replication_factor=factor)])


def refusal(code: ErrorCode, call: Any, *arguments: Any) -> str:
    with pytest.raises(KafkaError) as refused:
        call(*arguments)
    assert refused.value.code == code, refused.value
    return refused.value.message


@pytest.fixture
def two(start_broker: StartBroker, tmp_path: Path) -> tuple[EmbeddedBroker, Path, Path]:
    """A broker with two log directories, and their paths."""
    first, second = tmp_path / "first", tmp_path / "second"
    broker: EmbeddedBroker = start_broker(settings={"log.dirs": f"{first},{second}"})
    return broker, first, second


def test_new_replicas_are_placed_elsewhere(two: tuple[EmbeddedBroker, Path, Path]) -> None:
    broker, first, second = two
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        create(admin, "before", 4)
        assert cordoned(admin) == []
        cordon(admin, str(first))
        assert cordoned(admin) == [str(first)]
        create(admin, "after", 6)
        before = [TopicPartition("before", number) for number in range(4)]
        after = [TopicPartition("after", number) for number in range(6)]
        in_first = held(admin, first)
        assert len(in_first) == 2, "what is there stays, and nothing is added"
        assert set(in_first) < set(before)
        assert set(after) < set(held(admin, second))

        other = next(name for name in before if name not in in_first)
        assert admin.alter_replica_log_dirs(1, {other: str(first)}) == {other: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
        unknown = TopicPartition("later", 0)
        moved = admin.alter_replica_log_dirs(1, {unknown: str(first)})
        assert moved == {unknown: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
        arguments = ["topic", "move-replica", str(other).replace("-", ":"), "--broker", "1", "--to", str(first)]
        done = CliRunner().invoke(cli, [*arguments, "-b", broker.bootstrap])
        assert done.exit_code == 1
        assert "INVALID_REPLICA_ASSIGNMENT: the directory is cordoned" in done.output

        cordon(admin, None)
        assert cordoned(admin) == []
        assert admin.alter_replica_log_dirs(1, {other: str(first)}) == {other: ErrorCode.NONE}


def test_a_directory_that_was_asked_for_and_then_cordoned_is_not_taken(
    two: tuple[EmbeddedBroker, Path, Path],
) -> None:
    broker, first, second = two
    later = TopicPartition("later", 0)
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_replica_log_dirs(1, {later: str(first)})
        cordon(admin, str(first))
        create(admin, "later")
        assert held(admin, second) == [later]


def test_with_all_directories_cordoned_a_broker_gets_nothing(two: tuple[EmbeddedBroker, Path, Path]) -> None:
    broker, first, second = two
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        create(admin, "before")
        for every in (f"{first},{second}", "*", f"{second}/,{first}"):
            cordon(admin, every)
            assert cordoned(admin) == [str(first), str(second)]
            refused = refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "after")
            assert refused.endswith(ALL_CORDONED)
            assert refusal(ErrorCode.INVALID_REPLICATION_FACTOR, admin.create_partitions, {"before": 2})
            assigned = [NewTopic(name="after", replica_assignment={0: [1]})]
            assert refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, admin.create_topics, assigned)
            cordon(admin, str(second))
            admin.create_topics([NewTopic(name="after", num_partitions=1, replication_factor=1)])
            admin.delete_topics(["after"])
        cordon(admin, "*")
        broker.kill()
        broker.start()
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        assert cordoned(admin) == [str(first), str(second)], "the setting outlives a restart"
        refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "after")
        cordon(admin, "")
        create(admin, "after")


def test_lists_are_changed_entry_by_entry(two: tuple[EmbeddedBroker, Path, Path]) -> None:
    broker, first, second = two
    resource: Resource = (ResourceType.BROKER, "1")
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_configs({resource: {SETTING: (AlterOperation.APPEND, str(first))}})
        admin.alter_configs({resource: {SETTING: (AlterOperation.APPEND, str(second))}})
        refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "t")
        admin.alter_configs({resource: {SETTING: (AlterOperation.SUBTRACT, str(first))}})
        assert cordoned(admin) == [str(second)]
        create(admin, "t")


def test_other_directories_cannot_be_cordoned(two: tuple[EmbeddedBroker, Path, Path]) -> None:
    broker, first, second = two
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        for wrong in ("/no/such", f"{first},/no/such", f"{first}/t-0"):
            assert "Missing entries" in refusal(ErrorCode.INVALID_REQUEST, cordon, admin, wrong)
        assert "must not contain other" in refusal(ErrorCode.INVALID_REQUEST, cordon, admin, f"*,{second}")
        every = {(ResourceType.BROKER, ""): {SETTING: str(first)}}
        assert "broker id must be specified" in refusal(ErrorCode.INVALID_REQUEST, admin.alter_configs, every)
        assert cordoned(admin) == []


def test_the_file_cordons_from_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    broker: EmbeddedBroker = start_broker(settings={"log.dirs": f"{first},{second}", SETTING: "*"})
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "t")
        assert cordoned(admin) == [str(first), str(second)]
        cordon(admin, "")
        create(admin, "t")
        cordon(admin, None)
        refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "u")
    broker.stop()
    broker = start_broker(settings={"log.dirs": f"{first},{second}", SETTING: str(first)})
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        create(admin, "u")
        assert TopicPartition("u", 0) in held(admin, second)


def test_a_broker_whose_file_cordons_another_directory_does_not_start(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r"(?s)cordoned\.log\.dirs.*Missing entries : /no/such"):
        start_broker(settings={"log.dirs": f"{tmp_path}/first", SETTING: "/no/such"})


def test_other_nodes_place_nothing_on_a_cordoned_one(tmp_path: Path) -> None:
    """Whichever node decides; it stays so while the broker is away. No other node can cordon its directories."""
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            create(admin, "before", 3, 3)
            cordon(admin, "*", broker=3)
            create(admin, "after", 6, 2)
            placed = known_topics(admin, "before", "after")
            assert {node for part in placed["after"].partitions for node in part.replicas} == {1, 2}
            assert {node for part in placed["before"].partitions for node in part.replicas} == {1, 2, 3}
            assert "only 2 broker(s)" in refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "u", 1, 3)
            moving = {TopicPartition("after", 0): [3, 1]}
            refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, admin.alter_partition_reassignments, moving)
            arguments = ["topic", "refetch", "before:0", "--broker", "3", "--yes", "-b", cluster.bootstrap_servers]
            done = CliRunner().invoke(cli, arguments)
            assert "broker 3 gets no new replicas: all of its log directories are cordoned" in done.output
        cluster.kill(3)
        with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
            refusal(ErrorCode.INVALID_REPLICATION_FACTOR, create, admin, "u", 1, 3)
        cluster.start(3)
        cluster.wait_in_sync()
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert cordoned(admin, 3)
            cordon(admin, "", broker=3)
            create(admin, "u", 1, 3)
