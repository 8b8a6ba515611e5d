"""Opening a partition's directory: what is there, and after a crash how much of it is true.

After a clean stop nothing is scanned but the last index interval. Otherwise every segment from the recovery point on is
read: each batch's form and CRC, offsets that go on where the batch before ended, leader epochs that never fall. At the
first batch that fails, the log ends: the file is cut there and later segments are deleted, because what follows a hole
was never acknowledged as durable. Index entries are made anew on the way. Segments before the recovery point were
synced whole; their indexes are only looked at.

Leftovers: `.deleted` and `.cleaned` files are removed; a `.swap` is complete and takes the place of the segments it
covers.

Epochs and producers are brought up to the end of the log from their last durable state. After a crash a producer
snapshot above the recovery point is not believed: the log before it may have been rewritten since.

Blocking, and for long where gigabytes have to be read: run it in a thread. Segments are scanned side by side where the
caller has threads for it. The recovery point is not advanced here.
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
from kraftpy.log.segment import CorruptSegment, Segment
from kraftpy.ports import Directory
from kraftpy.types import Millis

Progress = Callable[[int, int], None]
"""Told, from whatever thread, how many bytes of how many have been scanned: at first, now and then, and at last."""

Scan = Callable[[], Scanned]
SideBySide = Callable[[Sequence[Scan]], Generator[Scanned, None, None]]
"""Carries out scans, perhaps several at once, and gives their results in order. Once it is closed, none is running."""

_REPLAY_BYTES: Final = 1 << 16


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What opening a log found and did, for one line in the broker's own log."""

    clean: bool
    segments: int = 0
    scanned_segments: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0
    deleted_segments: int = 0
    rebuilt_indexes: int = 0
    replayed_batches: int = 0
    missing_offsets: int = 0
    """Below the recovery point and not there: the owner writes the lower one down before anything is appended."""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.segments} segments", "clean" if self.clean else f"{self.scanned_bytes} bytes scanned"]
        for count, what in (
            (self.cut_bytes, "bytes cut"),
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
    """A partition's state as it was found."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    epochs_are_stored: bool
    producers: ProducerStates
    transactions: dict[int, bytes]
    """By base offset the `.txnindex` files that are to be written."""
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
    """Open what is in `directory`; an empty one becomes a log that begins at `log_start_offset`.

    `clean` says that the last stop was; `recovery_point` and `log_start_offset` come from the checkpoints of the log
    directory. Raises OSError as the disk does.
    """
    return _Loader(directory, files, index_interval_bytes, now, progress, clean, side_by_side or _in_turn).load(
        recovery_point, log_start_offset, expiration_ms
    )


class _OutOfOrder(CorruptSegment):
    """Batches, but with other offsets than can be here."""


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
            self._start_anew(log_start_offset)
            end_offset = log_start_offset
        log_start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        producers, snapshot_offset = self._load_producers(recovery_point, end_offset)
        transactions = self._indexes_of_aborted(producers, snapshot_offset, names)
        producers.expire(self.now, expiration_ms)
        if not self.report.clean and (had_leftovers or not is_new):
            # A cut under way when the process died may be in the page cache only; it must not come undone later.
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
        """A log in which nothing was written yet. Thousands of partitions may stay so: nothing is done for one."""
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
        """The segments by their `.log`; index files without one go. True where there is no segment."""
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
                segment_is_indexed = segment.index_file.name in present and segment.time_index_file.name in present
                if not segment_is_indexed:
                    segment.start_empty()  # marks it: entries in memory, none of them
                    segment.file_size()
        return not bases

    def _end_of_clean(self, recovery_point: int) -> int | None:
        """The log's end offset as a clean stop left it; None where that cannot be, which is then no clean stop.

        It is the recovery point, where that is known: else the last batch's base offset has become another.
        """
        active = self.segments[-1]
        try:
            if active.offset_index is not None or not is_sane(
                active.index_file.get(), active.time_index_file.get(), active.size, 2**31
            ):
                self._rebuild(active, active.base_offset + MAX_RELATIVE_OFFSET + 1)
                self.report.rebuilt_indexes -= active.is_short  # a clean stop leaves none for a short one
            end_offset = active.end_offset()
        except CorruptSegment as error:
            self.report.notes.append(f"the stop was not clean: {error}")
            self.report.clean = False
            return None
        if end_offset > recovery_point > active.base_offset:
            self.report.notes.append(f"damaged: the last batch seems to end at {end_offset}, not at {recovery_point}")
            return recovery_point
        if end_offset < recovery_point:
            self.report.notes.append(f"the stop was not clean: the log ends at {end_offset}, not at {recovery_point}")
            self.report.clean = False
            return None
        return end_offset

    def _recover(self, recovery_point: int) -> int:
        """Verify from the recovery point on, cut what is not true; the log's end offset."""
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
            self.report.cut_bytes += last.log.get().size() - last.size
            last.log.get().truncate(last.size)
            last.log.get().sync()
        self._delete_from(kept)
        for segment in self.segments[first:-1]:
            segment.seal()  # the first flush stores its index
        return end_offset

    def _scan(self, segments: Sequence[Segment]) -> Generator[tuple[Segment, int, Scanned], None, None]:
        """Each segment with its file's size and what was found in it, in order; they are read side by side."""
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
        """Where the next segment begins; of the last one, the end of all offsets."""
        number = bisect_right(self.segments, segment.base_offset, key=lambda each: each.base_offset)
        return self.segments[number].base_offset if number < len(self.segments) else MAX_OFFSET

    def _take_over(self, segment: Segment, found: Scanned) -> None:
        """A segment is what a scan has found."""
        segment.delete_stored_indexes()
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
        """Look at a synced segment's index, and make it anew where it is missing, damaged or incomplete."""
        size, offsets = segment.file_size(), end_offset - segment.base_offset
        try:
            if (
                segment.offset_index is None
                and is_sane(segment.index_file.get(), segment.time_index_file.get(), size, offsets)
                and segment.has_complete_index(self.interval)
            ):
                return
        except CorruptSegment as error:
            self.report.notes.append(f"index dropped: {error}")
        try:
            self._rebuild(segment, end_offset)
        except _OutOfOrder as error:
            self.report.notes.append(f"damaged: {error}")
        except CorruptSegment as error:
            if segment.offset_after(error.position) == end_offset:  # what a failed write left behind the last batch
                self.report.cut_bytes += size - error.position
                segment.log.get().truncate(error.position)
                segment.log.get().sync()
                segment.resized(error.position)
            else:
                # Deleting what was synced, and all that came after, is not ours to decide: readers will hear of it.
                self.report.notes.append(f"damaged: {error}")
        self._store_indexes(segment)

    def _rebuild(self, segment: Segment, end_offset: int) -> None:
        """Make a segment's index from its batches' headers.

        CorruptSegment where there is something else; _OutOfOrder where they do not follow one another, up to an offset.
        """
        size = segment.file_size()
        segment.delete_stored_indexes()
        segment.start_empty()
        segment.resized(size)
        expected = segment.base_offset
        for placed in segment.walk(0, _REPLAY_BYTES):
            if placed.base_offset < expected or placed.last_offset >= end_offset:
                reason = f"offsets {placed.base_offset} to {placed.last_offset} where {expected} should be"
                raise _OutOfOrder(segment.log.name, placed.position, reason)
            expected = placed.last_offset + 1
            segment.indexed(
                placed.base_offset, placed.last_offset, placed.max_timestamp, placed.position, self.interval
            )
        self.report.rebuilt_indexes += 1

    @staticmethod
    def _store_indexes(segment: Segment) -> None:
        segment.seal()
        offsets, times = segment.load_indexes()
        for handle, data in ((segment.index_file, offsets.encode()), (segment.time_index_file, times.encode())):
            file = handle.open_temporary()
            try:
                file.truncate(0)
                file.write(0, data)
                file.sync()
            finally:
                file.close()
        segment.finish_temporary_indexes(keep=True)
        segment.drop_indexes()

    def _delete_from(self, number: int) -> None:
        """Delete segments, newest first and durably: a crash in between leaves a log without holes."""
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
        """Finish a deletion: of the segments wholly before the log's start, any may be gone, and leave holes."""
        kept = max(0, bisect_right([segment.base_offset for segment in self.segments], log_start_offset) - 1)
        for segment in self.segments[:kept]:
            self._delete(segment)
        del self.segments[:kept]

    def _start_anew(self, log_start_offset: int) -> None:
        """The log was cut before the first offset readers may see: nothing in it is of use."""
        self.report.notes.append(f"nothing is left from offset {log_start_offset} on")
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
            pass  # a torn tail: recovery gets there and says so

    def _load_producers(self, recovery_point: int, end_offset: int) -> tuple[ProducerStates, int]:
        """The newest snapshot that can be believed, and the log behind it; the snapshot's offset."""
        believed = end_offset if self.report.clean else min(recovery_point, end_offset)
        offsets = snapshot_offsets(self.directory)
        first = self.segments[0].base_offset  # a snapshot from before it, and what follows, would leave something out
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
        """The `.txnindex` files of sealed segments that reach beyond the snapshot: what they held was made anew."""
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


def finish_leftovers(directory: Directory, files: FileCache, report: RecoveryReport) -> tuple[list[str], bool]:
    """Remove or complete what an interrupted deletion or compaction left.

    Returns the names that are there then, and whether there was anything to do.
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
            directory.delete(name)  # an index of a swap: it is made anew
    return (directory.names() if swaps else kept), len(kept) < len(names)


def _complete_swap(directory: Directory, files: FileCache, base_offset: int, report: RecoveryReport) -> None:
    """A whole `.swap` replaces every segment whose offsets it covers; one that cannot be read is dropped."""
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
    delete_snapshots_before(directory, end_offset)  # `compaction.stage` did, and may have been undone
    directory.rename(swap_name, layout.file_name(base_offset, layout.LOG))
    directory.sync()
    report.notes.append(f"compaction of {base_offset} to {end_offset} completed")


def _in_turn(scans: Sequence[Scan]) -> Generator[Scanned, None, None]:
    for each in scans:
        yield each()
