"""A damaged copy of a partition: found by `kraftpy log verify`, fetched again by `kraftpy topic refetch`.

Nothing that was acknowledged is lost by it, whether the copy is a follower's or the leader's; a copy that is the only
one in sync is not thrown away.

Each test has its own cluster, because it damages files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client import BlockingAdmin, BlockingConsumer, BlockingProducer, NewTopic, TopicPartition
from kraftpy.testing import Cluster

pytestmark = pytest.mark.timeout(300)  # three nodes, stopped and started

TOPIC = TopicPartition("flights", 0)
RECORDS = 3000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def kraftpy(*arguments: object, bootstrap: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kraftpy", *map(str, arguments)],
        env={**os.environ, "KRAFTPY_BOOTSTRAP_SERVERS": bootstrap},
        capture_output=True,
        text=True,
        timeout=90,
    )


def fill(cluster: Cluster) -> list[bytes]:
    """A topic with preferred leader 1 and several segments; what was acknowledged."""
    values = [b"%d:" % number + os.urandom(900) for number in range(RECORDS)]
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        settings = {"segment.bytes": "1048576", "min.insync.replicas": "2"}
        admin.create_topics([NewTopic(name=TOPIC.topic, replica_assignment={0: [1, 2, 3]}, config=settings)])
    with BlockingProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        producer.send_many(TOPIC.topic, ((None, value) for value in values))
        producer.flush()
    cluster.wait_in_sync()
    return values


def directory(cluster: Cluster, node: int) -> Path:
    return cluster.node_directory(node) / "data" / str(TOPIC)


def content(cluster: Cluster, node: int) -> bytes:
    """All batches of a copy: its leader's, byte for byte, however it is cut into segments."""
    return b"".join(path.read_bytes() for path in sorted(directory(cluster, node).glob("*.log")))


def damage(cluster: Cluster, node: int) -> None:
    """Flip a bit of a sealed segment of a node that is stopped, and see it found."""
    segment = sorted(directory(cluster, node).glob("*.log"))[0]
    sound = kraftpy("log", "verify", directory(cluster, node))
    assert sound.returncode == 0, sound.stderr
    with segment.open("r+b") as file:
        file.seek(300_000)
        byte = file.read(1)[0]
        file.seek(300_000)
        file.write(bytes([byte ^ 1]))
    found = kraftpy("log", "verify", cluster.node_directory(node) / "data")
    assert found.returncode == 1
    damaged = [row for row in map(json.loads, found.stdout.splitlines()) if not row["ok"] and "file" in row]
    assert [row["file"] for row in damaged] == [str(segment)]
    assert damaged[0]["position"] <= 300_000 < damaged[0]["resumes_at_position"]
    assert damaged[0]["next_offset"] < damaged[0]["resumes_at_offset"]


def refetched(cluster: Cluster, node: int) -> dict[str, Any]:
    done = kraftpy("topic", "refetch", TOPIC.topic, "--broker", node, bootstrap=cluster.bootstrap_servers)
    assert done.returncode == 0, done.stderr + cluster.logs(node)[-2000:]
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def read_all(cluster: Cluster) -> list[bytes | None]:
    with BlockingConsumer(
        TOPIC.topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        found: list[bytes | None] = []
        while len(found) < RECORDS:
            batch = [record.value for each in consumer.getmany(timeout_ms=5000).values() for record in each]
            assert batch, f"{len(found)} records"
            found += batch
    return found


def test_a_damaged_follower_is_fetched_anew(cluster: Cluster) -> None:
    values = fill(cluster)
    cluster.stop(3)
    damage(cluster, 3)
    cluster.start(3)
    cluster.wait_in_sync()
    assert content(cluster, 3) != content(cluster, 1)

    row = refetched(cluster, 3)
    assert (row["broker"], row["replicas"], sorted(row["isr"])) == (3, [1, 2, 3], [1, 2, 3])
    assert row["size_bytes"] == len(content(cluster, 3))
    assert content(cluster, 3) == content(cluster, 1)
    assert read_all(cluster) == values
    cluster.stop(3)
    sound = kraftpy("log", "verify", cluster.node_directory(3) / "data")
    assert sound.returncode == 0, sound.stderr


def test_a_damaged_leader_gives_up_its_leadership_first(cluster: Cluster) -> None:
    values = fill(cluster)
    cluster.stop(1)
    damage(cluster, 1)
    cluster.start(1)
    cluster.wait_in_sync()
    elected = kraftpy("cluster", "elect-leaders", TOPIC.topic, bootstrap=cluster.bootstrap_servers)
    assert elected.returncode == 0, elected.stderr
    assert cluster.leader_of(TOPIC.topic) == 1

    row = refetched(cluster, 1)
    assert row["leader"] != 1
    assert (row["replicas"], sorted(row["isr"])) == ([1, 2, 3], [1, 2, 3])
    assert content(cluster, 1) == content(cluster, row["leader"])
    assert read_all(cluster) == values


def test_a_copy_that_cannot_be_opened_is_fetched_anew(cluster: Cluster) -> None:
    values = fill(cluster)
    cluster.stop(2)
    (directory(cluster, 2) / "partition.metadata").write_bytes(b"spoilt")
    assert kraftpy("log", "verify", directory(cluster, 2)).returncode == 1
    cluster.start(2)
    row = refetched(cluster, 2)
    assert (row["replicas"], sorted(row["isr"])) == ([1, 2, 3], [1, 2, 3])
    assert content(cluster, 2) == content(cluster, 1)
    assert read_all(cluster) == values


def test_a_copy_that_cannot_be_done_without_is_kept(cluster: Cluster) -> None:
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="single", replica_assignment={0: [2]})])
        admin.create_topics([NewTopic(name="pair", replica_assignment={0: [1, 2]})])

    def refused(topic: str, broker: int) -> str:
        done = kraftpy("topic", "refetch", topic, "--broker", broker, bootstrap=cluster.address(1))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "has the only in-sync copy of single-0" in refused("single", 2)
    assert "broker 3 has no copy of pair-0: its replicas are 1,2" in refused("pair", 3)
    assert "broker 9 is not running" in refused("pair", 9)
    cluster.stop(2)
    assert "broker 1 has the only in-sync copy of pair-0" in refused("pair", 1)
    assert "broker 2 is not running" in refused("pair", 2)
    assert (cluster.node_directory(1) / "data" / "pair-0").is_dir()
