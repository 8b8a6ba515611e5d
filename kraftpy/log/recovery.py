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

Blocking, and for long where gigabytes have to be read: run it in a thread. The recovery point is not advanced here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.files import FileCache
from kraftpy.log.index import is_sane
from kraftpy.log.layout import CorruptFile
from kraftpy.log.producers import ProducerStates
from kraftpy.log.segment import CorruptSegment, Segment
from kraftpy.ports import Directory
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    check_crc,
    decode_control_record,
    iter_records,
    read_header,
)
from kraftpy.types import Millis

Progress = Callable[[int, int], None]
"""Told now and then how many bytes of how many have been read."""

_READ_BYTES: Final = 1 << 20
_REPLAY_BYTES: Final = 1 << 16
_TELL_BYTES: Final = 1 << 24
_CRC_START: Final = 21


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
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.segments} segments", "clean" if self.clean else f"{self.scanned_bytes} bytes scanned"]
        for count, what in (
            (self.cut_bytes, "bytes cut"),
            (self.deleted_segments, "segments deleted"),
            (self.rebuilt_indexes, "indexes rebuilt"),
            (self.replayed_batches, "batches replayed"),
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
) -> LoadedLog:
    """Open what is in `directory`; an empty one becomes a log that begins at `log_start_offset`.

    `clean` says that the last stop was; `recovery_point` and `log_start_offset` come from the checkpoints of the log
    directory. Raises OSError as the disk does.
    """
    return _Loader(directory, files, index_interval_bytes, now, progress, clean).load(
        recovery_point, log_start_offset, expiration_ms
    )


class _Loader:
    def __init__(
        self, directory: Directory, files: FileCache, interval: int, now: Millis, progress: Progress | None, clean: bool
    ) -> None:
        self.directory = directory
        self.files = files
        self.interval = interval
        self.now = now
        self.progress = progress
        self.report = RecoveryReport(clean=clean)
        self.told_bytes = 0
        self.epochs = LeaderEpochs()
        self.epochs_are_stored = False
        self.segments: list[Segment] = []

    def load(self, recovery_point: int, log_start_offset: int, expiration_ms: int) -> LoadedLog:
        names, had_leftovers = finish_leftovers(self.directory, self.files, self.report)
        is_new = self._find_segments(names)
        if is_new:
            self.segments = [
                Segment.create(self.directory, log_start_offset, self.files, created_at=self.now),
            ]
        self._read_epochs(is_new)
        end_offset = self._end_of_clean() if self.report.clean else None
        if end_offset is None:
            end_offset = self._recover(recovery_point)
        if log_start_offset > end_offset:
            self._start_anew(log_start_offset)
            end_offset = log_start_offset
        log_start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        producers, stored = self._load_producers(recovery_point, end_offset)
        producers.log_start_advanced(log_start_offset)
        producers.expire(self.now, expiration_ms)
        if not self.report.clean and (had_leftovers or not is_new):
            # A cut under way when the process died may be in the page cache only; it must not come undone later.
            self.segments[-1].log.get().sync()
            self.directory.sync()
        self.report.segments = len(self.segments)
        return LoadedLog(
            segments=self.segments,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            recovery_point=end_offset if self.report.clean else min(recovery_point, end_offset),
            epochs=self.epochs,
            epochs_are_stored=self.epochs_are_stored,
            producers=producers,
            snapshot_is_stored=stored,
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
            for suffix in (layout.INDEX, layout.TIME_INDEX):
                base = layout.offset_of(name, suffix)
                if base is not None and base not in known:
                    self.directory.delete(name)
        for segment in self.segments:
            if not self.report.clean or segment is self.segments[-1]:
                segment_is_indexed = segment.index_file.name in present and segment.time_index_file.name in present
                if not segment_is_indexed:
                    segment.start_empty()  # marks it: entries in memory, none of them
        return not bases

    def _end_of_clean(self) -> int | None:
        """The log's end offset as a clean stop left it; None where that cannot be, which is then no clean stop."""
        active = self.segments[-1]
        try:
            if active.offset_index is not None or not is_sane(
                active.index_file.get(), active.time_index_file.get(), active.size, 2**31
            ):
                self._rebuild(active)
            return active.end_offset()
        except CorruptSegment as error:
            self.report.notes.append(f"the stop was not clean: {error}")
            self.report.clean = False
            return None

    def _recover(self, recovery_point: int) -> int:
        """Verify from the recovery point on, cut what is not true; the log's end offset."""
        first = max(0, bisect_right([segment.base_offset for segment in self.segments], recovery_point) - 1)
        for segment, following in zip(self.segments[:first], self.segments[1 : first + 1], strict=True):
            self._check_sealed(segment, following.base_offset)
        self.epochs.truncate_from_end(self.segments[first].base_offset)
        total = sum(segment.file_size() for segment in self.segments[first:])
        end_offset = self.segments[first].base_offset
        previous_epoch = -1
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first and segment.base_offset != end_offset:
                self.report.notes.append(f"no records from {end_offset} to {segment.base_offset}")
                self._delete_from(number)
                break
            size = segment.file_size()
            end_offset, previous_epoch = self._verify(segment, size, previous_epoch, total)
            if segment.size < size:
                self.report.cut_bytes += size - segment.size
                segment.log.get().truncate(segment.size)
                segment.log.get().sync()
                self._delete_from(number + 1)
                break
        for segment in self.segments[first:-1]:
            self._store_indexes(segment)
        return end_offset

    def _verify(self, segment: Segment, size: int, previous_epoch: int, total: int) -> tuple[int, int]:
        """Read a whole segment, making its index; its end offset and last leader epoch.

        `segment.size` is what is true.
        """
        segment.delete_stored_indexes()
        segment.start_empty()
        end_offset = segment.base_offset
        try:
            for position, header in verified_batches(segment, size):
                if header.base_offset < end_offset:
                    raise CorruptSegment(
                        segment.log.name, position, f"offset {header.base_offset} after {end_offset - 1}"
                    )
                epoch = header.partition_leader_epoch
                if 0 <= epoch < previous_epoch:
                    raise CorruptSegment(segment.log.name, position, f"leader epoch {epoch} after {previous_epoch}")
                if epoch > previous_epoch:
                    previous_epoch = epoch
                    self.epochs.assign(epoch, header.base_offset)
                segment.indexed(header.base_offset, header.last_offset, header.max_timestamp, position, self.interval)
                segment.resized(position + header.size_bytes)
                end_offset = header.next_offset
                self.report.scanned_bytes += header.size_bytes
                if self.progress is not None and self.report.scanned_bytes - self.told_bytes >= _TELL_BYTES:
                    self.told_bytes = self.report.scanned_bytes
                    self.progress(self.told_bytes, total)
        except CorruptSegment as error:
            self.report.notes.append(str(error))
        self.report.scanned_segments += 1
        return end_offset, previous_epoch

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
            self._rebuild(segment)
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

    def _rebuild(self, segment: Segment) -> None:
        """Make a segment's index from its batches' headers. CorruptSegment where there is something else."""
        size = segment.file_size()
        segment.delete_stored_indexes()
        segment.start_empty()
        segment.resized(size)
        for placed in segment.walk(0, _REPLAY_BYTES):
            segment.indexed(
                placed.base_offset, placed.last_offset, placed.max_timestamp, placed.position, self.interval
            )
        self.report.rebuilt_indexes += 1

    @staticmethod
    def _store_indexes(segment: Segment) -> None:
        segment.seal()
        offsets, times = segment.load_indexes()
        for file, data in zip(segment.open_temporary_indexes(), (offsets.encode(), times.encode()), strict=True):
            file.truncate(0)
            file.write(0, data)
            file.sync()
            file.close()
        segment.finish_temporary_indexes(keep=True)
        segment.drop_indexes()

    def _delete_from(self, number: int) -> None:
        """Delete segments, newest first: a crash in between leaves a log without holes."""
        for segment in reversed(self.segments[number:]):
            self._delete(segment)
        del self.segments[number:]

    def _delete(self, segment: Segment) -> None:
        self.report.deleted_segments += 1
        segment.close()
        for name in segment.names:
            self.directory.delete(name)

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

    def _load_producers(self, recovery_point: int, end_offset: int) -> tuple[ProducerStates, bool]:
        """The newest snapshot that can be believed, and the log behind it; whether that is one of the very end."""
        believed = end_offset if self.report.clean else min(recovery_point, end_offset)
        offsets = snapshot_offsets(self.directory)
        for offset in [offset for offset in offsets if offset > believed]:
            self.directory.delete(layout.file_name(offset, layout.SNAPSHOT))
        bases = {segment.base_offset for segment in self.segments}
        states, offset = newest_snapshot(self.directory, believed)
        for other in offsets:
            if other != offset and other not in bases:
                self.directory.delete(layout.file_name(other, layout.SNAPSHOT))
        self.report.replayed_batches = replay(states, self.segments, offset, self.now)
        return states, offset == end_offset


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
    try:
        end_offset = base_offset
        for _, header in verified_batches(swap, swap.file_size()):
            end_offset = header.next_offset
    except CorruptSegment as error:
        report.notes.append(f"swap dropped: {error}")
        directory.delete(swap_name)
        return
    finally:
        swap.log.close()
    for name in directory.names():
        base = layout.offset_of(name, layout.LOG)
        if base is not None and base_offset <= base < end_offset:
            for suffix in layout.SEGMENT_SUFFIXES:
                directory.delete(layout.file_name(base, suffix))
    directory.rename(swap_name, layout.file_name(base_offset, layout.LOG))
    directory.sync()
    report.notes.append(f"compaction of {base_offset} to {end_offset} completed")


def verified_batches(segment: Segment, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch of a segment's first `size` bytes, its form and CRC checked.

    CorruptSegment at the first that fails.
    """
    file, name = segment.log.get(), segment.log.name
    window, start, position = b"", 0, 0
    while position < size:
        at = position - start
        if at + HEADER_BYTES > len(window):
            window, start, at = file.read(position, min(_READ_BYTES, size - position)), position, 0
            if len(window) < HEADER_BYTES:
                raise CorruptSegment(name, position, f"{len(window)} bytes are no batch")
        header = read_header(window, at)
        batch_bytes = header.size_bytes
        if header.magic != MAGIC or batch_bytes < HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptSegment(name, position, "no batch header")
        if position + batch_bytes > size:
            raise CorruptSegment(name, position, f"a batch of {batch_bytes} bytes, {size - position} are there")
        if at + batch_bytes > len(window) and at:
            window, start, at = file.read(position, min(_READ_BYTES, size - position)), position, 0
        if at + batch_bytes <= len(window):
            is_whole = check_crc(memoryview(window)[at : at + batch_bytes])
        else:
            crc = crc32c(memoryview(window)[at + _CRC_START :])
            done = position + len(window) - at
            while done < position + batch_bytes:
                part = file.read(done, min(_READ_BYTES, position + batch_bytes - done))
                crc = crc32c(part, crc)
                done += len(part)
            is_whole = crc == header.crc
        if not is_whole:
            raise CorruptSegment(name, position, "the CRC does not match")
        yield position, header
        position += batch_bytes


# --- producer state ---------------------------------------------------------------------------------------------------


def snapshot_offsets(directory: Directory) -> list[int]:
    """The offsets of the producer snapshots there are, in order."""
    return sorted(
        offset for name in directory.names() if (offset := layout.offset_of(name, layout.SNAPSHOT)) is not None
    )


def newest_snapshot(
    directory: Directory, end_offset: int, doubtful: Collection[int] = ()
) -> tuple[ProducerStates, int]:
    """The newest whole snapshot not beyond `end_offset` and not among the `doubtful`, and its offset.

    Damaged ones are deleted. Where there is none: no producers, offset -1.
    """
    for offset in reversed(snapshot_offsets(directory)):
        if offset > end_offset or offset in doubtful:
            continue
        name = layout.file_name(offset, layout.SNAPSHOT)
        try:
            return ProducerStates.decode(directory.read(name)), offset
        except CorruptFile:
            directory.delete(name)
    return ProducerStates(), -1


def replay(states: ProducerStates, segments: list[Segment], from_offset: int, now: Millis) -> int:
    """Apply the batches from an offset on to `states`; how many there were. By headers, but for markers.

    The rest of a damaged segment is passed over.
    """
    replayed = 0
    first = max(0, bisect_right([segment.base_offset for segment in segments], from_offset) - 1)
    for segment in segments[first:]:
        try:
            found = segment.find(from_offset)
            if found is not None:
                for position, header in _headers(segment, found.position):
                    replayed += 1
                    if header.producer_id >= 0:
                        _apply(states, segment, position, header, now)
        except CorruptSegment:
            continue
    return replayed


def _apply(states: ProducerStates, segment: Segment, position: int, header: BatchHeader, now: Millis) -> None:
    if not header.is_control:
        states.appended(header, now)
        return
    try:
        for record in iter_records(segment.log.get().read(position, header.size_bytes), header):
            states.ended(header, decode_control_record(record), now)
    except CorruptBatch:
        return  # control records of a kind we do not know end no transaction


def _headers(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    file, end = segment.log.get(), segment.size
    window, start = b"", position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(window):
            window, start, at = file.read(position, min(_REPLAY_BYTES, end - position)), position, 0
        if len(window) < HEADER_BYTES:
            raise CorruptSegment(segment.log.name, position, "no batch header")
        header = read_header(window, at)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES or position + header.size_bytes > end:
            raise CorruptSegment(segment.log.name, position, "no batch header")
        yield position, header
        position += header.size_bytes
