"""Flushing a log and tracking how much of it is durable; the blocking part of a flush is a job that a thread can run.

A flush has three parts, so that only one of them needs a thread: `Durability.begin` (on the loop, quick) collects the
unsynced files and opens handles for the job; `FlushJob.run` (in a thread, blocking) writes and syncs;
`Durability.finish` (on the loop, quick) moves the recovery point. Appends may continue meanwhile because the thread
shares nothing with the loop except the disk: its handles are its own, a sealed segment's entries do not change, and it
promises only offsets below the log's end when the job began. A concurrent truncation lowers that promise.

Order: segments, then the indexes built from them, then `.txnindex` files, producer snapshots and leader epochs, then
the directory's names. Only when all of it is done may the recovery point move. The job owns its handles, which were
opened on the loop: a segment that is renamed or deleted meanwhile is still synced, and no file is created by mistake.
Indexes go to temporary files; the loop renames them when it takes the job back, if the segment is unchanged since.

An index or a snapshot that is missing after a crash is rebuilt, and a recovery point that does not cover them is safe;
a wrong one would not be, so files are never overwritten in place. If the disk is full once the segments are synced, or
the process is out of descriptors, the only cost is another try.

A job opens a bounded number of files. If more segments are waiting, the job is partial: it makes the oldest of them
durable, and the next job continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.index import OffsetIndex, TimeIndex
from kraftpy.log.segment import Segment
from kraftpy.log.segments import Segments
from kraftpy.ports import Directory, Failure, File, failure_of

SEGMENTS_PER_JOB: Final = 16


class IndexWrite(NamedTuple):
    """A sealed segment's index entries, and the temporary files they go to."""

    segment: Segment
    offset_index: OffsetIndex
    time_index: TimeIndex
    index_file: File
    time_index_file: File


class FlushJob:
    """The blocking work of one flush, with the handles and data it needs."""

    __slots__ = (
        "can_retry",
        "directory",
        "end_offset",
        "epochs",
        "epochs_version",
        "indexes",
        "is_done",
        "is_partial",
        "logs",
        "promised_end_offset",
        "snapshots",
        "sync_directory",
        "transactions",
    )

    def __init__(self, directory: Directory, end_offset: int) -> None:
        self.directory = directory
        self.end_offset = end_offset
        """Records before this offset are durable once the job is done; a concurrent truncation lowers it."""
        self.promised_end_offset = end_offset
        """The value of `end_offset` when the job began."""
        self.logs: list[File] = []
        self.indexes: list[IndexWrite] = []
        self.transactions: dict[int, bytes] = {}
        self.snapshots: dict[int, bytes] = {}
        self.epochs: bytes | None = None
        self.epochs_version = 0
        self.sync_directory = False
        self.is_done = False
        self.can_retry = False
        """The job failed, but the files that it synced are durable, and the rest can be written again."""
        self.is_partial = False
        """The job leaves segments for the next one."""

    @property
    def open_files(self) -> int:
        """The number of files that the job holds open."""
        return len(self.logs) + 2 * len(self.indexes)

    def add_indexes(self, segment: Segment) -> None:
        """Add the index of a sealed segment to the job."""
        offsets, times = segment.load_index()
        index = segment.index.offset_file.open_temporary()
        try:
            files = index, segment.index.time_file.open_temporary()
        except OSError:
            index.close()
            raise
        self.indexes.append(IndexWrite(segment, offsets.frozen(), times.frozen(), *files))

    def run(self) -> None:
        """Sync everything and close the handles. Blocks: run it in a thread. Raises OSError if the disk fails."""
        try:
            for log in self.logs:
                log.sync()
        except OSError:
            self.close()
            raise
        is_sync = False
        try:
            for write in self.indexes:
                for file, data in (
                    (write.index_file, write.offset_index.encode()),
                    (write.time_index_file, write.time_index.encode()),
                ):
                    file.truncate(0)  # remains of an earlier attempt
                    file.write(0, data)
                    file.sync()
            for base_offset, data in self.transactions.items():
                self._put(layout.file_name(base_offset, layout.TRANSACTION_INDEX), data)
            for offset, data in self.snapshots.items():
                self._put(layout.file_name(offset, layout.SNAPSHOT), data)
            if self.epochs is not None:
                self._put(layout.LEADER_EPOCHS, self.epochs)
            if self.sync_directory or self.transactions or self.snapshots or self.epochs is not None:
                is_sync = True
                self.directory.sync()  # once for all the names
            self.is_done = True
        except OSError as error:
            self.can_retry = failure_of(error, is_sync=is_sync) in (Failure.FULL, Failure.RESOURCES)
            raise
        finally:
            self.close()

    def _put(self, name: str, data: bytes) -> None:
        """Replace a small file's contents as `Directory.replace` does, without syncing the directory."""
        file = self.directory.open(name + layout.TEMPORARY)
        try:
            file.truncate(0)
            file.write(0, data)
            file.sync()
        finally:
            file.close()
        self.directory.rename(name + layout.TEMPORARY, name)

    def doubtful_snapshots(self) -> list[int]:
        """Return the offsets of snapshots that the job may write although their records have been truncated."""
        return [offset for offset in self.snapshots if offset > self.end_offset]

    def give_up(self) -> None:
        """Discard the job without running it: nothing was synced, and all of it remains to be done."""
        self.can_retry = True
        self.close()

    def close(self) -> None:
        """Close the handles."""
        for log in self.logs:
            log.close()
        for write in self.indexes:
            write.index_file.close()
            write.time_index_file.close()


class Durability:
    """Tracks how far a log is durable and what is still unwritten. For the loop; only its jobs go to threads."""

    __slots__ = (
        "_directory",
        "_has_renamed",
        "_stored_epochs",
        "checkpointed",
        "is_failed",
        "job",
        "names_changed",
        "recovery_point",
        "sealed",
        "snapshots",
        "transactions",
    )

    def __init__(self, directory: Directory, recovery_point: int, *, epochs_are_stored: bool) -> None:
        self._directory = directory
        self.recovery_point = recovery_point
        self.checkpointed = recovery_point
        """The highest recovery point that a checkpoint may hold. A failed append lowers only the other one."""
        self.sealed: list[Segment] = []
        """Segments whose index is in memory and not yet on disk."""
        self.transactions: dict[int, bytes] = {}
        """Base offset -> contents of each `.txnindex` file that is not yet on disk."""
        self.snapshots: dict[int, bytes] = {}
        """Offset -> contents of each producer snapshot that is not yet on disk."""
        self.names_changed = False
        self.job: FlushJob | None = None
        self.is_failed = False
        self._stored_epochs = 0 if epochs_are_stored else -1  # the version that is on disk
        self._has_renamed = False  # indexes, whose names need not be durable before a clean stop

    def begin(self, segments: Segments, end_offset: int, epochs: LeaderEpochs) -> FlushJob | None:
        """Return the job that makes a log of these segments durable up to `end_offset`.

        Returns None if there is nothing to do or a job is running. Raises OSError if an earlier one failed: pages that
        the kernel dropped then can no longer be synced.
        """
        if self.is_failed:
            raise OSError(f"an earlier flush of {self._directory.path} failed")
        if self.job is not None:
            return None
        epochs_version = epochs.version_to_store(end_offset)
        is_new_epoch = epochs_version != max(self._stored_epochs, 0)
        is_on_disk = self.recovery_point >= end_offset and not (self.sealed or self.transactions or self.snapshots)
        if is_on_disk and not self.names_changed and not is_new_epoch:
            return None
        first = len(segments.wholly_before(self.recovery_point))
        is_partial = len(segments) - first > SEGMENTS_PER_JOB
        if is_partial:
            end_offset = segments.bases[first + SEGMENTS_PER_JOB]
        job = FlushJob(self._directory, end_offset)
        sealed = [segment for segment in self.sealed if segment.base_offset < end_offset]
        job.is_partial = is_partial or len(sealed) > SEGMENTS_PER_JOB
        try:
            for segment in segments[first : first + SEGMENTS_PER_JOB]:
                job.logs.append(segment.log.open_private())
            for segment in sealed[:SEGMENTS_PER_JOB]:
                job.add_indexes(segment)
        except OSError:
            job.close()
            raise
        if is_partial:
            job.transactions = {each: data for each, data in self.transactions.items() if each < end_offset}
            job.snapshots = {each: data for each, data in self.snapshots.items() if each <= end_offset}
        else:
            job.transactions = dict(self.transactions)
            job.snapshots = dict(self.snapshots)
        if is_new_epoch and is_partial:
            job.epochs, job.epochs_version = epochs.to_store_before(end_offset), -1
        elif is_new_epoch:
            job.epochs, job.epochs_version = epochs.to_store(end_offset), epochs_version
        job.sync_directory, self.names_changed = self.names_changed, False
        self.job = job
        return job

    def epochs_replaced(self) -> None:
        """Note that the log's leader epochs were replaced: those on disk are outdated."""
        self._stored_epochs = -1

    def finish(self, job: FlushJob, *, is_closing: bool = False) -> None:
        """Take over the results of a job. If it failed for good, no further durability can be promised."""
        self.job = None
        if not job.is_done:
            self.is_failed = not job.can_retry
            self.names_changed = True
            return
        self.recovery_point = max(self.recovery_point, job.end_offset)
        self.checkpointed = max(self.checkpointed, self.recovery_point)
        if job.epochs is not None:
            self._stored_epochs = job.epochs_version
        for write in job.indexes:
            segment = write.segment
            is_valid = is_closing or (segment in self.sealed and segment.base_offset < job.end_offset)
            segment.index.finish_temporary_files(keep=is_valid)
            if is_valid and segment in self.sealed:
                self.sealed.remove(segment)
                segment.drop_index()
            self._has_renamed = True
        for base_offset, data in job.transactions.items():
            if self.transactions.get(base_offset) is data:
                del self.transactions[base_offset]
        for offset, data in job.snapshots.items():
            if self.snapshots.get(offset) is data:
                del self.snapshots[offset]
        for offset in job.doubtful_snapshots():
            self._directory.delete(layout.file_name(offset, layout.SNAPSHOT))

    def close(self, segments: Segments, end_offset: int, epochs: LeaderEpochs) -> None:
        """Make everything durable, the active segment's index too, so that the log can be opened as clean. Blocks.

        An index without entries is not stored: rebuilding it takes reading less than one interval.
        """
        active = segments.active
        if active.needs_closing:
            active.truncate_torn_tail()
            self.names_changed = True
        while (job := self.begin(segments, end_offset, epochs)) is not None and job.is_partial:
            try:
                job.run()
            finally:
                self.finish(job)
        if job is not None:
            try:
                if active.needs_closing and not active.is_short:
                    active.seal()
                    job.add_indexes(active)
                job.run()
            finally:
                self.finish(job, is_closing=True)
        if self._has_renamed:
            self._directory.sync()

    def truncated(self, last_base_offset: int) -> None:
        """Note that the log was truncated within the segment of that base offset, which is active again.

        Files that a running job writes for that segment and later ones may predate the truncation.
        """
        self.names_changed = True
        self.sealed = [segment for segment in self.sealed if segment.base_offset < last_base_offset]
        for base_offset in [each for each in self.transactions if each >= last_base_offset]:
            del self.transactions[base_offset]
        if self.job is not None:
            self.job.end_offset = min(self.job.end_offset, last_base_offset)

    def restart_at(self, offset: int) -> None:
        """Note that the log was emptied and continues at `offset`. The owner writes its checkpoints."""
        self.recovery_point = self.checkpointed = offset

    def truncate_recovery_point(self, end_offset: int) -> bool:
        """Note the log's new end; return whether a checkpoint may hold a recovery point beyond it, and must be written.

        Otherwise a recovery would trust what is appended there later, unsynced.
        """
        has_fallen = end_offset < self.checkpointed
        self.lower_recovery_point(end_offset)
        self.checkpointed = min(self.checkpointed, end_offset)
        return has_fallen

    def lower_recovery_point(self, offset: int) -> None:
        """Note that the log was written to or truncated at `offset` and must be synced again from there.

        A running job may have synced that part before the change.
        """
        self.recovery_point = min(self.recovery_point, offset)
        if self.job is not None:
            self.job.end_offset = min(self.job.end_offset, offset)

    def removed(self, segments: Sequence[Segment]) -> None:
        """Note that segments were removed from the log."""
        self.names_changed = True
        self.sealed = [segment for segment in self.sealed if segment not in segments]
        for segment in segments:
            self.transactions.pop(segment.base_offset, None)

    def doubtful_snapshots(self) -> list[int]:
        """Return the offsets of snapshots on disk that must not be read."""
        return [] if self.job is None else self.job.doubtful_snapshots()
