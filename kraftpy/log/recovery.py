"""Opening a partition's directory, and recovering it after a crash.

After a clean stop only the last index interval is scanned. Otherwise every segment from the recovery point on is read
and verified: each batch's form and CRC, offsets that continue from the previous batch, leader epochs that never fall.
The log ends at the first batch that fails: the file is truncated there and later segments are deleted, because records
after a hole were never acknowledged as durable. The scan also rebuilds the index entries. Segments before the recovery
point were synced whole; only their indexes are checked.

Leftovers: `.deleted` and `.cleaned` files are removed; a `.swap` file is complete and replaces the segments it covers.

Epochs and producers are brought up to the end of the log from their last durable state. After a crash a producer
snapshot above the recovery point is not trusted: the log before it may have been rewritten since.

Blocks, for a long time if gigabytes have to be read: run it in a thread. Segments are scanned in parallel if the caller
provides threads for it. The recovery point is not advanced here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.files import FileCache
from kraftpy.log.index import MAX_RELATIVE_OFFSET, is_sane
from kraftpy.log.layout import CorruptFile
from kraftpy.log.producer_replay import delete_snapshots_before, newest_snapshot, replay, snapshot_offsets
from kraftpy.log.producer_states import ProducerStates
from kraftpy.log.scanning import MAX_OFFSET, Scanned, scan
from kraftpy.log.segment import CorruptSegment, Segment, walk
from kraftpy.ports import Directory
from kraftpy.types import Millis

Progress = Callable[[int, int], None]
"""Called from any thread with the bytes scanned and the total: at the start, about every 16 MiB, and at the end."""

Scan = Callable[[], Scanned]
SideBySide = Callable[[Sequence[Scan]], Generator[Scanned, None, None]]
"""Runs scans, perhaps several at once, and yields their results in order. Once it is closed, none is running."""

_REPLAY_BYTES: Final = 1 << 16


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """The findings and repairs of opening a log, for one line in the broker's own log."""

    clean: bool
    segments: int = 0
    scanned_segments: int = 0
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    deleted_segments: int = 0
    rebuilt_indexes: int = 0
    replayed_batches: int = 0
    missing_offsets: int = 0
    """Missing offsets below the recovery point: the owner checkpoints the lower one before anything is appended."""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.segments} segments", "clean" if self.clean else f"{self.scanned_bytes} bytes scanned"]
        for count, what in (
            (self.truncated_bytes, "bytes truncated"),
            (self.deleted_segments, "segments deleted"),
            (self.rebuilt_indexes, "indexes rebuilt"),
            (self.replayed_batches, "batches replayed"),
            (self.missing_offsets, "synced offsets missing"),
        ):
            if count:
                parts.append(f"{count} {what}")
        return ", ".join(parts + self.notes)


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """A partition's state as found on disk, after recovery."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    epochs_are_stored: bool
    producers: ProducerStates
    transactions: dict[int, bytes]
    """Base offset -> contents of each `.txnindex` file that has to be written."""
    snapshot_is_stored: bool
    report: RecoveryReport


def load(
    directory: Directory,
    *,
    now: Millis,
    files: FileCache,
    index_interval_bytes: int,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    expiration_ms: int,
    progress: Progress | None = None,
    side_by_side: SideBySide | None = None,
) -> LoadedLog:
    """Load the log in `directory`; an empty directory becomes a log that begins at `log_start_offset`.

    `clean` says that the last stop was clean; `recovery_point` and `log_start_offset` come from the checkpoints of the
    log directory. Raises OSError if the disk fails.
    """
    return _Loader(directory, files, index_interval_bytes, now, progress, clean, side_by_side or _one_by_one).load(
        recovery_point, log_start_offset, expiration_ms
    )


class _OutOfOrder(CorruptSegment):
    """The segment holds batches, but their offsets are impossible at this place."""


class _Loader:
    def __init__(
        self,
        directory: Directory,
        files: FileCache,
        interval: int,
        now: Millis,
        progress: Progress | None,
        clean: bool,
        side_by_side: SideBySide,
    ) -> None:
        self.directory = directory
        self.files = files
        self.interval = interval
        self.now = now
        self.progress = progress
        self.report = RecoveryReport(clean=clean)
        self.side_by_side = side_by_side
        self.producers: dict[Segment, list[tuple[int, bytes]]] = {}  # of segments that were scanned
        self.epochs = LeaderEpochs()
        self.epochs_are_stored = False
        self.segments: list[Segment] = []

    def load(self, recovery_point: int, log_start_offset: int, expiration_ms: int) -> LoadedLog:
        names, had_leftovers = finish_leftovers(self.directory, self.files, self.report)
        if log_start_offset == 0 and not had_leftovers and all(name == layout.PARTITION_METADATA for name in names):
            return self._begin()
        is_new = self._find_segments(names)
        if is_new:
            self.segments = [
                Segment.create(self.directory, log_start_offset, self.files, created_at=self.now),
            ]
        elif not self.report.clean:
            self._drop_before(log_start_offset)
        self._read_epochs(is_new)
        end_offset = self._end_of_clean(recovery_point) if self.report.clean else None
        if end_offset is None:
            end_offset = self._recover(recovery_point)
        if log_start_offset > end_offset:
            self._start_over(log_start_offset)
            end_offset = log_start_offset
        log_start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        producers, snapshot_offset = self._load_producers(recovery_point, end_offset)
        transactions = self._indexes_of_aborted(producers, snapshot_offset, names)
        producers.expire(self.now, expiration_ms)
        if not self.report.clean and (had_leftovers or not is_new):
            # A truncation in progress when the process died may be in the page cache only; it must not be undone later.
            self.segments[-1].log.get().sync()
            self.directory.sync()
        self.report.segments = len(self.segments)
        self.report.missing_offsets = max(0, recovery_point - end_offset)
        return LoadedLog(
            segments=self.segments,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            recovery_point=end_offset if self.report.clean else min(recovery_point, end_offset),
            epochs=self.epochs,
            epochs_are_stored=self.epochs_are_stored,
            producers=producers,
            transactions=transactions,
            snapshot_is_stored=snapshot_offset == end_offset,
            report=self.report,
        )

    def _begin(self) -> LoadedLog:
        """Return a log to which nothing was written yet. Thousands may stay empty, so this touches no file."""
        segment = Segment(self.directory, 0, self.files, created_at=self.now)
        segment.start_empty()
        self.report.segments = 1
        return LoadedLog(
            segments=[segment],
            log_start_offset=0,
            log_end_offset=0,
            recovery_point=0,
            epochs=self.epochs,
            epochs_are_stored=False,
            producers=ProducerStates(),
            transactions={},
            snapshot_is_stored=True,
            report=self.report,
        )

    # --- segments ---

    def _find_segments(self, names: list[str]) -> bool:
        """Find the segments by their `.log` and delete index files without one; return whether there is no segment."""
        present = set(names)
        bases = sorted(base for name in names if (base := layout.offset_of(name, layout.LOG)) is not None)
        self.segments = [Segment(self.directory, base, self.files, created_at=self.now) for base in bases]
        known = set(bases)
        for name in names:
            for suffix in layout.SEGMENT_SUFFIXES[1:]:
                base = layout.offset_of(name, suffix)
                if base is not None and base not in known:
                    self.directory.delete(name)
        for segment in self.segments:
            if not self.report.clean or segment is self.segments[-1]:
                index = segment.index
                if index.offset_file.name not in present or index.time_file.name not in present:
                    segment.start_empty()  # marks it as unindexed: no entries, held in memory
                    segment.file_size()
        return not bases

    def _end_of_clean(self, recovery_point: int) -> int | None:
        """Return the log's end offset as a clean stop left it; None if the files show that the stop was not clean.

        The end equals the recovery point, if that is known. If it is beyond that, or further than the segment can
        reach, the last batch's base offset is damaged.
        """
        active = self.segments[-1]
        try:
            if active.index.is_in_memory or not is_sane(
                active.index.offset_file.get(), active.index.time_file.get(), active.size, 2**31
            ):
                self._rebuild(active, active.base_offset + MAX_RELATIVE_OFFSET + 1)
                self.report.rebuilt_indexes -= active.is_short  # a clean stop leaves none for a short one
            end_offset = active.end_offset()
        except CorruptSegment as error:
            self.report.notes.append(f"the stop was not clean: {error}")
            self.report.clean = False
            return None
        if end_offset > recovery_point > active.base_offset:
            self.report.notes.append(f"damaged: the last batch appears to end at {end_offset}, not at {recovery_point}")
            return recovery_point
        if end_offset > active.base_offset + MAX_RELATIVE_OFFSET + 1:
            self.report.notes.append(f"the stop was not clean: the log appears to end at {end_offset}")
            self.report.clean = False
            return None
        if end_offset < recovery_point:
            self.report.notes.append(f"the stop was not clean: the log ends at {end_offset}, not at {recovery_point}")
            self.report.clean = False
            return None
        return end_offset

    def _recover(self, recovery_point: int) -> int:
        """Verify the log from the recovery point on, truncate it at the first invalid batch; return its end offset."""
        first = max(0, bisect_right([segment.base_offset for segment in self.segments], recovery_point) - 1)
        for segment, following in zip(self.segments[:first], self.segments[1 : first + 1], strict=True):
            self._check_sealed(segment, following.base_offset)
        self.epochs.truncate_from_end(self.segments[first].base_offset)
        end_offset, previous_epoch, kept = self.segments[first].base_offset, -1, first
        with closing(self._scan(self.segments[first:])) as scanned:
            for segment, size, found in scanned:
                if kept > first and segment.base_offset != end_offset:
                    self.report.notes.append(f"no records from {end_offset} to {segment.base_offset}")
                    break
                if found.epochs and found.epochs[0][0] < previous_epoch:
                    found = scan(
                        segment.log.get(),
                        size,
                        segment.base_offset,
                        self.interval,
                        previous_epoch,
                        limit=self._end_of(segment),
                    )
                self._take_over(segment, found)
                end_offset, previous_epoch = found.end_offset, max(previous_epoch, self.epochs.latest)
                kept += 1
                if found.size < size:
                    break
        last = self.segments[kept - 1]
        if last.size < last.log.get().size():
            self.report.truncated_bytes += last.log.get().size() - last.size
            last.log.get().truncate(last.size)
            last.log.get().sync()
        self._delete_from(kept)
        for segment in self.segments[first:-1]:
            segment.seal()  # the first flush stores its index
        return end_offset

    def _scan(self, segments: Sequence[Segment]) -> Generator[tuple[Segment, int, Scanned], None, None]:
        """Scan segments in parallel; yield each one, in order, with its file's size and the result of its scan."""
        sizes = [segment.file_size() for segment in segments]
        total, done = sum(sizes), [0] * len(segments)
        tell = self.progress
        if tell is not None:
            tell(0, total)

        def job(number: int) -> Scanned:
            def progress(more: int) -> None:
                done[number] += more
                if tell is not None:
                    tell(sum(done), total)

            segment = segments[number]
            file = segment.log.open_private()
            try:
                limit = self._end_of(segment)
                return scan(file, sizes[number], segment.base_offset, self.interval, limit=limit, progress=progress)
            finally:
                file.close()

        results = self.side_by_side([partial(job, number) for number in range(len(segments))])
        with closing(results):
            yield from zip(segments, sizes, results, strict=True)

    def _end_of(self, segment: Segment) -> int:
        """Return the offset at which the next segment begins; for the last segment, the largest offset there can be."""
        number = bisect_right(self.segments, segment.base_offset, key=lambda each: each.base_offset)
        return self.segments[number].base_offset if number < len(self.segments) else MAX_OFFSET

    def _take_over(self, segment: Segment, found: Scanned) -> None:
        """Give a segment the size, index entries, epochs and producers that its scan found."""
        segment.index.delete_files()
        self.directory.delete(layout.file_name(segment.base_offset, layout.TRANSACTION_INDEX))
        segment.start_empty()
        segment.adopt(
            found.size, found.offset_index, found.time_index, found.max_timestamp, found.offset_of_max_timestamp
        )
        for epoch, offset in found.epochs:
            self.epochs.assign(epoch, offset)
        self.producers[segment] = found.producers
        self.report.scanned_segments += 1
        self.report.scanned_bytes += found.size
        if found.failure is not None:
            self.report.notes.append(str(CorruptSegment(segment.log.name, *found.failure)))

    def _check_sealed(self, segment: Segment, end_offset: int) -> None:
        """Check a synced segment's index, and rebuild it if it is missing, damaged or incomplete."""
        size, offsets = segment.file_size(), end_offset - segment.base_offset
        try:
            if (
                not segment.index.is_in_memory
                and is_sane(segment.index.offset_file.get(), segment.index.time_file.get(), size, offsets)
                and _has_complete_index(segment, self.interval)
            ):
                return
        except CorruptSegment as error:
            self.report.notes.append(f"index dropped: {error}")
        try:
            self._rebuild(segment, end_offset)
        except _OutOfOrder as disorder:
            self.report.notes.append(f"damaged: {disorder}")
        except CorruptSegment as error:
            if _offset_after(segment, error.position) == end_offset:  # a failed write's remains after the last batch
                self.report.truncated_bytes += size - error.position
                segment.log.get().truncate(error.position)
                segment.log.get().sync()
                segment.resized(error.position)
            else:
                # Deleting synced records, and all that follow, is not ours to decide: readers will get an error.
                self.report.notes.append(f"damaged: {error}")
        self._store_indexes(segment)

    def _rebuild(self, segment: Segment, end_offset: int) -> None:
        """Rebuild a segment's index from its batches' headers.

        Raises CorruptSegment on anything that is not a batch, _OutOfOrder if offsets fall or reach `end_offset`.
        """
        size = segment.file_size()
        segment.index.delete_files()
        segment.start_empty()
        segment.resized(size)
        expected = segment.base_offset
        for placed in segment.walk(0, _REPLAY_BYTES):
            if placed.base_offset < expected or placed.last_offset >= end_offset:
                reason = f"offsets {placed.base_offset} to {placed.last_offset} instead of {expected} on"
                raise _OutOfOrder(segment.log.name, placed.position, reason)
            expected = placed.last_offset + 1
            segment.index_batch(placed.last_offset, placed.max_timestamp, placed.position, self.interval)
        self.report.rebuilt_indexes += 1

    @staticmethod
    def _store_indexes(segment: Segment) -> None:
        segment.seal()
        offsets, times = segment.load_index()
        for handle, data in ((segment.index.offset_file, offsets.encode()), (segment.index.time_file, times.encode())):
            file = handle.open_temporary()
            try:
                file.truncate(0)
                file.write(0, data)
                file.sync()
            finally:
                file.close()
        segment.index.finish_temporary_files(keep=True)
        segment.drop_index()

    def _delete_from(self, number: int) -> None:
        """Delete segments durably, newest first, so that a crash in between leaves a log without holes."""
        for segment in reversed(self.segments[number:]):
            self._delete(segment)
            self.directory.sync()
        del self.segments[number:]

    def _delete(self, segment: Segment) -> None:
        self.report.deleted_segments += 1
        segment.close()
        for name in segment.names:
            self.directory.delete(name)

    def _drop_before(self, log_start_offset: int) -> None:
        """Finish an interrupted deletion, which may have left holes in the segments wholly before the log's start."""
        kept = max(0, bisect_right([segment.base_offset for segment in self.segments], log_start_offset) - 1)
        for segment in self.segments[:kept]:
            self._delete(segment)
        del self.segments[:kept]

    def _start_over(self, log_start_offset: int) -> None:
        """Replace a log that ends before the first offset readers may see: nothing in it is of use."""
        self.report.notes.append(f"no records are left from offset {log_start_offset} on")
        self._delete_from(0)
        self.segments = [Segment.create(self.directory, log_start_offset, self.files, created_at=self.now)]

    # --- epochs and producers ---

    def _read_epochs(self, is_new: bool) -> None:
        try:
            self.epochs = LeaderEpochs.decode(self.directory.read(layout.LEADER_EPOCHS))
            self.epochs.version = 0
            self.epochs_are_stored = True
            return
        except FileNotFoundError:
            if is_new:
                return
        except CorruptFile as error:
            self.report.notes.append(f"{layout.LEADER_EPOCHS}: {error}")
        try:
            for segment in self.segments:
                for placed in segment.walk(0, _REPLAY_BYTES):
                    if placed.leader_epoch > self.epochs.latest:
                        self.epochs.assign(placed.leader_epoch, placed.base_offset)
        except CorruptSegment:
            pass  # a torn tail: recovery will reach and report it

    def _load_producers(self, recovery_point: int, end_offset: int) -> tuple[ProducerStates, int]:
        """Load the newest trustworthy snapshot and replay the log after it; also return the snapshot's offset."""
        believed = end_offset if self.report.clean else min(recovery_point, end_offset)
        offsets = snapshot_offsets(self.directory)
        first = self.segments[0].base_offset  # an earlier snapshot would leave a gap before the log
        for offset in [offset for offset in offsets if not first <= offset <= believed]:
            self.directory.delete(layout.file_name(offset, layout.SNAPSHOT))
        bases = {segment.base_offset for segment in self.segments}
        states, offset = newest_snapshot(self.directory, believed, first) if offsets else (ProducerStates(), -1)
        if offset < self.segments[0].base_offset:
            states.forget_open()
        for other in offsets:
            if other != offset and other not in bases:
                self.directory.delete(layout.file_name(other, layout.SNAPSHOT))
        self.report.replayed_batches = replay(states, self.segments, offset, self.now, self.producers)
        return states, offset

    def _indexes_of_aborted(
        self, producers: ProducerStates, snapshot_offset: int, names: list[str]
    ) -> dict[int, bytes]:
        """Return the rebuilt `.txnindex` contents of sealed segments beyond the snapshot; delete files now empty."""
        made: dict[int, bytes] = {}
        for segment, following in pairwise(self.segments):
            if following.base_offset > snapshot_offset:
                name = layout.file_name(segment.base_offset, layout.TRANSACTION_INDEX)
                data = producers.aborted.encode(segment.base_offset, following.base_offset)
                if data:
                    made[segment.base_offset] = data
                elif name in names:
                    self.directory.delete(name)
        return made


def _has_complete_index(segment: Segment, interval_bytes: int) -> bool:
    """Return whether the `.index` is complete to its end. CorruptSegment if its last entry points to no batch."""
    last = segment.index.entry_before(segment.size, segment.size)[1]
    return all(placed.position - last <= interval_bytes for placed in segment.walk(last))


def _offset_after(segment: Segment, position: int) -> int:
    """Return one past the last offset of the batches before `position`, which is a batch boundary."""
    end_offset = segment.base_offset
    start = segment.index.entry_before(position - 1, segment.size)[1]
    for placed in walk(segment.log.get(), segment.log.name, start, position):
        end_offset = placed.last_offset + 1
    return end_offset


def finish_leftovers(directory: Directory, files: FileCache, report: RecoveryReport) -> tuple[list[str], bool]:
    """Remove or complete the leftovers of an interrupted deletion or compaction.

    Returns the names of the files then present, and whether there was anything to do.
    """
    names = directory.names()
    kept: list[str] = []
    swaps: list[int] = []
    for name in names:
        if name.endswith((layout.DELETED, layout.CLEANED, layout.TEMPORARY)):
            directory.delete(name)
        elif not name.endswith(layout.SWAP):
            kept.append(name)
        elif name.endswith(layout.LOG + layout.SWAP):
            base = layout.offset_of(name, layout.LOG + layout.SWAP)
            if base is not None:
                swaps.append(base)
    for base in sorted(swaps):
        _complete_swap(directory, files, base, report)
    for name in names:
        if name.endswith(layout.SWAP):
            directory.delete(name)  # an index of a swap, which will be rebuilt
    return (directory.names() if swaps else kept), len(kept) < len(names)


def _complete_swap(directory: Directory, files: FileCache, base_offset: int, report: RecoveryReport) -> None:
    """Let a whole `.swap` replace every segment whose offsets it covers; drop one that cannot be read."""
    swap_name = layout.file_name(base_offset, layout.LOG + layout.SWAP)
    swap = Segment(directory, base_offset, files)
    swap.log.name = swap_name
    found = scan(swap.log.get(), swap.file_size(), base_offset, 1 << 30)
    swap.log.close()
    if found.failure is not None:
        report.notes.append(f"swap dropped: {CorruptSegment(swap_name, *found.failure)}")
        directory.delete(swap_name)
        return
    end_offset = found.end_offset
    for name in directory.names():
        base = layout.offset_of(name, layout.LOG)
        if base is not None and base_offset <= base < end_offset:
            for suffix in layout.SEGMENT_SUFFIXES:
                directory.delete(layout.file_name(base, suffix))
    delete_snapshots_before(directory, end_offset)  # `compaction.stage` did so, but a crash may have undone it
    directory.rename(swap_name, layout.file_name(base_offset, layout.LOG))
    directory.sync()
    report.notes.append(f"compaction of {base_offset} to {end_offset} completed")


def _one_by_one(scans: Sequence[Scan]) -> Generator[Scanned, None, None]:
    for each in scans:
        yield each()
