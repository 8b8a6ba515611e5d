"""A reader keeps the bytes it got to read, even if the segment is deleted meanwhile, and holds the file no longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from log_model import NOW, batch, compact, config, open_log, read_slice

from kraftpy.log.deletion import delete_files, delete_old_segments
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import LogSlice
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import Millis

SEGMENTS = 4


def written(disk: MemoryDisk) -> PartitionLog:
    """A log of sealed segments with three batches each, and an empty one at its end."""
    topic = config(
        cleanup_policy=frozenset({"compact", "delete"}),
        retention_ms=100,
        segment_bytes=10_000,
        min_cleanable_dirty_ratio=0.0,
    )
    log = open_log(disk.root.child("t-0"), topic=topic, files=FileCache(2))
    for number in range(SEGMENTS):
        for _ in range(3):
            log.append(batch(b"%d" % number * 50), leader_epoch=0, now=NOW)
        log.roll(NOW)
    log.flush()
    return log


def by_retention(log: PartitionLog) -> None:
    delete_files(log.directory, delete_old_segments(log, Millis(NOW + 1000), log.log_end_offset))


def by_deleted_records(log: PartitionLog) -> None:
    log.advance_log_start(log.log_end_offset)
    delete_files(log.directory, delete_old_segments(log, NOW, log.log_end_offset))


def by_compaction(log: PartitionLog) -> None:
    assert compact(log) is not None
    delete_files(log.directory, [name for name in log.directory.names() if name.endswith(".deleted")])


def by_truncation(log: PartitionLog) -> None:
    shared = log.files
    log.move_to(FileCache(8))  # as for the thread that truncates
    log.truncate_fully_and_start_at(100)
    log.move_to(shared)
    delete_files(log.directory, delete_old_segments(log, NOW, log.log_end_offset))


def by_deletion(log: PartitionLog) -> None:
    log.release()
    for name in log.directory.names():
        log.directory.delete(name)


def by_other_readers(log: PartitionLog) -> None:
    for segment in log.segments:
        segment.log.get()
        segment.index.offset_file.get()


@pytest.mark.parametrize(
    "takes", [by_retention, by_deleted_records, by_compaction, by_truncation, by_deletion, by_other_readers]
)
def test_a_slice_keeps_what_it_holds(takes: Callable[[PartitionLog], None]) -> None:
    disk = MemoryDisk()
    log = written(disk)
    slices: list[LogSlice] = []
    for segment in log.segments[:SEGMENTS]:
        found = read_slice(log, segment.base_offset, 10**6)
        assert found is not None
        slices.append(found)
    before = [each.file.read(each.position, each.length) for each in slices]
    assert all(before)
    takes(log)
    assert [each.file.read(each.position, each.length) for each in slices] == before
    for each in slices:
        each.release()
    if takes is not by_other_readers:
        for each in slices[:-1]:  # compaction leaves the last, for it holds the last record of the key
            with pytest.raises(OSError, match="Bad file"):
                each.file.size()
    else:
        assert len(log.files) <= SEGMENTS + 1, "the pinned ones, and the one that was opened last"


def test_released_files_are_closed_when_others_are_opened() -> None:
    """Pinned files may be more than the cache is to hold; once they are released it shrinks to what it may be."""
    log = written(MemoryDisk())
    slices = [read_slice(log, segment.base_offset, 10**6) for segment in log.segments[:SEGMENTS]]
    assert len(log.files) >= SEGMENTS
    for each in slices:
        assert each is not None
        each.release()
    by_other_readers(log)
    assert len(log.files) == log.files.capacity
