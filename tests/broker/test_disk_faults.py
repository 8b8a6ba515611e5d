"""Every kind of failure between a real broker and one of its log directories, and its cost (docs/how-to/disks.md)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.containment import DirectoryFailed
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.runtime import OsDirectory, OsFile, SystemClock
from kraftpy.broker.storage import directories
from kraftpy.config import load
from kraftpy.log.results import Origin
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Millis, Offset

BOUND_SECONDS = 20.0


class Faults:
    """The injected failures under one path: an error number for each operation."""

    under = ""
    now: ClassVar[dict[str, int]] = {}

    @classmethod
    def meet(cls, operation: str, path: str) -> None:
        number = cls.now.get(operation)
        if number is not None and path.startswith(cls.under):
            raise OSError(number, os.strerror(number), path)


class BadFile:
    """A file that fails as `Faults` says. It has a real one, because no class can derive from a compiled one."""

    def __init__(self, path: str) -> None:
        Faults.meet("open", path)
        self._file = OsFile(path)
        self._where = path

    def read(self, position: int, length: int) -> bytes:
        Faults.meet("read", self._where)
        return self._file.read(position, length)

    def write(self, position: int, data: Buffer) -> None:
        Faults.meet("write", self._where)
        self._file.write(position, data)

    def sync(self) -> None:
        Faults.meet("sync", self._where)
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class BadDirectory:
    """A directory of such files."""

    def __init__(self, path: str) -> None:
        self._directory = OsDirectory(path)

    def open(self, name: str) -> BadFile:
        return BadFile(f"{self.path}/{name}")

    def replace(self, name: str, data: Buffer) -> None:
        Faults.meet("write", f"{self.path}/{name}")
        self._directory.replace(name, data)

    def rename(self, old: str, new: str) -> None:
        Faults.meet("rename", f"{self.path}/{old}")
        self._directory.rename(old, new)

    def child(self, name: str) -> BadDirectory:
        return BadDirectory(f"{self.path}/{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)


@pytest.fixture(autouse=True)
def bad_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(directories, "OsDirectory", BadDirectory)
    monkeypatch.setattr(Faults, "under", str(tmp_path / "bad"))
    Faults.now.clear()


@asynccontextmanager
async def broker_on(*paths: Path, **settings: str) -> AsyncIterator[Broker]:
    """A broker in this process."""
    overrides = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    names = ",".join(map(str, paths))
    config = load("", {}, [f"log.dirs={names}", "listeners=PLAINTEXT://127.0.0.1:0", *overrides]).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)


async def on_the_bad_one(broker: Broker, path: Path) -> tuple[Replica, Replica]:
    """A partition in the bad directory, with records, and one in another."""
    await auto_create_topics(["t"], broker.metadata, broker.config, SystemClock())
    replicas = sorted(broker.replicas, key=lambda replica: replica.log_directory.path != str(path))
    assert replicas[0].log_directory.path == str(path)
    assert replicas[-1].log_directory.path != str(path)
    for replica in (replicas[0], replicas[-1]):
        append(replica)
        await replica.flush(replica.log_end_offset)
    return replicas[0], replicas[-1]


def append(replica: Replica) -> int:
    batch = bytearray(encode_batch([(1, None, b"value", ())]))
    return replica.append(batch, Origin.CLIENT, Millis(1)).base_offset


def refused(work: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        work()
    return caught.value.code


def read(replica: Replica) -> object:
    return replica.read(Offset(0), 1000, read_committed=False, min_one_batch=True)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOENT, errno.ENODEV], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["read", "write", "sync", "checkpoint"])
async def test_a_failure_costs_the_directory_and_no_other(
    operation: str, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "bad"
    async with broker_on(tmp_path / "good", bad, num_partitions="4") as broker:
        hit, spared = await on_the_bad_one(broker, bad)
        neighbours = [replica for replica in broker.replicas.in_directory(str(bad)) if replica is not hit]
        assert neighbours
        append(hit)
        Faults.now["write" if operation == "checkpoint" else operation] = number
        if operation == "read":
            assert refused(lambda: read(hit)) == ErrorCode.KAFKA_STORAGE_ERROR
        elif operation == "write":
            assert refused(lambda: append(hit)) == ErrorCode.KAFKA_STORAGE_ERROR
        elif operation == "sync":
            with pytest.raises(KafkaError) as caught:
                await hit.flush(hit.log_end_offset)
            assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        else:
            await broker.replica_manager.checkpoints.write()
        Faults.now.clear()  # it answers again, but what it did meanwhile is unknown
        for each in (hit, *neighbours):
            key = each.topic_partition
            assert refused(lambda key=key: broker.replicas.leader(*key)) == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[misc]
            assert refused(lambda each=each: append(each)) == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[misc]
            assert refused(lambda each=each: read(each)) == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[misc]
        assert append(spared) == 1
        await spared.flush(2)
        lines = [record.getMessage() for record in caplog.records if str(bad) in record.getMessage()]
        assert len(lines) == 1, lines
        assert "is offline" in lines[0]
        key = hit.topic_partition

        def is_told() -> bool:
            partition = broker.image.partition(*key)
            return partition is not None and partition.offline_replicas == (1,) and partition.leader == -1

        await until(is_told)
        await broker.replica_manager.retry_offline()
        assert broker.replicas.offline.has_failed(key), "it is not tried again as if nothing had happened"
    async with broker_on(tmp_path / "good", bad, num_partitions="4") as broker:
        await until(lambda: (partition := broker.image.partition(*key)) is not None and partition.leader == 1)
        again = broker.replicas.leader(*key)
        assert again.log_end_offset >= 1, "what was synced is there"
        append(again)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE], ids=errno.errorcode.get)
async def test_want_of_room_costs_the_request(number: int, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    async with broker_on(tmp_path / "good", bad, num_partitions="4") as broker:
        hit, _ = await on_the_bad_one(broker, bad)
        Faults.now["write"] = number
        assert refused(lambda: append(hit)) == ErrorCode.KAFKA_STORAGE_ERROR
        read(hit)
        with pytest.raises(OSError, match=os.strerror(number)):
            await broker.replica_manager.checkpoints.write()
        assert not broker.directories.failures
        Faults.now.clear()
        assert append(hit) == 1, "the log is as it was"
        await broker.replica_manager.checkpoints.write()


async def test_a_sync_that_finds_no_room_is_a_failed_sync(tmp_path: Path) -> None:
    """Delayed allocation: the kernel took the write, and drops it when it finds no place for it."""
    bad = tmp_path / "bad"
    async with broker_on(tmp_path / "good", bad, num_partitions="4") as broker:
        hit, _ = await on_the_bad_one(broker, bad)
        append(hit)
        Faults.now["sync"] = errno.ENOSPC
        with pytest.raises(KafkaError):
            await hit.flush(hit.log_end_offset)
        assert list(broker.directories.failures) == [str(bad)]


async def test_the_node_stops_when_the_directory_of_the_metadata_fails(tmp_path: Path) -> None:
    bad = tmp_path / "bad"

    async def meet_it() -> None:
        async with broker_on(bad, tmp_path / "good", num_partitions="4") as broker:
            hit, _ = await on_the_bad_one(broker, bad)
            Faults.now["read"] = errno.EIO
            assert refused(lambda: read(hit)) == ErrorCode.KAFKA_STORAGE_ERROR
            await asyncio.sleep(BOUND_SECONDS)

    with pytest.raises(ExceptionGroup) as caught:
        await meet_it()
    [error] = caught.value.exceptions
    assert isinstance(error, DirectoryFailed)
    assert str(error) == (
        f"log directory {bad} is offline: cannot read a log in it: Input/output error; it holds the metadata: this "
        "node stops"
    )


async def test_a_partition_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    async with broker_on(tmp_path / "good", bad, num_partitions="2") as broker:
        hit, _ = await on_the_bad_one(broker, bad)
        key = hit.topic_partition
    metadata = bad / str(key) / "partition.metadata"
    kept = metadata.read_bytes()
    metadata.write_bytes(b"nothing\n")
    async with broker_on(tmp_path / "good", bad, num_partitions="2") as broker:
        assert broker.replicas.offline.has_failed(key)
        await until(lambda: (found := broker.image.partition(*key)) is not None and found.offline_replicas == (1,))
        assert not broker.directories.failures
        metadata.write_bytes(kept)
        await until(lambda: (found := broker.replicas.held(key)) is not None and found.leading is not None)
        assert append(broker.replicas.leader(*key)) == 1
