"""Dead letters go to the leader of the queue, on any node, and none is lost when it dies (KIP-1191).

The test has its own cluster, because a node of it dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kraftpy.client import AcknowledgeType, Admin, Consumer, NewTopic, Producer, ResourceType, ShareConsumer
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "300",
}
PARTITIONS = 6
QUEUE_PARTITIONS = 4
BOUND_SECONDS = 120.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as made:
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


async def reject(bootstrap: str, count: int) -> None:
    """Reject that many records, as the only member of the group."""
    options = {"bootstrap_servers": bootstrap, "share_acknowledgement_mode": "explicit"}
    async with asyncio.timeout(BOUND_SECONDS), ShareConsumer("jobs", group_id="workers", **options) as consumer:
        async for record in consumer:
            consumer.acknowledge(record, AcknowledgeType.REJECT)
            count -= 1
            if not count:
                break
        await consumer.commit_sync()


async def read_letters(bootstrap: str, count: int) -> dict[tuple[int, int], tuple[int, bytes | None]]:
    """By partition and offset of the record that was given up: the queue's partition, and the value, until all came."""
    found: dict[tuple[int, int], tuple[int, bytes | None]] = {}
    partitions = [TopicPartition("dlq.jobs", partition) for partition in range(QUEUE_PARTITIONS)]
    options = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest"}
    async with asyncio.timeout(BOUND_SECONDS), Consumer(**options) as consumer:
        consumer.assign(partitions)
        async for record in consumer:
            headers = {name: (value or b"").decode() for name, value in record.headers}
            assert headers["__dlq.errors.topic"] == "jobs"
            assert headers["__dlq.errors.group"] == "workers"
            origin = int(headers["__dlq.errors.partition"]), int(headers["__dlq.errors.offset"])
            found[origin] = record.partition, record.value
            if len(found) == count:
                return found
    raise AssertionError(found)


async def test_dead_letters_come_to_the_queue_of_every_node(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=bootstrap) as admin:
        queue = {"errors.deadletterqueue.group.enable": "true", "min.insync.replicas": "2"}
        await admin.create_topics(
            [
                NewTopic(name="jobs", num_partitions=PARTITIONS, replication_factor=3),
                NewTopic(name="dlq.jobs", num_partitions=QUEUE_PARTITIONS, replication_factor=3, config=queue),
            ]
        )
        settings = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": "dlq.jobs",
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        await admin.alter_configs({(ResourceType.GROUP, "workers"): settings})
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(60):
            await producer.send("jobs", b"%d" % number, partition=number % PARTITIONS)
    await reject(bootstrap, 60)
    letters = await read_letters(bootstrap, 60)
    expected = {
        (number % PARTITIONS, number // PARTITIONS): (number % PARTITIONS % QUEUE_PARTITIONS, b"%d" % number)
        for number in range(60)
    }
    assert letters == expected

    await asyncio.to_thread(cluster.kill, cluster.nodes[0])  # it led a part of both
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(60, 120):
            await producer.send("jobs", b"%d" % number, partition=number % PARTITIONS)
    await reject(bootstrap, 60)
    letters = await read_letters(bootstrap, 120)
    assert sorted(int(value or b"") for _, value in letters.values()) == [*range(120)]
