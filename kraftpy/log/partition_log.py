"""The log of one partition: ordered segments, what may be appended to them, and how they are read.

Appending checks the batch header and the CRC, stamps offset and leader epoch in place, and writes once. It inspects
records only to check the keys of a compacted topic or to recompress a batch for a topic with its own codec; that can
take long, so it is done beforehand (`prepare`). Reading finds a position through an index, walks at most one index
interval of headers, and reads whole batches in one go. The cost of neither depends on the length of the log.

Flushing has three parts, so that only one of them needs a thread: `begin_flush` (on the loop, quick) collects the
unsynced files and opens its own handles; `FlushJob.run` (in a thread, blocking) syncs segments, then writes indexes,
snapshots and epochs, then syncs the directory; `finish_flush` (on the loop, quick) moves the recovery point. Appends
may continue meanwhile because the thread shares nothing with the loop except the disk: its handles are its own, a
sealed segment's entries do not change, and it promises only offsets below the log's end when the job began. A
concurrent truncation lowers that promise.

Invariants: `log_start_offset <= log_end_offset`; `recovery_point <= log_end_offset`; each segment begins where the
previous one ends; an append that raises leaves the log unchanged.

Except for `open`, `close`, `flush` and the `run` of jobs, everything runs on the event loop, in one thread, and blocks
on nothing beyond the page cache, except where noted. The replica owns `high_watermark` and passes it in when needed.

Left out: deleting records inside a segment (DeleteRecords hides them until the whole segment can go).
KIP-98 (idempotence), KIP-101/279/320 (epochs), KIP-107 (DeleteRecords), KIP-734 (largest timestamp).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import xxhash

from kraftpy.config.topic import TopicConfig
from kraftpy.log import compaction, layout
from kraftpy.log import time_search as by_time
from kraftpy.log.appending import (
    KEYS,
    BatchLimits,
    Demand,
    Prepared,
    check_timestamps,
    checked,
    demand_of,
    fitting_copies,
    log_append_time,
    only_batch,
    prepared,
    roll_ms,
)
from kraftpy.log.epochs import EpochEnd, LeaderEpochs
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import Durability, FlushJob
from kraftpy.log.producer_replay import newest_snapshot, replay, snapshot_offsets
from kraftpy.log.producer_states import EXPIRATION_MS, ProducerStates
from kraftpy.log.recovery import LoadedLog, Progress, RecoveryReport, SideBySide, load
from kraftpy.log.results import AppendResult, LogSlice, Origin, ReadResult, TimestampAndOffset
from kraftpy.log.retention import SegmentAge, segments_to_delete
from kraftpy.log.segment import FAR_BYTES, CorruptSegment, Segment
from kraftpy.log.verifying import IntactBatch, check, check_file
from kraftpy.log.work import Work, finish
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    check_crc,
    read_header,
    read_markers,
    stamp,
    validate_batch,
)
from kraftpy.types import Millis, TopicId

__all__ = [
    "AppendResult",
    "LogSlice",
    "Origin",
    "PartitionLog",
    "ReadResult",
    "TimestampAndOffset",
    "delete_files",
]


_NEVER: Final = 1 << 62


class _Asked(NamedTuple):
    """The arguments of a read (see `PartitionLog.read`). `limit` is the offset at which it must end."""

    offset: int
    max_bytes: int
    limit: int
    min_one_batch: bool


class _Unsure(CorruptSegment):
    """Headers alone cannot decide what to return: most likely nothing, or a batch that lies behind a gap."""


class PartitionLog:
    """One partition's log. Create it with `open`."""

    def __init__(
        self,
        directory: Directory,
        config: TopicConfig,
        files: FileCache,
        loaded: LoadedLog,
        expiration_ms: int,
        now: Millis,
    ) -> None:
        self.directory = directory
        self.config = config
        self._demand = demand_of(config)
        self._demand_config = config
        """The config `_demand` was computed from; `config` may be replaced whenever the topic's settings change."""
        self.report: RecoveryReport = loaded.report
        self.epochs: LeaderEpochs = loaded.epochs
        """Read-only to callers; `assign_epoch` and `truncate_to` change it."""
        self.producers: ProducerStates = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.written_log_start = loaded.log_start_offset
        """The log start recorded durably in the owner's checkpoint; the owner sets it."""
        self.metadata: layout.PartitionMetadata | None = None
        """The contents of `partition.metadata`; None for a log whose topic has no id."""
        self.limits = BatchLimits()
        """Bounds on a producer's batch; the owner sets them."""
        self.checks_reads = True
        """Whether reads are verified (`verifying`); if not, a reader may be given damaged bytes."""
        self.remade_indexes = 0
        """The number of sealed segments whose indexes were found damaged and rebuilt."""
        self.is_closed = False
        self.is_half_cut = False
        """A truncation failed halfway: nothing may be appended until it has been completed."""
        self.is_compacting = False
        self.is_swapping = False
        """Compaction is about to replace segments: until it has, none may be removed (`compaction.stage`)."""
        self._files = files
        self._expiration_ms = expiration_ms
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        for segment, end_offset in zip(loaded.segments, self._bases[1:], strict=False):
            segment.offsets = end_offset - segment.base_offset
        self._durability = Durability(directory, loaded.recovery_point, epochs_are_stored=loaded.epochs_are_stored)
        self._durability.sealed += [each for each in loaded.segments[:-1] if each.offset_index is not None]
        self._durability.transactions.update(loaded.transactions)
        self._stored_snapshot = loaded.log_end_offset if loaded.snapshot_is_stored else -1
        self._trash: list[str] = []  # files renamed by a truncation
        self._last_write_at = now  # or the time of opening; serves operations that are not passed the time
        if not loaded.report.clean:
            compaction.forget_gone_markers(self)

    @classmethod
    def open(
        cls,
        directory: Directory,
        config: TopicConfig,
        *,
        now: Millis,
        topic_id: TopicId | None = None,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        files: FileCache | None = None,
        expiration_ms: int = EXPIRATION_MS,
        progress: Progress | None = None,
        side_by_side: SideBySide | None = None,
    ) -> PartitionLog:
        """Open a partition's directory, or create its first segment. Blocks: run it in a thread.

        `clean`, `recovery_point` and `log_start_offset` come from the log directory's marker and checkpoints
        (`layout.take_clean_shutdown`, `layout.read_offsets`). Only this thread may use `files`: a broker opens each log
        with a cache of its own, then moves it (`move_to`) to the one that all its logs share. `topic_id` is written if
        the directory has none yet. If `kraftpy.flush.before.ack` differs from what the directory says, everything is
        synced first. Raises OSError, and layout.CorruptFile for a damaged or foreign `partition.metadata`.
        """
        files = FileCache() if files is None else files
        with files.closed_on_failure():  # a log that cannot be opened is retried again and again
            metadata = layout.read_partition_metadata(directory)
            if topic_id is not None:
                if metadata is None:
                    is_new = not directory.names()
                    metadata = layout.PartitionMetadata(topic_id, is_new and config.kraftpy_flush_before_ack)
                    layout.write_partition_metadata(directory, metadata)
                elif metadata.topic_id != topic_id:
                    stored = metadata.topic_id.hex()
                    raise layout.CorruptFile(f"{directory.path} belongs to topic {stored}, not {topic_id.hex()}")
            loaded = load(
                directory,
                now=now,
                files=files,
                index_interval_bytes=config.index_interval_bytes,
                clean=clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                expiration_ms=expiration_ms,
                progress=progress,
                side_by_side=side_by_side,
            )
            log = cls(directory, config, files, loaded, expiration_ms, now)
            log.metadata = metadata
            if metadata is not None and metadata.synced_before_ack != config.kraftpy_flush_before_ack:
                try:
                    log.flush()
                    log.promise(synced_before_ack=config.kraftpy_flush_before_ack)
                except OSError:
                    log.release()
                    raise
            return log

    @property
    def promises_synced(self) -> bool:
        """Whether the directory promises that every record this replica acknowledged had been synced by then."""
        return self.metadata is not None and self.metadata.synced_before_ack

    def promise(self, *, synced_before_ack: bool) -> None:
        """Promise durably in the directory that acknowledged records are synced, or no longer. Blocks. Raises OSError.

        Make the promise once everything acknowledged is synced and `kraftpy.flush.before.ack` applies to whatever
        follows; withdraw it before that ceases to hold.
        """
        if self.metadata is not None and self.promises_synced != synced_before_ack:
            metadata = self.metadata._replace(synced_before_ack=synced_before_ack)
            layout.write_partition_metadata(self.directory, metadata)
            self.metadata = metadata

    # --- appending ---

    @property
    def demand(self) -> Demand | None:
        """The topic's demands on the records in a batch; None if only the header needs to be inspected."""
        if self._demand_config is not self.config:
            self._demand, self._demand_config = demand_of(self.config), self.config
        return self._demand

    def prepare(self, records: Buffer) -> Work[Prepared] | None:
        """Return the work to do on a producer's batch before it is appended; None if there is none.

        Pass its result to `append`. The work does not touch the log. Raises KafkaError as `append` does, either at once
        or while the work runs.
        """
        demand = self.demand
        if demand is None:
            return None
        return prepared(*checked(records, self.config, self.limits), demand, self.config, self.limits)

    def is_prepared(self, batch: Prepared | None) -> bool:
        """Whether `append` can take the batch as it is: the topic's settings may have changed since `prepare`."""
        demand = self.demand
        return demand is None or (batch is not None and batch.demand == demand)

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now: Millis,
        origin: Origin = Origin.CLIENT,
        batch: Prepared | None = None,
    ) -> AppendResult:
        """Append record batches; if `records` is writable, it is stamped in place.

        Clients and coordinators append one batch, which gets the next offsets and `leader_epoch`. A replica appends any
        number, unchanged, up to the first whose leader epoch is above `leader_epoch`; that one and all that follow are
        left out (KAFKA-18723). `batch` is the result of `prepare` for a client's batch; without it the batch is
        prepared right here. Raises KafkaError with the codes of `validate_batch`, MESSAGE_TOO_LARGE,
        RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP, FENCED_LEADER_EPOCH and the producer's errors
        (`ProducerStates.check`), and KAFKA_STORAGE_ERROR if the log is closed or has failed. Raises OSError if the disk
        fails.
        """
        if self.is_closed or self.is_failed or self.is_half_cut:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.directory.path} takes no more records")
        if origin is Origin.REPLICA:
            return self._append_copies(records, leader_epoch, now)
        if leader_epoch < self.epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} after {self.epochs.latest} was assigned"
            )
        if origin is Origin.CLIENT:
            header, data = self._of_client(records, batch)
        else:
            header, data = self._of_coordinator(records)
        config = self.config
        if len(data) > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {len(data)} bytes; segments hold {config.segment_bytes}"
            )
        append_time = log_append_time(config, now)
        if append_time is None:
            check_timestamps(header, config, now)
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = next(read_markers(header, data))
                self.producers.check_marker(header, marker)
            elif origin is Origin.COORDINATOR:
                self.producers.check_epoch(header)
            elif (duplicate := self.producers.check(header)) is not None:
                return self._result(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    NO_TIMESTAMP if append_time is None else duplicate.timestamp,
                    is_duplicate=True,
                )
        if data.readonly:
            data = memoryview(bytearray(data))
        base_offset = self.log_end_offset
        stamp(data, base_offset, leader_epoch, append_time)
        header = read_header(data)
        rolled = self._write(data, [(header, 0)], now)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if marker is not None:
            self.producers.ended(header, marker, now)
        elif header.producer_id >= 0:
            self.producers.appended(header, now)
        return self._result(
            base_offset, header.last_offset, NO_TIMESTAMP if append_time is None else append_time, rolled=rolled
        )

    def _of_client(self, records: Buffer, batch: Prepared | None) -> tuple[BatchHeader, memoryview]:
        """Return a producer's batch in its stored form; only `stamp` still has to fill in its fields."""
        if self.demand is None:
            return checked(records, self.config, self.limits)
        if batch is None or not self.is_prepared(batch):
            work = self.prepare(records)
            assert work is not None
            batch = finish(work)
        return batch.header, batch.batch

    def _of_coordinator(self, records: Buffer) -> tuple[BatchHeader, memoryview]:
        header, data = only_batch(records)
        if header.producer_id < 0:  # a coordinator's own batches have no sequence numbers
            validate_batch(header, data)
        elif not check_crc(data):
            raise CorruptBatch("the CRC does not match")
        if self.config.is_compacted and not header.is_control:
            finish(prepared(header, data, KEYS, self.config, self.limits))
        return header, data

    def _append_copies(self, records: Buffer, leader_epoch: int, now: Millis) -> AppendResult:
        """Append a leader's batches. If they do not continue this log, append nothing and raise CorruptBatch."""
        view = memoryview(records)
        self._reach_back(view, leader_epoch)
        batches, size = fitting_copies(
            view, self.log_end_offset, self.epochs.epoch_of(self.log_end_offset - 1), leader_epoch
        )
        if not batches:
            return self._result(self.log_end_offset, self.log_end_offset - 1, NO_TIMESTAMP)
        rolled = self._write(view[:size], batches, now)
        for header, start in batches:
            if header.partition_leader_epoch >= 0:
                self.epochs.assign(header.partition_leader_epoch, max(header.base_offset, self.log_start_offset))
            if header.producer_id < 0:
                continue
            if header.is_control:
                with suppress(CorruptBatch):  # as in a replay: a marker of an unknown kind ends no transaction
                    for marker in read_markers(header, view[start : start + header.size_bytes]):
                        self.producers.ended(header, marker, now)
            else:
                self.producers.appended(header, now)
        return self._result(batches[0][0].base_offset, batches[-1][0].last_offset, NO_TIMESTAMP, rolled=rolled)

    def _reach_back(self, records: memoryview, leader_epoch: int) -> None:
        """Let an empty log begin at the base offset of the first batch, if its log start lies inside that batch.

        DeleteRecords can move a leader's log start into the middle of a batch. Without this, a follower that starts
        over from there could never append its first batch.
        """
        if self.log_start_offset < self.log_end_offset or len(records) < HEADER_BYTES:
            return
        batches, _ = fitting_copies(records, 0, -1, leader_epoch)
        start = self.log_start_offset
        if batches and batches[0][0].base_offset < start <= batches[0][0].last_offset:
            self.truncate_fully_and_start_at(batches[0][0].base_offset)
            self.log_start_offset = start

    def _write(self, data: Buffer, batches: list[tuple[BatchHeader, int]], now: Millis) -> bool:
        """Write to the active segment, rolling it first if due; return whether it was rolled."""
        config = self.config
        self._last_write_at = now
        last = batches[-1][0]
        active = self._segments[-1]
        active.load_indexes()
        rolled = False
        if not active.size:
            self._durability.names_changed = True  # it may have no file yet
        elif not active.has_room(
            len(data),
            last.last_offset,
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
        ) or active.age_ms(now, batches[0][0].max_timestamp) > roll_ms(config) - self._jitter_ms(active):
            active = self.roll(now)
            rolled = True
        if config.preallocate and not active.size:
            active.preallocate(config.segment_bytes)
        try:
            active.append(data, batches, config.index_interval_bytes)
        except OSError:
            # The remains of the write were cut off, but not durably: the file must be synced again.
            self._lower_recovery_point(active.base_offset)
            raise
        self.log_end_offset = last.next_offset
        return rolled

    def _jitter_ms(self, segment: Segment) -> int:
        """Return up to `segment.jitter.ms`, so that partitions do not all roll at once; constant for each segment."""
        limit = self.config.segment_jitter_ms
        if limit <= 0:
            return 0
        return int(xxhash.xxh64_intdigest(f"{self.directory.path}/{segment.log.name}".encode()) % limit)

    def _result(
        self, base_offset: int, last_offset: int, append_time: int, *, is_duplicate: bool = False, rolled: bool = False
    ) -> AppendResult:
        return AppendResult(
            base_offset,
            last_offset,
            append_time,
            self.log_start_offset,
            self.log_end_offset,
            is_duplicate,
            rolled,
            self.log_end_offset - self.recovery_point >= self.config.flush_messages
            or (self.config.kraftpy_flush_before_ack and self.recovery_point <= last_offset),
        )

    def roll(self, now: Millis) -> Segment:
        """Seal the active segment and begin the next one. Do nothing if the active one is empty."""
        active = self._segments[-1]
        if not active.size:
            return active
        active.cut_torn_tail()
        if len(self._segments) == 1 and (self._durability.names_changed or self._durability.job is not None):
            self.directory.sync()  # if only the second file survived a crash, the log would seem to begin there
        following = Segment.create(self.directory, self.log_end_offset, self._files, created_at=now)
        active.seal()
        active.offsets = following.base_offset - active.base_offset
        self._keep_aborted(active.base_offset, following.base_offset)
        self._durability.snapshots[self.log_end_offset] = self.producers.encode([*self._bases, following.base_offset])
        self._durability.sealed.append(active)
        self._segments.append(following)
        self._bases.append(following.base_offset)
        self._durability.names_changed = True
        return following

    # --- reading ---

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult:
        """Read whole batches from one segment, starting with the batch that holds `offset`.

        At least one of them has records, if any follow. With `min_one_batch` the first batch may exceed `max_bytes`. No
        batch reaches beyond `end_offset` (exclusive: the high watermark or last stable offset; None for the log's end).
        Finding nothing to read is no error. Raises KafkaError OFFSET_OUT_OF_RANGE outside [log_start_offset,
        log_end_offset], and CorruptSegment if the batch that holds `offset` is damaged: whatever is returned is as it
        was appended.
        """
        read = self._read(_Asked(offset, max_bytes, self._limit(offset, end_offset), min_one_batch), _NEVER)
        assert isinstance(read, ReadResult)
        return read

    def read_or_slice(
        self, offset: int, max_bytes: int, slice_from: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult | LogSlice:
        """Do as `read`, but return a non-empty result of at least `slice_from` bytes as a slice, to be released."""
        limit = self._limit(offset, end_offset)
        if offset >= limit:  # the most frequent case: readers that have caught up
            return ReadResult(b"", offset)
        return self._read(_Asked(offset, max_bytes, limit, min_one_batch), max(1, slice_from))

    def read_slice(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> LogSlice | None:
        """Return the result of `read` as file, position and length; None if it is empty or has to be copied."""
        read = self.read_or_slice(offset, max_bytes, 1, end_offset=end_offset, min_one_batch=min_one_batch)
        return read if isinstance(read, LogSlice) else None

    def _read(self, asked: _Asked, slice_from: int) -> ReadResult | LogSlice:
        read, has_records = self._read_segment(asked, slice_from)
        if has_records or not self.config.is_compacted:
            return read
        # Compaction has emptied all of these batches. A client may take a response without records for one that its
        # size limit cut short, so return later batches that have records instead, if there are any.
        following = read
        while following.next_offset > asked.offset and not has_records:
            asked = asked._replace(offset=following.next_offset)
            following, has_records = self._read_segment(asked, slice_from)
        return following if has_records else read

    def _read_segment(self, asked: _Asked, slice_from: int) -> tuple[ReadResult | LogSlice, bool]:
        """Read from one segment; also return whether the result has any records."""
        try:
            found = self._locate(asked)
        except CorruptSegment as error:
            return self._read_around(asked, is_index_suspect=not isinstance(error, _Unsure))
        if found is None:
            return ReadResult(b"", asked.offset), False
        segment, position, length, expected, next_offset = found
        if length >= slice_from and not segment.log.may_pin:
            slice_from = _NEVER
        file, stop, bound, data = segment.log.get(), position + length, min(next_offset, asked.limit), b""
        if length < slice_from:
            data = file.read(position, length)
            checked = check(data, expected, bound, self.epochs) if self.checks_reads else None
        else:
            checked = check_file(file, position, length, expected, bound, self.epochs) if self.checks_reads else None
        if checked is None:
            segment.expect(next_offset, stop)
            is_with_records = not self.config.is_compacted or has_records(data or file.read(position, length))
        elif not checked.is_whole:
            return self._read_around(asked, is_index_suspect=True)
        else:
            next_offset = self._passed(segment, stop, checked.next_offset)
            is_with_records = checked.has_records
        if length < slice_from:
            return ReadResult(data, next_offset), is_with_records
        return LogSlice(segment.log, position, length, next_offset), is_with_records

    def _passed(self, segment: Segment, position: int, next_offset: int) -> int:
        """Note that a reader was given a segment's batches up to `position`; return the offset it will read next."""
        segment.expect(next_offset, position)
        if position < segment.size:
            return next_offset
        return self._end_offset_of(bisect_right(self._bases, segment.base_offset) - 1)

    def _limit(self, offset: int, end_offset: int | None) -> int:
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {log_end_offset}",
            )
        return log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset

    def _locate(self, asked: _Asked) -> tuple[Segment, int, int, int, int] | None:
        """Return segment, position, length, the offset at which the first batch must begin, and the next read's offset.

        The result rests on headers and index entries alone, so the caller must verify it. Raises CorruptSegment if they
        contradict each other or are inconclusive.
        """
        offset, max_bytes, limit, min_one_batch = asked
        if offset >= limit:
            return None
        found: tuple[int, int, int] | None = None
        number = bisect_right(self._bases, offset) - 1
        for number in range(number, len(self._segments)):  # noqa: B020 - on to the next where compaction left none
            segment = self._segments[number]
            if segment.size and (found := segment.find_start(offset)) is not None:
                break
        else:
            return None
        assert found is not None
        start, expected, base_offset = found
        segment_end_offset = self._end_offset_of(number)
        if limit >= segment_end_offset:
            stop, next_offset = segment.size, segment_end_offset
        else:
            last = segment.find(limit)
            if last is None:  # no batch reaches the limit: compaction removed those that did
                stop, next_offset = segment.size, segment_end_offset
            else:
                stop, next_offset = last.position, last.base_offset
        if stop - start > max_bytes:
            cut, cut_offset = segment.cut(start, start + max_bytes)
            if cut == start:
                if not min_one_batch:
                    return None
                cut = start + segment.batch_at(start).size
                cut_offset = segment.batch_at(cut).base_offset if cut < segment.size else segment_end_offset
            stop, next_offset = cut, min(cut_offset, segment_end_offset)
        if stop <= start or base_offset > offset:
            # The batch reaches beyond the limit or lies behind a gap, or a damaged header makes it seem so.
            raise _Unsure(segment.log.name, start, f"no batch of offset {offset}")
        return segment, start, stop - start, expected, next_offset

    def _end_offset_of(self, number: int) -> int:
        return self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset

    def _read_around(self, asked: _Asked, *, is_index_suspect: bool) -> tuple[ReadResult, bool]:
        """Do as `_read_segment`, the slow and sure way: check every batch, starting from a verified index entry."""
        offset, max_bytes, limit, min_one_batch = asked
        batches: list[IntactBatch] = []
        for number in range(max(0, bisect_right(self._bases, offset) - 1), len(self._segments)):
            segment, end_offset = self._segments[number], self._end_offset_of(number)
            taken, is_over, passed_bytes, is_damaged = 0, False, 0, False
            for found in segment.look_around(offset, end_offset, self.epochs):
                if isinstance(found, CorruptSegment):
                    is_damaged = True
                    if batches:
                        break
                    assert found.end_offset is not None
                    if found.end_offset > offset:
                        raise found
                elif found.last_offset >= offset:
                    is_over = found.last_offset >= limit or (taken + found.size > max_bytes and bool(batches))
                    if is_over or (found.size > max_bytes and not min_one_batch):
                        is_over = True
                        break
                    batches.append(found)
                    taken += found.size
                else:
                    passed_bytes += found.size
            if segment.offset_index is None and ((is_index_suspect and not is_damaged) or passed_bytes > FAR_BYTES):
                self._remake_indexes(segment, end_offset)
            if batches or is_over:
                break
        if not batches:
            return ReadResult(b"", offset), False
        next_offset = batches[-1].last_offset + 1
        segment.expect(next_offset, batches[-1].position + batches[-1].size)
        data = b"".join(batch.data for batch in batches)
        return ReadResult(data, next_offset), has_records(data)

    def _remake_indexes(self, segment: Segment, end_offset: int) -> bool:
        """Rebuild a sealed segment's indexes, which seem damaged; the next flush stores them. Happens at most once."""
        if not segment.remake_indexes(end_offset, self.epochs, self.config.index_interval_bytes):
            return False
        if segment is not self._segments[-1]:
            self._durability.sealed.append(segment)
        self.remade_indexes += 1
        return True

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment whose range includes an offset; None if it is before the first segment."""
        number = bisect_right(self._bases, offset) - 1
        return None if number < 0 else self._segments[number]

    def leader_epoch_of(self, offset: int) -> int:
        """Return the leader epoch in which a record was written, or -1 if unknown."""
        return self.epochs.epoch_of(offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset (exclusive) at which a reader of committed records must stop."""
        return self.producers.last_stable_offset(high_watermark)

    # --- by time ---

    def search_timestamp(self, timestamp: int, *, end_offset: int | None = None) -> Work[TimestampAndOffset | None]:
        """Find, in steps, the first record at or after `timestamp` (ms) and below `end_offset`; None if none exists.

        The log may change, or even be closed, between two steps: the caller has to handle that. Raises CorruptBatch if
        records cannot be read, and CorruptSegment if a batch that may hold the record is damaged.
        """
        log_end_offset = self.log_end_offset
        limit = log_end_offset if end_offset is None else min(end_offset, log_end_offset)
        offset = self.log_start_offset
        while True:
            start_offset = max(offset, self.log_start_offset)
            found = self._by_time(partial(by_time.first_batch, self, timestamp, start_offset, limit))
            if found is None:
                return None
            record = yield from by_time.first_record(found, timestamp, start_offset, self.limits.max_expanded_bytes)
            if record is not None:
                return record if record.offset < limit else None
            offset = found.header.next_offset
            yield None

    def search_max_timestamp(self) -> Work[TimestampAndOffset | None]:
        """Find, in steps, the first record with the largest timestamp (KIP-734); None if no record has a timestamp.

        The caveats of `search_timestamp` apply.
        """
        start_offset, max_bytes = self.log_start_offset, self.limits.max_expanded_bytes
        found = self._by_time(partial(by_time.latest_batch, self, start_offset))
        if found is None:
            return None
        record = None
        if found.header.records_count:
            record = yield from by_time.latest_record(found, start_offset, max_bytes)
        if record is not None:
            return record
        # The batch that had the largest timestamp is gone or empty: look at the headers of all others.
        looked = by_time.Looked(start_offset)
        while looked.offset >= 0:
            looked = by_time.look_on(self, looked, start_offset)
            yield None
        if looked.max_timestamp < 0:
            return None
        found = self._by_time(partial(by_time.batch_of, self, looked.last_offset))
        if found is None:
            return None
        return (yield from by_time.latest_record(found, start_offset, max_bytes))

    def _by_time(self, search: Callable[[], by_time.FoundBatch | None]) -> by_time.FoundBatch | None:
        """Run a search; if a segment seems damaged and its index can be rebuilt, rebuild it and search again."""
        for _ in self._segments:
            try:
                return search()
            except CorruptSegment as error:
                number = next(number for number, each in enumerate(self._segments) if each.log.name == error.name)
                if not self._remake_indexes(self._segments[number], self._end_offset_of(number)):
                    raise
        return search()

    # --- cutting ---

    def truncate_to(self, offset: int) -> bool:
        """Drop, durably, the batch that holds `offset` and everything after it. Blocks for a sync; used in failovers.

        The truncation must be durable because later appends could otherwise reach the disk before it, and a crash could
        leave records of two histories side by side. Returns True if the recovery point or the log start fell: the owner
        must then write its checkpoints before anything is appended. An offset at or beyond the end still drops leader
        epochs that began there (of a leader that wrote nothing). An OSError leaves the log half cut (`is_half_cut`): it
        takes no records until this call is repeated, or `truncate_fully_and_start_at` called, successfully.
        """
        if offset >= self.log_end_offset and not self.is_half_cut:
            self.epochs.truncate_from_end(offset)
            return False
        self._begin_to_cut()
        if not self._bases or offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        keep = bisect_right(self._bases, offset)
        self._cut_off(keep)  # durably, before the cut, or a crash could leave a hole
        end_offset = self._segments[-1].truncate(offset)
        self._cut_at(end_offset)
        self.epochs.truncate_from_end(end_offset)
        self._reload_producers()
        self.directory.sync()
        has_fallen = end_offset < self.recovery_point or end_offset < self.log_start_offset
        self._lower_recovery_point(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.is_half_cut = False
        return has_fallen

    def _begin_to_cut(self) -> None:
        if self.is_half_cut:
            self.directory.sync()  # for the segments that an earlier attempt removed
        self.is_half_cut = True

    def _lower_recovery_point(self, offset: int) -> None:
        self._durability.lower(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and continue at `offset`. A follower outside its leader's range does this. Blocks.

        The owner must write its checkpoints before anything is appended.
        """
        self._begin_to_cut()
        for stored in snapshot_offsets(self.directory):  # before the records: a crash must not leave snapshots alone
            self.directory.delete(layout.file_name(stored, layout.SNAPSHOT))
        self._cut_off(0)
        first = Segment.create(self.directory, offset, self._files, created_at=self._last_write_at)
        self.directory.sync()
        self._segments, self._bases = [first], [offset]
        self._cut_at(offset)
        self._durability.cut(-1)  # whatever a running job still writes no longer belongs to this log
        self.log_start_offset = self._durability.recovery_point = offset
        self.epochs.clear()
        self.producers = ProducerStates()
        self._durability.snapshots.clear()
        self._durability.transactions.clear()
        self.is_half_cut = False

    def _cut_at(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self._stored_snapshot = -1
        self._durability.cut(self._bases[-1])

    def _reload_producers(self) -> None:
        """Rebuild the producer state as of the log's end after a truncation, from the newest snapshot and the log."""
        end_offset, pending = self.log_end_offset, self._durability.snapshots
        for offset in [offset for offset in pending if offset > end_offset]:
            del pending[offset]
        for offset in snapshot_offsets(self.directory):
            if offset > end_offset:
                self.directory.delete(layout.file_name(offset, layout.SNAPSHOT))
        doubtful = self._durability.doubtful_snapshots()
        states, from_offset = newest_snapshot(self.directory, end_offset, self._bases[0], doubtful)
        newest = max(pending, default=-1)
        if newest > from_offset:
            (states, _), from_offset = ProducerStates.decode(pending[newest]), newest
        replay(states, self._segments, from_offset, self._last_write_at)
        states.aborted = self.producers.aborted  # all of them are known already
        states.aborted.truncate(end_offset)
        self.producers = states

    def _cut_off(self, keep: int) -> None:
        """Remove all but the first `keep` segments, newest first, each durably before the next, to leave no hole."""
        for number in range(len(self._segments) - 1, keep - 1, -1):
            self._trash += self._remove(range(number, number + 1))
            self.directory.sync()

    def _remove(self, numbers: range) -> list[str]:
        """Remove segments (numbers ascending or descending) and rename their files; return the files' new names."""
        gone: list[str] = []
        for number in numbers:
            segment = self._segments[number]
            segment.close()
            for name in segment.names:
                if self.directory.exists(name):
                    self.directory.rename(name, name + layout.DELETED)
                    gone.append(name + layout.DELETED)
        removed = [self._segments[number] for number in numbers]
        self._segments = [segment for segment in self._segments if segment not in removed]
        self._bases = [segment.base_offset for segment in self._segments]
        self._durability.removed(removed)
        return gone

    # --- flushing ---

    @property
    def recovery_point(self) -> int:
        """The offset before which everything is durable; the log directory's owner checkpoints it."""
        return self._durability.recovery_point

    @property
    def is_failed(self) -> bool:
        """Whether a flush failed: the log then takes no more records until it has been recovered."""
        return self._durability.is_failed

    def begin_flush(self) -> FlushJob | None:
        """Return the job that makes all records up to now durable; None if all are, or if another job is running.

        Quick. Run the job in a thread, then call `finish_flush`. Raises OSError if an earlier flush failed.
        """
        return self._durability.begin(self._segments, self._bases, self.log_end_offset, self.epochs)

    def finish_flush(self, job: FlushJob) -> None:
        """Take over the results of a flush job whose thread has ended, successfully or not. Quick."""
        self._durability.finish(job)

    def flush(self) -> None:
        """Make everything up to now durable. Blocks; meant for threads that own the log, and for tests."""
        while (job := self.begin_flush()) is not None:
            try:
                job.run()
            finally:
                self.finish_flush(job)
            if not job.is_partial:
                return

    def close(self) -> None:
        """Make everything durable, with a producer snapshot and all indexes, and close the files. Blocks.

        The log can then be opened as clean. No flush may be running; a second call does nothing. Raises OSError if an
        earlier flush failed: the stop is then not clean.
        """
        if self.is_closed:
            return
        if self._durability.job is not None:
            raise RuntimeError("a flush is under way")
        is_replayed_anyway = self._segments[-1].is_short and not self._segments[-1].base_offset
        if self._stored_snapshot != self.log_end_offset:
            self._keep_aborted(self._bases[-1], self.log_end_offset)
            if not is_replayed_anyway:
                self._durability.snapshots[self.log_end_offset] = self.producers.encode(self._bases)
        try:
            self._durability.close(self._segments, self._bases, self.log_end_offset, self.epochs)
        finally:
            self.release()

    def move_to(self, files: FileCache) -> None:
        """Switch to another file cache: a log opened in a thread, with its own cache, joins the others on the loop."""
        self._files = files
        for segment in self._segments:
            segment.move_to(files)

    def take_over(self, other: PartitionLog) -> None:
        """Adopt the producers and leader epochs of `other`, of which this log is a complete copy.

        The batches alone would not show producers and epochs whose records are gone.
        """
        if self.log_end_offset != other.log_end_offset:
            raise ValueError(f"a copy that ends at {self.log_end_offset}, not at {other.log_end_offset}")
        self.producers = other.producers
        self.epochs = other.epochs
        self._durability.epochs_replaced()
        for base_offset, end_offset in pairwise(self._bases):
            self._keep_aborted(base_offset, end_offset)
        self._durability.snapshots[self.log_end_offset] = self.producers.encode(self._bases)
        self._stored_snapshot = self.log_end_offset

    def release(self) -> None:
        """Close the files without writing anything, because the log is deleted or its disk has failed."""
        self.is_closed = True
        for segment in self._segments:
            segment.close()

    # --- keeping ---

    def assign_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the log's end. A new leader calls this before it serves any request. Quick."""
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """Return the answer to OffsetForLeaderEpoch (`LeaderEpochs.end_offset_for`)."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def advance_log_start(self, offset: int) -> bool:
        """Hide the records before `offset` (DeleteRecords, or the leader's log start); return whether the start moved.

        It survives a restart once the owner has written its log start checkpoint. Raises KafkaError
        OFFSET_OUT_OF_RANGE if `offset` is beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is beyond the log's end {self.log_end_offset}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def advance_log_start_by_retention(self, now: Millis, high_watermark: int) -> bool:
        """Move the log's start as retention demands; return whether it moved.

        `remove_before_log_start` acts on it once the owner has written its checkpoint.
        """
        going = segments_to_delete(
            self._ages(),
            self.config,
            log_bytes=lambda: self.size_bytes,
            now=now,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )
        return going > 0 and self.advance_log_start([*self._bases, self.log_end_offset][going])

    def remove_before_log_start(self, now: Millis) -> list[str]:
        """Remove the segments that lie wholly before the log's start, up to the start that is checkpointed.

        A power loss may undo the removal of some segments but not of others; that leaves a hole unless all of them are
        before the checkpointed start. Returns the new names of the renamed files, including those of truncations since
        the last call. Delete them with `delete_files` after `file.delete.delay.ms`, so as not to disturb reads in
        progress.
        """
        trash, self._trash = self._trash, []
        if self.is_swapping:
            return trash
        start = min(self.log_start_offset, self.written_log_start)
        going = bisect_right(self._bases, start) - 1
        if start == self.log_end_offset and self._segments[-1].size:
            try:
                self.roll(now)
            except OSError:
                self._trash = trash
                raise
            going = len(self._segments) - 1
        if going <= 0:
            return trash
        snapshots = [layout.file_name(base, layout.SNAPSHOT) for base in self._bases[:going]]
        gone = trash + self._remove(range(going))
        self.producers.aborted.forget_before(self._bases[0])
        for name in snapshots:
            if self.directory.exists(name):
                self.directory.rename(name, name + layout.DELETED)
                gone.append(name + layout.DELETED)
        return gone

    def delete_old_segments(self, now: Millis, high_watermark: int) -> list[str]:
        """Apply retention and remove segments in one call, for logs whose start is not checkpointed."""
        self.advance_log_start_by_retention(now, high_watermark)
        self.written_log_start = self.log_start_offset
        return self.remove_before_log_start(now)

    def has_snapshot_to_write(self, end_offset: int) -> bool:
        """Whether a producer snapshot before an offset is still unwritten or being written."""
        return any(offset < end_offset for offset in self._durability.snapshots)

    def markers_removed(self, offsets: Collection[int]) -> None:
        """Forget the aborted transactions whose markers were at these offsets and have been removed."""
        if offsets:
            self.producers.aborted.forget(offsets)
            self._stored_snapshot = -1

    def replace(self, old: Sequence[Segment], new: Segment) -> list[str]:
        """Replace adjacent sealed segments with one that is durable and still has its `.swap` name.

        This is the last step of compaction; the caller then syncs the directory and calls `replaced`. Returns the names
        of files to delete later.
        """
        number = self._segments.index(old[0])
        new.log.name += layout.SWAP
        gone = self._remove(range(number, number + len(old)))
        self._segments.insert(number, new)
        self._bases.insert(number, new.base_offset)
        self._durability.sealed.append(new)
        self._keep_aborted(new.base_offset, self._end_offset_of(number))
        return gone

    def replaced(self, new: Segment) -> None:
        """Give the new segment its final name, once the old ones are durably gone: both must not exist at once."""
        swap_name = new.log.name
        new.log.name = swap_name.removesuffix(layout.SWAP)
        self.directory.rename(swap_name, new.log.name)
        self._durability.names_changed = True

    def _keep_aborted(self, base_offset: int, end_offset: int) -> None:
        """Have the next flush write the aborted transactions of a segment, if it has any."""
        data = self.producers.aborted.encode(base_offset, end_offset)
        if data:
            self._durability.transactions[base_offset] = data

    def _ages(self) -> Iterator[SegmentAge]:
        """Yield the age of each segment in order, inspecting each one lazily."""
        for number, segment in enumerate(self._segments):
            is_last = number == len(self._segments) - 1
            if is_last and not segment.size:
                return
            timestamp = segment.max_timestamp()[0]
            yield SegmentAge(
                self.log_end_offset if is_last else self._bases[number + 1],
                segment.size,
                timestamp if timestamp >= 0 else segment.created_at,
            )

    def forget_producers(self, until: Millis) -> list[int]:
        """Forget producers that have written nothing since `until` and have no open transaction; return their ids.

        If such a producer continues, it may do so with any sequence number, like one that expired.
        """
        return self.producers.expire(until, 0)

    def expire_producers(self, now: Millis) -> list[int]:
        """Forget producers that were silent for too long; return their ids."""
        return self.producers.expire(now, self._expiration_ms)

    @property
    def is_start_unwritten(self) -> bool:
        """Whether segments cannot be removed until the owner has written its checkpoint."""
        return self.written_log_start < self.log_start_offset and self._segments[0].base_offset < self.log_start_offset

    @property
    def size_bytes(self) -> int:
        """The total size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def files(self) -> FileCache:
        """The cache that opens the files of this log's segments."""
        return self._files

    @property
    def segments(self) -> list[Segment]:
        """The segments in order, as a copy for inspection."""
        return list(self._segments)


def delete_files(directory: Directory, names: list[str]) -> None:
    """Delete files that were removed from a log. Blocks."""
    for name in names:
        directory.delete(name)


def has_records(batches: bytes) -> bool:
    """Return whether any of these whole batches has a record."""
    position = 0
    while position < len(batches):
        header = read_header(batches, position)
        if header.records_count:
            return True
        position += header.size_bytes
    return False
