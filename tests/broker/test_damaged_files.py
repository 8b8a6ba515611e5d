"""How a broker handles a damaged small file: one outcome for each, and none of them is wrong data.

| file | outcome |
|---|---|
| recovery-point-offset-checkpoint | every log in that directory is scanned |
| log-start-offset-checkpoint | deleted records that still have a segment reappear |
| replication-offset-checkpoint | the high watermark has to be learned again |
| cleaner-offset-checkpoint | logs are compacted from their start |
| .kafka_cleanshutdown | logs are scanned from their recovery points |
| leader-epoch-checkpoint | rebuilt from the batches |
| producer snapshot | the one before it, and the batches behind that |
| partition.metadata | the partition is offline: its data might be another topic's |
| meta.properties | the node does not start, and says so in one line |

tests/log/test_small_files.py tests that the damage is detected at all.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from replicating import Cluster, running

from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.storage.directories import DirectoryError, LogDirectories
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kraftpy.testing.memory_files import MemoryDirectory, MemoryDisk

SENT = {"producer_id": 7, "producer_epoch": 0}


@asynccontextmanager
async def stopped(directory: Path) -> AsyncIterator[tuple[Cluster, MemoryDisk]]:
    """A node that has written ten batches of one idempotent producer, rolled, and stopped cleanly."""
    disk = MemoryDisk()
    async with running(directory, 1, disks={1: disk}) as cluster:
        await cluster.create("kept", (1,))
        for number in range(10):
            answer = await cluster.nodes[1].produce("kept", b"%d" % number, **SENT, base_sequence=number)
            assert answer.error_code == ErrorCode.NONE
            if number == 4:
                replica = cluster.replica(1, "kept")
                replica.log.roll(cluster.nodes[1].clock.now())
                await replica.flush(5)
        await cluster.stop(1)
        yield cluster, disk


def damage(disk: MemoryDisk, name: str) -> None:
    disk.damage(f"/log/{name}", len(directory_of(disk, name).read(name.rpartition("/")[2])) // 2)


def directory_of(disk: MemoryDisk, name: str) -> MemoryDirectory:
    directory = disk.root.child("log")
    return directory.child(name.partition("/")[0]) if "/" in name else directory


async def check_whole(cluster: Cluster) -> None:
    """All is there, its producer is known, and it can be written to."""
    replica = cluster.replica(1, "kept")
    assert replica.log.log_end_offset == replica.high_watermark == 10
    assert replica.log.epochs.entries()[0] == (0, 0)
    again = await cluster.nodes[1].produce("kept", b"9", **SENT, base_sequence=9)
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 9), "a duplicate is known as one"
    following = await cluster.nodes[1].produce("kept", b"10", **SENT, base_sequence=10)
    assert (following.error_code, following.base_offset) == (ErrorCode.NONE, 10)


async def test_without_damage_nothing_is_scanned(tmp_path: Path) -> None:
    async with stopped(tmp_path) as (cluster, _):
        await cluster.start(1)
        assert cluster.replica(1, "kept").log.report.clean
        await check_whole(cluster)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (layout.RECOVERY_POINTS, "every log in it is scanned"),
        (layout.HIGH_WATERMARKS, "its high watermarks have to be learnt again"),
        (layout.CLEANER_OFFSETS, "its logs are compacted from their start"),
        (layout.CLEAN_SHUTDOWN, None),
        (f"kept-0/{layout.LEADER_EPOCHS}", None),
        (f"kept-0/{layout.file_name(5, layout.SNAPSHOT)}", None),
        (f"kept-0/{layout.file_name(10, layout.SNAPSHOT)}", None),
    ],
)
async def test_damage_costs_what_the_file_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, said: str | None
) -> None:
    async with stopped(tmp_path) as (cluster, disk):
        if name == layout.CLEANER_OFFSETS:
            layout.write_offsets(disk.root.child("log"), name, {})
        damage(disk, name)
        with caplog.at_level(logging.WARNING):
            await cluster.start(1)
        if said is not None:
            assert [record.message for record in caplog.records if said in record.message]
        report = cluster.replica(1, "kept").log.report
        assert report.clean == (name not in (layout.RECOVERY_POINTS, layout.CLEAN_SHUTDOWN))
        if name == layout.RECOVERY_POINTS:
            assert report.scanned_segments == 2
        await check_whole(cluster)


async def test_a_damaged_log_start_shows_deleted_records_again(tmp_path: Path) -> None:
    async with stopped(tmp_path) as (cluster, disk):
        await cluster.start(1)
        partition = DeleteRecordsPartition(partition_index=0, offset=3)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="kept", partitions=[partition])], timeout_ms=9000
        )
        await cluster.nodes[1].ask(ApiKey.DELETE_RECORDS, request)
        await cluster.stop(1)
        await cluster.start(1)
        assert cluster.replica(1, "kept").log.log_start_offset == 3
        await cluster.stop(1)
        damage(disk, layout.LOG_START_OFFSETS)
        await cluster.start(1)
        assert cluster.replica(1, "kept").log.log_start_offset == 0
        assert cluster.replica(1, "kept").log.log_end_offset == 10


async def test_a_partition_that_cannot_say_whose_it_is_is_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 45: no data are ever taken for another topic's."""
    async with stopped(tmp_path) as (cluster, disk):
        damage(disk, f"kept-0/{layout.PARTITION_METADATA}")
        await cluster.start(1)
        answer = await cluster.nodes[1].produce("kept", b"10", **SENT, base_sequence=10)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        said = [record.message for record in caplog.records if "kept-0 is offline" in record.message]
        assert len(said) == 1
        assert layout.PARTITION_METADATA in said[0]
        metadata = layout.PartitionMetadata(cluster.image.topic("kept").topic_id)  # type: ignore[union-attr]
        layout.write_partition_metadata(disk.root.child("log").child("kept-0"), metadata)
        await cluster.nodes[1].replica_manager.retry_offline()
        await check_whole(cluster)


def test_a_log_directory_that_cannot_say_whose_it_is_is_not_used(tmp_path: Path) -> None:
    config = BrokerConfig.of({"node.id": "1", "log.dirs": str(tmp_path)})
    layout.write_meta_properties(OsDirectory(tmp_path), {"version": "1", "node.id": "1", "cluster.id": "4L6g3nShT-eM"})
    path = tmp_path / layout.META_PROPERTIES
    path.write_bytes(path.read_bytes().replace(b"4L6g", b"4L6h"))
    with pytest.raises(DirectoryError, match=f"{layout.META_PROPERTIES}: the checksum does not match") as refused:
        LogDirectories(config, SystemClock()).open()
    assert "\n" not in str(refused.value)
