"""The log of one partition: ordered segments, what may be appended to them, and how they are read.

Appending checks the batch header and the CRC, stamps offset and leader epoch in place, and writes once. It inspects
records only to check the keys of a compacted topic or to recompress a batch for a topic with its own codec; that can
take long, so it is done beforehand (`prepare`). The cost of an append does not depend on the length of the log.

The jobs on a log are modules of their own: `reading`, `time_search`, `flushing`, `deletion` (retention), `compaction`,
`recovery`. This module holds the state they share, and appends, rolls and truncates: the operations that change
segments, epochs and producer state together.

Invariants: `log_start_offset <= log_end_offset`; `recovery_point <= log_end_offset`; each segment begins where the
previous one ends; an append that raises leaves the log unchanged.

Except for `open`, `close`, `flush` and the `run` of jobs, everything runs on the event loop, in one thread, and blocks
on nothing beyond the page cache, except where noted. The replica owns `high_watermark` and passes it in when needed.

Left out: deleting records inside a segment (DeleteRecords hides them until the whole segment can go).
KIP-98 (idempotence), KIP-101/279/320 (epochs), KIP-107 (DeleteRecords), KIP-734 (largest timestamp).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kraftpy.config.topic import TopicConfig
from kraftpy.log import compaction, layout, reading
from kraftpy.log.appending import (
    TIMES,
    BatchLimits,
    Demands,
    Prepared,
    batches_to_append,
    checked,
    from_coordinator,
    log_append_time,
    prepared,
    refuse_size,
    roll_after_ms,
    stored_form,
)
from kraftpy.log.epochs import EpochEnd, LeaderEpochs
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import Durability, FlushJob
from kraftpy.log.producer_replay import apply_markers
from kraftpy.log.producer_snapshots import ProducerSnapshots
from kraftpy.log.producer_states import EXPIRATION_MS, ProducerStates
from kraftpy.log.recovery import LoadedLog, Progress, RecoveryReport, SideBySide, load
from kraftpy.log.results import AppendResult, LogSlice, Origin, ReadResult
from kraftpy.log.segment import Segment
from kraftpy.log.segments import Segments
from kraftpy.log.timestamps import Trust, are_doubtful
from kraftpy.log.work import Work
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, read_header, read_markers, stamp
from kraftpy.types import Millis, TopicId


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
        self._demands = Demands(config)
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
        """True if reads are verified (`verifying`); if not, a reader may be given damaged bytes."""
        self.rebuilt_indexes = 0
        """The number of sealed segments whose indexes were found damaged and rebuilt."""
        self.is_closed = False
        self.is_half_truncated = False
        """A truncation failed halfway: nothing may be appended until it has been completed."""
        self.is_compacting = False
        self.is_swapping = False
        """Compaction is about to replace segments: until it has, none may be removed (`compaction.stage`)."""
        self.files = files
        """The cache that opens the files of this log's segments."""
        self.segments = Segments(loaded.segments)
        """Read-only to callers."""
        self.files_to_delete: list[str] = []
        """Files that truncations have renamed, to be deleted later (`deletion`)."""
        self._expiration_ms = expiration_ms
        self.durability = Durability(directory, loaded.recovery_point, epochs_are_stored=loaded.epochs_are_stored)
        """Tracks which part of the log is not on disk yet; for the jobs on this log."""
        self.durability.sealed += [each for each in loaded.segments[:-1] if each.index.is_in_memory]
        self.durability.transactions.update(loaded.transactions)
        self.snapshots = ProducerSnapshots(directory, self.durability)
        if loaded.snapshot_is_stored:
            self.snapshots.note_complete(loaded.log_end_offset)
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
            metadata = layout.claim_partition(directory, topic_id, synced_before_ack=config.kraftpy_flush_before_ack)
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
        """True if the directory promises that every record this replica acknowledged had been synced by then."""
        return self.metadata is not None and self.metadata.synced_before_ack

    def promise(self, *, synced_before_ack: bool) -> None:
        """Promise durably in the directory that acknowledged records are synced, or no longer. Blocks. Raises OSError.

        Make the promise once everything acknowledged is synced and `kraftpy.flush.before.ack` applies to all later
        records; withdraw it before that ceases to hold.
        """
        if self.metadata is not None and self.promises_synced != synced_before_ack:
            metadata = self.metadata._replace(synced_before_ack=synced_before_ack)
            layout.write_partition_metadata(self.directory, metadata)
            self.metadata = metadata

    # --- appending ---

    def prepare(
        self, records: Buffer, now: Millis, header: BatchHeader | None = None, trust: Trust | None = None
    ) -> Work[Prepared] | None:
        """Return the work to do on a producer's batch before `append` gets its result, or None.

        It does not touch the log. `header` is that of the batch, if the caller has read it; `trust` is the record of
        its sender's headers. Raises KafkaError as `append` does, either at once or while the work runs.
        """
        if self.is_prepared(None, records, now, header, trust):
            return None
        header, data = checked(records, self.config, self.limits, header)
        demand = self._demands.of(self.config) or TIMES
        return prepared(header, data, demand, self.config, self.limits, now, trust)

    def is_prepared(
        self,
        batch: Prepared | None,
        records: Buffer,
        now: Millis,
        header: BatchHeader | None = None,
        trust: Trust | None = None,
    ) -> bool:
        """Return whether `append` can take the batch as it is: the settings may have changed since `prepare`."""
        demand = self._demands.of(self.config)
        if batch is not None:
            return batch.demand == (demand or TIMES)
        return demand is None and not are_doubtful(header or read_header(records), records, self.config, now, trust)

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now: Millis,
        origin: Origin = Origin.CLIENT,
        batch: Prepared | None = None,
        header: BatchHeader | None = None,
    ) -> AppendResult:
        """Append record batches; if `records` is writable, it is stamped in place.

        Clients and coordinators append one batch, which gets the next offsets and `leader_epoch`. A replica appends any
        number, unchanged, up to the first whose leader epoch is above `leader_epoch`; that one and all that follow are
        left out (KAFKA-18723). `batch` is the result of `prepare` for a client's batch; without it the batch is
        prepared right here. `header` is that of a client's batch whose caller has read it and asked `is_prepared`.

        Raises KafkaError with the codes of `validate_batch`, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD,
        INVALID_TIMESTAMP, FENCED_LEADER_EPOCH and the producer's errors (`ProducerStates.check`), and
        KAFKA_STORAGE_ERROR if the log is closed or has failed. Raises OSError if the disk fails.
        """
        if self.is_closed or self.is_failed or self.is_half_truncated:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.directory.path} accepts no more records")
        if origin is Origin.REPLICA:
            return self._append_as_follower(records, leader_epoch, now)
        if leader_epoch < self.epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} after {self.epochs.latest} was assigned"
            )
        if origin is Origin.CLIENT:
            header, data = stored_form(records, batch, self._demands, self.config, self.limits, now, header)
        else:
            header, data = from_coordinator(records, self.config, self.limits, now)
        config = self.config
        if len(data) > config.segment_bytes:
            refuse_size(len(data), config)
        append_time = log_append_time(config, now)
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
                    duplicate.timestamp,
                    is_duplicate=True,
                )
        if data.readonly:
            data = memoryview(bytearray(data))
        base_offset = self.log_end_offset
        header = stamp(data, base_offset, leader_epoch, append_time, header=header)
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

    def _append_as_follower(self, records: Buffer, leader_epoch: int, now: Millis) -> AppendResult:
        """Append a leader's batches. If they do not continue this log, append nothing and raise CorruptBatch."""
        view = memoryview(records)
        self._start_at_first_batch(view, leader_epoch)
        batches, size = batches_to_append(
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
                apply_markers(self.producers, header, view[start : start + header.size_bytes], now)
            else:
                self.producers.appended(header, now)
        return self._result(batches[0][0].base_offset, batches[-1][0].last_offset, NO_TIMESTAMP, rolled=rolled)

    def _start_at_first_batch(self, records: memoryview, leader_epoch: int) -> None:
        """Let an empty log begin at the base offset of the first batch, if its log start lies inside that batch.

        DeleteRecords can move a leader's log start into the middle of a batch. Without this, a follower that starts
        over from there could never append its first batch.
        """
        if self.log_start_offset < self.log_end_offset or len(records) < HEADER_BYTES:
            return
        batches, _ = batches_to_append(records, 0, -1, leader_epoch)
        start = self.log_start_offset
        if batches and batches[0][0].base_offset < start <= batches[0][0].last_offset:
            self.truncate_fully_and_start_at(batches[0][0].base_offset)
            self.log_start_offset = start

    def _write(self, data: Buffer, batches: list[tuple[BatchHeader, int]], now: Millis) -> bool:
        """Write to the active segment, rolling it first if due; return whether it was rolled."""
        config = self.config
        self._last_write_at = now
        last = batches[-1][0]
        active = self.segments.active
        active.load_index()
        rolled = False
        if not active.size:
            self.durability.names_changed = True  # it may have no file yet
        elif not active.has_room(
            len(data),
            last.last_offset,
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
        ) or active.age_ms(now, batches[0][0].max_timestamp) > roll_after_ms(config, self.directory, active):
            active = self.roll(now)
            rolled = True
        if config.preallocate and not active.size:
            active.preallocate(config.segment_bytes)
        try:
            active.append(data, batches, config.index_interval_bytes)
        except OSError:
            # The remains of the write were truncated, but not durably: the file must be synced again.
            self.durability.lower_recovery_point(active.base_offset)
            raise
        self.log_end_offset = last.next_offset
        return rolled

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
        active = self.segments.active
        if not active.size:
            return active
        active.truncate_torn_tail()
        if len(self.segments) == 1 and (self.durability.names_changed or self.durability.job is not None):
            self.directory.sync()  # if only the second file survived a crash, the log would seem to begin there
        following = Segment.create(self.directory, self.log_end_offset, self.files, created_at=now)
        active.seal()
        self.durability.sealed.append(active)
        self.segments.append(following)
        self.snapshots.keep_aborted(self.producers, active.base_offset, following.base_offset)
        self.snapshots.take(self.producers, self.log_end_offset, self.segments.bases)
        self.durability.names_changed = True
        return following

    # --- reading ---

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult:
        """Read whole batches from one segment, starting with the batch that holds `offset`.

        At least one of them has records, if any follow. With `min_one_batch` the first batch may exceed `max_bytes`. No
        batch reaches beyond `end_offset` (exclusive: the high watermark or last stable offset; None for the log's end).
        Finding nothing to read is no error. Raises KafkaError OFFSET_OUT_OF_RANGE outside [log_start_offset,
        log_end_offset], and CorruptSegment if the batch that holds `offset` is damaged: a result is always as it was
        appended.
        """
        limit = reading.limit_of(self, offset, end_offset)
        read = reading.read(self, reading.ReadRequest(offset, max_bytes, limit, min_one_batch), reading.NEVER)
        assert isinstance(read, ReadResult)
        return read

    def read_or_slice(
        self, offset: int, max_bytes: int, slice_from: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult | LogSlice:
        """Do as `read`, but return a non-empty result of at least `slice_from` bytes as a slice, to be released."""
        limit = reading.limit_of(self, offset, end_offset)
        if offset >= limit:  # the most frequent case: readers that have caught up
            return ReadResult(b"", offset)
        return reading.read(self, reading.ReadRequest(offset, max_bytes, limit, min_one_batch), max(1, slice_from))

    def rebuild_index(self, segment: Segment) -> bool:
        """Rebuild a sealed segment's index, which seems damaged; the next flush stores it. Happens at most once.

        Returns False if nothing was rebuilt.
        """
        end_offset = self.segments.end_offset_of(segment, self.log_end_offset)
        if not segment.rebuild_index(end_offset, self.epochs, self.config.index_interval_bytes):
            return False
        if segment is not self.segments.active:
            self.durability.sealed.append(segment)
        self.rebuilt_indexes += 1
        return True

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset (exclusive) at which a reader of committed records must stop."""
        return max(self.producers.last_stable_offset(high_watermark), min(self.log_start_offset, high_watermark))

    # --- truncation ---

    def truncate_to(self, offset: int) -> bool:
        """Drop, durably, the batch that holds `offset` and everything after it. Blocks for a sync; used in failovers.

        The truncation must be durable because later appends could otherwise reach the disk before it, and a crash could
        leave records of two histories side by side. Returns True if a checkpoint may hold a later recovery point or log
        start: the owner must then write its checkpoints before anything is appended. An offset at or beyond the end
        still drops leader epochs that began there (of a leader that wrote nothing). An OSError leaves the log half
        truncated (`is_half_truncated`): it takes no records until this call is repeated, or
        `truncate_fully_and_start_at` called, successfully.
        """
        if offset >= self.log_end_offset and not self.is_half_truncated:
            self.epochs.truncate_from_end(offset)
            return False
        self._begin_truncation()
        if not self.segments or offset < self.segments.bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        self._remove_durably(self.segments.beginning_after(offset))  # before the rest, or a crash could leave a hole
        end_offset = self.segments.active.truncate(offset)
        self._truncated_at(end_offset)
        self.epochs.truncate_from_end(end_offset)
        self.producers = self.snapshots.reload(self.segments, end_offset, self._last_write_at, previous=self.producers)
        self.directory.sync()
        must_checkpoint = self.durability.truncate_recovery_point(end_offset) or end_offset < self.log_start_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.is_half_truncated = False
        return must_checkpoint

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and continue at `offset`. A follower outside its leader's range does this. Blocks.

        The owner must write its checkpoints before anything is appended.
        """
        self._begin_truncation()
        self.snapshots.delete_written()  # before the records: a crash must not leave snapshots alone
        self._remove_durably(self.segments[:])
        first = Segment.create(self.directory, offset, self.files, created_at=self._last_write_at)
        self.directory.sync()
        self.segments.append(first)
        self._truncated_at(offset)
        self.durability.truncated(-1)  # files that a running job still writes no longer belong to this log
        self.log_start_offset = offset
        self.durability.restart_at(offset)
        self.epochs.clear()
        self.producers = ProducerStates()
        self.snapshots.forget_due()
        self.is_half_truncated = False

    def _begin_truncation(self) -> None:
        if self.is_half_truncated:
            self.directory.sync()  # for the segments that an earlier attempt removed
        self.is_half_truncated = True

    def _truncated_at(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.snapshots.outdate()
        self.durability.truncated(self.segments.active.base_offset)

    def _remove_durably(self, segments: Sequence[Segment]) -> None:
        """Remove the log's last segments, newest first, each durably before the next, to leave no hole."""
        for segment in reversed(segments):
            self.files_to_delete += self.remove([segment])
            self.directory.sync()

    def remove(self, segments: Sequence[Segment]) -> list[str]:
        """Remove segments, in this order, and rename their files; return the files' new names."""
        gone = [name for segment in segments for name in segment.rename_to_deleted()]
        self.segments.remove(segments)
        self.durability.removed(segments)
        return gone

    # --- flushing ---

    @property
    def recovery_point(self) -> int:
        """The offset before which everything is durable; the log directory's owner checkpoints it."""
        return self.durability.recovery_point

    @property
    def is_failed(self) -> bool:
        """True if a flush failed: the log then takes no more records until it has been recovered."""
        return self.durability.is_failed

    def begin_flush(self) -> FlushJob | None:
        """Return the job that makes all records up to now durable; None if all are, or if another job is running.

        Quick. Run the job in a thread, then call `finish_flush`. Raises OSError if an earlier flush failed.
        """
        return self.durability.begin(self.segments, self.log_end_offset, self.epochs)

    def finish_flush(self, job: FlushJob) -> None:
        """Take over the results of a flush job whose thread has ended, successfully or not. Quick."""
        self.durability.finish(job)

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
        if self.durability.job is not None:
            raise RuntimeError("a flush is in progress")
        active = self.segments.active
        is_replayed_anyway = active.is_short and not active.base_offset
        if not self.snapshots.is_complete(self.log_end_offset):
            self.snapshots.keep_aborted(self.producers, active.base_offset, self.log_end_offset)
            if not is_replayed_anyway:
                self.snapshots.take(self.producers, self.log_end_offset, self.segments.bases)
        try:
            self.durability.close(self.segments, self.log_end_offset, self.epochs)
        finally:
            self.release()

    def move_to(self, files: FileCache) -> None:
        """Switch to another file cache: a log opened in a thread, with its own cache, joins the others on the loop."""
        self.files = files
        for segment in self.segments:
            segment.move_to(files)

    def take_over(self, other: PartitionLog) -> None:
        """Adopt the producers and leader epochs of `other`, of which this log is a complete copy.

        The batches alone would not show producers and epochs whose records are gone.
        """
        if self.log_end_offset != other.log_end_offset:
            raise ValueError(f"a copy that ends at {self.log_end_offset}, not at {other.log_end_offset}")
        self.producers = other.producers
        self.epochs = other.epochs
        self.durability.epochs_replaced()
        for segment, following in pairwise(self.segments):
            self.snapshots.keep_aborted(self.producers, segment.base_offset, following.base_offset)
        self.snapshots.take(self.producers, self.log_end_offset, self.segments.bases)
        self.snapshots.note_complete(self.log_end_offset)

    def release(self) -> None:
        """Close the files without writing anything, because the log is deleted or its disk has failed."""
        self.is_closed = True
        for segment in self.segments:
            segment.close()

    # --- offsets, epochs, producers ---

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

    def expire_producers(self, now: Millis, expiration_ms: int | None = None) -> list[int]:
        """Forget producers silent for `expiration_ms` or, if that was longer, its value at opening; return them."""
        return self.producers.expire(now, self._expiration_ms if expiration_ms is None else expiration_ms)
