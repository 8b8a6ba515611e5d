"""The log of one partition: ordered segments, what may be appended to them, and how they are read.

Appending checks the batch header and the CRC, stamps offset and leader epoch in place and writes once; it never looks
at a record (but for the keys of a compacted topic). Reading finds a position through an index, walks at most one index
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

Left out: `preallocate`; deleting records inside a segment (DeleteRecords hides them until the whole segment can go).
KIP-98 (idempotence), KIP-101/279/320 (epochs), KIP-107 (DeleteRecords), KIP-734 (largest timestamp).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

import xxhash

from kraftpy.config.topic import TopicConfig
from kraftpy.log import layout
from kraftpy.log.appending import check_keys, check_timestamps, log_append_time, only_batch
from kraftpy.log.epochs import EpochEnd, LeaderEpochs
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.flushing import FlushJob, IndexWrite
from kraftpy.log.producers import EXPIRATION_MS, ProducerStates
from kraftpy.log.recovery import LoadedLog, Progress, RecoveryReport, load, newest_snapshot, replay, snapshot_offsets
from kraftpy.log.retention import SegmentAge, segments_to_delete
from kraftpy.log.segment import Segment
from kraftpy.ports import Buffer, Directory, File
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    BatchHeader,
    CorruptBatch,
    check_crc,
    decode_control_record,
    iter_records,
    read_header,
    split_batches,
    stamp,
    validate_batch,
)
from kraftpy.types import Millis, TopicId

NO_TIMESTAMP: Final = -1


class Origin(Enum):
    """Who wrote the batches that are to be appended."""

    CLIENT = "client"  # one batch; offsets assigned, producer rules enforced
    COORDINATOR = "coordinator"  # the broker itself: one batch, control batches allowed
    REPLICA = "replica"  # copies of the leader's batches, offsets as they are


class AppendResult(NamedTuple):
    """What became of an append. Offsets of a duplicate are those of its first copy."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """Milliseconds where the topic stamps LogAppendTime, else -1."""
    log_start_offset: int
    log_end_offset: int
    """After the append. Readers waiting for more are to be woken unless `is_duplicate`."""
    is_duplicate: bool
    rolled: bool
    """A segment was sealed: have a flush run soon, to store its index and free its memory."""
    flush_due: bool
    """`flush.messages` is reached: flush before acknowledging."""


class ReadResult(NamedTuple):
    """Whole batches. The first may begin before the offset asked for."""

    records: bytes
    next_offset: int
    """Where to go on; the offset asked for where nothing was read."""


class LogSlice:
    """Whole batches as a stretch of a file, for a transfer that bypasses memory. `release` it when done."""

    __slots__ = ("_handle", "file", "length", "next_offset", "position")

    def __init__(self, handle: LazyFile, position: int, length: int, next_offset: int) -> None:
        self._handle = handle
        self.file: File = handle.pin()
        self.position = position
        self.length = length
        self.next_offset = next_offset

    def release(self) -> None:
        """The file may be closed again."""
        self._handle.unpin()


class TimestampAndOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int


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
        self.recovery_point = loaded.recovery_point
        """Everything before this offset is synced: to be checkpointed by the log directory's owner."""
        self.is_closed = False
        self.is_failed = False
        self._files = files
        self._expiration_ms = expiration_ms
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._stored_epochs = 0 if loaded.epochs_are_stored else -1
        self._snapshots: dict[int, bytes] = {}  # made, and not yet on disk
        self._stored_snapshot = loaded.log_end_offset if loaded.snapshot_is_stored else -1
        self._names_changed = False
        self._has_renamed = False  # index files, which need not be durable before a clean stop
        self._flush: FlushJob | None = None
        self._sealed: list[Segment] = []  # whose index is in memory and not yet on disk
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
        (`layout.take_clean_shutdown`, `layout.read_offsets`). `files` is shared by all logs of a broker. `topic_id` is
        written where none is yet. Raises OSError, and layout.CorruptFile for a damaged or foreign `partition.metadata`.
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
        INVALID_TIMESTAMP, and the producer's errors (`ProducerStates.check`). Raises OSError as the disk does.
        """
        if origin is Origin.REPLICA:
            return self._append_copies(records, leader_epoch, now)
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
        batches: list[tuple[BatchHeader, int]] = []
        view = memoryview(records)
        position, expected, epoch = 0, self.log_end_offset, -1
        for header, batch in split_batches(view, allow_partial=True):
            if header.partition_leader_epoch > leader_epoch >= 0:
                break
            if header.base_offset < expected or header.last_offset_delta < 0:
                raise CorruptBatch(
                    f"offsets {header.base_offset} to {header.last_offset} behind a log that ends at {expected}"
                )
            if 0 <= header.partition_leader_epoch < epoch:
                raise CorruptBatch(f"leader epoch {header.partition_leader_epoch} after {epoch}")
            if not check_crc(batch):
                raise CorruptBatch("the CRC does not match")
            batches.append((header, position))
            position += len(batch)
            expected, epoch = header.next_offset, header.partition_leader_epoch
        if not batches:
            return self._result(self.log_end_offset, self.log_end_offset - 1, NO_TIMESTAMP)
        rolled = self._write(view[:position], batches, now)
        for header, start in batches:
            if header.partition_leader_epoch > self.epochs.latest:
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
            self.recovery_point = min(self.recovery_point, active.base_offset)
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
        self._snapshots[self.log_end_offset] = self.producers.encode()
        self._sealed.append(active)
        self._segments.append(following)
        self._bases.append(following.base_offset)
        self._names_changed = True
        return following

    # --- reading ---

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset` on, out of one segment.

        `max_bytes` may be exceeded by the first batch where `min_one_batch`. No batch reaches beyond `end_offset`
        (exclusive: the high watermark or last stable offset; None for the log's end). Nothing there to read is no
        error. Raises KafkaError OFFSET_OUT_OF_RANGE outside of [log_start_offset, log_end_offset].
        """
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

        A topic's LogAppendTime counts where its batches have that. Raises CorruptBatch where records cannot be read.
        """
        limit = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        for segment in self._segments:
            if segment.base_offset >= limit:
                break
            if not segment.size or segment.max_timestamp()[0] < timestamp:
                continue
            for placed in segment.first_at_least(timestamp, self.log_start_offset):
                if placed.base_offset >= limit:
                    return None
                batch = segment.log.get().read(placed.position, placed.size)
                for record in iter_records(batch):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        if record.offset >= limit:
                            return None
                        return TimestampAndOffset(record.offset, record.timestamp, placed.leader_epoch)
        return None

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record that has the largest timestamp of all (KIP-734); None where no record has one."""
        best: Segment | None = None
        for segment in self._segments:
            if segment.size and segment.max_timestamp()[0] > (-1 if best is None else best.max_timestamp()[0]):
                best = segment
        if best is None:
            return None
        timestamp, last_offset = best.max_timestamp()
        placed = best.find(last_offset)
        if placed is None:
            return None
        batch = best.log.get().read(placed.position, placed.size)
        for record in iter_records(batch):
            if record.timestamp == timestamp and record.offset >= self.log_start_offset:
                return TimestampAndOffset(record.offset, record.timestamp, placed.leader_epoch)
        # The header named a time that none of its records has (records lie, or were compacted away): look for the
        # latest one.
        latest = max(
            ((record.timestamp, -record.offset) for record in iter_records(batch)), default=(NO_TIMESTAMP, -last_offset)
        )
        return TimestampAndOffset(-latest[1], latest[0], placed.leader_epoch)

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
        self.recovery_point = min(self.recovery_point, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        return has_fallen

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record is `offset`. What a follower does that is out of its leader's range. Blocks.

        The owner must write its checkpoints before anything is appended.
        """
        self._trash += self._remove(range(len(self._segments) - 1, -1, -1))
        self.directory.sync()
        first = Segment.create(self.directory, offset, self._files, created_at=self._last_write_at)
        self._segments, self._bases = [first], [offset]
        self._cut_at(offset)
        if self._flush is not None:
            self._flush.cut_at(-1)  # nothing it writes is of this log any more
        self.log_start_offset = self.recovery_point = offset
        self.epochs.clear()
        self.producers = ProducerStates()
        for stored in snapshot_offsets(self.directory):
            self.directory.delete(layout.file_name(stored, layout.SNAPSHOT))
        self._snapshots.clear()

    def _cut_at(self, end_offset: int) -> None:
        self._sealed = [segment for segment in self._sealed if segment.base_offset < self._bases[-1]]
        self.log_end_offset = end_offset
        self._names_changed = True
        self._stored_snapshot = -1
        if self._flush is not None:
            # What its thread writes about the segment that was cut, and about what came after, may be of before the
            # cut.
            self._flush.cut_at(self._bases[-1])

    def _reload_producers(self) -> None:
        end_offset = self.log_end_offset
        self._snapshots = {offset: data for offset, data in self._snapshots.items() if offset <= end_offset}
        for offset in snapshot_offsets(self.directory):
            if offset > end_offset:
                self.directory.delete(layout.file_name(offset, layout.SNAPSHOT))
        doubtful = [] if self._flush is None else self._flush.doubtful_snapshots()
        states, from_offset = newest_snapshot(self.directory, end_offset, doubtful)
        newest = max(self._snapshots, default=-1)
        if newest > from_offset:
            states, from_offset = ProducerStates.decode(self._snapshots[newest]), newest
        replay(states, self._segments, from_offset, self._last_write_at)
        self.producers = states

    def _remove(self, numbers: Iterator[int] | range | list[int]) -> list[str]:
        """Take segments, by descending or ascending number, out of the log: their files are renamed; the new names."""
        gone: list[str] = []
        for number in numbers:
            segment = self._segments[number]
            segment.close()
            for name in segment.names:
                if name == segment.log.name or self.directory.exists(name):
                    self.directory.rename(name, name + layout.DELETED)
                    gone.append(name + layout.DELETED)
        removed = set(numbers)
        self._segments = [segment for number, segment in enumerate(self._segments) if number not in removed]
        self._bases = [segment.base_offset for segment in self._segments]
        self._sealed = [segment for segment in self._sealed if segment in self._segments]
        self._names_changed = True
        return gone

    # --- flushing ---

    def begin_flush(self) -> FlushJob | None:
        """What must be synced for all records up to now to be durable; None where nothing must, or a job is under way.

        Quick. Run the job in a thread, then call `finish_flush`. OSError where an earlier flush failed: what the kernel
        dropped then cannot be synced any more; the log must be closed by a crash and recovered.
        """
        if self.is_failed:
            raise OSError(f"an earlier flush of {self.directory.path} failed")
        if self._flush is not None:
            return None
        epochs = self._unstored_epochs()
        has_records = self.recovery_point < self.log_end_offset
        if not (has_records or self._sealed or self._names_changed or epochs is not None):
            return None
        first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
        job = FlushJob(self.directory, self.log_end_offset, self.epochs.version)
        try:
            for segment in self._segments[first:]:
                job.logs.append(segment.log.open_private())
            for segment in self._sealed:
                self._add_indexes(job, segment)
        except OSError:
            job.close()
            raise
        job.snapshots = dict(self._snapshots)
        job.epochs = epochs
        job.sync_directory = self._names_changed
        self._names_changed = False
        self._flush = job
        return job

    def _add_indexes(self, job: FlushJob, segment: Segment) -> None:
        if segment.offset_index is not None and segment.time_index is not None:
            job.indexes.append(
                IndexWrite(
                    segment,
                    segment.offset_index.frozen(),
                    segment.time_index.frozen(),
                    *segment.open_temporary_indexes(),
                )
            )

    def _unstored_epochs(self) -> bytes | None:
        if self.epochs.version == self._stored_epochs or (self._stored_epochs < 0 and not self.epochs.entries()):
            return None
        return self.epochs.encode()

    def finish_flush(self, job: FlushJob) -> None:
        """The job's thread is done: take over what it achieved. Quick."""
        self._flush = None
        if not job.is_done:
            self.is_failed = True
            return
        self.recovery_point = max(self.recovery_point, job.end_offset)
        if job.epochs is not None:
            self._stored_epochs = job.epochs_version
        for write in job.indexes:
            segment = write.segment
            is_valid = self.is_closed or (segment in self._sealed and segment.base_offset < job.end_offset)
            segment.finish_temporary_indexes(keep=is_valid)
            if is_valid and segment in self._sealed:
                self._sealed.remove(segment)
                segment.drop_indexes()
            self._has_renamed = True
        for offset, data in job.snapshots.items():
            if self._snapshots.get(offset) is data:
                del self._snapshots[offset]
        for offset in job.doubtful_snapshots():
            self.directory.delete(layout.file_name(offset, layout.SNAPSHOT))

    def flush(self) -> None:
        """Make everything up to now durable. Blocks: for threads that own the log, and tests."""
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            finally:
                self.finish_flush(job)

    def close(self) -> None:
        """Flush, store the active segment's index and a producer snapshot, close the files. Blocks.

        After this the log can be opened as clean. No flush may be under way; a second call does nothing.
        """
        if self.is_closed:
            return
        if self._flush is not None:
            raise RuntimeError("a flush is under way")
        active = self._segments[-1]
        if self._stored_snapshot != self.log_end_offset:
            self._snapshots[self.log_end_offset] = self.producers.encode()
            self._names_changed = True
        if active.offset_index is not None:
            active.cut_torn_tail()
            self._names_changed = True
        job = self.begin_flush()
        self.is_closed = True
        if job is not None:
            if active.offset_index is not None:
                active.seal()
                self._add_indexes(job, active)
            try:
                job.run()
            finally:
                self.finish_flush(job)
        if self._has_renamed:
            self.directory.sync()
        self.release()

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
    def segments(self) -> list[Segment]:
        """The segments in order, for looking at."""
        return list(self._segments)


def delete_files(directory: Directory, names: list[str]) -> None:
    """Delete files that were taken out of a log. Blocks."""
    for name in names:
        directory.delete(name)
