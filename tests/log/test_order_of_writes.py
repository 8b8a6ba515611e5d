"""The order in which a log's files reach the disk: segment before index before checkpoint; file, then directory.

Every disk operation is recorded, and its order is checked for each kind of work. Crashes between operations are tested
elsewhere (test_log_model, test_log_recovery); here a sync that is missing, or in the wrong place, is found even though
no crash happens to hit it. Rules 43, 44 and 45.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from log_model import NOW, compact, config, numbered, open_log

from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import TopicId, TopicPartition

PARTITION = TopicPartition("t", 0)
FIRST = layout.file_name(0, layout.LOG)


class Written:
    """Disk operations in order: `operation name`, and `sync /` for the partition's directory."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def note(self, operation: str, path: str) -> None:
        name = path.removeprefix("/t-0").lstrip("/") or "/"
        if operation not in ("read", "size", "exists", "names", "open", "child", "replaced"):
            self.operations.append(f"{operation} {name}")

    def first(self, operation: str, after: int = -1) -> int:
        """Return the place of its first occurrence after another place."""
        for number, found in enumerate(self.operations):
            if number > after and found == operation:
                return number
        raise AssertionError(f"no '{operation}' behind {after} in {self.operations}")

    def last(self, operation: str) -> int:
        return len(self.operations) - 1 - self.operations[::-1].index(operation)

    def in_order(self, *wanted: str) -> None:
        """Assert that all were done, each for the first time after the one before."""
        at = -1
        for operation in wanted:
            at = self.first(operation, at)

    def every_write_is_synced(self) -> None:
        """Each file that was written, or cut, was synced behind the last write to it."""
        for number, operation in enumerate(self.operations):
            verb, name = operation.split(" ")
            if verb in ("write", "truncate"):
                self.first(f"sync {name}", number)

    def every_name_is_synced(self) -> None:
        """Each change of names was followed by a sync of the directory."""
        for number, operation in enumerate(self.operations):
            if operation.split(" ")[0] in ("rename", "delete"):
                assert "sync /" in self.operations[number + 1 :], operation


@contextmanager
def written(disk: MemoryDisk) -> Iterator[Written]:
    found = Written()
    disk.on_operation = found.note
    try:
        yield found
    finally:
        disk.on_operation = None


def made(disk: MemoryDisk, batches: int = 0, **settings: object) -> PartitionLog:
    log = open_log(disk.root.child("t-0"), topic=config(**settings))
    for number in range(batches):
        log.append(numbered(number, 1), leader_epoch=0, now=NOW)
    return log


def test_a_partition_has_its_topic_before_it_has_data() -> None:
    """Rule 45."""
    disk = MemoryDisk()
    with written(disk) as found:
        log = open_log(disk.root.child("t-0"), topic_id=TopicId(bytes(16)))
        log.append(numbered(0, 1), leader_epoch=0, now=NOW)
    found.in_order("replace partition.metadata", f"write {FIRST}")


def test_an_append_is_written_and_a_flush_syncs_file_epochs_and_names() -> None:
    disk = MemoryDisk()
    log = made(disk)
    with written(disk) as found:
        log.append(numbered(0, 1), leader_epoch=0, now=NOW)
        assert found.operations == [f"write {FIRST}"], "the page cache: nothing is synced (rule 43)"
        log.flush()
    found.in_order(f"write {FIRST}", f"sync {FIRST}", f"rename {layout.LEADER_EPOCHS}.tmp", "sync /")
    found.in_order(f"sync {layout.LEADER_EPOCHS}.tmp", f"rename {layout.LEADER_EPOCHS}.tmp")
    found.every_write_is_synced()
    found.every_name_is_synced()
    with written(disk) as found:
        log.append(numbered(1, 1), leader_epoch=0, now=NOW)
        log.flush()
    assert found.operations == [f"write {FIRST}", f"sync {FIRST}"], "from the second on, one sync and no more"


def test_a_checkpoint_says_no_more_than_is_synced() -> None:
    disk = MemoryDisk()
    log = made(disk, 3)
    before = log.recovery_point
    job = log.begin_flush()
    assert job is not None
    log.append(numbered(3, 1), leader_epoch=0, now=NOW)
    assert log.recovery_point == before, "not before the sync is done"
    with written(disk) as found:
        job.run()
        log.finish_flush(job)
        assert log.recovery_point == 3, "not what came while it ran"
        layout.write_offsets(disk.root, layout.RECOVERY_POINTS, {PARTITION: log.recovery_point})
    found.in_order(f"sync {FIRST}", f"rename {layout.LEADER_EPOCHS}.tmp", "sync /", f"replace {layout.RECOVERY_POINTS}")


def test_a_roll_syncs_segments_then_indexes_then_snapshots_then_names() -> None:
    disk = MemoryDisk()
    log = made(disk, 3)
    with written(disk) as found:
        log.roll(NOW)
        log.append(numbered(3, 1), leader_epoch=0, now=NOW)
        log.flush()
    second = layout.file_name(3, layout.LOG)
    index, times = (layout.file_name(0, suffix) + ".tmp" for suffix in (layout.INDEX, layout.TIME_INDEX))
    snapshot = layout.file_name(3, layout.SNAPSHOT)
    found.in_order(
        f"write {second}", f"sync {second}", f"sync {index}", f"sync {snapshot}.tmp", f"rename {snapshot}.tmp"
    )
    assert found.first(f"sync {FIRST}") < found.first(f"sync {index}")
    for name in (index, times):
        found.in_order(f"write {name}", f"sync {name}", f"rename {name}")
    assert found.first(f"rename {times}") < found.first(f"rename {index}"), "a complete index vouches for both"
    assert found.first(f"rename {snapshot}.tmp") < found.last("sync /") < found.first(f"rename {times}")
    assert log.recovery_point == 4
    found.every_write_is_synced()


def test_a_second_segment_never_outlives_a_first_that_nobody_synced() -> None:
    disk = MemoryDisk()
    with written(disk) as found:
        log = made(disk, 2)
        log.roll(NOW)
        log.append(numbered(2, 1), leader_epoch=0, now=NOW)
    assert found.first("sync /") < found.first(f"write {layout.file_name(2, layout.LOG)}")


def test_a_truncation_has_checkpoints_written_even_if_a_failed_append_came_before_it() -> None:
    """The checkpoint on disk still trusts what is to be truncated: a recovery would not scan what replaces it."""
    disk = MemoryDisk()
    log = made(disk, 4)
    log.flush()
    disk.fail("write", errno.ENOSPC, name=".log")
    with pytest.raises(OSError, match="No space left"):
        log.append(numbered(4, 1), leader_epoch=0, now=NOW)
    assert log.truncate_to(2)
    assert not log.truncate_to(2), "the owner was told once"


def test_a_truncation_takes_the_newest_first_and_is_durable_before_the_next_write() -> None:
    disk = MemoryDisk()
    log = made(disk, 2)
    for base_offset in (2, 4):
        log.roll(NOW)
        for number in (base_offset, base_offset + 1):
            log.append(numbered(number, 1), leader_epoch=0, now=NOW)
    log.flush()
    with written(disk) as found:
        assert log.truncate_to(1)
        is_cut_at = len(found.operations)
        layout.write_offsets(disk.root, layout.RECOVERY_POINTS, {PARTITION: log.recovery_point})
        log.append(numbered(1, 1), leader_epoch=1, now=NOW)
    third, second = (f"rename {layout.file_name(base, layout.LOG)}" for base in (4, 2))
    assert found.first(third) < found.first("sync /", found.first(third)) < found.first(second)
    assert found.first("sync /", found.first(second)) < found.first(f"truncate {FIRST}") < found.first(f"sync {FIRST}")
    assert found.first(f"sync {FIRST}") < is_cut_at
    assert found.operations[is_cut_at:] == [f"replace {layout.RECOVERY_POINTS}", f"write {FIRST}"]
    for suffix in (layout.INDEX, layout.TIME_INDEX):
        assert found.first(f"delete {layout.file_name(0, suffix)}") < found.first(f"truncate {FIRST}")
    found.operations = found.operations[:is_cut_at]
    found.every_name_is_synced()


def test_compaction_swaps_when_the_new_segment_is_durable_and_the_old_one_is_gone() -> None:
    """Rule 42."""
    disk = MemoryDisk()
    log = made(disk, 4, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    log.roll(NOW)
    log.append(numbered(4, 1), leader_epoch=0, now=NOW)
    log.flush()
    with written(disk) as found:
        assert compact(log) is not None
        made_by_compaction = len(found.operations)
        log.flush()
    cleaned, swap = FIRST + layout.CLEANED, FIRST + layout.SWAP
    found.in_order(
        f"write {cleaned}",
        f"sync {cleaned}",
        f"rename {cleaned}",
        "sync /",  # from here on a start completes it
        f"rename {FIRST}",  # out of the way, to be deleted later
        "sync /",
        f"rename {swap}",
    )
    index = layout.file_name(0, layout.INDEX) + ".tmp"
    found.in_order(f"rename {swap}", f"sync {index}", "sync /", f"rename {index}")
    assert found.first(f"sync {index}") >= made_by_compaction, "indexes come with the next flush"


def test_a_clean_stop_ends_with_its_marker() -> None:
    """Rule 44: what the marker vouches for is durable before it."""
    disk = MemoryDisk()
    log = made(disk, 40)
    with written(disk) as found:
        log.close()
        layout.write_offsets(disk.root, layout.RECOVERY_POINTS, {PARTITION: log.recovery_point})
        layout.write_offsets(disk.root, layout.LOG_START_OFFSETS, {PARTITION: log.log_start_offset})
        layout.mark_clean_shutdown(disk.root, 1)
    assert log.recovery_point == 40
    active = log.segments[-1]
    assert active.base_offset > 0
    index = active.index.offset_file.name
    found.in_order(f"sync {FIRST}", f"sync {active.log.name}", f"sync {index}.tmp")
    found.in_order(f"sync {index}.tmp", f"rename {layout.file_name(40, layout.SNAPSHOT)}.tmp", "sync /")
    found.in_order(f"rename {layout.LEADER_EPOCHS}.tmp", "sync /", f"rename {index}.tmp", "sync /")
    last_of_the_log = max(number for number, found_one in enumerate(found.operations) if "replace" not in found_one)
    assert found.operations[last_of_the_log] == "sync /"
    assert found.operations[last_of_the_log + 1 :] == [
        f"replace {layout.RECOVERY_POINTS}",
        f"replace {layout.LOG_START_OFFSETS}",
        f"replace {layout.CLEAN_SHUTDOWN}",
    ]
    found.every_write_is_synced()


def test_a_start_forgets_the_marker_before_it_opens_a_log() -> None:
    """Rule 44."""
    disk = MemoryDisk()
    made(disk, 1).close()
    layout.mark_clean_shutdown(disk.root, 1)
    with written(disk) as found:
        assert layout.take_clean_shutdown(disk.root) == 1
        assert found.operations == [f"delete {layout.CLEAN_SHUTDOWN}", "sync /"]
