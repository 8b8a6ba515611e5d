"""The log of one partition: ordered segments, what may be appended to them, and how they are read.

Appending checks the batch header and the CRC, stamps offset and leader epoch in place and writes once; it looks at
records only for the keys of a compacted topic, or to change the codec if the topic has its own; that is prepared
before (`prepare`), because it may take long. Reading finds a position through an index, walks at most one index
interval of headers, and reads whole batches in one go. Neither depends on how long the log is.

Flushing has three parts, so that only one of them needs a thread: `begin_flush` (on the loop, quick) collects what is
not synced and opens its own handles; `FlushJob.run` (in a thread, blocking) syncs segments, then writes indexes,
snapshots and epochs, then syncs the directory; `finish_flush` (on the loop, quick) moves the recovery point. This is
safe while appends go on because the thread shares nothing with the loop but the disk: its handles are its own, a sealed
segment's entries do not change, and it promises only offsets below the end the log had when it began. A truncation
meanwhile lowers that promise.

Invariants: `log_start_offset <= log_end_offset`; `recovery_point <= log_end_offset`; a segment begins where the one
before ends; when an append raises, the log is as it was.

Everything but `open`, `close`, `flush` and the `run` of jobs is for the event loop, one thread, and does not block but
for the page cache. `high_watermark` belongs to the replica, which passes it where it matters.

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
    """A read: see `PartitionLog.read`. `limit` is where it must end."""

    offset: int
    max_bytes: int
    limit: int
    min_one_batch: bool


class _Unsure(CorruptSegment):
    """Headers alone do not tell what there is to read: most likely nothing, or what lies behind a gap."""


class PartitionLog:
    """One partition's log. Made by `open`."""

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
        self._demand_is_of = config
        """May be replaced at any time when the topic's settings change."""
        self.report: RecoveryReport = loaded.report
        self.epochs: LeaderEpochs = loaded.epochs
        """To be read; `assign_epoch` and `truncate_to` change it."""
        self.producers: ProducerStates = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.written_log_start = loaded.log_start_offset
        """The log start that the owner's checkpoint says, durably; the owner sets it."""
        self.metadata: layout.PartitionMetadata | None = None
        """What `partition.metadata` says; None for a log whose topic has no id."""
        self.limits = BatchLimits()
        """Bounds on a producer's batch; the owner sets them."""
        self.checks_reads = True
        """Whether what is read is checked (`verifying`); else a reader may be given damaged bytes."""
        self.remade_indexes = 0
        """Indexes of sealed segments that were found damaged and made anew."""
        self.is_closed = False
        self.is_half_cut = False
        """A truncation failed in between: nothing is appended until it has gone through."""
        self.is_compacting = False
        self.is_swapping = False
        """Compaction is about to replace segments: until then none may go (`compaction.stage`)."""
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
        self._last_write_at = now  # or when it was opened: the time of what happens without being told the time
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
        """Open a partition's directory, or make its first segment. Blocks: run it in a thread.

        `clean`, `recovery_point` and `log_start_offset` come from the log directory's marker and checkpoints
        (`layout.take_clean_shutdown`, `layout.read_offsets`). `files` may be used by this thread alone: a broker opens
        each log with one of its own, and moves it (`move_to`) to the one that all its logs share. `topic_id` is written
        where none is yet. Where `kraftpy.flush.before.ack` is another than before, all is synced first. Raises OSError,
        and layout.CorruptFile for a damaged or foreign `partition.metadata`.
        """
        files = FileCache() if files is None else files
        with files.closed_on_failure():  # what cannot be opened is tried again and again
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
        """Whether its directory says that whatever this replica acknowledged was synced before."""
        return self.metadata is not None and self.metadata.synced_before_ack

    def promise(self, *, synced_before_ack: bool) -> None:
        """Say so in its directory, durably, or no longer. Blocks. Raises OSError.

        To be said once everything acknowledged is synced, and `kraftpy.flush.before.ack` holds for what follows; to be
        taken back before that no longer holds.
        """
        if self.metadata is not None and self.promises_synced != synced_before_ack:
            metadata = self.metadata._replace(synced_before_ack=synced_before_ack)
            layout.write_partition_metadata(self.directory, metadata)
            self.metadata = metadata

    # --- appending ---

    @property
    def demand(self) -> Demand | None:
        """The topic's demands on the records in a batch; None if nobody looks below the header."""
        if self._demand_is_of is not self.config:
            self._demand, self._demand_is_of = demand_of(self.config), self.config
        return self._demand

    def prepare(self, records: Buffer) -> Work[Prepared] | None:
        """Return the work to do on a producer's batch before it is appended; None if there is none.

        Pass its result to `append`. It does not touch the log. Raises KafkaError as `append` does, now or later.
        """
        demand = self.demand
        if demand is None:
            return None
        return prepared(*checked(records, self.config, self.limits), demand, self.config, self.limits)

    def is_prepared(self, batch: Prepared | None) -> bool:
        """Whether `append` may have it as it is: the topic's settings may have changed since."""
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
        """Append record batches; `records` itself is stamped where it is writable.

        One batch, which gets the next offsets and `leader_epoch`, unless the origin is a replica: then any number, kept
        as they are, those of a leader epoch above `leader_epoch` and all after them left out (KAFKA-18723). `batch` is
        what `prepare` made of a client's, which is else prepared here and now. Raises KafkaError: what `validate_batch`
        names, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP, FENCED_LEADER_EPOCH, and the
        producer's errors (`ProducerStates.check`); KAFKA_STORAGE_ERROR for a log that is closed or failed. Raises
        OSError as the disk does.
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
        """A producer's batch as it is to be stored; only `stamp` still has to fill in its fields."""
        if self.demand is None:
            return checked(records, self.config, self.limits)
        if batch is None or not self.is_prepared(batch):
            work = self.prepare(records)
            assert work is not None
            batch = finish(work)
        return batch.header, batch.batch

    def _of_coordinator(self, records: Buffer) -> tuple[BatchHeader, memoryview]:
        header, data = only_batch(records)
        if header.producer_id < 0:  # a coordinator's own have no sequence numbers
            validate_batch(header, data)
        elif not check_crc(data):
            raise CorruptBatch("the CRC does not match")
        if self.config.is_compacted and not header.is_control:
            finish(prepared(header, data, KEYS, self.config, self.limits))
        return header, data

    def _append_copies(self, records: Buffer, leader_epoch: int, now: Millis) -> AppendResult:
        """Append what a leader sent. CorruptBatch where it does not fit behind this log; nothing is appended then."""
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
                with suppress(CorruptBatch):  # as when it is replayed: of a kind we do not know, it ends nothing
                    for marker in read_markers(header, view[start : start + header.size_bytes]):
                        self.producers.ended(header, marker, now)
            else:
                self.producers.appended(header, now)
        return self._result(batches[0][0].base_offset, batches[-1][0].last_offset, NO_TIMESTAMP, rolled=rolled)

    def _reach_back(self, records: memoryview, leader_epoch: int) -> None:
        """Let an empty log begin before its start, where the first batch does: a leader's log start may lie within one.

        After DeleteRecords, or a follower that starts over there could never begin.
        """
        if self.log_start_offset < self.log_end_offset or len(records) < HEADER_BYTES:
            return
        batches, _ = fitting_copies(records, 0, -1, leader_epoch)
        start = self.log_start_offset
        if batches and batches[0][0].base_offset < start <= batches[0][0].last_offset:
            self.truncate_fully_and_start_at(batches[0][0].base_offset)
            self.log_start_offset = start

    def _write(self, data: Buffer, batches: list[tuple[BatchHeader, int]], now: Millis) -> bool:
        """Write to the active segment, rolling it first where it is due; whether it was."""
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
            # What the write left is cut off but not durably so: the file is to be synced again.
            self._lower_recovery_point(active.base_offset)
            raise
        self.log_end_offset = last.next_offset
        return rolled

    def _jitter_ms(self, segment: Segment) -> int:
        """Up to `segment.jitter.ms`, so that partitions do not all roll at once; always the same for a segment."""
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
        """Seal the active segment and begin the next one. Does nothing while the active one is empty."""
        active = self._segments[-1]
        if not active.size:
            return active
        active.cut_torn_tail()
        if len(self._segments) == 1 and (self._durability.names_changed or self._durability.job is not None):
            self.directory.sync()  # a log whose first file is lost, and its second is not, would seem to begin there
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
        """Whole batches from the one that holds `offset` on, out of one segment, with records in one of them at least.

        `max_bytes` may be exceeded by the first batch where `min_one_batch`. No batch reaches beyond `end_offset`
        (exclusive: the high watermark or last stable offset; None for the log's end). Nothing there to read is no
        error. Raises KafkaError OFFSET_OUT_OF_RANGE outside of [log_start_offset, log_end_offset], CorruptSegment where
        the batch that holds `offset` is damaged: everything returned is as it was appended.
        """
        read = self._read(_Asked(offset, max_bytes, self._limit(offset, end_offset), min_one_batch), _NEVER)
        assert isinstance(read, ReadResult)
        return read

    def read_or_slice(
        self, offset: int, max_bytes: int, slice_from: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult | LogSlice:
        """As `read`; where that is at least `slice_from` bytes, which are not 0, as a slice that must be released."""
        limit = self._limit(offset, end_offset)
        if offset >= limit:  # most of what is asked: by readers that have all there is
            return ReadResult(b"", offset)
        return self._read(_Asked(offset, max_bytes, limit, min_one_batch), max(1, slice_from))

    def read_slice(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> LogSlice | None:
        """What `read` would return as file, position and length; None where there is nothing, or it must be copied."""
        read = self.read_or_slice(offset, max_bytes, 1, end_offset=end_offset, min_one_batch=min_one_batch)
        return read if isinstance(read, LogSlice) else None

    def _read(self, asked: _Asked, slice_from: int) -> ReadResult | LogSlice:
        read, has_records = self._read_segment(asked, slice_from)
        if has_records or not self.config.is_compacted:
            return read
        # Batches that compaction emptied, and nothing else: a client may take an answer without records for one that
        # its size limit cut short, so what follows is read instead, if anything does.
        following = read
        while following.next_offset > asked.offset and not has_records:
            asked = asked._replace(offset=following.next_offset)
            following, has_records = self._read_segment(asked, slice_from)
        return following if has_records else read

    def _read_segment(self, asked: _Asked, slice_from: int) -> tuple[ReadResult | LogSlice, bool]:
        """What there is, out of one segment, and whether there are records in it."""
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
        """A reader was given a segment's batches up to there: where it will go on."""
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
        """Segment, position and length, the offset at which the first batch must begin, and where the next one begins.

        Found by headers and index entries alone, so to be checked. CorruptSegment where they contradict each other, or
        do not tell.
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
            if last is None:  # nothing there reaches the limit: compaction took what did
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
            # The batch reaches beyond the limit, or lies behind a gap; or a damaged header makes it seem so.
            raise _Unsure(segment.log.name, start, f"no batch of offset {offset}")
        return segment, start, stop - start, expected, next_offset

    def _end_offset_of(self, number: int) -> int:
        return self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset

    def _read_around(self, asked: _Asked, *, is_index_suspect: bool) -> tuple[ReadResult, bool]:
        """As `_read_segment`, the slow and sure way: every batch from an index entry on that is true is looked at."""
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
        """A sealed segment's index files seem damaged: make them anew, to be stored by the next flush. Once."""
        if not segment.remake_indexes(end_offset, self.epochs, self.config.index_interval_bytes):
            return False
        if segment is not self._segments[-1]:
            self._durability.sealed.append(segment)
        self.remade_indexes += 1
        return True

    def segment_of(self, offset: int) -> Segment | None:
        """The segment an offset falls to, None before the first."""
        number = bisect_right(self._bases, offset) - 1
        return None if number < 0 else self._segments[number]

    def leader_epoch_of(self, offset: int) -> int:
        """The leader epoch in which a record was written, -1 where it is not known."""
        return self.epochs.epoch_of(offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where a reader of committed records must stop."""
        return self.producers.last_stable_offset(high_watermark)

    # --- by time ---

    def search_timestamp(self, timestamp: int, *, end_offset: int | None = None) -> Work[TimestampAndOffset | None]:
        """The work that finds the first record at or after `timestamp` (ms) and below `end_offset`; None where there is
        none.

        Between two steps the log may change, and be closed: the caller sees to it. Raises CorruptBatch where records
        cannot be read, CorruptSegment where a batch is damaged that it may be in.
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
        """The work that finds the first record that has the largest timestamp of all (KIP-734); None where no record
        has one. As `search_timestamp`."""
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
        """Search; once more where an index of what seems to be damaged can be made anew."""
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
        """Drop everything from the batch that holds `offset` on, durably. Blocks for a sync; it happens at failovers.

        Durably, because what is appended next may reach the disk before the cut does, and a crash could leave records
        of two histories side by side. True where the recovery point or the log start fell: the owner must write its
        checkpoints before anything is appended. An offset at or beyond the end still drops leader epochs that began
        there (of a leader that wrote nothing). After an OSError the log is half cut (`is_half_cut`): it takes nothing
        until the same call, or `truncate_fully_and_start_at`, has gone through.
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
            self.directory.sync()  # what an earlier try took out
        self.is_half_cut = True

    def _lower_recovery_point(self, offset: int) -> None:
        self._durability.lower(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record is `offset`. What a follower does that is out of its leader's range. Blocks.

        The owner must write its checkpoints before anything is appended.
        """
        self._begin_to_cut()
        for stored in snapshot_offsets(self.directory):  # before the records, or they could be believed without them
            self.directory.delete(layout.file_name(stored, layout.SNAPSHOT))
        self._cut_off(0)
        first = Segment.create(self.directory, offset, self._files, created_at=self._last_write_at)
        self.directory.sync()
        self._segments, self._bases = [first], [offset]
        self._cut_at(offset)
        self._durability.cut(-1)  # nothing that a job under way writes is of this log any more
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
        """Producer state as of the log's end, after a truncation: from the newest snapshot left, and the log."""
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
        """Take all segments out but so many, the newest first, each durably before the next: no hole can be left."""
        for number in range(len(self._segments) - 1, keep - 1, -1):
            self._trash += self._remove(range(number, number + 1))
            self.directory.sync()

    def _remove(self, numbers: range) -> list[str]:
        """Take segments, by descending or ascending number, out of the log: their files are renamed; the new names."""
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
        """Everything before this offset is durable: to be checkpointed by the log directory's owner."""
        return self._durability.recovery_point

    @property
    def is_failed(self) -> bool:
        """Whether a flush failed: nothing more is accepted until the log was recovered."""
        return self._durability.is_failed

    def begin_flush(self) -> FlushJob | None:
        """What must be synced for all records up to now to be durable; None where nothing must, or a job is under way.

        Quick. Run the job in a thread, then call `finish_flush`. OSError where an earlier flush failed.
        """
        return self._durability.begin(self._segments, self._bases, self.log_end_offset, self.epochs)

    def finish_flush(self, job: FlushJob) -> None:
        """The job's thread is done, in whatever way: take over what it achieved. Quick."""
        self._durability.finish(job)

    def flush(self) -> None:
        """Make everything up to now durable. Blocks: for threads that own the log, and tests."""
        while (job := self.begin_flush()) is not None:
            try:
                job.run()
            finally:
                self.finish_flush(job)
            if not job.is_partial:
                return

    def close(self) -> None:
        """Make everything durable, with a producer snapshot and all indexes, and close the files. Blocks.

        After this the log can be opened as clean. No flush may be under way; a second call does nothing. OSError where
        an earlier flush failed: then the stop was not clean.
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
        """Use that cache from now on: a log that was opened in a thread, with a cache of its own, joins the others on
        the loop."""
        self._files = files
        for segment in self._segments:
            segment.move_to(files)

    def take_over(self, other: PartitionLog) -> None:
        """Know of producers and leader epochs what `other` knows: this is a copy of it, with all that it has.

        Its batches alone would not tell of producers and epochs whose records are gone.
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
        """Close the files without writing anything: the end of a log that is deleted, or whose disk failed."""
        self.is_closed = True
        for segment in self._segments:
            segment.close()

    # --- keeping ---

    def assign_epoch(self, leader_epoch: int) -> None:
        """This broker leads from here on: the epoch begins at the log's end. Before it serves anybody. Quick."""
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """What OffsetForLeaderEpoch answers (`LeaderEpochs.end_offset_for`)."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def advance_log_start(self, offset: int) -> bool:
        """Records before `offset` are no longer to be read (DeleteRecords, or the leader's log start). Whether that is
        news.

        To survive a restart the owner writes its log start checkpoint. KafkaError OFFSET_OUT_OF_RANGE beyond the log's
        end.
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
        """Move the log's start to where retention wants it; whether that is news.

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
        """Take out of the log the segments wholly before its start, as far as that is written down.

        A power loss may undo the removal of some segments and not of others; only before the start that is no hole.
        Returns the names of the files, renamed, that are to be deleted after `file.delete.delay.ms` with
        `delete_files`, so that readers under way are not hurt; those of truncations since the last call among them.
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
        """Both at once: for logs whose start nobody writes down."""
        self.advance_log_start_by_retention(now, high_watermark)
        self.written_log_start = self.log_start_offset
        return self.remove_before_log_start(now)

    def has_snapshot_to_write(self, end_offset: int) -> bool:
        """Whether a producer snapshot before an offset is still to be written, or is being written."""
        return any(offset < end_offset for offset in self._durability.snapshots)

    def markers_removed(self, offsets: Collection[int]) -> None:
        """Transaction markers at these offsets are no longer there: nor may what readers are told of them be."""
        if offsets:
            self.producers.aborted.forget(offsets)
            self._stored_snapshot = -1

    def replace(self, old: Sequence[Segment], new: Segment) -> list[str]:
        """Put a segment, which is durable and still called `.swap`, in place of sealed neighbours.

        What compaction ends with, once the caller has synced the directory and called `replaced`. Returns the names of
        files to be deleted later.
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
        """The old segments are durably gone, so the new one may have its name, or both could be there side by side."""
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
        """Of the segments in order; each is looked at when it is asked for."""
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
        """Forget producers that have written nothing since then and have no transaction open; their ids.

        Should one of them go on it is let in at any sequence, like one that expired.
        """
        return self.producers.expire(until, 0)

    def expire_producers(self, now: Millis) -> list[int]:
        """Forget producers that were silent for too long; their ids."""
        return self.producers.expire(now, self._expiration_ms)

    @property
    def is_start_unwritten(self) -> bool:
        """Whether segments wait for the owner's checkpoint to be removed."""
        return self.written_log_start < self.log_start_offset and self._segments[0].base_offset < self.log_start_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def files(self) -> FileCache:
        """What its segments' files are opened by."""
        return self._files

    @property
    def segments(self) -> list[Segment]:
        """The segments in order, for looking at."""
        return list(self._segments)


def delete_files(directory: Directory, names: list[str]) -> None:
    """Delete files that were taken out of a log. Blocks."""
    for name in names:
        directory.delete(name)


def has_records(batches: bytes) -> bool:
    """Whether any of these whole batches has a record."""
    position = 0
    while position < len(batches):
        header = read_header(batches, position)
        if header.records_count:
            return True
        position += header.size_bytes
    return False
