"""A failed log directory costs only its own contents: the rest is served, the cluster learns of it, and it can return.

Real brokers on directories that are taken away under them, and, where root may mount, on file systems that are
unmounted, become read-only, or fail with EIO (tests/conftest.py reports at the end of a run if that cannot be done).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from broker_wire import StartBroker, ask, connect, create_topic, fetch, produce, produce_values, read_all
from mounting import CAN_MOUNT

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import BrokerDied, EmbeddedBroker

BOUND_SECONDS = 40.0
PARTITIONS = 6
_EXT4_SHUTDOWN, _WITHOUT_LOG = 0x8004587D, 2


def until(condition: Callable[[], Any], told: Callable[[], object] = lambda: "") -> Any:
    """Poll the condition until it returns something, and return that."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
    return found


class BadDisk(Protocol):
    """A log directory that can be made to fail, and mended."""

    path: Path
    error: str
    """The log line expected from the broker."""

    def __init__(self, path: Path) -> None: ...

    def fail(self) -> None: ...

    def mend(self) -> None: ...

    def close(self) -> None: ...


class Renamed:
    """A directory that is moved away: what anybody can do."""

    error = "it is not the directory that was opened|No such file or directory"

    def __init__(self, path: Path) -> None:
        self.path = path / "logs"
        self.path.mkdir(parents=True)
        self._aside = path / "aside"

    def fail(self) -> None:
        self.path.rename(self._aside)

    def mend(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._aside.rename(self.path)

    def close(self) -> None:
        pass


class Ext4:
    """An ext4 file system in a file, mounted over a loop device."""

    error = ""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self._image = path / "image"
        self._image.touch()
        os.truncate(self._image, 64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self._mounted = path / "mounted"
        self._mounted.mkdir()
        self._mount()
        self.path = self._mounted / "logs"
        self.path.mkdir()

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", self._image, self._mounted], check=True)

    def fail(self) -> None:
        raise NotImplementedError

    def mend(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self._mounted], check=False, stderr=subprocess.DEVNULL)


class Unmounted(Ext4):
    """Unmounted under the broker."""

    error = "it is not the directory that was opened|No such file or directory"

    def fail(self) -> None:
        subprocess.run(["umount", "--lazy", self._mounted], check=True)

    def mend(self) -> None:
        self._mount()


class GivenUp(Ext4):
    """A file system that gave up: read-only from then on, as ext4 becomes after an error on the disk."""

    error = "Read-only file system"

    def fail(self) -> None:
        found = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", self._mounted], check=True, capture_output=True, text=True
        )
        Path(f"/sys/fs/ext4/{Path(found.stdout.strip()).name}/trigger_fs_error").write_text("1")

    def mend(self) -> None:
        subprocess.run(["umount", "--lazy", self._mounted], check=True)
        self._mount()


class ShutDown(GivenUp):
    """A file system without its disk: every access fails with EIO."""

    error = "Input/output error"

    def fail(self) -> None:
        descriptor = os.open(self._mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
        finally:
            os.close(descriptor)


WAYS: list[type[BadDisk]] = [Renamed, *([Unmounted, GivenUp, ShutDown] if CAN_MOUNT else [])]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BadDisk]:
    made = request.param(tmp_path / "disk")
    yield made
    made.close()


def described(broker: EmbeddedBroker) -> dict[str, DescribeLogDirsResult]:
    """The broker's log directories, by path."""
    with connect(broker.bootstrap) as connection:
        answered = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    return {result.log_dir: result for result in answered.results}


def partitions_in(broker: EmbeddedBroker, path: Path) -> list[int]:
    """The partitions of `t` in a log directory."""
    result = described(broker)[str(path)]
    return [each.partition_index for topic in result.topics if topic.name == "t" for each in topic.partitions]


def partitions_of(broker: EmbeddedBroker, topic: str = "t") -> dict[int, Any]:
    """Return what a Metadata response says about a topic's partitions."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with connect(broker.bootstrap) as connection:
        answered = ask(connection, ApiKey.METADATA, 12, request)
    return {each.partition_index: each for each in answered.topics[0].partitions}


def write_everywhere(broker: EmbeddedBroker, word: bytes, partitions: range | list[int] = range(PARTITIONS)) -> None:
    with connect(broker.bootstrap) as connection:
        for number in partitions:
            produce_values(connection, "t", b"%s %d" % (word, number), partition=number)


def values(broker: EmbeddedBroker, number: int) -> list[bytes | None]:
    return [value for _, value in read_all(broker.bootstrap, "t", partition=number)]


def three_directories(start_broker: StartBroker, tmp_path: Path, disk: BadDisk) -> tuple[EmbeddedBroker, list[Path]]:
    """A broker on two good directories and the bad one, with a topic on all three."""
    directories = [tmp_path / "first", disk.path, tmp_path / "third"]
    broker = start_broker(settings={"log.dirs": ",".join(map(str, directories)), "offsets.topic.num.partitions": "1"})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "t", partitions=PARTITIONS, flush_messages="1")  # synced records survive
    write_everywhere(broker, b"before")
    return broker, directories


def test_a_directory_that_fails_costs_what_is_in_it(disk: BadDisk, start_broker: StartBroker, tmp_path: Path) -> None:
    broker, directories = three_directories(start_broker, tmp_path, disk)
    on_it = partitions_in(broker, disk.path)
    others = [number for number in range(PARTITIONS) if number not in on_it]
    assert [len(partitions_in(broker, path)) for path in directories] == [2, 2, 2], "they go where there are fewest"
    assert all(result.error_code == ErrorCode.NONE for result in described(broker).values())

    disk.fail()
    # No client uses the directory: the broker notices the failure on its own, and tells the cluster.
    until(lambda: described(broker)[str(disk.path)].error_code == ErrorCode.KAFKA_STORAGE_ERROR)
    until(lambda: all(partitions_of(broker)[number].leader_id == -1 for number in on_it), lambda: broker.log_text)
    for number, partition in partitions_of(broker).items():
        assert partition.offline_replicas == ([1] if number in on_it else [])
        assert partition.error_code == (ErrorCode.LEADER_NOT_AVAILABLE if number in on_it else ErrorCode.NONE)
    with connect(broker.bootstrap) as connection:
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], response_partition_limit=100)
        paged = ask(connection, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request).topics[0].partitions
        assert [each.partition_index for each in paged if each.offline_replicas == [1]] == on_it
        for number in on_it:
            answered = produce(connection, "t", encode_batch([(1, None, b"v", ())]), partition=number)
            assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert fetch(connection, "t", 0, partition=number).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        create_topic(connection, "later", partitions=4)
        produce_values(connection, "later", b"new", partition=3)
    write_everywhere(broker, b"meanwhile", others)
    for number in others:
        assert values(broker, number) == [b"before %d" % number, b"meanwhile %d" % number]
    lines = [line for line in broker.log_text.splitlines() if str(disk.path) in line]
    assert len(lines) == 1, broker.log_text
    assert "CRITICAL" in lines[0]
    assert f"so are its {len(on_it)} partitions" in lines[0]
    assert any(part in lines[0] for part in disk.error.split("|")), lines[0]

    assert broker.stop() == 1, "not everything was made durable"
    disk.mend()
    broker.start()
    until(lambda: all(each.leader_id == 1 for each in partitions_of(broker).values()), lambda: broker.log_text)
    assert partitions_in(broker, disk.path) == on_it
    write_everywhere(broker, b"after")
    for number in range(PARTITIONS):
        meanwhile = [] if number in on_it else [b"meanwhile %d" % number]
        assert values(broker, number) == [b"before %d" % number, *meanwhile, b"after %d" % number]
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text


def test_without_the_directory_of_the_metadata_the_node_stops(disk: BadDisk, start_broker: StartBroker) -> None:
    broker = start_broker(settings={"log.dirs": f"{disk.path},{disk.path.parent.parent / 'other'}"})
    disk.fail()
    assert until(lambda: has_ended(broker), lambda: broker.log_text)
    assert broker.stop() == 1
    lines = broker.log_text.splitlines()
    assert len(lines) == 1, broker.log_text
    assert lines[0].startswith(f"kraftpy: log directory {disk.path} is offline: ")
    assert lines[0].endswith("it holds the metadata: this node stops")
    with pytest.raises(BrokerDied, match=rf"kraftpy: log.dirs: (cannot use )?{disk.path}"):
        broker.start()
    disk.mend()
    broker.start()


def has_ended(broker: EmbeddedBroker) -> bool:
    """Return whether the process has exited on its own, though it has not been reaped yet."""
    return bool(psutil.Process(broker.pid).status() == psutil.STATUS_ZOMBIE)


def test_a_node_starts_without_a_directory_that_cannot_be_used(start_broker: StartBroker, tmp_path: Path) -> None:
    disk = Renamed(tmp_path / "disk")
    broker, directories = three_directories(start_broker, tmp_path, disk)
    on_it = partitions_in(broker, disk.path)
    assert broker.stop() == 0
    disk.fail()
    disk.path.write_text("no directory")

    broker.start()
    assert f"log directory {disk.path} is offline: File exists; the node starts without it" in broker.log_text
    until(lambda: all(partitions_of(broker)[number].offline_replicas == [1] for number in on_it))
    assert described(broker)[str(disk.path)].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(path.name for path in directories[0].glob("t-*")) + sorted(
        path.name for path in directories[2].glob("t-*")
    ) == [f"t-{number}" for path in (directories[0], directories[2]) for number in partitions_in(broker, path)]
    write_everywhere(broker, b"meanwhile", [number for number in range(PARTITIONS) if number not in on_it])

    assert broker.stop() == 0
    disk.path.unlink()
    disk.mend()
    broker.start()
    until(lambda: all(each.leader_id == 1 for each in partitions_of(broker).values()), lambda: broker.log_text)
    for number in on_it:
        assert values(broker, number) == [b"before %d" % number]


def test_an_empty_disk_in_its_place_is_no_empty_partition(start_broker: StartBroker, tmp_path: Path) -> None:
    """The only replica's records are gone: the broker reports it, also after a restart, until someone accepts it."""
    disk = Renamed(tmp_path / "disk")
    broker, _ = three_directories(start_broker, tmp_path, disk)
    on_it = partitions_in(broker, disk.path)
    assert broker.stop() == 0
    disk.fail()
    disk.path.mkdir()

    for end in (broker.kill, broker.stop, broker.stop):
        broker.start()
        until(lambda: all(partitions_of(broker)[number].offline_replicas == [1] for number in on_it))
        for number in on_it:
            with connect(broker.bootstrap) as connection:
                answered = produce(connection, "t", encode_batch([(1, None, b"v", ())]), partition=number)
                assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not list(tmp_path.glob(f"*/t-{on_it[0]}")), "nothing is made in its place"
        end()
    assert f"t-{on_it[0]} is offline: its records are gone with its log directory" in broker.log_text

    broker.start()
    with connect(broker.bootstrap) as connection:
        request = ElectLeadersRequest(
            election_type=1, topic_partitions=[TopicPartitions(topic="t", partitions=on_it[:1])], timeout_ms=10_000
        )
        elected = ask(connection, ApiKey.ELECT_LEADERS, 2, request)
        assert elected.error_code == ErrorCode.NONE, elected
    until(lambda: partitions_of(broker)[on_it[0]].leader_id == 1, lambda: broker.log_text)
    until(lambda: fetch_error(broker, on_it[0]) == ErrorCode.NONE, lambda: broker.log_text)
    assert values(broker, on_it[0]) == []
    write_everywhere(broker, b"anew", on_it[:1])
    assert broker.stop() == 0

    # The old disk is found again: everything that was not given up is there.
    shutil.rmtree(disk.path)
    disk.mend()
    shutil.rmtree(disk.path / f"t-{on_it[0]}")
    broker.start()
    until(lambda: partitions_of(broker)[on_it[1]].leader_id == 1, lambda: broker.log_text)
    assert values(broker, on_it[1]) == [b"before %d" % on_it[1]]


def fetch_error(broker: EmbeddedBroker, number: int) -> int:
    with connect(broker.bootstrap) as connection:
        return int(fetch(connection, "t", 0, partition=number).error_code)
