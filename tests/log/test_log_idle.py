"""The cost of a log that is rarely written to: next to no files, and nothing to do at a stop or a start."""

from __future__ import annotations

from random import Random

import pytest
from log_model import NOW, batch, config, numbered, open_log, values

from kraftpy.log import layout
from kraftpy.log.deletion import delete_old_segments
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.time_search import search_timestamp
from kraftpy.log.work import finish
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk
from kraftpy.types import TopicId

TOPIC = config(segment_bytes=100_000, index_interval_bytes=4096)
TOPIC_ID = TopicId(bytes(range(16)))


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def directory(disk: MemoryDisk) -> MemoryDirectory:
    made = disk.root.child("t-0")
    disk.root.sync()
    return made


def contents(directory: MemoryDirectory) -> dict[str, bytes]:
    return {name: directory.read(name) for name in directory.names()}


def test_an_unused_log_is_its_topic_id_and_no_more(directory: MemoryDirectory) -> None:
    log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID)
    for epoch in range(3):
        log.assign_epoch(epoch)
    assert log.begin_flush() is None
    assert log.segments.size_bytes == 0
    assert finish(search_timestamp(log, 0)) is None
    assert delete_old_segments(log, NOW, 0) == []
    log.close()
    assert directory.names() == [layout.PARTITION_METADATA]
    for clean in (True, False):
        log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID, clean=clean)
        assert log.log_end_offset == 0
        log.close()
    assert directory.names() == [layout.PARTITION_METADATA]


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PREFIX, Loss.SECTORS])
def test_the_first_record_brings_the_file_and_its_name(
    disk: MemoryDisk, directory: MemoryDirectory, loss: Loss
) -> None:
    log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID)
    log.append(batch(b"first"), leader_epoch=0, now=NOW)
    log.flush()
    disk.crash(Random(7), loss)
    again = open_log(disk.root.child("t-0"), topic=TOPIC, recovery_point=log.recovery_point)
    assert values(again) == [b"first"]
    assert again.epochs.entries() == [(0, 0)]


def test_a_start_and_a_stop_without_a_write_between_change_nothing(directory: MemoryDirectory) -> None:
    log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID)
    log.append(numbered(0, 5), leader_epoch=0, now=NOW)
    log.close()
    before = contents(directory)
    for epoch in range(1, 4):  # a leader of its own each time, which writes nothing
        log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID, clean=True)
        log.assign_epoch(epoch)
        log.close()
        assert contents(directory) == before


def test_a_short_log_is_left_without_index_and_snapshot_and_forgets_nobody(directory: MemoryDirectory) -> None:
    log = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID)
    written = [
        log.append(numbered(n, 1, producer_id=7, producer_epoch=0, base_sequence=n), leader_epoch=0, now=NOW)
        for n in range(3)
    ]
    described = list(log.producers.describe())
    log.close()
    first = layout.file_name(0, "")
    assert set(directory.names()) == {layout.PARTITION_METADATA, layout.LEADER_EPOCHS, first + layout.LOG}
    again = open_log(directory, topic=TOPIC, topic_id=TOPIC_ID, clean=True)
    assert again.report.clean
    assert not again.report.rebuilt_indexes
    assert list(again.producers.describe()) == described
    for n, result in enumerate(written):
        retried = numbered(n, 1, producer_id=7, producer_epoch=0, base_sequence=n)
        repeated = again.append(retried, leader_epoch=0, now=NOW)
        assert (repeated.is_duplicate, repeated.base_offset) == (True, result.base_offset)


def test_an_epoch_goes_to_the_disk_with_its_first_record() -> None:
    epochs = LeaderEpochs()
    version = epochs.version_to_store(0)
    epochs.assign(1, 0)
    epochs.assign(2, 0)
    assert epochs.version_to_store(0) == version
    assert LeaderEpochs.decode(epochs.to_store(0)).entries() == []
    assert epochs.version_to_store(1) > version, "a record was written in it"
    version = epochs.version_to_store(1)
    assert LeaderEpochs.decode(epochs.to_store(1)).entries() == [(2, 0)]
    epochs.assign(3, 1)
    epochs.truncate_from_end(1)
    assert epochs.version_to_store(1) == version, "what was never on the disk was dropped"
    epochs.assign(4, 1)
    epochs.assign(5, 9)
    assert epochs.version_to_store(9) > version, "epoch 4 ended, so it had records"
    version = epochs.version_to_store(9)
    epochs.truncate_from_end(1)
    assert epochs.version_to_store(1) > version, "epoch 4 was on the disk"


def test_an_epoch_that_retention_emptied_is_written_again_with_its_next_record() -> None:
    epochs = LeaderEpochs([(1, 0)])
    epochs.truncate_from_start(10)  # all records went; the log's end is 10
    version = epochs.version_to_store(10)
    assert LeaderEpochs.decode(epochs.to_store(10)).entries() == []
    assert epochs.version_to_store(10) == version
    assert epochs.version_to_store(11) > version
    assert LeaderEpochs.decode(epochs.to_store(11)).entries() == [(1, 10)]
