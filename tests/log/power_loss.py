"""The power fails at any moment of a log's life, and the disk keeps an arbitrary part: every promise still holds.

One integer is one history of one partition on a `MemoryDisk`, opened, checkpointed and stopped as a broker does it:
appends of idempotent and transactional producers, markers, copies of a leader, rolls, flushes in their three parts,
checkpoints, DeleteRecords, retention, truncation, compaction in its parts, clean stops. At some disk operation of some
step, or of the recovery itself, the power fails (`MemoryDisk.crash`). Each such moment is a crash point, after which:

* the log opens, and every record that a flush had reported durable is there, byte for byte (rule 43);
* no record is there that was never written, or was durably truncated before;
* no record is missing before another one, unless compaction may remove it: a later record has its key, its transaction
  was aborted, or a delete horizon has passed (rules 40, 42);
* log start and recovery point are not beyond what was stored; a log start that was acknowledged has not fallen;
* recovery was right to trust what it did not have to scan (rule 44): producer states and leader epochs equal those from
  a replay of the whole history.

    python tests/log/power_loss.py --points 10000          # a progress line, then a summary
    python tests/log/power_loss.py --first 17 --points 1 -v  # one history, step by step
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from log_model import NOW, config, copies, open_log
from power_loss_promises import Broken, Promises, written

from kraftpy.log import compaction, layout
from kraftpy.log.compaction_work import Cleaned, Done, clean
from kraftpy.log.deletion import advance_log_start, delete_files, remove_before_log_start
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import FlushJob
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import (
    ControlType,
    CorruptBatch,
    encode_batch,
    encode_control_batch,
    iter_records,
)
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk
from kraftpy.types import Millis, TopicId, TopicPartition

KEY = TopicPartition("topic", 0)
TOPIC_ID = TopicId(b"0123456789abcdef")
STEPS_PER_HISTORY = 150
MOST_FAILURES = 10
_LOSSES = [Loss.REORDERED] * 5 + [Loss.PREFIX] * 2 + [Loss.SECTORS] * 2 + [Loss.EVERYTHING, Loss.NOTHING]


class PowerCut(BaseException):
    """The machine stopped before an operation on the disk."""


class History(Promises):
    """One log and the knowledge of what it may and must hold."""

    STEPS: dict[str, int] = {  # noqa: RUF012
        "append_plain": 8,
        "append_idempotent": 10,
        "append_transactional": 8,
        "append_marker": 5,
        "append_copies": 3,
        "roll": 3,
        "flush": 3,
        "begin_flush": 4,
        "run_flush": 4,
        "finish_flush": 4,
        "write_checkpoint": 4,
        "delete_records": 2,
        "retention": 3,
        "empty_the_trash": 2,
        "truncate": 2,
        "start_anew": 1,
        "begin_compaction": 5,
        "go_on_compacting": 20,
        "stop_cleanly": 1,
    }

    def __init__(self, seed: int, focus: Collection[str] = ()) -> None:
        """Make the steps in `focus` happen more often."""
        super().__init__()
        self.weights = {name: weight * (8 if name in focus else 1) for name, weight in self.STEPS.items()}
        self.dice = dice = random.Random(seed)
        self.disk = MemoryDisk()
        self.policy = dice.choice([{"delete"}, {"compact"}, {"compact", "delete"}])
        self.topic = config(
            cleanup_policy=frozenset(self.policy),
            index_interval_bytes=dice.choice([1, 150, 4096]),
            segment_bytes=dice.choice([700, 1500, 3000]),
            retention_bytes=dice.choice([-1, 600, 2500]),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=dice.choice([0, 100, 10**9]),
        )
        self.now = int(NOW)
        self.epoch = 0
        self.first_dirty = 0
        self.job: FlushJob | None = None
        self.has_run = False
        self.compacting: compaction.CompactionJob | None = None
        self.cleaning: Iterator[Cleaned | Done] = iter(())
        self.trash: list[str] = []
        self.sequences: dict[int, int] = {}
        self.points: Counter[str] = Counter()
        self.told: list[str] = []
        self.open()
        self.new_epoch()

    # --- the machine's life ---

    def run(self, steps: int) -> None:
        """A number of steps, with a power cut in about every sixth."""
        names, weights = list(self.weights), list(self.weights.values())
        for name in self.dice.choices(names, weights, k=steps):
            self.now += self.dice.choice([1, 10, 60])
            if self.dice.random() < 0.17:
                self.lose_power_during(name)
            else:
                self.told.append(name)
                step: Callable[[], None] = getattr(self, name)
                step()

    def lose_power_during(self, name: str) -> None:
        """At one of its operations, or right behind it; and perhaps again while the log is opened."""
        self.told.append(f"{name}, with a power cut")
        step: Callable[[], None] = getattr(self, name)
        is_cut = self.with_power_for(self.dice.choice([0, 1, 2, 3, 4, 6, 9, 14, 25]), step)
        self.crash(name if is_cut else f"after {name}")
        while self.with_power_for(self.dice.choice([0, 2, 4, 7, 10, 15, 25, 40, *[10**9] * 16]), self.open):
            self.crash("recovery")
        self.check()
        self.settle()

    def with_power_for(self, operations: int, step: Callable[[], None]) -> bool:
        """Return True if the power failed before the step was done."""
        left = operations

        def count_down(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        self.disk.on_operation = count_down
        try:
            step()
        except PowerCut:
            return True
        finally:
            self.disk.on_operation = None
        return False

    def crash(self, moment: str) -> None:
        loss = self.dice.choice(_LOSSES)
        self.told.append(f"  power lost: {moment}, {loss}; durable to {self.durable_end}")
        self.points[moment] += 1
        self.disk.crash(self.dice, loss)

    def settle(self) -> None:
        """Take over what survived beyond the promises: it was not promised, but it is there from now on."""
        end_offset = self.log.log_end_offset
        self.history = [each for each in (*self.history, *self.maybe) if each.base_offset < end_offset]
        self.maybe = []
        self.job = self.compacting = None
        self.trash = []
        self.largest_start = max(self.promised_start, self.log.log_start_offset)
        self.new_epoch()

    def open(self) -> None:
        """Open the log as a broker does: marker, checkpoints, directory, log."""
        root = self.disk.root
        is_clean = layout.take_clean_shutdown(root) is not None
        points = layout.read_offsets(root, layout.RECOVERY_POINTS)
        starts = layout.read_offsets(root, layout.LOG_START_OFFSETS)
        is_new = not root.exists(str(KEY))
        self.directory: MemoryDirectory = root.child(str(KEY))
        if is_new:
            root.sync()
        self.was_clean = is_clean
        self.log: PartitionLog = open_log(
            self.directory,
            now=self.now,
            topic=self.topic,
            topic_id=TOPIC_ID,
            clean=is_clean,
            recovery_point=points.get(KEY, 0),
            log_start_offset=starts.get(KEY, 0),
            files=FileCache(4),
            expiration_ms=10**12,
        )
        if self.log.report.missing_offsets:
            self.write_checkpoint()  # or what is written next would be taken for synced
        self.told.append(f"  opened: {self.log.log_start_offset}-{self.log.log_end_offset}, {self.log.report}")

    def new_epoch(self) -> None:
        """Begin a new leader epoch, as after opening or truncating a log; the producers begin again as well."""
        self.epoch += 1
        self.sequences.clear()
        self.log.assign_epoch(self.epoch)

    # --- appending ---

    def records(self) -> list[Any]:
        dice = self.dice
        return [
            (
                self.now + dice.randint(-3, 3),
                b"key %d" % dice.randrange(6),
                None if dice.random() < 0.2 else dice.randbytes(dice.choice([0, 10, 60, 150])),
                (),
            )
            for _ in range(dice.randint(1, 3))
        ]

    def append(self, data: bytes, origin: Origin = Origin.CLIENT) -> None:
        self.maybe = [written(copies([(self.log.log_end_offset, data)], self.epoch))]
        self.log.append(data, leader_epoch=self.epoch, now=Millis(self.now), origin=origin)
        self.appended()

    def appended(self) -> None:
        self.history += self.maybe
        self.maybe = []

    def append_plain(self) -> None:
        self.append(encode_batch(self.records()))

    def append_idempotent(self) -> None:
        self._append_of(self.dice.randint(1, 3), is_transactional=False)

    def append_transactional(self) -> None:
        self._append_of(self.dice.randint(4, 5), is_transactional=True)

    def _append_of(self, producer_id: int, *, is_transactional: bool) -> None:
        records, sequence = self.records(), self.sequences.get(producer_id, 0)
        self.append(
            encode_batch(
                records,
                producer_id=producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )
        self.sequences[producer_id] = sequence + len(records)

    def append_marker(self) -> None:
        marker = encode_control_batch(
            self.dice.choice([ControlType.COMMIT, ControlType.ABORT]),
            timestamp=self.now,
            producer_id=self.dice.randint(4, 5),
            producer_epoch=self.epoch,
            coordinator_epoch=self.epoch,
        )
        self.append(marker, Origin.COORDINATOR)

    def append_copies(self) -> None:
        """Append copies of a leader's batches, with the gaps that its compaction left."""
        placed, offset = [], self.log.log_end_offset
        for number in range(self.dice.randint(1, 3)):
            offset += self.dice.choice([0, 0, 2]) if number else 0
            records = self.records()
            placed.append((offset, encode_batch(records)))
            offset += len(records)
        self.maybe = [written(copies([each], self.epoch)) for each in placed]
        data = copies(placed, self.epoch)
        self.log.append(data, leader_epoch=self.epoch, now=Millis(self.now), origin=Origin.REPLICA)
        self.appended()

    def roll(self) -> None:
        self.log.roll(Millis(self.now))

    # --- flushing ---

    def flush(self) -> None:
        if self.job is None:
            self.log.flush()
            self.flushed_to(self.log.log_end_offset)

    def begin_flush(self) -> None:
        if self.job is None:
            self.job, self.has_run = self.log.begin_flush(), False

    def run_flush(self) -> None:
        if self.job is not None and not self.has_run:
            self.job.run()
            self.has_run = True

    def finish_flush(self) -> None:
        if self.job is not None and self.has_run:
            job, self.job = self.job, None
            self.log.finish_flush(job)
            self.flushed_to(self.log.recovery_point)

    def flushed_to(self, end_offset: int) -> None:
        self.durable_end = max(self.durable_end, end_offset)
        self.synced_end = max(self.synced_end, end_offset)

    def write_checkpoint(self) -> None:
        """Write the checkpoints as a broker does: recovery point and log start as they were when it began."""
        start = self.log.log_start_offset
        layout.write_offsets(self.disk.root, layout.RECOVERY_POINTS, {KEY: self.log.recovery_point})
        layout.write_offsets(self.disk.root, layout.LOG_START_OFFSETS, {KEY: start})
        self.log.written_log_start = start
        self.promised_start = max(self.promised_start, start)

    # --- cutting ---

    def delete_records(self) -> None:
        offset = self.dice.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.largest_start = max(self.largest_start, offset)
        if self.log.advance_log_start(offset):
            self.write_checkpoint()

    def retention(self) -> None:
        self.largest_start = max(self.largest_start, self.log.log_end_offset)
        if advance_log_start(self.log, Millis(self.now), self.log.log_end_offset):
            self.write_checkpoint()
        self.trash += remove_before_log_start(self.log, Millis(self.now))
        self.largest_start = max(self.promised_start, self.log.log_start_offset)

    def empty_the_trash(self) -> None:
        delete_files(self.directory, self.trash)
        self.trash = []

    def truncate(self) -> None:
        offset = max(0, self.log.log_end_offset - self.dice.choice([0, 1, 3, 8, 20]))
        kept = [each for each in self.history if each.end_offset <= offset]
        self.give_up_compacting()
        durable_before = self.durable_end
        if offset < self.log.log_end_offset:
            end_offset = max((each.end_offset for each in kept), default=0)
            self.durable_end = min(self.durable_end, end_offset)
            self.promised_start = min(self.promised_start, end_offset)
        has_fallen = self.log.truncate_to(offset)
        end_offset = self.log.log_end_offset
        self.history = [each for each in kept if each.base_offset < end_offset]
        self.durable_end = min(durable_before, end_offset)
        self.promised_start = min(self.promised_start, end_offset)
        if has_fallen:
            self.write_checkpoint()
        self.synced_end = min(self.synced_end, end_offset)
        self.cut()

    def start_anew(self) -> None:
        offset = self.dice.choice([0, self.log.log_start_offset, self.log.log_end_offset, self.log.log_end_offset + 7])
        self.give_up_compacting()
        self.durable_end = self.promised_start = 0
        self.largest_start = max(self.largest_start, offset)
        self.log.truncate_fully_and_start_at(offset)
        self.history = []
        self.synced_end = max(self.synced_end, offset)
        self.write_checkpoint()
        self.synced_end = offset
        self.cut()

    def cut(self) -> None:
        """Truncate the log; a new leader writes next."""
        self.largest_start = max(self.promised_start, self.log.log_start_offset)
        self.first_dirty = min(self.first_dirty, self.log.log_end_offset)
        self.may_go = {offset for offset in self.may_go if offset < self.log.log_end_offset}
        self.new_epoch()

    # --- compaction ---

    def begin_compaction(self) -> None:
        if self.compacting is not None:
            return
        limits = compaction.Limits(self.dice.choice([500, 10**6]), 0.9, 5000)
        decided = compaction.decide(self.log, self.log.log_end_offset)
        self.flush()
        if self.job is None:
            self.compacting = compaction.begin(self.log, self.first_dirty, Millis(self.now), decided, limits)
        if self.compacting is not None:
            self.cleaning = clean(self.compacting.plan, self.directory)
            self.note_what_may_go(self.compacting.plan.sources[-1].end_offset)

    def note_what_may_go(self, end_offset: int) -> None:
        """Records that a later one of their key follows, tombstones, and what was aborted."""
        latest: dict[bytes | None, int] = {}
        for each in self.history:
            if each.header.is_control or each.base_offset >= end_offset:
                continue
            is_aborted = self.is_aborted(each)
            for record in iter_records(each.data):
                if is_aborted or record.value is None:
                    self.may_go.add(record.offset)
                if not is_aborted:
                    self.may_go.update({latest[record.key]} if record.key in latest else ())
                    latest[record.key] = record.offset

    def go_on_compacting(self) -> None:
        """The next of its steps: one segment is written, staged, put in place; at the end the job is finished."""
        job = self.compacting
        if job is None:
            return
        if job.unnamed is not None:
            self.directory.sync()
            compaction.complete(self.log, job)
            return
        if job.staged is not None:
            gone = compaction.put_in_place(self.log, job)
            if gone is None:
                self.give_up_compacting()
            else:
                self.trash += gone
            return
        try:
            step = next(self.cleaning)
        except (FileNotFoundError, CorruptBatch):  # it went out of retention
            self.give_up_compacting()
            return
        if isinstance(step, Done):
            self.compacting = None
            result = compaction.finish(self.log, job, step)
            assert result is not None
            self.first_dirty = result.end_offset
            return
        self.cleaned_end = max(self.cleaned_end, step.sources[-1].end_offset)
        if compaction.stage(self.log, job, step):
            self.directory.sync()
        else:
            self.give_up_compacting()

    def give_up_compacting(self) -> None:
        """Give up compacting, as a replica does before its log is truncated or closed."""
        job, self.compacting = self.compacting, None
        if job is not None:
            compaction.finish(self.log, job)

    # --- stopping ---

    def stop_cleanly(self) -> None:
        self.give_up_compacting()
        self.run_flush()
        self.finish_flush()
        self.log.close()
        self.flushed_to(self.log.log_end_offset)
        self.write_checkpoint()
        layout.mark_clean_shutdown(self.disk.root)
        self.open()
        if not self.was_clean or not self.log.report.clean:
            raise Broken("a clean stop was not one")
        self.check()
        self.settle()


# --- many of them -----------------------------------------------------------------------------------------------------


def run_history(
    seed: int, steps: int = STEPS_PER_HISTORY, *, focus: Collection[str] = (), is_told: bool = False
) -> Counter[str]:
    """One history; how many crash points it had, by what they interrupted. Raises `Broken`, with how to repeat it."""
    history = History(seed, focus)
    try:
        history.run(steps)
    except Exception as error:
        error.add_note(f"repeat: python tests/log/power_loss.py --first {seed} --points 1 --steps {steps} -v")
        raise
    finally:
        if is_told:
            print("\n".join(history.told))
    return history.points


def _job(arguments: tuple[int, int]) -> tuple[int, Counter[str], str]:
    seed, steps = arguments
    try:
        return seed, run_history(seed, steps), ""
    except Exception as error:  # of any kind: a log that does not open is a failure too
        return seed, Counter(), f"{type(error).__name__}: {error}"


def main() -> int:
    """Run histories until there are this many crash points; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS_PER_HISTORY)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-v", action="store_true", help="tell the first history, and run no other")
    options = parser.parse_args()
    if options.v:
        run_history(options.first, options.steps, is_told=True)
        return 0
    began = time.monotonic()
    points: Counter[str] = Counter()
    histories, failures = 0, 0
    jobs = ((seed, options.steps) for seed in range(options.first, options.first + max(1, options.points)))
    with multiprocessing.Pool(options.processes) as pool:
        for seed, counted, failure in pool.imap_unordered(_job, jobs):
            histories += 1
            points += counted
            if failure:
                failures += 1
                print(f"\rseed {seed}: {failure[:400]}", flush=True)
            if sys.stderr.isatty() or histories % 50 == 0:
                spent = time.monotonic() - began
                line = f"\r{spent:6.0f} s, {histories} histories, {points.total()} crash points, {failures} broken"
                print(line, end="", file=sys.stderr, flush=True)
            if points.total() >= options.points or failures >= MOST_FAILURES:
                pool.terminate()
                break
    print(file=sys.stderr)
    for moment, count in points.most_common():
        print(f"{count:8} {moment}")
    print(
        f"{points.total()} crash points in {histories} histories, {time.monotonic() - began:.0f} s: "
        f"{f'{failures} histories BROKEN' if failures else 'every promise kept'}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
