"""A process out of descriptors or memory is no failed disk: the log continues after any operation that fails so.

Every operation of a log's life fails once, each in a life of its own: its caller tries it again, and in the end the log
is what it would have been, also after a power loss. EMFILE and ENFILE occur when something is opened; ENOMEM may occur
in any operation but a sync, whose failure must never be taken for anything else.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest
from log_model import NOW, config, numbered, open_log, values

from kraftpy.log.deletion import remove_before_log_start
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import SEGMENTS_PER_JOB, FlushJob
from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Failure, failure_of
from kraftpy.testing.memory_files import Loss, MemoryDisk

T = TypeVar("T")

OPENS = frozenset({"open", "read of all", "names", "replace", "sync of names"})
"""Operations that take a descriptor: a read of a whole file, and the sync of a directory, open it first."""
ANY = OPENS | {"read", "write", "size", "truncate"}
SETTINGS = {"segment_bytes": 300, "min_cleanable_dirty_ratio": 0.0, "cleanup_policy": frozenset({"compact"})}


class Shortage:
    """Makes the operation with one number fail, once, and counts operations."""

    def __init__(self, disk: MemoryDisk, number: int, error: int, operations: frozenset[str]) -> None:
        self.count = 0
        self.met: list[str] = []
        self._number = number
        self._error = error
        self._operations = operations
        disk.on_operation = self.meet

    def meet(self, operation: str, path: str) -> None:
        is_file = "." in path.rpartition("/")[2] or path.endswith("checkpoint")
        if operation == "sync":
            operation = "sync" if is_file and path != "/t-0" else "sync of names"
        if operation not in self._operations:
            return
        self.count += 1
        if self.count == self._number:
            self.met.append(f"{operation} {path}")
            raise OSError(self._error, os.strerror(self._error), path)

    def again(self, attempt: Callable[[], T]) -> T:
        """Try again, as an owner does: nothing has failed."""
        try:
            return attempt()
        except OSError as error:
            if failure_of(error) is not Failure.RESOURCES:
                raise
            return attempt()


def life(disk: MemoryDisk, shortage: Shortage) -> PartitionLog:
    """Everything that happens to a log, each step until it is done."""
    again = shortage.again
    directory = again(lambda: disk.root.child("t-0"))
    again(disk.root.sync)
    log = again(lambda: open_log(directory, topic=config(**SETTINGS), files=FileCache(3)))
    for number in range(12):
        again(lambda number=number: log.append(numbered(number, 1), leader_epoch=number // 4, now=NOW))  # type: ignore[misc]
    again(log.flush)
    for number in range(12, 16):
        again(lambda number=number: log.append(numbered(number, 1), leader_epoch=3, now=NOW))  # type: ignore[misc]
    again(lambda: log.truncate_to(9))
    for number in range(9, 14):
        again(lambda number=number: log.append(numbered(number, 1), leader_epoch=5, now=NOW))  # type: ignore[misc]
    again(log.flush)
    assert len(again(lambda: values(log))) == 14
    again(lambda: log.roll(NOW))
    log.advance_log_start(3)
    log.written_log_start = 3
    again(lambda: remove_before_log_start(log, NOW))
    again(log.flush)
    assert not log.is_failed
    return log


def ends_well(disk: MemoryDisk, log: PartitionLog) -> None:
    """Check that flushed records are there after a power loss, and that the log continues."""
    assert log.recovery_point == log.log_end_offset == 14
    found = values(log)
    disk.on_operation = None
    disk.crash(Random(1), Loss.EVERYTHING)
    again = open_log(disk.root.child("t-0"), topic=config(**SETTINGS), recovery_point=14, log_start_offset=3)
    assert values(again) == found
    assert again.log_end_offset == 14
    assert again.append(numbered(14, 1), leader_epoch=6, now=NOW).base_offset == 14


def lives(operations: frozenset[str]) -> int:
    """Return the number of operations of these kinds in a life without a shortage."""
    disk = MemoryDisk()
    shortage = Shortage(disk, 0, 0, operations)
    log, count = life(disk, shortage), shortage.count
    ends_well(disk, log)
    assert count > 40, "there is much to fail"
    return count


@pytest.mark.parametrize(
    ("error", "operations"),
    [(errno.EMFILE, OPENS), (errno.ENFILE, OPENS), (errno.ENOMEM, ANY - {"sync of names"})],
    ids=["EMFILE", "ENFILE", "ENOMEM"],
)
def test_whichever_operation_meets_it(error: int, operations: frozenset[str]) -> None:
    for number in range(1, lives(operations) + 1):
        disk = MemoryDisk()
        shortage = Shortage(disk, number, error, operations)
        log = life(disk, shortage)
        assert shortage.met, number
        try:
            ends_well(disk, log)
        except AssertionError as failure:
            raise AssertionError(f"after {shortage.met}") from failure


def test_a_sync_that_found_no_memory_is_a_failed_sync() -> None:
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"), topic=config())
    log.append(numbered(0, 1), leader_epoch=0, now=NOW)
    disk.fail("sync", errno.ENOMEM, name=".log")
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        log.flush()
    assert log.is_failed


def test_a_log_that_is_half_truncated_takes_nothing() -> None:
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"), topic=config(segment_bytes=300))
    for number in range(12):
        log.append(numbered(number, 1), leader_epoch=0, now=NOW)
    disk.fail("sync", errno.EMFILE, name="/t-0")
    with pytest.raises(OSError, match="Too many open files"):
        log.truncate_to(2)
    assert log.is_half_truncated
    with pytest.raises(Exception, match="accepts no more records"):
        log.append(numbered(12, 1), leader_epoch=0, now=NOW)
    log.truncate_to(2)
    assert (log.is_half_truncated, log.log_end_offset) == (False, 2)
    assert log.append(numbered(2, 1), leader_epoch=1, now=NOW).base_offset == 2


def test_a_flush_opens_few_files_however_many_segments_wait() -> None:
    """After a crash, or without a flush for long: thousands of segments may be behind the recovery point."""
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"), topic=config(segment_bytes=100))
    disk.root.sync()
    for number in range(5 * SEGMENTS_PER_JOB):
        log.append(numbered(number, 1), leader_epoch=number // 10, now=NOW)
    assert len(log.segments) > 4 * SEGMENTS_PER_JOB
    most = 0
    while (job := log.begin_flush()) is not None:
        most = max(most, job.open_files)
        before = log.recovery_point
        assert all(start < job.end_offset for start in starts(job)), "no epoch without a record that is durable"
        job.run()
        log.finish_flush(job)
        assert log.recovery_point > before or not job.is_partial or not job.logs
    assert most <= 3 * SEGMENTS_PER_JOB
    assert log.recovery_point == log.log_end_offset
    disk.crash(Random(1), Loss.EVERYTHING)
    again = open_log(disk.root.child("t-0"), topic=config(), recovery_point=log.log_end_offset)
    assert len(values(again)) == 5 * SEGMENTS_PER_JOB
    assert again.epochs.entries() == log.epochs.entries()


def starts(job: FlushJob) -> list[int]:
    """Return the start offsets of the leader epochs that a job stores."""
    lines = [line.split() for line in (job.epochs or b"").decode().splitlines()[2:]]
    return [int(words[1]) for words in lines if len(words) == 2 and words[0].isdigit()]  # behind them: a checksum


@pytest.mark.parametrize("crash_after", range(4))
def test_a_partial_flush_promises_no_more_than_it_has_synced(crash_after: int) -> None:
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"), topic=config(segment_bytes=100))
    disk.root.sync()
    for number in range(5 * SEGMENTS_PER_JOB):
        log.append(numbered(number, 1), leader_epoch=number // 10, now=NOW)
    for _ in range(crash_after):
        job = log.begin_flush()
        assert job is not None
        job.run()
        log.finish_flush(job)
    promised = log.recovery_point
    assert (promised > 0) == (crash_after > 0)
    disk.crash(Random(1), Loss.EVERYTHING)
    again = open_log(disk.root.child("t-0"), topic=config(), recovery_point=promised, now=NOW)
    assert again.log_end_offset >= promised
    assert len(values(again)) == again.log_end_offset
    assert again.append(numbered(again.log_end_offset, 1), leader_epoch=99, now=NOW).base_offset >= promised
