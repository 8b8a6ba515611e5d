"""A log that is found shorter than it was known to be: the cluster hears of it, and does not count on what it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from replicating import Cluster, running

from kraftpy.log import layout
from kraftpy.metadata.commands import ReplicaState
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import TopicPartition

SYNCED = {"kraftpy_flush_before_ack": "true"}
LOG = "00000000000000000000.log"


async def filled(cluster: Cluster) -> None:
    """A synced topic of node 1 alone, with three batches, and all checkpoints of now."""
    await cluster.create("safe", (1,), **SYNCED)
    for value in (b"one", b"two", b"three"):
        assert (await cluster.nodes[1].produce("safe", value)).error_code == ErrorCode.NONE
    await cluster.nodes[1].replica_manager.checkpoints.write()
    await cluster.nodes[1].replica_manager.checkpoints.write_high_watermarks()


def reported(cluster: Cluster) -> dict[str, ReplicaState]:
    found = cluster.image.topic("safe")
    assert found is not None
    return {str(number): state for (_, number), state in cluster.nodes[1].replica_manager.reports().items()}


@pytest.mark.parametrize("known_by", [layout.RECOVERY_POINTS, layout.HIGH_WATERMARKS])
async def test_a_log_that_lost_what_was_synced(tmp_path: Path, known_by: str) -> None:
    disk = MemoryDisk()
    async with running(tmp_path, 1, disks={1: disk}) as cluster:
        await filled(cluster)
        path = cluster.replica(1, "safe").log_directory
        await cluster.stop(1, clean=False)
        for name in {layout.RECOVERY_POINTS, layout.HIGH_WATERMARKS} - {known_by}:
            layout.write_offsets(path, name, {TopicPartition("safe", 0): 0})
        disk.damage(f"{path.path}/safe-0/{LOG}", 100)
        await cluster.start(1)
        assert cluster.replica(1, "safe").log.log_end_offset < 3
        assert reported(cluster) == {"0": ReplicaState.TRUNCATED}
        number = next(iter(cluster.nodes[1].replica_manager.reports()))
        cluster.nodes[1].replicas.offline.reported(number, cluster.image)
        assert reported(cluster) == {}


async def test_a_log_that_has_everything(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with running(tmp_path, 1, disks={1: disk}) as cluster:
        await filled(cluster)
        await cluster.stop(1, clean=False)
        await cluster.start(1)
        assert cluster.replica(1, "safe").log.log_end_offset == 3
        assert reported(cluster) == {}


async def test_nobody_is_told_who_counts_on_nothing(tmp_path: Path) -> None:
    """A replica that is neither in sync nor eligible may lack any records."""
    disk = MemoryDisk()
    async with running(tmp_path, 1, 2, disks={1: disk, 2: MemoryDisk()}) as cluster:
        await filled(cluster)
        path = cluster.replica(1, "safe").log_directory
        await cluster.stop(1, clean=False)
        await cluster.change("safe", replicas=(1, 2), isr=(2,), leader=2)
        disk.damage(f"{path.path}/safe-0/{LOG}", 100)
        await cluster.start(1)
        assert reported(cluster) == {}
