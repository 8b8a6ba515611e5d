"""A log against a plain list: after appends, truncations, flushes, restarts and crashes it holds the same.

One integer is one history. With tests/log in PYTHONPATH, `python tests/log/test_log_model.py FIRST COUNT [STEPS]` runs
many; `... FIRST 1 STEPS -v` prints one.
"""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_model import NOW, batch, check_invariants, config, copies, open_log, read_batches, read_records, read_slice

from kraftpy.log.deletion import delete_files, delete_old_segments
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import FlushJob
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import ProducerStates
from kraftpy.log.results import Origin
from kraftpy.log.time_search import search_max_timestamp, search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import Compression, iter_records, read_header, split_batches
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis


@dataclass(frozen=True)
class Batch:
    """A batch of the model."""

    base_offset: int
    data: bytes

    @property
    def end_offset(self) -> int:
        return split_batches(self.data)[0][0].next_offset


class PowerCut(BaseException):
    """The machine stopped in the middle of an operation."""


class LogMachine:
    """The list is `model`. A crash must leave a prefix of it that includes everything that was flushed."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.disk = MemoryDisk()
        self.topic = config(
            index_interval_bytes=dice.choice([1, 150, 300, 4096]),
            segment_bytes=dice.choice([1000, 1500, 10**6]),
            segment_index_bytes=dice.choice([48, 10**6]),
            segment_ms=dice.choice([500, 10**9]),
            segment_jitter_ms=dice.choice([0, 200]),
        )
        self.now = int(NOW)
        self.epoch = 1
        self.model: tuple[Batch, ...] = ()
        self.intended: tuple[Batch, ...] = ()  # the model as it will be when the present step succeeds
        self.log_start = 0
        self.end = 0
        self.durable_end = 0
        self.checkpoint = (0, 0)  # recovery point, log start
        self.job: FlushJob | None = None
        self.has_job_run = False
        self.was_interrupted = False
        self.sequences: dict[int, int] = {}
        self.trash: list[str] = []
        self.told: list[str] = []
        self.open(clean=False)
        self.log.assign_epoch(self.epoch)

    STEPS: dict[str, int] = {  # noqa: RUF012
        "append_plain": 12,
        "append_idempotent": 12,
        "append_copies": 4,
        "roll": 2,
        "truncate": 3,
        "start_anew": 1,
        "advance_log_start": 1,
        "retention": 2,
        "empty_the_trash": 1,
        "write_checkpoint": 2,
        "flush": 2,
        "begin_flush": 3,
        "run_flush": 3,
        "finish_flush": 3,
        "reopen": 1,
        "crash": 2,
        "lose_power_during_a_step": 4,
        "disk_fails": 2,
        "sync_fails": 1,
        "read_somewhere": 5,
        "look_up_a_time": 4,
    }

    def run(self, steps: int) -> None:
        names, weights = list(self.STEPS), list(self.STEPS.values())
        for name in self.dice.choices(names, weights, k=steps):
            self.told.append(name)
            step: Callable[[], None] = getattr(self, name)
            step()
            self.holds_the_model()

    def open(self, *, clean: bool) -> None:
        directory = self.disk.root.child("topic-0")
        self.disk.root.sync()
        recovery_point, log_start = self.checkpoint
        self.log: PartitionLog = open_log(
            directory,
            now=self.now,
            topic=self.topic,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            files=FileCache(3),
        )
        self.directory = directory
        self.write_checkpoint()

    def changed(self, model: tuple[Batch, ...]) -> None:
        self.model = self.intended = model
        self.end = model[-1].end_offset if model else self.log.log_end_offset

    # --- appending ---

    def values(self) -> list[bytes]:
        return [self.dice.randbytes(self.dice.choice([0, 5, 50, 200])) for _ in range(self.dice.randint(1, 4))]

    def append(self, data: bytes) -> None:
        base_offset = self.log.log_end_offset
        self.intended = (*self.model, Batch(base_offset, copies([(base_offset, data)], self.epoch)))
        result = self.log.append(data, leader_epoch=self.epoch, now=Millis(self.now))
        assert result.base_offset == base_offset
        assert not result.is_duplicate
        self.changed(self.intended)
        assert result.last_offset == self.end - 1 == self.log.log_end_offset - 1

    def append_plain(self) -> None:
        self.now += 10
        self.append(
            batch(
                *self.values(),
                timestamp=self.now + self.dice.randint(-50, 50),
                step_ms=self.dice.choice([1, 0, -3]),
                compression=self.dice.choice([Compression.NONE, Compression.GZIP]),
            )
        )

    def append_idempotent(self) -> None:
        self.now += 10
        producer_id, values = self.dice.randint(1, 3), self.values()
        sequence = self.sequences.get(producer_id, 0)
        data = batch(
            *values, timestamp=self.now, producer_id=producer_id, producer_epoch=self.epoch, base_sequence=sequence
        )
        self.append(data)
        self.sequences[producer_id] = sequence + len(values)
        again = self.log.append(data, leader_epoch=self.epoch, now=Millis(self.now))
        assert again.is_duplicate
        assert (again.base_offset, again.last_offset) == (self.model[-1].base_offset, self.end - 1)

    def append_copies(self) -> None:
        """Append copies of a leader's batches, with the gaps that compaction leaves."""
        self.now += 10
        placed, offset = [], self.log.log_end_offset
        for number in range(self.dice.randint(1, 5)):
            offset += self.dice.choice([0, 0, 0, 2]) if number else 0
            data = batch(*self.values(), timestamp=self.now)
            placed.append((offset, data))
            offset += split_batches(data)[0][0].records_count
        self.intended = (*self.model, *(Batch(base, copies([(base, data)], self.epoch)) for base, data in placed))
        self.log.append(
            copies(placed, self.epoch), leader_epoch=self.epoch, now=Millis(self.now), origin=Origin.REPLICA
        )
        self.changed(self.intended)
        assert self.log.log_end_offset == offset

    def roll(self) -> None:
        self.log.roll(Millis(self.now))

    # --- cutting ---

    def truncate(self) -> None:
        offset = max(0, self.log.log_end_offset - self.dice.choice([0, 1, 3, 8, 20]))
        kept = tuple(entry for entry in self.model if entry.end_offset <= offset)
        self.durable_end = min(self.durable_end, kept[-1].end_offset if kept else 0)
        fell = self.log.truncate_to(offset)
        if kept != self.model:
            self.changed(kept)
        self.end = self.log.log_end_offset
        assert self.end <= offset
        assert not kept or kept[-1].end_offset == self.end or self.end <= self.log_start
        self.log_start = min(self.log_start, self.end)
        self.durable_end = min(self.durable_end, self.end)
        if fell:
            self.write_checkpoint()
        self.new_epoch()

    def start_anew(self) -> None:
        offset = self.dice.choice([0, self.log_start, self.end, self.end + 7])
        self.intended, self.durable_end = (), 0
        self.log.truncate_fully_and_start_at(offset)
        self.log_start = offset
        self.changed(())
        self.write_checkpoint()
        self.new_epoch()

    def new_epoch(self) -> None:
        """Begin a new leader epoch, as after a truncation; producers' sequences begin again as well."""
        self.epoch += 1
        self.sequences.clear()
        self.log.assign_epoch(self.epoch)

    def advance_log_start(self) -> None:
        offset = self.dice.randint(self.log_start, self.log.log_end_offset)
        assert self.log.advance_log_start(offset) == (offset > self.log_start)
        self.log_start = offset
        self.write_checkpoint()

    def retention(self) -> None:
        self.trash += delete_old_segments(self.log, Millis(self.now), self.log.log_end_offset)
        assert self.log.log_start_offset == self.log_start

    def empty_the_trash(self) -> None:
        delete_files(self.directory, self.trash)
        self.trash = []

    # --- flushing ---

    def write_checkpoint(self) -> None:
        self.checkpoint = (self.log.recovery_point, self.log.log_start_offset)

    def flush(self) -> None:
        if self.job is None:
            self.log.flush()
            assert self.log.recovery_point == self.log.log_end_offset
            assert self.log.begin_flush() is None
            self.durable_end = self.log.log_end_offset

    def begin_flush(self) -> None:
        if self.job is None:
            self.job, self.has_job_run = self.log.begin_flush(), False

    def run_flush(self) -> None:
        if self.job is not None and not self.has_job_run:
            self.job.run()
            self.has_job_run = True

    def finish_flush(self) -> None:
        if self.job is not None and self.has_job_run:
            self.log.finish_flush(self.job)
            self.durable_end = max(self.durable_end, self.job.end_offset)
            self.job = None

    # --- stopping ---

    def reopen(self) -> None:
        self.run_flush()
        self.finish_flush()
        self.log.close()
        self.write_checkpoint()
        self.open(clean=True)
        assert self.log.report.clean
        assert not self.log.report.scanned_bytes
        assert not self.log.report.rebuilt_indexes
        assert self.log.recovery_point == self.log.log_end_offset
        self.durable_end = self.log.log_end_offset
        self.trash = []
        self.new_epoch()

    def lose_power_during_a_step(self) -> None:
        """After some operations on the disk nothing works any more; perhaps again while the log is recovered."""
        left = self.dice.choice([0, 1, 2, 3, 5, 8, 13, 30])

        def count_down(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        for name in (self.dice.choice(list(self.STEPS)), "crash"):
            if name in ("lose_power_during_a_step", "disk_fails", "sync_fails"):
                continue
            self.told.append(f"  {name}, power for {left} operations")
            self.disk.on_operation = count_down
            try:
                getattr(self, name)()
            except PowerCut:
                self.told.append("  power lost")
                self.disk.on_operation = None
                self.was_interrupted = True
                self.crash()
            finally:
                self.disk.on_operation = None
            left = self.dice.choice([2, 5, 10, 20, 40])

    def disk_fails(self) -> None:
        """The disk is full, or has no more of something else: the append fails and the log is as it was."""
        operation = self.dice.choice(["write", "open", "truncate", "size"])
        self.disk.fail(operation, self.dice.choice([errno.ENOSPC, errno.EIO]), name=".log")
        try:
            self.append_plain()
        except OSError:
            self.intended = self.model
        self.disk.heal()

    def sync_fails(self) -> None:
        """A flush that fails makes the log refuse any other until it was recovered."""
        if self.job is not None:
            return
        self.disk.fail("sync", skip=self.dice.choice([0, 0, 1, 2]))
        try:
            self.log.flush()
        except OSError:
            with pytest.raises(OSError, match="an earlier flush"):
                self.log.flush()
            self.crash([Loss.EVERYTHING, Loss.PREFIX, Loss.SECTORS])  # the page cache would show what the disk lost
        else:
            self.durable_end = self.log.log_end_offset
            self.disk.heal()

    def crash(self, losses: Sequence[Loss] = tuple(Loss)) -> None:
        loss = self.dice.choice(losses)
        self.told.append(f"  {loss} recovery_point, log_start = {self.checkpoint}, durable {self.durable_end}")
        before, was_interrupted, self.was_interrupted = self.end, self.was_interrupted, False
        self.disk.crash(self.dice, loss)
        self.open(clean=False)
        self.told.append(f"  {self.log.report}")
        self.job = None
        self.trash = []
        end = self.log.log_end_offset
        assert end >= self.durable_end
        self.log_start, self.end = self.log.log_start_offset, end
        first = self.log.segments[0].base_offset
        survived = [
            segment.log.get().read(placed.position, placed.size)
            for segment in self.log.segments
            for placed in segment.walk()
        ]
        for model in (self.intended, self.model):
            hidden = tuple(entry for entry in model if entry.end_offset <= first)
            kept = tuple(entry for entry in model if entry.base_offset >= first)[: len(survived)]
            if survived == [entry.data for entry in kept]:
                break
        else:
            raise AssertionError("after the crash the log holds what it never held")
        if loss is Loss.NOTHING and not was_interrupted:
            assert end == before
        self.model = self.intended = hidden + kept
        self.durable_end = min(self.durable_end, end)
        self.new_epoch()

    # --- what must hold ---

    def holds_the_model(self) -> None:
        check_invariants(self.log)
        assert self.log.log_start_offset == self.log_start
        assert self.log.log_end_offset == self.end
        visible = [entry.data for entry in self.model if entry.end_offset > self.log_start]
        assert read_batches(self.log) == visible
        self.remembers_producers()

    def remembers_producers(self) -> None:
        reference = ProducerStates()
        for entry in self.model:
            header = split_batches(entry.data)[0][0]
            if header.producer_id >= 0 and header.base_offset >= self.log.segments[0].base_offset:
                reference.appended(header, Millis(self.now))
        remembered = {producer.producer_id: producer for producer in self.log.producers.describe()}
        for producer in reference.describe():
            assert remembered[producer.producer_id] == producer

    def read_somewhere(self) -> None:
        dice = self.dice
        offset = dice.randint(self.log_start, self.log.log_end_offset)
        end_offset = dice.randint(self.log_start, self.log.log_end_offset + 1)
        max_bytes = dice.choice([0, 1, 100, 300, 10**6])
        wanted = [entry.data for entry in self.model if offset < entry.end_offset <= end_offset]
        if max_bytes == 0:
            assert not self.log.read(offset, 0, end_offset=end_offset, min_one_batch=False).records
        assert read_batches(self.log, offset, max_bytes=max_bytes, end_offset=end_offset) == wanted
        piece = read_slice(self.log, offset, max_bytes, end_offset=end_offset)
        if piece is None:  # behind a gap that compaction left it is copied, and so are batches without records
            first = read_header(wanted[0]) if wanted else None
            assert first is None or first.base_offset > offset or not first.records_count
        else:
            result = self.log.read(offset, max_bytes, end_offset=end_offset)
            assert (piece.file.read(piece.position, piece.length), piece.next_offset) == result
            piece.release()
        for outside in (self.log_start - 1, self.log.log_end_offset + 1):
            with pytest.raises(KafkaError) as caught:
                self.log.read(outside, 100)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    def look_up_a_time(self) -> None:
        every = [record for entry in self.model for record in iter_records(entry.data)]
        records = [record for record in every if record.offset >= self.log_start]
        assert read_records(self.log) == records
        timestamp = self.now + self.dice.randint(-500, 60)
        expected = next((record for record in records if record.timestamp >= timestamp), None)
        found = finish(search_timestamp(self.log, timestamp))
        assert (found and (found.offset, found.timestamp)) == (expected and (expected.offset, expected.timestamp))
        if found is not None:
            assert finish(search_timestamp(self.log, timestamp, end_offset=found.offset)) is None
        latest = finish(search_max_timestamp(self.log))
        if self.log_start == self.log.segments[0].base_offset and records:
            assert latest is not None
            assert latest.timestamp == max(record.timestamp for record in records)
            assert latest.offset == min(r.offset for r in records if r.timestamp == latest.timestamp)


def run(seed: int, steps: int = 120) -> None:
    machine = LogMachine(seed)
    try:
        machine.run(steps)
    except BaseException as error:
        error.add_note(f"repeat: python {__file__} {seed} 1 {steps} -v")
        if "-v" in sys.argv:
            print("\n".join(machine.told))
        raise


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**63))
@example(seed=292182).via("an index, read after the segment's file was opened, closed that file")
def test_holds_what_a_list_holds(seed: int) -> None:
    run(seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        run(number, *map(int, sys.argv[3:4]))
