"""The log of one partition: ordered segments, what may be appended to them, and how they are read.

Appending checks the batch header and the CRC, stamps offset and leader epoch in place and writes once; it never looks
at a record (but for the keys of a compacted topic, or to change the codec where the topic wants its own). Reading finds
a position through an index, walks at most one index interval of headers, and reads whole batches in one go. Neither
depends on how long the log is.

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

Left out: `preallocate`; deleting records inside a segment (DeleteRecords hides them until the whole segment can go).
KIP-98 (idempotence), KIP-101/279/320 (epochs), KIP-107 (DeleteRecords), KIP-734 (largest timestamp).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import xxhash

from kraftpy.config.topic import TopicConfig
from kraftpy.log import by_time, layout
from kraftpy.log.appending import (
    check_keys,
    check_timestamps,
    fitting_copies,
    log_append_time,
    only_batch,
    recompressed,
)
from kraftpy.log.epochs import EpochEnd, LeaderEpochs
from kraftpy.log.files import FileCache
from kraftpy.log.flushing import Durability, FlushJob
from kraftpy.log.producers import EXPIRATION_MS, ProducerStates
from kraftpy.log.recovery import LoadedLog, Progress, RecoveryReport, load, newest_snapshot, replay, snapshot_offsets
from kraftpy.log.results import AppendResult, LogSlice, Origin, ReadResult, TimestampAndOffset
from kraftpy.log.retention import SegmentAge, segments_to_delete
from kraftpy.log.segment import Segment
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    check_crc,
    decode_control_record,
    iter_records,
    read_header,
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
        """May be replaced at any time when the topic's settings change."""
        self.report: RecoveryReport = loaded.report
        self.epochs: LeaderEpochs = loaded.epochs
        """To be read; `assign_epoch` and `truncate_to` change it."""
        self.producers: ProducerStates = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.is_closed = False
        self.is_compacting = False
        self._files = files
        self._expiration_ms = expiration_ms
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        for segment, end_offset in zip(loaded.segments, self._bases[1:], strict=False):
            segment.offsets = end_offset - segment.base_offset
        self._durability = Durability(directory, loaded.recovery_point, epochs_are_stored=loaded.epochs_are_stored)
        self._stored_snapshot = loaded.log_end_offset if loaded.snapshot_is_stored else -1
        self._trash: list[str] = []  # files renamed by a truncation
        self._last_write_at = now  # or when it was opened: the time of what happens without being told the time

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
    ) -> PartitionLog:
        """Open a partition's directory, or make its first segment. Blocks: run it in a thread.

        `clean`, `recovery_point` and `log_start_offset` come from the log directory's marker and checkpoints
        (`layout.take_clean_shutdown`, `layout.read_offsets`). `files` may be used by this thread alone: a broker opens
        each log with one of its own, and moves it (`move_to`) to the one that all its logs share. `topic_id` is written
        where none is yet. Raises OSError, and layout.CorruptFile for a damaged or foreign `partition.metadata`.
        """
        files = FileCache() if files is None else files
        if topic_id is not None:
            stored = layout.read_topic_id(directory)
            if stored is None:
                layout.write_topic_id(directory, topic_id)
            elif stored != topic_id:
                raise layout.CorruptFile(f"{directory.path} belongs to topic {stored.hex()}, not {topic_id.hex()}")
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
        )
        return cls(directory, config, files, loaded, expiration_ms, now)

    # --- appending ---

    def append(
        self, records: Buffer, *, leader_epoch: int, now: Millis, origin: Origin = Origin.CLIENT
    ) -> AppendResult:
        """Append record batches; `records` itself is stamped where it is writable.

        One batch, which gets the next offsets and `leader_epoch`, unless the origin is a replica: then any number, kept
        as they are, those of a leader epoch above `leader_epoch` and all after them left out (KAFKA-18723). Raises
        KafkaError: what `validate_batch` names, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD,
        INVALID_TIMESTAMP, FENCED_LEADER_EPOCH, and the producer's errors (`ProducerStates.check`); KAFKA_STORAGE_ERROR
        for a log that is closed or failed. Raises OSError as the disk does.
        """
        if self.is_closed or self.is_failed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.directory.path} takes no more records")
        if origin is Origin.REPLICA:
            return self._append_copies(records, leader_epoch, now)
        if leader_epoch < self.epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} after {self.epochs.latest} was assigned"
            )
        config = self.config
        header, batch = only_batch(records)
        if len(batch) > config.max_message_bytes and origin is Origin.CLIENT:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes; {config.max_message_bytes} are allowed"
            )
        if len(batch) > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {len(batch)} bytes; segments hold {config.segment_bytes}"
            )
        is_marker = header.is_control and origin is Origin.COORDINATOR
        if not is_marker:
            validate_batch(header, batch)
        elif not check_crc(batch):
            raise CorruptBatch("the CRC does not match")
        append_time = log_append_time(config, now)
        if append_time is None:
            check_timestamps(header, config, now)
        if "compact" in config.cleanup_policy and not is_marker:
            check_keys(header, batch)
        marker = None
        if header.producer_id >= 0:
            if is_marker:
                marker = decode_control_record(next(iter_records(batch, header)))
                self.producers.check_marker(header, marker)
            elif origin is Origin.CLIENT and (duplicate := self.producers.check(header)) is not None:
                return self._result(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    NO_TIMESTAMP if append_time is None else duplicate.timestamp,
                    is_duplicate=True,
                )
        if origin is Origin.CLIENT:
            batch = recompressed(header, batch, config)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        base_offset = self.log_end_offset
        stamp(batch, base_offset, leader_epoch, append_time)
        header = read_header(batch)
        rolled = self._write(batch, [(header, 0)], now)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if marker is not None:
            self.producers.ended(header, marker, now)
        elif header.producer_id >= 0:
            self.producers.appended(header, now)
        return self._result(
            base_offset, header.last_offset, NO_TIMESTAMP if append_time is None else append_time, rolled=rolled
        )

    def _append_copies(self, records: Buffer, leader_epoch: int, now: Millis) -> AppendResult:
        """Append what a leader sent. CorruptBatch where it does not fit behind this log; nothing is appended then."""
        view = memoryview(records)
        batches, size = fitting_copies(
            view, self.log_end_offset, self.epochs.epoch_of(self.log_end_offset - 1), leader_epoch
        )
        if not batches:
            return self._result(self.log_end_offset, self.log_end_offset - 1, NO_TIMESTAMP)
        rolled = self._write(view[:size], batches, now)
        for header, start in batches:
            if header.partition_leader_epoch >= 0:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id < 0:
                continue
            if header.is_control:
                batch = view[start : start + header.size_bytes]
                for record in iter_records(batch, header):
                    self.producers.ended(header, decode_control_record(record), now)
            else:
                self.producers.appended(header, now)
        return self._result(batches[0][0].base_offset, batches[-1][0].last_offset, NO_TIMESTAMP, rolled=rolled)

    def _write(self, data: Buffer, batches: list[tuple[BatchHeader, int]], now: Millis) -> bool:
        """Write to the active segment, rolling it first where it is due; whether it was."""
        config = self.config
        self._last_write_at = now
        last = batches[-1][0]
        active = self._segments[-1]
        active.load_indexes()
        rolled = False
        if active.size and (
            not active.has_room(
                len(data),
                last.last_offset,
                segment_bytes=config.segment_bytes,
                index_bytes=config.segment_index_bytes,
            )
            or active.age_ms(now, batches[0][0].max_timestamp) > config.segment_ms - self._jitter_ms(active)
        ):
            active = self.roll(now)
            rolled = True
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
            self.log_end_offset - self.recovery_point >= self.config.flush_messages,
        )

    def roll(self, now: Millis) -> Segment:
        """Seal the active segment and begin the next one. Does nothing while the active one is empty."""
        active = self._segments[-1]
        if not active.size:
            return active
        active.cut_torn_tail()
        following = Segment.create(self.directory, self.log_end_offset, self._files, created_at=now)
        active.seal()
        active.offsets = following.base_offset - active.base_offset
        self._durability.snapshots[self.log_end_offset] = self.producers.encode()
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
        error. Raises KafkaError OFFSET_OUT_OF_RANGE outside of [log_start_offset, log_end_offset].
        """
        read = self._read_segment(offset, max_bytes, end_offset, min_one_batch)
        # Batches that compaction emptied, and nothing else: a client may take an answer without records for one that
        # its size limit cut short, so what follows is read instead, if anything does.
        following = read
        while following.records and self.config.is_compacted and not has_records(following.records):
            following = self._read_segment(following.next_offset, max_bytes, end_offset, min_one_batch)
        return following if following.records else read

    def _read_segment(self, offset: int, max_bytes: int, end_offset: int | None, min_one_batch: bool) -> ReadResult:
        found = self._locate(offset, max_bytes, end_offset, min_one_batch)
        if found is None:
            return ReadResult(b"", offset)
        segment, position, length, next_offset = found
        return ReadResult(segment.log.get().read(position, length), next_offset)

    def read_slice(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> LogSlice | None:
        """What `read` would return as file, position and length; None for nothing. The caller must `release` it."""
        found = self._locate(offset, max_bytes, end_offset, min_one_batch)
        if found is None:
            return None
        segment, position, length, next_offset = found
        return LogSlice(segment.log, position, length, next_offset)

    def _locate(
        self, offset: int, max_bytes: int, end_offset: int | None, min_one_batch: bool
    ) -> tuple[Segment, int, int, int] | None:
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {log_end_offset}",
            )
        limit = log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset
        if offset >= limit:
            return None
        number = bisect_right(self._bases, offset) - 1
        start: int | None = None
        for number in range(number, len(self._segments)):  # noqa: B020 - on to the next where compaction left none
            segment = self._segments[number]
            if segment.size and (start := segment.find_start(offset)) is not None:
                break
        else:
            return None
        segment_end_offset = self._bases[number + 1] if number + 1 < len(self._bases) else log_end_offset
        if limit >= segment_end_offset:
            stop, next_offset = segment.size, segment_end_offset
        else:
            last = segment.find(limit)
            if last is None:  # nothing there reaches the limit: compaction took what did
                stop, next_offset = segment.size, segment_end_offset
            else:
                stop, next_offset = last.position, last.base_offset
        assert start is not None
        if stop <= start:
            return None
        if stop - start > max_bytes:
            cut, cut_offset = segment.cut(start, start + max_bytes)
            if cut == start:
                if not min_one_batch:
                    return None
                first = segment.batch_at(start)
                cut, cut_offset = start + first.size, first.last_offset + 1
            stop, next_offset = cut, cut_offset
        segment.expect(next_offset, stop)
        return segment, start, stop - start, next_offset

    def leader_epoch_of(self, offset: int) -> int:
        """The leader epoch in which a record was written, -1 where it is not known."""
        return self.epochs.epoch_of(offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where a reader of committed records must stop."""
        return self.producers.last_stable_offset(high_watermark)

    # --- by time ---

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record at or after `timestamp` (ms) and below `end_offset`; decodes one batch. None where there is
        none.

        Raises CorruptBatch where records cannot be read.
        """
        limit = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        return by_time.first_at_or_after(self._segments, timestamp, self.log_start_offset, limit)

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record that has the largest timestamp of all (KIP-734); None where no record has one."""
        return by_time.latest(self._segments, self.log_start_offset)

    # --- cutting ---

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from the batch that holds `offset` on, durably. Blocks for a sync; it happens at failovers.

        Durably, because what is appended next may reach the disk before the cut does, and a crash could leave records
        of two histories side by side. True where the recovery point or the log start fell: the owner must write its
        checkpoints before anything is appended. An offset at or beyond the end still drops leader epochs that began
        there (of a leader that wrote nothing).
        """
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(offset)
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        keep = bisect_right(self._bases, offset)
        if keep < len(self._segments):
            self._trash += self._remove(range(len(self._segments) - 1, keep - 1, -1))
            self.directory.sync()  # before the cut, or a crash could leave a hole
        end_offset = self._segments[-1].truncate(offset)
        self._cut_at(end_offset)
        self.epochs.truncate_from_end(end_offset)
        self._reload_producers()
        self.directory.sync()
        has_fallen = end_offset < self.recovery_point or end_offset < self.log_start_offset
        self._lower_recovery_point(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        return has_fallen

    def _lower_recovery_point(self, offset: int) -> None:
        self._durability.recovery_point = min(self._durability.recovery_point, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record is `offset`. What a follower does that is out of its leader's range. Blocks.

        The owner must write its checkpoints before anything is appended.
        """
        self._trash += self._remove(range(len(self._segments) - 1, -1, -1))
        self.directory.sync()
        first = Segment.create(self.directory, offset, self._files, created_at=self._last_write_at)
        self._segments, self._bases = [first], [offset]
        self._cut_at(offset)
        self._durability.cut(-1)  # nothing that a job under way writes is of this log any more
        self.log_start_offset = self._durability.recovery_point = offset
        self.epochs.clear()
        self.producers = ProducerStates()
        for stored in snapshot_offsets(self.directory):
            self.directory.delete(layout.file_name(stored, layout.SNAPSHOT))
        self._durability.snapshots.clear()

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
        states, from_offset = newest_snapshot(self.directory, end_offset, self._durability.doubtful_snapshots())
        newest = max(pending, default=-1)
        if newest > from_offset:
            states, from_offset = ProducerStates.decode(pending[newest]), newest
        replay(states, self._segments, from_offset, self._last_write_at)
        self.producers = states

    def _remove(self, numbers: range) -> list[str]:
        """Take segments, by descending or ascending number, out of the log: their files are renamed; the new names."""
        gone: list[str] = []
        for number in numbers:
            segment = self._segments[number]
            segment.close()
            for name in segment.names:
                if name == segment.log.name or self.directory.exists(name):
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
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            finally:
                self.finish_flush(job)

    def close(self) -> None:
        """Make everything durable, with a producer snapshot and all indexes, and close the files. Blocks.

        After this the log can be opened as clean. No flush may be under way; a second call does nothing. OSError where
        an earlier flush failed: then the stop was not clean.
        """
        if self.is_closed:
            return
        if self._durability.job is not None:
            raise RuntimeError("a flush is under way")
        if self._stored_snapshot != self.log_end_offset:
            self._durability.snapshots[self.log_end_offset] = self.producers.encode()
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
        self.producers.log_start_advanced(offset)
        return True

    def delete_old_segments(self, now: Millis, high_watermark: int) -> list[str]:
        """Take out of the log what retention lets go.

        Returns the names of the files, renamed, that are to be deleted after `file.delete.delay.ms` with
        `delete_files`, so that readers under way are not hurt; those of truncations since the last call among them.
        """
        trash, self._trash = self._trash, []
        going = segments_to_delete(
            self._ages(), self.config, now=now, log_start_offset=self.log_start_offset, high_watermark=high_watermark
        )
        if not going:
            return trash
        if going == len(self._segments):
            self.roll(now)
        snapshots = [layout.file_name(base, layout.SNAPSHOT) for base in self._bases[:going]]
        gone = trash + self._remove(range(going))
        for name in snapshots:
            if self.directory.exists(name):
                self.directory.rename(name, name + layout.DELETED)
                gone.append(name + layout.DELETED)
        self.advance_log_start(self._bases[0])
        return gone

    def replace(self, old: Sequence[Segment], new: Segment) -> list[str]:
        """Put a segment, whose files have their names already but for its `.swap`, in place of sealed neighbours.

        What compaction ends with. Returns the names of files to be deleted later.
        """
        number = self._segments.index(old[0])
        gone = self._remove(range(number, number + len(old)))
        self.directory.rename(new.log.name + layout.SWAP, new.log.name)
        self._segments.insert(number, new)
        self._bases.insert(number, new.base_offset)
        self._durability.sealed.append(new)
        return gone

    def _ages(self) -> list[SegmentAge]:
        ends = [*self._bases[1:], self.log_end_offset]
        ages = []
        for segment, end_offset in zip(self._segments, ends, strict=True):
            timestamp = segment.max_timestamp()[0]
            ages.append(SegmentAge(end_offset, segment.size, timestamp if timestamp >= 0 else segment.created_at))
        return ages

    def expire_producers(self, now: Millis) -> list[int]:
        """Forget producers that were silent for too long; their ids."""
        return self.producers.expire(now, self._expiration_ms)

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
