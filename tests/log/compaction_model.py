"""The model of a compacted log, and what has to hold between the two; `compaction_simulation` says when."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

from log_model import check_invariants, open_log, read_batches, read_records, reference_index

from kraftpy.config.topic import TopicConfig
from kraftpy.log import compaction
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.log.time_search import search_max_timestamp, search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.record_batch import Record, iter_records, read_header
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import Millis

NEVER = 2**63 - 1


class Violation(AssertionError):
    """An invariant was violated."""


class Written(NamedTuple):
    """A record, the epoch it was written in, and its transaction's number, or -1."""

    record: Record
    leader_epoch: int
    transaction: int


class Event(NamedTuple):
    """A producer's write, reduced to the changes of the producer's state."""

    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    data: bytes
    base_sequence: int  # -1: a marker
    last_sequence: int
    is_transactional: bool


class Transaction:
    """One transaction of the model."""

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.marker_offset = -1
        self.is_committed = False


class Model:
    """A model of a log: everything written to it, the outcome of each transaction, and when each part was cleaned."""

    def __init__(self, dice: random.Random, topic: TopicConfig, log: PartitionLog, now: int) -> None:
        self.dice = dice
        self.topic = topic
        self.log = log
        self.now = now
        self.leader_epoch = 0
        self.written: dict[int, Written] = {}
        self.events: list[Event] = []
        self.transactions: list[Transaction] = []
        self.first_cleaned_at: dict[int, int] = {}
        self.replaced: set[int] = set()
        """Base offsets of segments that were made by a cleaning, since the last start."""
        self.statistics: Counter[str] = Counter()

    def last_of(self, producer_id: int) -> Event | None:
        return next((event for event in reversed(self.events) if event.producer_id == producer_id), None)

    def open_of(self, producer_id: int) -> int | None:
        firsts = {event.base_offset: event.producer_id for event in self.events if event.is_transactional}
        for number, transaction in enumerate(self.transactions):
            if transaction.marker_offset < 0 and firsts.get(transaction.first_offset) == producer_id:
                return number
        return None

    def stable_offset(self) -> int:
        opened = [each.first_offset for each in self.transactions if each.marker_offset < 0]
        return min([*opened, self.log.log_end_offset])

    def is_aborted(self, each: Written) -> bool:
        if each.transaction < 0:
            return False
        transaction = self.transactions[each.transaction]
        return transaction.marker_offset >= 0 and not transaction.is_committed

    def check_plan(self, job: compaction.CompactionJob) -> None:
        """Rule 39; and note what may be cleaned from now on."""
        plan = job.plan
        end_offset = plan.sources[-1].end_offset
        if end_offset > min(self.stable_offset(), self.log.segments[-1].base_offset):
            raise Violation(f"cleaned up to {end_offset}; stable is {self.stable_offset()}")
        if not self.log.log_start_offset <= plan.first_dirty <= self.log.log_end_offset:
            raise Violation(f"cleaned from {plan.first_dirty}")
        young = self.now - self.topic.min_compaction_lag_ms
        for offset, each in self.written.items():
            if offset < end_offset:
                if self.topic.min_compaction_lag_ms and offset >= plan.first_dirty and each.record.timestamp > young:
                    raise Violation(f"offset {offset} is too young to be cleaned")
                self.first_cleaned_at.setdefault(offset, self.now)
        for transaction in self.transactions:
            if 0 <= transaction.marker_offset < end_offset:
                self.first_cleaned_at.setdefault(transaction.marker_offset, self.now)

    def check_finished(self, end_offset: int) -> None:
        """Rules 40 and 41, what has to be gone."""
        last: dict[bytes | None, int] = {}
        for offset, each in sorted(self.written.items()):
            if offset < end_offset and not self.is_aborted(each):
                last[each.record.key] = offset
        for record in read_records(self.log):
            if record.offset >= end_offset or record.offset not in self.written:
                continue
            if self.is_aborted(self.written[record.offset]):
                raise Violation(f"aborted record {record.offset} outlived a cleaning")
            if last[record.key] != record.offset:
                raise Violation(f"{record.key!r} at {record.offset} outlived {last[record.key]}")

    def check(self) -> None:
        log = self.log
        check_invariants(log)
        batches = read_batches(log)
        found: dict[int, Record] = {}
        markers: set[int] = set()
        for data in batches:
            header = read_header(data)
            for record in iter_records(data):
                if header.is_control:
                    markers.add(record.offset)
                    continue
                each = self.written.get(record.offset)
                if each is None or each.record != record:
                    raise Violation(f"offset {record.offset}: {record} was written as {each}")
                if header.partition_leader_epoch != each.leader_epoch:
                    raise Violation(f"offset {record.offset}: leader epoch {header.partition_leader_epoch}")
                found[record.offset] = record
        self._check_kept(found, markers)
        self._check_producers()
        self._check_committed(batches)

    def _check_kept(self, found: dict[int, Record], markers: set[int]) -> None:
        start, stable = self.log.log_start_offset, self.stable_offset()
        last: dict[bytes | None, int] = {}
        with_data = set()
        for offset, each in sorted(self.written.items()):
            if not self.is_aborted(each) and (each.transaction < 0 or offset < stable):
                last[each.record.key] = offset
            if offset in found:
                with_data.add(each.transaction)
            elif offset >= start and offset not in self.first_cleaned_at:
                raise Violation(f"offset {offset} is gone and was never cleaned")
        for key, offset in last.items():
            if offset < start or offset in found:
                continue
            if self.written[offset].record.value is not None:
                raise Violation(f"the last value of {key!r}, at {offset}, is lost")
            if self.now < self.first_cleaned_at[offset] + self.topic.delete_retention_ms:
                raise Violation(f"the tombstone at {offset} went too early")
        for number, transaction in enumerate(self.transactions):
            marker = transaction.marker_offset
            if marker < start or marker in markers:
                continue
            if number in with_data:
                raise Violation(f"the marker at {marker} went before its records")
            if marker not in self.first_cleaned_at:
                raise Violation(f"the marker at {marker} is gone and was never cleaned")
            if self.now < self.first_cleaned_at[marker] + self.topic.delete_retention_ms:
                raise Violation(f"the marker at {marker} went too early")
            self.statistics["markers gone"] += 1

    def _check_producers(self) -> None:
        log, start = self.log, self.log.log_start_offset
        described = {each.producer_id: each for each in log.producers.describe()}
        for producer_id in (1, 2, 11, 12):
            last, opened = self.last_of(producer_id), self.open_of(producer_id)
            if last is None or last.last_offset < start:
                continue
            first = -1 if opened is None else self.transactions[opened].first_offset
            found = described.get(producer_id)
            if found is None or (found.producer_epoch, found.last_sequence) != (
                last.producer_epoch,
                last.last_sequence,
            ):
                raise Violation(f"producer {producer_id} is {found}, was {last}")
            if found.current_txn_start_offset != first and (opened is None or first >= start):
                raise Violation(f"producer {producer_id} has a transaction from {found.current_txn_start_offset} on")
        if self.stable_offset() >= start and log.last_stable_offset(log.log_end_offset) != self.stable_offset():
            raise Violation(f"stable up to {log.last_stable_offset(log.log_end_offset)}, not {self.stable_offset()}")

    def _check_committed(self, batches: list[bytes]) -> None:
        """Check that a reader of committed records, by the protocol, ends up with the values of a dict."""
        start, stable = self.log.log_start_offset, self.stable_offset()
        waiting = sorted(
            ((each.first_offset, each.producer_id) for each in self.log.producers.aborted.between(start, stable)),
            reverse=True,
        )
        aborting: set[int] = set()
        seen: dict[bytes | None, bytes | None] = {}
        for data in batches:
            header = read_header(data)
            if header.last_offset >= stable:
                break
            while waiting and waiting[-1][0] <= header.last_offset:
                aborting.add(waiting.pop()[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                seen |= {record.key: record.value for record in iter_records(data) if record.offset >= start}
        wanted: dict[bytes | None, tuple[int, bytes | None]] = {}
        for offset, each in sorted(self.written.items()):
            if offset < stable and not self.is_aborted(each):
                wanted[each.record.key] = offset, each.record.value
        values = {key: value for key, (offset, value) in wanted.items() if offset >= start and value is not None}
        if {key: value for key, value in seen.items() if value is not None} != values:
            raise Violation(f"a reader has {seen}, should have {values}")

    def check_end(self) -> None:
        """Look-ups, index files, and a follower."""
        log = self.log
        records = read_records(log)
        data_records = [record for record in records if record.offset in self.written]
        for timestamp in {record.timestamp + self.dice.choice([-1, 0, 1]) for record in records}:
            by_walk = next((record for record in records if record.timestamp >= timestamp), None)
            by_index = finish(search_timestamp(log, timestamp))
            if (by_walk and (by_walk.offset, by_walk.timestamp)) != (by_index and by_index[:2]):
                raise Violation(f"time {timestamp}: {by_index}, by walking {by_walk}")
        latest = finish(search_max_timestamp(log))
        largest = max((record.timestamp for record in records), default=None)
        if (latest.timestamp if latest else None) != largest:
            raise Violation(f"the largest timestamp is {largest}, not {latest}")
        for offset in range(log.log_start_offset, log.log_end_offset):
            first = read_batches(log, offset, max_bytes=1)
            if first and read_header(first[0]).last_offset < offset:
                raise Violation(f"a read at {offset} began with {read_header(first[0])}")
        log.flush()
        for segment in [each for each in log.segments[:-1] if each.base_offset in self.replaced]:
            stored = log.directory.read(segment.log.name)[: segment.size]
            wanted = reference_index(stored, segment.base_offset, self.topic.index_interval_bytes, sealed=True)
            names = segment.index.offset_file.name, segment.index.time_file.name
            if tuple(log.directory.read(name) for name in names) != wanted:
                raise Violation(f"the indexes of {segment.log.name} are not those of its batches")
        follower = self._follower(log)
        if [r for r in read_records(follower) if r.offset in self.written] != data_records:
            raise Violation("a follower has other records")

    def _follower(self, log: PartitionLog) -> PartitionLog:
        disk = MemoryDisk()
        follower = open_log(disk.root.child("t-0"), now=self.now, topic=self.topic)
        follower.truncate_fully_and_start_at(log.log_start_offset)
        while follower.log_end_offset < log.log_end_offset:
            read = log.read(follower.log_end_offset, 700)
            if not read.records:
                break
            follower.append(
                bytearray(read.records), leader_epoch=self.leader_epoch, now=Millis(self.now), origin=Origin.REPLICA
            )
        if read_batches(follower, follower.log_end_offset):
            raise Violation("a follower cannot end")
        return follower
