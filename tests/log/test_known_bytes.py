"""A batch's CRC is not computed again as long as its bytes are known: written or checked here, and not read from a disk
since (docs/decisions/0053).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from log_model import NOW, config, numbered, open_log

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage import disk_reads
from kraftpy.broker.storage.disk_reads import DiskReads, kind_of_file_system
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.segment import CorruptSegment
from kraftpy.testing.memory_files import MemoryDisk

LOG = "00000000000000000000.log"
ALL = 10**6
LARGE = 10_000
"""The size of a value: a few batches are long enough for their CRCs to be worth knowing."""


class Disk:
    """A disk of which the log knows how much was read."""

    def __init__(self) -> None:
        self.reads: int | None = 7
        self.directory = MemoryDisk().root.child("t-0")

    def open_log(self, **settings: object) -> PartitionLog:
        files = FileCache(disk_reads=lambda path: self.reads)
        return open_log(self.directory, topic=config(segment_bytes=ALL, **settings), files=files)

    def damage(self, position: int) -> None:
        """Flip a bit of the file without the log's knowledge."""
        file = self.directory.open(LOG)
        file.write(position, bytes([file.read(position, 1)[0] ^ 1]))
        file.close()


def fill(log: PartitionLog, first: int = 0, count: int = 10) -> None:
    for number in range(first, first + count):
        log.append(bytearray(numbered(number, 1, size=LARGE)), leader_epoch=0, now=NOW)


def is_noticed(log: PartitionLog, offset: int = 0) -> bool:
    """Whether a read finds damage."""
    try:
        return len(log.read(offset, ALL).records) < (log.log_end_offset - offset) * LARGE
    except CorruptSegment:
        return True


def test_what_was_written_is_known_until_something_is_read_from_a_disk() -> None:
    disk = Disk()
    log = disk.open_log()
    fill(log)
    disk.damage(5_000)
    assert not is_noticed(log)
    disk.reads = 8
    assert is_noticed(log)
    disk.reads = 7
    assert not is_noticed(log), "damage makes nothing known"


def test_what_was_checked_is_known_together_with_what_is_written_behind_it() -> None:
    disk = Disk()
    fill(disk.open_log())
    log = disk.open_log()
    disk.damage(5_000)
    assert is_noticed(log), "another process may have written it"
    disk.damage(5_000)
    assert not is_noticed(log)
    fill(log, 10)
    disk.damage(5_000)
    disk.damage(15 * LARGE)
    assert not is_noticed(log)
    disk.reads = 8
    assert is_noticed(log)


@pytest.mark.parametrize("from_first", [True, False])
def test_ranges_that_were_checked_grow_together(from_first: bool) -> None:
    disk = Disk()
    fill(disk.open_log(), count=20)
    log = disk.open_log()
    for offset in (0, 8) if from_first else (8, 0):
        log.read(offset, 10 * (LARGE + 200))
    disk.damage(5_000)
    disk.damage(15 * LARGE)
    assert len(log.read(0, 16 * LARGE).records) > 15 * LARGE


def test_a_shorter_log_that_grows_again_is_known_as_it_is_now() -> None:
    disk = Disk()
    log = disk.open_log()
    fill(log)
    log.truncate_to(5)
    fill(log, 5)
    disk.damage(9 * LARGE)
    assert not is_noticed(log, 5)
    disk.damage(2 * LARGE)
    assert is_noticed(log), "nothing is known of the part before the truncation any more"


@pytest.mark.parametrize("what", ["unknown", "compacted", "short"])
def test_nothing_is_known(what: str) -> None:
    """On a file system that does not count, of a topic that another process reads, and of a short read."""
    disk = Disk()
    disk.reads = None if what == "unknown" else 7
    log = disk.open_log(cleanup_policy=("compact",)) if what == "compacted" else disk.open_log()
    fill(log, count=2 if what == "short" else 10)
    disk.damage(5_000)
    assert is_noticed(log)


def test_a_page_that_is_read_from_a_disk_again_is_checked(tmp_path: Path) -> None:
    """On a real disk, whatever its file system."""
    directory = OsDirectory(str(tmp_path)).child("t-0")
    log = open_log(directory, topic=config(segment_bytes=ALL), files=FileCache(disk_reads=DiskReads().count))
    fill(log)
    assert not is_noticed(log)
    file = os.open(tmp_path / "t-0" / LOG, os.O_RDWR)
    byte = os.pread(file, 1, 5_000)[0] ^ 1
    os.pwrite(file, bytes([byte]), 5_000)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    assert is_noticed(log)


def test_the_kind_of_a_file_system() -> None:
    assert kind_of_file_system("/proc") == "proc"
    assert kind_of_file_system("/no/such/place") == ""
    assert DiskReads().count("/proc/self") is None


@pytest.mark.parametrize("is_accounted", [True, False])
def test_reads_that_the_kernel_does_not_account_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_accounted: bool
) -> None:
    monkeypatch.setattr(disk_reads, "kind_of_file_system", lambda path: "ext4")
    monkeypatch.setattr(disk_reads, "_ACCOUNT", tmp_path if is_accounted else tmp_path / "io")
    assert (DiskReads().count(f"{tmp_path}/t-0") is not None) is is_accounted
