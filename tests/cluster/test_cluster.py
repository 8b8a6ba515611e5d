"""`Cluster` itself: what it starts, ends, keeps and says.

Each test has its own cluster, because the start and the end of one are its subject.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from kraftpy.client import Admin, BlockingAdmin, BlockingConsumer, BlockingProducer, NewTopic, Producer
from kraftpy.testing import BrokerDied, Cluster
from tests.waiting import known_topics

BOUND_SECONDS = 20.0


def test_three_brokers_serve_and_know_each_other() -> None:
    with Cluster(racks=["a", "b", "c"], settings={"num.partitions": "5"}) as cluster:
        directory = cluster.directory
        for node in cluster.brokers:
            with BlockingAdmin(bootstrap_servers=cluster.address(node)) as admin:
                described = admin.describe_cluster()
                assert {(broker.node_id, broker.rack) for broker in described.nodes} == {(1, "a"), (2, "b"), (3, "c")}
        assert cluster.quorum_leader() in cluster.controllers
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="events")])
            topic = known_topics(admin, "events")["events"]
            assert len(topic.partitions) == 5
            assert all(len(partition.replicas) == 3 for partition in topic.partitions)
        cluster.wait_in_sync()
    assert not directory.exists()


def test_what_was_written_survives_each_node_in_turn() -> None:
    with Cluster() as cluster, BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for node in cluster.nodes:
            producer.send("events", b"before %d" % node, partition=0)
            cluster.kill(node)
            assert not cluster.is_running(node)
            producer.send("events", b"without %d" % node, partition=0)
            cluster.start(node)
            cluster.wait_in_sync()
        with BlockingConsumer(
            "events", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            found: list[bytes | None] = []
            deadline = time.monotonic() + BOUND_SECONDS
            while len(found) < 6:
                assert time.monotonic() < deadline, found
                found += [record.value for batch in consumer.getmany(timeout_ms=200).values() for record in batch]
        assert found == [word % node for node in cluster.nodes for word in (b"before %d", b"without %d")]


async def test_controllers_apart_and_an_asynchronous_test() -> None:
    async with Cluster(brokers=2, controllers=3) as cluster:
        assert cluster.brokers == (1, 2)
        assert cluster.controllers == (3, 4, 5)
        assert await cluster.quorum_leader() in cluster.controllers
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(name="events", num_partitions=1, replication_factor=2)])
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await (await producer.send("events", b"1"))
            leader = await cluster.quorum_leader()
            assert leader is not None
            await cluster.kill(leader)
            await (await producer.send("events", b"2"))
            await cluster.start(leader)
            await cluster.stop(1)
            await (await producer.send("events", b"3"))
            await cluster.start(1)
        await cluster.wait_in_sync()


def test_a_directory_is_kept_and_used_again(tmp_path: Path) -> None:
    with (
        Cluster(directory=tmp_path) as cluster,
        BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        producer.send("events", b"kept")
    with (
        Cluster(directory=tmp_path) as cluster,
        BlockingConsumer(
            "events", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer,
    ):
        assert next(iter(consumer)).value == b"kept"


def test_data_are_kept_on_failure_where_that_was_asked() -> None:
    cluster = Cluster(brokers=1, keep_on_failure=True)

    def fail() -> None:
        with cluster:
            raise ValueError(str(cluster.directory))

    with pytest.raises(ValueError, match="kraftpy-cluster-") as caught:
        fail()
    directory = Path(str(caught.value))
    assert str(directory) in "".join(caught.value.__notes__)
    assert (directory / "node-1" / "data").is_dir()
    shutil.rmtree(directory)


def test_a_node_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(BrokerDied, match=r"node 1: .*Invalid value many for configuration num\.partitions"),
        Cluster(brokers=1, settings={"num.partitions": "many"}),
    ):
        pass


def test_a_node_that_ended_by_itself_is_not_overlooked() -> None:
    cluster = Cluster(brokers=1)
    cluster.open()
    os.kill(cluster.pid(1), signal.SIGKILL)
    deadline = time.monotonic() + BOUND_SECONDS
    while cluster.is_running(1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(BrokerDied, match="node 1 had ended on its own"):
        cluster.close()


def test_a_paused_node_is_stopped_and_killed_all_the_same() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.pause(1)
        cluster.stop(1)
        cluster.start(1)
        cluster.pause(1)


def test_what_makes_no_sense_is_refused() -> None:
    for arguments in ({"brokers": 0}, {"controllers": 0}, {"racks": ["a"]}, {"node_settings": {9: {"a": "b"}}}):
        with pytest.raises(ValueError, match=r"cluster has|racks|unknown node"):
            Cluster(**arguments)  # type: ignore[arg-type]
