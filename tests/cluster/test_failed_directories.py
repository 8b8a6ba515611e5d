"""A node's log directory fails, or is replaced by an empty one: others lead, clients keep working, it comes back.

Each test has its own cluster, because it takes disks away from it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from cluster.traffic import Traffic

from kraftpy.client import BlockingAdmin, BlockingProducer, NewTopic, OffsetSpec
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition

BOUND_SECONDS = 40.0

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]


@pytest.mark.long
def test_leaderships_move_and_replicas_come_back(tmp_path: Path) -> None:
    """Moved away and put back with a restart: it catches up. Replaced by an empty one: it is copied again."""
    settings = {node: {"log.dirs": f"{tmp_path}/node-{node}/data,{tmp_path}/node-{node}/more"} for node in range(1, 4)}
    with Cluster(directory=tmp_path, node_settings=settings) as cluster:
        with Traffic(cluster.bootstrap_servers) as traffic:
            for node, is_kept in ((1, True), (2, False)):
                more = cluster.node_directory(node) / "more"
                held = sorted(path.name for path in more.glob("events-*"))
                assert held, "the directory holds partitions"
                more.rename(more.with_name("aside"))
                offline_until(cluster, node, held)
                traffic.goes_on(f"the failure of a directory of node {node}")
                assert cluster.is_running(node), "the node lives"
                assert f"log directory {more} is offline" in cluster.logs(node)
                cluster.kill(node)
                if is_kept:
                    more.with_name("aside").rename(more)
                else:
                    shutil.rmtree(more.with_name("aside"))
                cluster.start(node)
                cluster.wait_in_sync()
                traffic.goes_on(f"the return of node {node}")
                if is_kept:
                    assert sorted(path.name for path in more.glob("events-*")) == held
        traffic.proof()
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node), cluster.logs(node)


def test_a_broker_s_only_disk_replaced_is_no_empty_partition(tmp_path: Path) -> None:
    """The records only it had are gone. The loss stays reported until someone accepts it; the rest is copied."""
    with Cluster(brokers=2, controllers=1, directory=tmp_path) as cluster:
        partitions = [TopicPartition("alone", 0), TopicPartition("both", 0)]
        with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
            admin.create_topics([NewTopic(name="alone", replica_assignment={0: [2]})])
            admin.create_topics([NewTopic(name="both", replica_assignment={0: [2, 1]})])
        with BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for partition in partitions:
                producer.send(partition.topic, b"before")
        cluster.kill(2)
        shutil.rmtree(cluster.node_directory(2) / "data")
        for _ in range(2):
            cluster.start(2)
            offline_until(cluster, 2, ["alone-0"])
            assert not (cluster.node_directory(2) / "data" / "alone-0").exists(), "nothing is made in its place"
            cluster.kill(2)
        cluster.start(2)
        with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
            offline_until(cluster, 2, ["alone-0"])
            assert admin.elect_leaders(partitions[:1], unclean=True) == {partitions[0]: None}
            cluster.wait_in_sync()
            ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        assert {partition: found.offset for partition, found in ends.items()} == {partitions[0]: 0, partitions[1]: 1}


def test_a_lost_disk_and_then_the_end_of_all(tmp_path: Path) -> None:
    """A node that had synced its acknowledged records, and still has its disk, is known to have everything."""
    settings = {"kraftpy.flush.before.ack": "true", "min.insync.replicas": "2"}
    with Cluster(brokers=3, controllers=1, directory=tmp_path, settings=settings) as cluster:
        partition = TopicPartition("synced", 0)
        with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
            new = NewTopic(name="synced", replica_assignment={0: [3, 1, 2]})
            admin.create_topics([new])
        with BlockingProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for _ in range(20):
                producer.send("synced", b"before")
        for node in (1, 2, 3):  # 3 leads last
            cluster.kill(node)
        shutil.rmtree(cluster.node_directory(3) / "data")
        for node in (3, 1, 2):
            cluster.start(node, wait=False)
        cluster.wait_in_sync()
        with BlockingAdmin(bootstrap_servers=cluster.address(1)) as admin:
            assert admin.list_offsets({partition: OffsetSpec.LATEST})[partition].offset == 20


def offline_until(cluster: Cluster, node: int, held: list[str]) -> None:
    """Every broker says that the replicas are offline, and that others lead."""
    deadline = time.monotonic() + BOUND_SECONDS
    for asked in cluster.brokers:
        with BlockingAdmin(bootstrap_servers=cluster.address(asked)) as admin:
            while True:
                topics = admin.describe_topics(sorted({name.rpartition("-")[0] for name in held}))
                found = {
                    f"{topic.name}-{partition.partition}": partition
                    for topic in topics
                    for partition in topic.partitions
                }
                if all(node in found[name].offline_replicas and found[name].leader != node for name in held):
                    break
                assert time.monotonic() < deadline, found
                time.sleep(0.05)
