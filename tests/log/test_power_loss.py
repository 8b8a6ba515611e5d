"""Some hundred power cuts in every test run; `make sim` has ten thousand. And each promise, broken on purpose, is
noticed: a checker that cannot fail proves nothing. Rules 42, 44 and 45.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from random import Random
from typing import Any

import power_loss
import pytest
from log_model import NOW, batch, config, open_log, read_batches
from power_loss import History, run_history

from kraftpy.log import compaction, layout, recovery, scanning
from kraftpy.log.compaction_work import Done, clean
from kraftpy.log.deletion import advance_log_start, delete_old_segments, remove_before_log_start
from kraftpy.log.flushing import Durability
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.record_batch import read_header
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk, MemoryFile

RECORDS = 6
SEEDS_UNTIL_A_MUTANT_IS_FOUND = 120


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_what_was_promised_survives_any_power_cut(first: int) -> None:
    points = sum((run_history(seed) for seed in range(first, first + 4)), start=power_loss.Counter())
    assert points.total() > 80
    assert points["recovery"] > 5


def test_a_seed_is_a_history() -> None:
    told = []
    for _ in range(2):
        history = History(3)
        history.run(60)
        told.append(history.told)
    assert told[0] == told[1]


def test_every_kind_of_step_is_interrupted() -> None:
    points = sum((run_history(seed) for seed in range(100, 112)), start=power_loss.Counter())
    moments = {moment.removeprefix("after ") for moment in points}
    assert moments >= {*History.STEPS, "recovery"}


# --- broken on purpose ------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def without_sync_of(patch: Patch, suffix: str) -> None:
    sync = MemoryFile.sync

    def skip(self: MemoryFile) -> None:
        if not self._path.endswith(suffix):
            sync(self)

    patch.setattr(MemoryFile, "sync", skip)


def without_syncs_in(patch: Patch, owner: type, name: str, *kinds: type) -> None:
    """While that method runs, files or directories are not synced."""
    method, depth = getattr(owner, name), [0]

    @wraps(method)
    def wrapped(*args: Any, **how: Any) -> Any:
        depth[0] += 1
        try:
            return method(*args, **how)
        finally:
            depth[0] -= 1

    patch.setattr(owner, name, wrapped)
    for kind in kinds:
        patch.setattr(kind, "sync", _unless(kind.sync, depth))  # type: ignore[attr-defined]


def _unless(sync: Callable[[Any], None], depth: list[int]) -> Callable[[Any], None]:
    def maybe(self: Any) -> None:
        if not depth[0]:
            sync(self)

    return maybe


def no_file_sync(patch: Patch) -> None:
    without_sync_of(patch, ".log")


def no_directory_sync(patch: Patch) -> None:
    sync = MemoryDirectory.sync
    patch.setattr(MemoryDirectory, "sync", lambda self: None if self.path.endswith("topic-0") else sync(self))


def recovery_point_before_the_sync(patch: Patch) -> None:
    begin = Durability.begin

    def hasty(self: Durability, *args: Any) -> Any:
        job = begin(self, *args)
        if job is not None:
            self.recovery_point = job.end_offset
        return job

    patch.setattr(Durability, "begin", hasty)


def swap_before_the_sync(patch: Patch) -> None:
    without_sync_of(patch, ".cleaned")


def checkpoint_before_the_sync(patch: Patch) -> None:
    write = layout.write_offsets

    def hasty(directory: Any, name: str, offsets: dict[Any, int]) -> None:
        ends = {key: offset + 4 for key, offset in offsets.items()} if name == layout.RECOVERY_POINTS else offsets
        write(directory, name, ends)

    patch.setattr(layout, "write_offsets", hasty)


def truncation_without_syncs(patch: Patch) -> None:
    without_syncs_in(patch, PartitionLog, "truncate_to", MemoryFile, MemoryDirectory)


def marker_that_stays(patch: Patch) -> None:
    patch.setattr(layout, "take_clean_shutdown", lambda root: -1 if root.exists(layout.CLEAN_SHUTDOWN) else None)


def log_start_that_is_not_written(patch: Patch) -> None:
    write = layout.write_offsets
    patch.setattr(
        layout,
        "write_offsets",
        lambda root, name, offsets: None if name == layout.LOG_START_OFFSETS else write(root, name, offsets),
    )


def no_crc(patch: Patch) -> None:
    class Right(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    patch.setattr(scanning, "crc32c", lambda data: Right())


def later_segments_that_stay(patch: Patch) -> None:
    patch.setattr(recovery._Loader, "_delete_from", lambda self, number: None)


def snapshots_that_are_all_believed(patch: Patch) -> None:
    newest = recovery.newest_snapshot
    patch.setattr(recovery, "newest_snapshot", lambda directory, end, *more: newest(directory, 10**9, *more))
    patch.setattr(MemoryDirectory, "delete", _unless_snapshot(MemoryDirectory.delete))


def _unless_snapshot(delete: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    return lambda self, name: None if name.endswith(layout.SNAPSHOT) else delete(self, name)


COMPACTION = ("append_plain", "roll", "flush", "go_on_compacting")
RETENTION = ("append_plain", "roll", "flush", "retention")
MUTANTS: dict[Callable[[Patch], None], tuple[str, ...]] = {  # and the steps that show it soonest
    no_file_sync: (),
    no_directory_sync: (),
    recovery_point_before_the_sync: (),
    swap_before_the_sync: COMPACTION,
    checkpoint_before_the_sync: (),
    truncation_without_syncs: (),
    marker_that_stays: (),
    log_start_that_is_not_written: (),
    no_crc: (),
    later_segments_that_stay: (),
    snapshots_that_are_all_believed: (),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_log_that_breaks_its_promises_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(SEEDS_UNTIL_A_MUTANT_IS_FOUND):
        try:
            run_history(seed, focus=MUTANTS[mutant])
        except Exception:
            return
    pytest.fail(f"{mutant.__name__} was not noticed in {SEEDS_UNTIL_A_MUTANT_IS_FOUND} histories")


# --- what random histories come to too seldom -----------------------------------------------------------------------


def sealed_log(disk: MemoryDisk, **settings: Any) -> PartitionLog:
    """Six segments of a record each, of the same key, all durable; no checkpoint is written yet."""
    directory = disk.root.child("t-0")
    disk.root.sync()
    log = open_log(directory, topic=config(**settings))
    for number in range(RECORDS):
        log.roll(NOW)
        log.append(batch(b"%d" % number), leader_epoch=0, now=NOW)
    log.flush()
    return log


def lost_after(disturb: Callable[[PartitionLog], int], **settings: Any) -> int:
    """Return those of 150 power cuts after which records above the stored log start are missing."""
    lost = 0
    for seed in range(150):
        disk = MemoryDisk()
        log = sealed_log(disk, **settings)
        log_start = disturb(log)
        wanted = [data for data in read_batches(log) if read_header(data).base_offset >= log_start]
        disk.crash(Random(seed), Loss.REORDERED)
        again = open_log(disk.root.child("t-0"), topic=log.config, log_start_offset=log_start)
        found = read_batches(again)
        lost += found[-len(wanted) :] != wanted or again.log_end_offset != RECORDS
    return lost


def test_rule_42_old_and_new_segments_are_never_side_by_side() -> None:
    def compact(log: PartitionLog, *, is_synced: bool = True) -> int:
        job = compaction.begin(log, 0, NOW, compaction.decide(log, RECORDS))
        assert job is not None
        for step in clean(job.plan, log.directory):
            if isinstance(step, Done):
                assert compaction.finish(log, job, step) is not None
                assert job.bytes_after < job.bytes_before
            else:
                assert compaction.stage(log, job, step)
                log.directory.sync()
                assert compaction.put_in_place(log, job)
                if is_synced:
                    log.directory.sync()
                compaction.complete(log, job)
        return 0

    topic = {"cleanup_policy": frozenset({"compact"}), "min_cleanable_dirty_ratio": 0.0}
    assert lost_after(compact, **topic) == 0
    assert lost_after(partial(compact, is_synced=False), **topic) > 0


def test_segments_go_only_when_the_log_start_is_written() -> None:
    def retain(log: PartitionLog) -> int:
        assert advance_log_start(log, NOW, RECORDS)
        assert not remove_before_log_start(log, NOW)
        log.written_log_start = log.log_start_offset
        assert remove_before_log_start(log, NOW)
        return log.log_start_offset

    def retain_hastily(log: PartitionLog) -> int:
        assert delete_old_segments(log, NOW, RECORDS)
        return 0

    assert lost_after(retain, retention_bytes=160) == 0
    assert lost_after(retain_hastily, retention_bytes=160) > 0


def test_the_steps_that_show_mutants_soonest_keep_their_promises() -> None:
    for seed in range(8):
        run_history(seed, focus=COMPACTION)
        run_history(seed, focus=RETENTION)
