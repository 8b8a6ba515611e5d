"""A replica moves between the log directories of its broker (AlterReplicaLogDirs): served all the while, never lost,
never there twice, whenever the broker is killed."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_wire import StartBroker, ask, connect, create_topic, produce, produce_values, read_all

from kraftpy.broker.runtime import OsDirectory
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kraftpy.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 40.0
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def until(condition: Callable[[], Any], told: Callable[[], object] = lambda: "") -> Any:
    """Poll the condition until it returns something, and return that."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)
    return found


class Jbod:
    """A broker with three log directories, and a topic of one partition in one of them."""

    def __init__(self, start_broker: StartBroker, tmp_path: Path, **settings: str) -> None:
        self.paths = [tmp_path / name for name in ("first", "second", "third")]
        own = {name.replace("_", "."): value for name, value in settings.items()}
        self.broker: EmbeddedBroker = start_broker(
            settings={"log.dirs": ",".join(map(str, self.paths)), "offsets.topic.num.partitions": "1", **own}
        )
        with connect(self.broker.bootstrap) as connection:
            create_topic(connection, "t", internal_segment_bytes="500000", file_delete_delay_ms="0")
        self.written: list[bytes] = []
        self.chance = Random(5)

    def alter(self, path: Path | str, topic: str = "t", partition: int = 0) -> int:
        """Ask for the partition to be moved there, and return the error code."""
        wanted = AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=[wanted])])
        with connect(self.broker.bootstrap) as connection:
            answered = ask(connection, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request)
        assert [result.topic_name for result in answered.results] == [topic]
        return int(answered.results[0].partitions[0].error_code)

    def where(self, topic: str = "t", *, future: bool = False) -> list[Path]:
        """The log directories that hold the partition, or the copy that is being made."""
        with connect(self.broker.bootstrap) as connection:
            answered = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
        return [
            Path(result.log_dir)
            for result in answered.results
            for each in result.topics
            if each.name == topic and any(part.is_future_key == future for part in each.partitions)
        ]

    def futures(self, path: Path | None = None) -> dict[str, int]:
        """The copies that are being made, with their sizes."""
        with connect(self.broker.bootstrap) as connection:
            answered = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
        return {
            f"{each.name}-{part.partition_index}": part.partition_size
            for result in answered.results
            if path is None or result.log_dir == str(path)
            for each in result.topics
            for part in each.partitions
            if part.is_future_key
        }

    def copied(self, path: Path) -> list[int]:
        """The size of the copy of the topic's partition that is being made there."""
        return [size for name, size in self.futures(path).items() if name == "t-0"] or [0]

    def moving_sizes(self) -> list[int]:
        return list(self.futures().values())

    def other_than(self, partition: int) -> Path:
        """A log directory without this partition of `many`."""
        return next(path for path in self.paths if not (path / f"many-{partition}").exists())

    def write(self, count: int, size: int = 2000) -> None:
        with connect(self.broker.bootstrap) as connection:
            for _ in range(count):
                value = self.chance.randbytes(size)
                produce_values(connection, "t", value)
                self.written.append(value)

    def throttle(self, rate: int | None) -> None:
        """Bytes a second, from now on."""
        change = AlterableConfig(name=RATE, config_operation=0 if rate else 1, value=str(rate) if rate else None)
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
        with connect(self.broker.bootstrap) as connection:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            answered = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert answered.responses[0].error_code == ErrorCode.NONE, answered

    def on_disk(self, pattern: str = "t-0*") -> list[str]:
        """The partition's directories on disk."""
        return sorted(f"{path.name}/{each.name}" for path in self.paths for each in path.glob(pattern))

    def check(self, where: Path) -> None:
        """Everything is there, in one place, and the log still accepts writes."""
        self.write(1)
        assert [value for _, value in read_all(self.broker.bootstrap, "t")] == self.written
        until(lambda: self.on_disk() == [f"{where.name}/t-0"], self.on_disk)
        assert self.where() == [where]
        assert not self.where(future=True)
        assert "Traceback" not in self.broker.log_text, self.broker.log_text


def test_a_topic_whose_name_has_no_room_for_a_copy_is_not_moved(start_broker: StartBroker, tmp_path: Path) -> None:
    """The copy's directory is named after the topic, and more; as in Kafka, that is said before anything else."""
    jbod = Jbod(start_broker, tmp_path)
    for path in (jbod.paths[1], "/nowhere"):
        assert jbod.alter(path, "x" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_replica_moves_while_it_is_written_to(start_broker: StartBroker, tmp_path: Path) -> None:
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(300)
    is_over = threading.Event()

    def write_on() -> None:
        while not is_over.wait(0.01):
            jbod.write(3)

    writing = threading.Thread(target=write_on)
    writing.start()
    try:
        for path in [*jbod.paths, jbod.paths[0]]:
            assert jbod.alter(path) == ErrorCode.NONE
            until(lambda path=path: jbod.where() == [path], lambda: jbod.broker.log_text)  # type: ignore[misc]
    finally:
        is_over.set()
        writing.join()
    jbod.check(jbod.paths[0])
    for end in (jbod.broker.kill, jbod.broker.stop):
        end()
        jbod.broker.start()
        jbod.check(jbod.paths[0])
    assert jbod.broker.stop() == 0


def test_a_move_is_shown_throttled_redirected_and_cancelled(start_broker: StartBroker, tmp_path: Path) -> None:
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(200)
    [here] = jbod.where()
    there, elsewhere = (path for path in jbod.paths if path != here)
    jbod.throttle(1000)

    assert jbod.alter(there) == ErrorCode.NONE
    assert jbod.alter(there) == ErrorCode.NONE, "as it is already"
    until(lambda: jbod.where(future=True) == [there])
    with connect(jbod.broker.bootstrap) as connection:
        described = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    [future] = [
        each
        for result in described.results
        if result.log_dir == str(there)
        for topic in result.topics
        if topic.name == "t"
        for each in topic.partitions
    ]
    assert future.is_future_key
    assert 0 < future.offset_lag <= 200
    jbod.write(5)

    assert jbod.alter(elsewhere) == ErrorCode.NONE
    until(lambda: jbod.where(future=True) == [elsewhere])
    assert jbod.alter(here) == ErrorCode.NONE, "where it is: the move is given up"
    jbod.check(here)

    assert jbod.alter(there) == ErrorCode.NONE
    until(lambda: jbod.where(future=True) == [there])
    for end in (jbod.broker.kill, jbod.broker.stop):
        end()
        jbod.broker.start()
        assert jbod.where() == [here]
        assert jbod.where(future=True) == [there], "a restart forgets no move"
    jbod.throttle(None)
    until(lambda: jbod.where() == [there], lambda: jbod.broker.log_text)
    jbod.check(there)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_restart_continues_a_copy(start_broker: StartBroker, tmp_path: Path, is_killed: bool) -> None:
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(200, size=5000)
    [here] = jbod.where()
    there = next(path for path in jbod.paths if path != here)
    jbod.throttle(200_000)
    assert jbod.alter(there) == ErrorCode.NONE
    before = until(lambda: next((size for size in jbod.copied(there) if size > 300_000), None))
    (jbod.broker.kill if is_killed else jbod.broker.stop)()
    jbod.broker.start()
    assert until(lambda: jbod.copied(there)[0], lambda: jbod.broker.log_text) >= before, "it starts over"
    jbod.throttle(None)
    until(lambda: jbod.where() == [there], lambda: jbod.broker.log_text)
    jbod.check(there)
    assert not (there / "t-0" / "copy-progress").exists()


def test_a_copy_that_is_not_the_log_s_starts_over(start_broker: StartBroker, tmp_path: Path) -> None:
    """Another topic's copy, one whose progress is damaged, and one with records that the log does not have."""
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(200)
    [here] = jbod.where()
    there = next(path for path in jbod.paths if path != here)
    for spoil in (lost_progress, damaged_progress, other_topic, other_records):
        jbod.throttle(1000)
        assert jbod.alter(there) == ErrorCode.NONE
        until(lambda there=there: jbod.copied(there)[0], lambda: jbod.broker.log_text)  # type: ignore[misc]
        jbod.broker.stop()
        [copy] = there.glob("t-0.*-future")
        spoil(copy, here / "t-0")
        jbod.broker.start()
        jbod.throttle(None)
        until(lambda there=there: jbod.where() == [there], lambda: jbod.broker.log_text)  # type: ignore[misc]
        jbod.check(there)
        here, there = there, here


def lost_progress(copy: Path, log: Path) -> None:
    (copy / "copy-progress").unlink()


def damaged_progress(copy: Path, log: Path) -> None:
    (copy / "copy-progress").write_bytes((copy / "copy-progress").read_bytes().replace(b"0", b"7"))


def other_topic(copy: Path, log: Path) -> None:
    from kraftpy.log.layout import PartitionMetadata, write_partition_metadata
    from kraftpy.types import TopicId

    write_partition_metadata(OsDirectory(str(copy)), PartitionMetadata(TopicId(b"another topic id")))


def other_records(copy: Path, log: Path) -> None:
    """The copy has another record at an offset and epoch of the log, as if the log had been set back."""
    from kraftpy.protocol.record_batch import stamp

    file = copy / "00000000000000000000.log"
    for each in copy.iterdir():
        if each.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            each.unlink()
    batch = bytearray(encode_batch([(1, None, b"never written", ())]))
    stamp(batch, 0, 0, None)
    file.write_bytes(batch)


def test_several_replicas_move_at_once(start_broker: StartBroker, tmp_path: Path) -> None:
    """As many as `num.replica.alter.log.dirs.threads` says; the others wait."""
    jbod = Jbod(start_broker, tmp_path, num_replica_alter_log_dirs_threads="2")
    with connect(jbod.broker.bootstrap) as connection:
        create_topic(connection, "many", partitions=3)
        for partition in range(3):
            for _ in range(10):
                batch = encode_batch([(1, None, bytes(200_000), ())])
                assert produce(connection, "many", batch, partition=partition).error_code == ErrorCode.NONE
    target = {partition: jbod.other_than(partition) for partition in range(3)}
    jbod.throttle(300_000)
    for partition, path in target.items():
        assert jbod.alter(path, "many", partition) == ErrorCode.NONE
    sizes = until(lambda: jbod.moving_sizes() if sum(size > 0 for size in jbod.moving_sizes()) >= 2 else None)
    assert sorted(size > 0 for size in sizes) == [False, True, True]
    jbod.throttle(None)
    until(lambda: not jbod.moving_sizes(), lambda: jbod.broker.log_text)
    assert all((path / f"many-{partition}").is_dir() for partition, path in target.items())


def test_what_cannot_be_moved(start_broker: StartBroker, tmp_path: Path) -> None:
    jbod = Jbod(start_broker, tmp_path)
    assert jbod.alter(tmp_path / "nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert jbod.alter(jbod.paths[2], "later") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert jbod.alter(jbod.paths[1], "later", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with connect(jbod.broker.bootstrap) as connection:
        create_topic(connection, "later", partitions=2)
    assert jbod.on_disk("later-*") == ["second/later-1", "third/later-0"], "it was remembered"
    shutil.rmtree(jbod.paths[1])
    until(lambda: jbod.alter(jbod.paths[1]) == ErrorCode.KAFKA_STORAGE_ERROR)
    assert jbod.alter(jbod.paths[2], "later", 1) == ErrorCode.KAFKA_STORAGE_ERROR, "it is offline"


def test_the_copy_knows_what_the_log_knew(start_broker: StartBroker, tmp_path: Path) -> None:
    """A move keeps the log's start, its epochs, and its producers, even one whose records have gone."""
    jbod = Jbod(start_broker, tmp_path)
    with connect(jbod.broker.bootstrap) as connection:
        batch = encode_batch([(1, None, b"once", ())], producer_id=7, producer_epoch=0, base_sequence=0)
        assert produce(connection, "t", batch).base_offset == 0
        produce_values(connection, "t", b"kept")
        delete_records(connection, 1)
    [here] = jbod.where()
    there = next(path for path in jbod.paths if path != here)
    assert jbod.alter(there) == ErrorCode.NONE
    until(lambda: jbod.where() == [there], lambda: jbod.broker.log_text)
    for _ in range(2):
        with connect(jbod.broker.bootstrap) as connection:
            again = produce(connection, "t", bytearray(batch))
            assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0), "it is known to be there already"
        assert read_all(jbod.broker.bootstrap, "t", offset=1) == [(1, b"kept")]
        jbod.broker.stop()
        jbod.broker.start()


def delete_records(connection: Any, before: int) -> None:
    from kraftpy.protocol.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
    answered = ask(connection, ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[wanted], timeout_ms=5000))
    assert answered.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_killed_at_any_moment_of_a_move(start_broker: StartBroker, tmp_path: Path) -> None:
    """Either the old one or the new one, never both, never lost, and what was asked for is done in the end."""
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(100)
    chance = Random(random.randrange(1 << 32))
    for _ in range(6):
        [here] = jbod.where()
        there = chance.choice([path for path in jbod.paths if path != here])
        assert jbod.alter(there) == ErrorCode.NONE
        time.sleep(chance.random() * 0.1)
        jbod.broker.kill()
        jbod.broker.start()
        until(lambda there=there: jbod.where() == [there], lambda: jbod.broker.log_text)  # type: ignore[misc]
        jbod.check(there)


def test_both_are_there_after_a_crash(start_broker: StartBroker, tmp_path: Path) -> None:
    """Between the rename and the end of the old one: the one that was moved counts. Without its note none does."""
    jbod = Jbod(start_broker, tmp_path)
    jbod.write(10)
    [here] = jbod.where()
    there = next(path for path in jbod.paths if path != here)
    jbod.broker.stop()
    shutil.copytree(here / "t-0", there / "t-0")
    (there / "t-0" / "moved-from").write_text(f"{here}\n")
    jbod.broker.start()
    jbod.check(there)
    assert not (there / "t-0" / "moved-from").exists()

    jbod.broker.stop()
    shutil.copytree(there / "t-0", here / "t-0")
    jbod.broker.start()
    with connect(jbod.broker.bootstrap) as connection:
        answered = produce(connection, "t", encode_batch([(1, None, b"v", ())]))
    assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(jbod.on_disk()) == 2, "nothing is thrown away"
    assert "one of them has to go" in jbod.broker.log_text
    jbod.broker.stop()
    shutil.rmtree(here / "t-0")
    jbod.broker.start()
    until(lambda: jbod.where() == [there])
    jbod.check(there)
