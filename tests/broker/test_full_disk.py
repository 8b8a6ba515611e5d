"""A full disk costs writes an error and nothing else; once there is room again, everything recovers unaided."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from broker_wire import StartBroker, ask, connect, create_topic, produce, produce_values, read_all, serves

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.record_batch import encode_batch

BOUND_SECONDS = 20.0
VALUE_BYTES = 4000


class Disk(Protocol):
    """A disk that can be filled and emptied."""

    path: Path
    takes_nothing: bool
    """Full for every file, new ones too."""

    def fill(self, pid: int) -> None:
        """Leave no room."""

    def free(self, pid: int) -> None:
        """Make room again."""


class SmallFilesystem:
    """A tmpfs of 4 MB, and a file on it that takes what is left."""

    takes_nothing = True

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=True)

    def fill(self, pid: int) -> None:
        with (self.path / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                return

    def free(self, pid: int) -> None:
        (self.path / "ballast").unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


class FileSizeLimit:
    """Limit the broker's files to 64 KB, which works without the right to mount anything."""

    takes_nothing = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def close(self) -> None:
        pass


def can_mount() -> bool:
    probe = "mount -t tmpfs tmpfs /mnt"
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "sh", "-c", probe]).returncode == 0


WAYS = [FileSizeLimit, *([SmallFilesystem] if can_mount() else [])]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = request.param(tmp_path / "disk")
    yield made
    made.close()


def test_a_full_disk_costs_writes_and_nothing_else(disk: Disk, start_broker: StartBroker) -> None:
    broker = start_broker(settings={"log.dirs": str(disk.path / "logs"), "offsets.topic.num.partitions": "1"})
    chance = Random(7)
    acknowledged: list[bytes] = []
    with connect(broker.bootstrap) as connection:
        # Segments of a few batches: the flushes of the full time have indexes and snapshots to write.
        segment_bytes = "20000" if disk.takes_nothing else "1000000"
        create_topic(connection, "filled", internal_segment_bytes=segment_bytes)
        create_topic(connection, "synced", flush_messages="1")
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]))
        for _ in range(20):
            acknowledged.append(chance.randbytes(VALUE_BYTES))
            produce_values(connection, "filled", acknowledged[-1])
        produce_values(connection, "synced", b"before")
        assert commit(connection, 1) == ErrorCode.NONE

        disk.fill(broker.pid)
        refused = 0
        deadline = time.monotonic() + BOUND_SECONDS
        while refused < 5 or (disk.takes_nothing and "is not synced yet" not in broker.log_text):
            assert time.monotonic() < deadline, broker.log_text
            value = chance.randbytes(VALUE_BYTES)
            answered = produce(connection, "filled", encode_batch([(1, None, value, ())]))
            if answered.error_code == ErrorCode.NONE:
                acknowledged.append(value)
                refused = 0
            else:
                assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                refused += 1
                time.sleep(0.01)
        assert produce(connection, "synced", big_batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        created = []
        if disk.takes_nothing:
            # A last page may have room for some more metadata, but not for a log: such a partition waits for room.
            created = create_until_refused(connection)
            for topic in created:
                assert produce(connection, topic, big_batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert commit(connection, 2, metadata="m" * 4000) not in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
        serves(broker.bootstrap)
        assert [value for _, value in read_all(broker.bootstrap, "filled")] == acknowledged

        disk.free(broker.pid)
        for _ in range(20):
            acknowledged.append(chance.randbytes(VALUE_BYTES))
            produce_values(connection, "filled", acknowledged[-1])
        produce_values(connection, "synced", b"after")
        assert commit(connection, 3) == ErrorCode.NONE
        for topic in created:
            while produce(connection, topic, encode_batch([(1, None, b"v", ())])).error_code != ErrorCode.NONE:
                assert time.monotonic() < deadline + BOUND_SECONDS, broker.log_text
                time.sleep(0.02)
        assert try_to_create(connection, "now") == ErrorCode.NONE
        produce_values(connection, "now", b"new")
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert ask(connection, ApiKey.INIT_PRODUCER_ID, 4, request).error_code == ErrorCode.NONE

    assert "Traceback" not in broker.log_text
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        assert [value for _, value in read_all(broker.bootstrap, "filled")] == acknowledged
        assert [value for _, value in read_all(broker.bootstrap, "synced")] == [b"before", b"after"]
        assert [value for _, value in read_all(broker.bootstrap, "now")] == [b"new"]
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text


def big_batch() -> bytes:
    return encode_batch([(1, None, bytes(200_000), ())])


def create_until_refused(connection: socket.socket) -> list[str]:
    """The topics that were created before there was no room for one more."""
    created = []
    for number in range(200):
        error = try_to_create(connection, f"not-now-{number}")
        if error == ErrorCode.KAFKA_STORAGE_ERROR:
            return created
        assert error == ErrorCode.NONE
        created.append(f"not-now-{number}")
    raise AssertionError("the disk is not full")


def try_to_create(connection: socket.socket, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    return int(ask(connection, ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code)


def commit(connection: socket.socket, offset: int, metadata: str = "") -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    request = OffsetCommitRequest(
        group_id="group",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="filled", partitions=[partition])],
    )
    return int(ask(connection, ApiKey.OFFSET_COMMIT, 8, request).topics[0].partitions[0].error_code)


def test_a_stop_on_a_full_disk_is_not_a_clean_one(disk: Disk, start_broker: StartBroker) -> None:
    """Exit status 1, a line for what could not be written, and the next start recovers."""
    broker = start_broker(settings={"log.dirs": str(disk.path / "logs")})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "filled")
        produce_values(connection, "filled", b"one", b"two")
    if disk.takes_nothing:
        disk.fill(broker.pid)
    else:  # not even the log of the server can be written then
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert broker.stop() == 1
    if disk.takes_nothing:
        assert "CRITICAL" in broker.log_text
    assert "Traceback" not in broker.log_text
    if disk.takes_nothing:
        disk.free(0)
    broker.start()
    assert [value for _, value in read_all(broker.bootstrap, "filled")] == [b"one", b"two"]
