"""Histories of a compacted log against a model; `make sim` runs many seeds.

One seed is one history, on a disk that loses power: plain, idempotent and transactional producers with keys,
tombstones and every codec; rolls, flushes, deletions of records, retention; cleanings with maps of all sizes while time
passes, interrupted anywhere by a kill or a power cut, with lost checkpoints; restarts. The model is the list of
everything written, with the outcome of each transaction.

The invariants after each step (rules of section 6):
* 39: nothing changes at or behind the last stable offset, in the segment being written, or before its smallest lag;
* 40: every record there is as it was written; the last record of each key is there, a tombstone until
  `delete.retention.ms` after its first cleaning; a reader of committed records ends up with the values of a dict;
* 40, 41: below the end of a finished cleaning there is one record of each key, and no aborted record;
* 41: a marker is there as long as a batch of its transaction is; every producer and the last stable offset are what
  they were before: duplicates are known, no transaction opens again;
* 42: a log that was interrupted anywhere opens, without holes, and keeps these invariants.
At the end a follower copies the log, and every look-up by offset and by time is compared with a walk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from compaction_model import NEVER, Event, Model, Transaction, Violation, Written
from log_model import (
    NOW,
    begin,
    config,
    open_log,
    put_in_place,
    read_batches,
)

from kraftpy.log import compaction
from kraftpy.log.compaction_work import Done, clean
from kraftpy.log.deletion import delete_files, delete_old_segments
from kraftpy.log.key_map import ENTRY_BYTES
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import (
    Compression,
    ControlType,
    encode_batch,
    encode_control_batch,
    iter_records,
    read_header,
)
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis

STEPS = 70
KEYS = [b"%d" % number for number in range(6)] + [b"long " * 10 + b"%d" % number for number in range(2)]


class PowerCut(BaseException):
    """The machine has lost its power in the middle of something."""


class History(Model):
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = MemoryDisk()
        self.disk.root.child("t-0")
        self.disk.root.sync()
        choose = self.dice.choice
        self.is_deleting = self.dice.random() < 0.15
        topic = config(
            cleanup_policy=frozenset({"compact", "delete"} if self.is_deleting else {"compact"}),
            retention_ms=choose([400, 1000]) if self.is_deleting else -1,
            segment_bytes=choose([700, 1200, 2500]),
            index_interval_bytes=choose([0, 100, 300]),
            min_cleanable_dirty_ratio=choose([0.0, 0.0, 0.3]),
            min_compaction_lag_ms=choose([0, 0, 30]),
            max_compaction_lag_ms=choose([NEVER, NEVER, 200]),
            delete_retention_ms=choose([0, 60, 500]),
            compression_type=choose(["producer", "producer", "zstd", "uncompressed"]),
            message_timestamp_type=choose(["CreateTime", "CreateTime", "LogAppendTime"]),
        )
        super().__init__(self.dice, topic, open_log(self.directory(), now=NOW, topic=topic), int(NOW))
        self.clean_until = 0
        """The cleaner's checkpoint as it is on disk."""

    def directory(self) -> Any:
        return self.disk.root.child("t-0")

    def run(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (14, self.put),
            (8, self.put_idempotent),
            (8, self.put_transactional),
            (6, self.end_transaction),
            (5, self.roll),
            (8, self.clean),
            (3, self.clean_and_be_cut_off),
            (2, self.pass_time),
            (1, self.restart),
            (1, self.lose_power),
            (1, self.delete_records),
            (1, self.change_leader),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(STEPS):
            self.now += self.dice.choice([1, 5, 20])
            self.dice.choices([action for _, action in actions], weights)[0]()
            if self.is_deleting and self.dice.random() < 0.2:
                delete_files(
                    self.log.directory, delete_old_segments(self.log, Millis(self.now), self.log.log_end_offset)
                )
            self.check()
        self.log.roll(Millis(self.now))
        self.clean()
        self.check()
        self.check_end()

    # --- what happens ------------------------------------------------------------------------

    def records(self) -> list[tuple[int, bytes, bytes | None, list[tuple[str, bytes]]]]:
        return [
            (
                self.now - self.dice.choice([0, 0, 3, 40, 90_000]),
                self.dice.choice(KEYS),
                None if self.dice.random() < 0.25 else b"%d" % self.dice.randrange(1000) * self.dice.choice([1, 1, 20]),
                [("h", b"1")] if self.dice.random() < 0.2 else [],
            )
            for _ in range(self.dice.choice([1, 1, 2, 4]))
        ]

    def append(self, data: bytes, transaction: int = -1) -> bool:
        """Append one batch, and remember it; whether it was new."""
        result = self.log.append(bytearray(data), leader_epoch=self.leader_epoch, now=Millis(self.now))
        if result.is_duplicate:
            return False
        stored = read_batches(self.log, result.base_offset)[0]
        for record in iter_records(stored):
            self.written[record.offset] = Written(record, self.leader_epoch, transaction)
        header = read_header(stored)
        if header.producer_id >= 0:
            self.events.append(
                Event(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_offset,
                    header.last_offset,
                    data,
                    header.base_sequence,
                    header.last_sequence,
                    header.is_transactional,
                )
            )
        self.statistics["batches"] += 1
        return True

    def put(self) -> None:
        self.append(encode_batch(self.records(), compression=self.dice.choice(list(Compression))))

    def put_idempotent(self) -> None:
        producer_id = self.dice.choice([1, 2])
        last = self.last_of(producer_id)
        if last is not None and last.data and self.dice.random() < 0.2:
            if self.append(last.data):
                raise Violation(f"a duplicate at offset {last.base_offset} was appended again")
            self.statistics["duplicates"] += 1
            return
        self._append_as(producer_id, last, is_transactional=False)

    def _append_as(self, producer_id: int, last: Event | None, *, is_transactional: bool) -> None:
        epoch, sequence = (0, 0) if last is None else (last.producer_epoch, last.last_sequence + 1)
        transaction = -1
        if is_transactional:
            opened = self.open_of(producer_id)
            if opened is None:
                self.transactions.append(Transaction(self.log.log_end_offset))
                opened = len(self.transactions) - 1
            transaction = opened
        data = encode_batch(
            self.records(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
            compression=self.dice.choice(list(Compression)),
        )
        if not self.append(data, transaction):
            raise Violation(f"producer {producer_id}: sequence {sequence} taken for a duplicate")

    def put_transactional(self) -> None:
        producer_id = self.dice.choice([11, 12])
        self._append_as(producer_id, self.last_of(producer_id), is_transactional=True)

    def end_transaction(self) -> None:
        producer_id = self.dice.choice([11, 12])
        opened, last = self.open_of(producer_id), self.last_of(producer_id)
        if last is None or (opened is None and self.dice.random() < 0.8):
            return
        epoch = last.producer_epoch + (self.dice.random() < 0.5)  # KIP-890: a marker may bring the next epoch
        is_committed = self.dice.random() < 0.5
        offset = self.log.log_end_offset
        data = encode_control_batch(
            ControlType.COMMIT if is_committed else ControlType.ABORT,
            timestamp=self.now,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
        )
        self.log.append(
            bytearray(data), leader_epoch=self.leader_epoch, now=Millis(self.now), origin=Origin.COORDINATOR
        )
        sequence = last.last_sequence if epoch == last.producer_epoch else -1
        self.events.append(Event(producer_id, epoch, offset, offset, data, -1, sequence, True))
        if opened is not None:
            self.transactions[opened].marker_offset, self.transactions[opened].is_committed = offset, is_committed
        self.statistics["commits" if is_committed else "aborts"] += 1

    def roll(self) -> None:
        self.log.roll(Millis(self.now))

    def pass_time(self) -> None:
        self.now += self.dice.choice([50, 100, 600])

    def change_leader(self) -> None:
        self.leader_epoch += 1
        self.log.assign_epoch(self.leader_epoch)

    def delete_records(self) -> None:
        if self.stable_offset() > self.log.log_start_offset:
            self.log.advance_log_start(self.dice.randint(self.log.log_start_offset, self.stable_offset()))
        delete_files(self.log.directory, delete_old_segments(self.log, Millis(self.now), self.log.log_end_offset))

    def clean(self) -> None:
        """Clean as the cleaner does, to the end."""
        first_dirty = self.dice.choice([self.clean_until] * 8 + [0, 10**9])
        limits = compaction.Limits(self.dice.choice([1, 3, 1000]) * ENTRY_BYTES, 1.0, self.dice.choice([0, 1 << 20]))
        watermark = self.dice.choice([self.log.log_end_offset] * 5 + [self.stable_offset()])
        log = self.log
        job = begin(log, first_dirty, now=self.now, high_watermark=watermark, limits=limits)
        if job is None:
            return
        self.check_plan(job)
        done: Done | None = None
        try:
            for step in clean(job.plan, log.directory):
                if isinstance(step, Done):
                    done = step
                    break
                if len(step.sources) > 1 and step.size > self.topic.segment_bytes * 2:
                    raise Violation(f"{len(step.sources)} segments became one of {step.size} bytes")
                if not put_in_place(log, job, step):
                    raise Violation("a segment changed though nothing happened")
                self.replaced.add(step.base_offset)
                self.statistics["segments replaced"] += 1
        finally:
            if self.disk.on_operation is None:
                compaction.finish(log, job, done)
        compaction.finish(log, job, done)
        if done is None or done.end_offset <= job.plan.first_dirty:
            raise Violation(f"no progress from {job.plan.first_dirty}: {done}")
        self.statistics["cleanings"] += 1
        self.statistics["passes of a full map"] += done.end_offset < job.plan.sources[-1].end_offset
        if self.dice.random() < 0.9:
            self.clean_until = done.end_offset
        self.check_finished(done.end_offset)

    def clean_and_be_cut_off(self) -> None:
        """A kill or a power cut at any operation of the disk."""
        left = self.dice.randint(0, 80)

        def count_down(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        self.log.flush()
        end_offset = self.log.log_end_offset
        self.disk.on_operation = count_down
        try:
            self.clean()
        except PowerCut:
            self.statistics["cleanings cut off"] += 1
        finally:
            self.disk.on_operation = None
        self._restart(self.dice.choice(list(Loss)))
        if self.log.log_end_offset != end_offset:
            raise Violation(f"the log ended at {end_offset} and now at {self.log.log_end_offset}")

    def lose_power(self) -> None:
        self._restart(self.dice.choice(list(Loss)))

    def restart(self) -> None:
        self.log.close()
        self._restart(None)

    def _restart(self, loss: Loss | None) -> None:
        recovery_point, start = self.log.recovery_point, self.log.log_start_offset
        if loss is not None:
            self.disk.crash(self.dice, loss)
        self.log = open_log(
            self.directory(),
            now=self.now,
            topic=self.topic,
            clean=loss is None,
            recovery_point=recovery_point,
            log_start_offset=start,
        )
        self.replaced.clear()
        end_offset = self.log.log_end_offset
        if end_offset < recovery_point:
            raise Violation(f"durable up to {recovery_point}, and now ends at {end_offset}")
        self.written = {offset: each for offset, each in self.written.items() if offset < end_offset}
        self.events = [event for event in self.events if event.last_offset < end_offset]
        for transaction in self.transactions:
            if transaction.marker_offset >= end_offset:
                transaction.marker_offset = -1
            if transaction.first_offset >= end_offset:
                transaction.first_offset = NEVER
        self.first_cleaned_at = {o: at for o, at in self.first_cleaned_at.items() if o < end_offset}
        self.clean_until = min(self.clean_until, end_offset)
        self.leader_epoch = max(self.leader_epoch, self.log.epochs.latest)
        self.log.assign_epoch(self.leader_epoch)
        self._forget_producers()
        self.statistics["restarts"] += 1

    def _forget_producers(self) -> None:
        """A log need not know producers all of whose records are out of it; what it knows is what counts then."""
        described = {each.producer_id: each for each in self.log.producers.describe()}
        firsts = {event.base_offset: event.producer_id for event in self.events if event.is_transactional}
        for transaction in self.transactions:
            if transaction.marker_offset < 0 and transaction.first_offset < self.log.log_start_offset:
                known = described.get(firsts.get(transaction.first_offset, -1))
                is_known = known is not None and known.current_txn_start_offset >= 0
                transaction.first_offset = known.current_txn_start_offset if known is not None and is_known else NEVER
        for producer_id in (1, 2, 11, 12):
            events = [each for each in self.events if each.producer_id == producer_id]
            in_log = [each for each in events if each.data and each.last_offset >= self.log.log_start_offset]
            if any(each.base_sequence >= 0 for each in in_log):
                continue
            found = described.get(producer_id)
            if in_log:  # markers: they do not tell the sequence number of what was before them
                if found is not None and found.last_sequence < 0:
                    self.events[self.events.index(events[-1])] = events[-1]._replace(last_sequence=-1)
                continue
            self.events = [event for event in self.events if event.producer_id != producer_id]
            if found is not None:
                end_offset, first = self.log.log_end_offset, found.current_txn_start_offset
                self.events.append(
                    Event(
                        producer_id,
                        found.producer_epoch,
                        first if first >= 0 else end_offset,
                        end_offset - 1,
                        b"",
                        -1,
                        found.last_sequence,
                        first >= 0,
                    )
                )


def run(seed: int) -> History:
    """One seed to its end. Raises what was found, with the line that repeats it."""
    history = History(seed)
    try:
        history.run()
    except Exception as error:
        error.add_note(f"again: python tests/log/compaction_simulation.py --from {seed} --seeds 1")
        raise
    return history


def _outcome(seed: int) -> tuple[int, str | None, Counter[str]]:
    try:
        return seed, None, run(seed).statistics
    except Exception:
        return seed, traceback.format_exc(), Counter()


def main() -> int:
    """Run seeds, count what happened, and say which failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    options = parser.parse_args()
    failed: list[int] = []
    totals: Counter[str] = Counter()
    with multiprocessing.Pool(min(os.cpu_count() or 1, options.seeds)) as pool:
        for seed, trace, statistics in pool.imap(_outcome, range(options.first, options.first + options.seeds)):
            totals += statistics
            if trace is not None:
                failed.append(seed)
                print(trace, flush=True)
    print(f"{options.seeds} histories, {len(failed)} failed {failed[:20]}; " + str(dict(sorted(totals.items()))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
