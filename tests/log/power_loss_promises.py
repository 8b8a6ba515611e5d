"""The invariants of a log after a power cut, given what was written, promised and taken back before (`power_loss`)."""

from __future__ import annotations

from dataclasses import dataclass

from log_model import check_invariants

from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import ProducerStates, WrittenBatch
from kraftpy.protocol.record_batch import (
    BatchHeader,
    ControlType,
    Record,
    decode_control_record,
    iter_records,
    split_batches,
)
from kraftpy.types import Millis


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True)
class Written:
    """A batch as it was appended."""

    header: BatchHeader
    data: bytes

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        return self.header.next_offset


def written(data: bytes) -> Written:
    return Written(split_batches(data)[0][0], data)


class Promises:
    """The records that a log may hold and those that it must hold."""

    log: PartitionLog

    def __init__(self) -> None:
        self.was_clean = False
        self.history: list[Written] = []  # all that was ever appended and not cut off since
        self.maybe: list[Written] = []  # those being appended
        self.durable_end = 0
        self.synced_end = 0  # the highest possible recovery point: not lowered before a truncation is made
        self.cleaned_end = 0  # compaction may have changed what is before it
        self.may_go: set[int] = set()  # offsets that it may have removed
        self.promised_start = 0
        self.largest_start = 0

    def check(self) -> None:
        """Raise `Broken` if the log, just opened, violates a promise."""
        log = self.log
        try:
            check_invariants(log)
        except AssertionError as error:
            raise Broken(f"not a log: {error}") from error
        first, end = log.segments[0].base_offset, log.log_end_offset
        found = [
            written(segment.log.get().read(placed.position, placed.size))
            for segment in log.segments
            for placed in segment.walk()
        ]
        if end < self.durable_end:
            raise Broken(f"durable to {self.durable_end}, there to {end}")
        if (found[-1].end_offset if found else first) != end:
            raise Broken(f"ends at {end}, not where its records do")
        self.check_batches(found, first, end)
        if not first <= log.log_start_offset <= max(self.largest_start, first) or first > self.largest_start:
            raise Broken(f"starts at {log.log_start_offset} ({first}), at most {self.largest_start} was asked for")
        if log.log_start_offset < self.promised_start:
            raise Broken(f"log start {self.promised_start} has fallen to {log.log_start_offset}")
        if not self.was_clean and log.recovery_point > max(self.synced_end, first):
            raise Broken(f"recovery point {log.recovery_point}, durable to {self.synced_end}")
        self.check_producers(found, end)
        self.check_epochs(found, end)

    def check_batches(self, found: list[Written], first: int, end: int) -> None:
        known = {each.base_offset: each for each in (*self.history, *self.maybe)}
        kept: set[int] = set()
        there = set()
        for each in found:
            original = known.get(each.base_offset)
            if original is None:
                raise Broken(f"invented: a batch at {each.base_offset}")
            there.add(each.base_offset)
            records = [] if each.header.is_control else list(iter_records(each.data))
            kept.update(record.offset for record in records)
            if each.data != original.data:
                self.check_rewritten(each, original, records)
        expected = [each for each in known.values() if first <= each.base_offset < end]
        for each in expected:
            if each.base_offset >= self.cleaned_end:
                if each.base_offset not in there:
                    raise Broken(f"a hole: the batch at {each.base_offset} is missing, the end is {end}")
            elif not each.header.is_control:
                for record in iter_records(each.data):
                    if record.offset not in kept | self.may_go:
                        raise Broken(f"record {record.offset}, the last one of {record.key!r}, is gone")

    def check_rewritten(self, each: Written, original: Written, records: list[Record]) -> None:
        header, before = each.header, original.header
        if each.base_offset >= self.cleaned_end:
            raise Broken(f"the batch at {each.base_offset} is not as it was written")
        same = ("last_offset_delta", "partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence")
        if any(getattr(header, name) != getattr(before, name) for name in same):
            raise Broken(f"compaction changed the batch at {each.base_offset}: {before} became {header}")
        if not set(records) <= set(iter_records(original.data)):
            raise Broken(f"compaction changed records of the batch at {each.base_offset}")

    def is_aborted(self, batch: Written) -> bool:
        """Return True if the batch belongs to an aborted transaction, by looking for its marker in the plainest way."""
        if not batch.header.is_transactional:
            return False
        for each in self.history:
            if (
                each.header.is_control
                and each.base_offset > batch.base_offset
                and each.header.producer_id == batch.header.producer_id
            ):
                return decode_control_record(next(iter_records(each.data))).type == ControlType.ABORT
        return False

    def check_producers(self, found: list[Written], end: int) -> None:
        """Compare the log's producer states with a replay of everything ever appended, and of what is still there."""
        whole = replayed([each for each in (*self.history, *self.maybe) if each.base_offset < end])
        there, known = replayed(found), facts(self.log.producers)
        first = self.log.segments[0].base_offset
        ends = {
            each.header.last_offset for each in found
        }  # a batch that a cut left as a producer's last may have been compacted away before
        for producer_id, fact in known.items():
            reference = whole.get(producer_id)
            if reference is None or fact.epoch != reference.epoch:
                raise Broken(f"producer {producer_id} is {fact}, replayed {reference}")
            wrote, replayed_batches = without_times(fact.batches), without_times(reference.batches)
            last = [each for each in replayed_batches[-1:] if each.last_offset in ends or wrote[-1:] == [each]]
            if not set(wrote) <= set(replayed_batches) or (last and wrote[-1:] != last):
                raise Broken(f"producer {producer_id} wrote {fact.batches}, replayed {reference.batches}")
            if fact.open_from != reference.open_from and not -1 < reference.open_from < max(first, self.cleaned_end):
                raise Broken(f"producer {producer_id} is open from {fact.open_from}, replayed {reference.open_from}")
        for producer_id in there:
            if producer_id not in known:
                raise Broken(f"producer {producer_id} is forgotten")
        if not self.cleaned_end and all(each.base_offset >= first for each in self.history) and known != whole:
            raise Broken(f"producers {known}, replayed {whole}")

    def check_epochs(self, found: list[Written], end: int) -> None:
        entries = self.log.epochs.entries()
        for each in found:
            if each.end_offset <= self.log.log_start_offset:
                continue
            offset = max(each.base_offset, self.log.log_start_offset)
            if self.log.epochs.epoch_of(offset) != each.header.partition_leader_epoch:
                raise Broken(f"epochs {entries}: {offset} was written in {each.header.partition_leader_epoch}")
        whole = LeaderEpochs()
        for each in (*self.history, *self.maybe):
            if each.base_offset < end:
                whole.assign(each.header.partition_leader_epoch, each.base_offset)
        whole.truncate_from_start(self.log.log_start_offset)
        begun = [entry for entry in entries if entry[1] < end]  # others say nothing about any record
        if not self.cleaned_end and begun != [entry for entry in whole.entries() if entry[1] < end]:
            raise Broken(f"epochs {entries}, replayed {whole.entries()}")


@dataclass(frozen=True)
class Fact:
    """A producer's state without the parts that depend on how it was restored."""

    epoch: int
    batches: tuple[WrittenBatch, ...]
    open_from: int


def facts(states: ProducerStates) -> dict[int, Fact]:
    return {
        producer_id: Fact(producer.epoch, tuple(producer.batches), producer.first_open_offset)
        for producer_id, producer in states._producers.items()
    }


def without_times(batches: tuple[WrittenBatch, ...]) -> list[WrittenBatch]:
    """Compaction changes the largest timestamp of a batch that loses records."""
    return [batch._replace(timestamp=0) for batch in batches]


def replayed(batches: list[Written]) -> dict[int, Fact]:
    states = ProducerStates()
    for each in batches:
        if each.header.is_control:
            marker = decode_control_record(next(iter_records(each.data)))
            states.ended(each.header, marker, Millis(0))
        elif each.header.producer_id >= 0:
            states.appended(each.header, Millis(0))
    return facts(states)
