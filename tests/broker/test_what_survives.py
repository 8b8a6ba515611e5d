"""The table of docs/explanation/durability.md, line by line, except what test_flush_before_ack and test_crash cover.

Real data paths on disks in memory: a node is killed (its page cache stays), loses its power (what was not synced goes,
all of it: the worst there is), or loses its disk.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from replicating import Cluster, running, until

from kraftpy.broker.upkeep.maintenance import Maintenance
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import iter_records, split_batches
from kraftpy.testing.memory_files import MemoryDisk

RANDOM = Random(0)
THREE = (1, 2, 3)
SYNCED = [{"flush_messages": "1"}, {"kraftpy_flush_before_ack": "true"}]


def nodes(directory: Path, *numbers: int) -> running:
    return running(directory, *numbers, disks={number: MemoryDisk() for number in numbers})


def values_on(cluster: Cluster, node: int, topic: str = "t") -> list[bytes | None]:
    batches = cluster.nodes[node].log_bytes(topic)
    return [record.value for _, batch in split_batches(batches) for record in iter_records(batch)]


async def acknowledged(cluster: Cluster, count: int, *, acks: int = -1, node: int = 1) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    for value in sent:
        assert (await cluster.nodes[node].produce("t", value, acks=acks)).error_code == ErrorCode.NONE
    return sent


def lose_disk(cluster: Cluster, node: int) -> None:
    disks: dict[int, MemoryDisk] = cluster.disks  # type: ignore[assignment]
    disks[node] = MemoryDisk()


# --- one replica ---


async def test_flush_ms_keeps_what_is_older_than_that(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as cluster:
        await cluster.create("t", (1,), flush_ms="1")
        node = cluster.nodes[1]
        incidents = node.tasks.incidents
        looking = Maintenance(
            node.config, node.clock, node.replica_manager, lambda _partition: None, lambda: [], incidents
        ).flushes()
        flushing = asyncio.get_running_loop().create_task(looking)
        sent = await acknowledged(cluster, 3, acks=1)
        await until(lambda: cluster.replica(1, "t").log.recovery_point == 3)
        flushing.cancel()
        assert (await node.produce("t", b"younger")).error_code == ErrorCode.NONE
        await cluster.lose_power(1, random=RANDOM)
        await cluster.start(1)
        assert values_on(cluster, 1) == sent


@pytest.mark.parametrize("settings", [{}, *SYNCED], ids=["default", "flush.messages", "flush.before.ack"])
async def test_the_only_copy_goes_with_its_disk(tmp_path: Path, settings: dict[str, str]) -> None:
    async with nodes(tmp_path, 1) as cluster:
        await cluster.create("t", (1,), **settings)
        await acknowledged(cluster, 3)
        await cluster.stop(1, clean=False)
        lose_disk(cluster, 1)
        await cluster.start(1)
        assert values_on(cluster, 1) == []


# --- three replicas ---


async def test_acks_1_is_the_word_of_the_leader_alone(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as cluster:
        await cluster.create("t", (1, 2), kraftpy_flush_before_ack="true")
        await cluster.stop(2, clean=False)
        await acknowledged(cluster, 1, acks=1)
        assert cluster.replica(1, "t").high_watermark == 0, "readers are not shown it"
        await cluster.stop(1, clean=False)
        await cluster.change("t", leader=2, isr=(2,))
        await cluster.start(2)
        assert values_on(cluster, 2) == []


@pytest.mark.parametrize("settings", [{}, *SYNCED], ids=["default", "flush.messages", "flush.before.ack"])
@pytest.mark.parametrize("lost", ["process", "power", "disk"])
async def test_what_all_in_sync_have_outlives_one_of_them(tmp_path: Path, settings: dict[str, str], lost: str) -> None:
    async with nodes(tmp_path, *THREE) as cluster:
        await cluster.create("t", THREE, min_insync_replicas="2", **settings)
        sent = await acknowledged(cluster, 10)
        if lost == "power":
            await cluster.lose_power(1, random=RANDOM)
        else:
            await cluster.stop(1, clean=False)
        if lost == "disk":
            lose_disk(cluster, 1)
        await cluster.change("t", leader=2, isr=(2, 3))
        assert values_on(cluster, 2) == sent
        await cluster.start(1)
        await cluster.caught_up("t")
        assert [values_on(cluster, node) for node in THREE] == [sent] * 3


@pytest.mark.parametrize("settings", [{}, *SYNCED], ids=["default", "flush.messages", "flush.before.ack"])
async def test_all_processes_killed_at_once_cost_nothing(tmp_path: Path, settings: dict[str, str]) -> None:
    """Rule 43: the page cache outlives them."""
    async with nodes(tmp_path, *THREE) as cluster:
        await cluster.create("t", THREE, min_insync_replicas="2", **settings)
        sent = await acknowledged(cluster, 10)
        for node in THREE:
            await cluster.stop(node, clean=False)
        await cluster.start(*THREE)
        await cluster.caught_up("t")
        assert [values_on(cluster, node) for node in THREE] == [sent] * 3


@pytest.mark.parametrize("settings", [{}, *SYNCED], ids=["default", "flush.messages", "flush.before.ack"])
async def test_a_power_loss_of_all_takes_what_none_of_them_synced(tmp_path: Path, settings: dict[str, str]) -> None:
    async with nodes(tmp_path, *THREE) as cluster:
        await cluster.create("t", THREE, min_insync_replicas="2", **settings)
        sent = await acknowledged(cluster, 10)
        await cluster.lose_power(*THREE, random=RANDOM)
        await cluster.start(*THREE)
        await cluster.caught_up("t")
        assert [values_on(cluster, node) for node in THREE] == [sent if settings else []] * 3


async def test_too_few_in_sync_are_told_before_anything_is_written(tmp_path: Path) -> None:
    async with nodes(tmp_path, *THREE) as cluster:
        await cluster.create("t", THREE, min_insync_replicas="2")
        for node in (2, 3):
            await cluster.stop(node)
            await cluster.fence(node)
        answer = await cluster.nodes[1].produce("t", b"alone")
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert values_on(cluster, 1) == []
