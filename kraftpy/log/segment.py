"""One `.log` file with its indexes.

A segment is either active (the last one of its log) or sealed. An active segment holds its index entries in memory
(`segment_index`); sealing hands them to the next flush, and from then on lookups read the index files. `position` and
`size` are bytes in the `.log`; offsets are those of the partition.

Writes address the file by position, and its size is tracked here: the remains of a failed write beyond `size` are
overwritten by the next one, or truncated by `close` and by recovery.

Invariant: `[0, size)` holds whole batches in offset order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from kraftpy.log.known_bytes import KnownBytes
from kraftpy.log.segment_index import SegmentIndex
from kraftpy.log.verifying import CorruptSegment, Epochs, IntactBatch, SegmentFile, batches_from
from kraftpy.ports import Buffer, Directory, File
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC, BatchHeader

__all__ = ["FAR_BYTES", "BatchPosition", "CorruptSegment", "Segment", "walk"]

# The part of a batch header a walk needs: base offset, length, leader epoch, magic, last offset delta, max timestamp.
_WALK: Final = struct.Struct(">qiib6xi8xq")
_PREFIX_BYTES: Final = 12
_LOOKUP_CHUNK_BYTES: Final = 4096 + HEADER_BYTES
_HINTS: Final = 8
FAR_BYTES: Final = 4 << 20
"""If an index entry is this far from the batch that a reader looks for, the index is useless."""
_RESERVE_FROM_BYTES: Final = 1 << 20
_RESERVE_AT_MOST_BYTES: Final = 16 << 20


class BatchPosition:
    """A batch in a segment: its position, and the header fields that searches need."""

    __slots__ = ("base_offset", "last_offset", "leader_epoch", "max_timestamp", "position", "size")

    def __init__(
        self, position: int, size: int, base_offset: int, last_offset: int, leader_epoch: int, max_timestamp: int
    ) -> None:
        self.position = position
        self.size = size
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.leader_epoch = leader_epoch
        self.max_timestamp = max_timestamp


def walk(
    file: File, name: str, position: int, end: int, chunk_bytes: int = _LOOKUP_CHUNK_BYTES
) -> Iterator[BatchPosition]:
    """Yield the batches from `position` to `end`, by their headers alone; large batches are skipped, not read.

    Raises CorruptSegment on anything that is not a batch.
    """
    chunk, start = b"", position
    while position < end:
        at = position - start
        if at + _WALK.size > len(chunk):
            chunk, start, at = file.read(position, min(chunk_bytes, end - position)), position, 0
            if len(chunk) < _WALK.size:
                raise CorruptSegment(name, position, f"{len(chunk)} bytes are too few for a batch header")
        base_offset, length, leader_epoch, magic, delta, max_timestamp = _WALK.unpack_from(chunk, at)
        size = length + _PREFIX_BYTES
        if magic != MAGIC or size < HEADER_BYTES or delta < 0 or position + size > end:
            raise CorruptSegment(
                name, position, f"not a batch header: magic {magic}, {size} of {end - position} bytes, delta {delta}"
            )
        yield BatchPosition(position, size, base_offset, base_offset + delta, leader_epoch, max_timestamp)
        position += size


class Segment:
    """A file of batches that begins at `base_offset`."""

    __slots__ = (
        "_first_timestamp",
        "_hints",
        "_is_index_rebuilt",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_reserved",
        "_size",
        "_was_written",
        "base_offset",
        "created_at",
        "directory",
        "index",
        "known",
        "log",
    )

    def __init__(self, directory: Directory, base_offset: int, files: FileCache, *, created_at: int = 0) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.created_at = created_at
        self.log = LazyFile(directory, layout.file_name(base_offset, layout.LOG), files)
        self.index = SegmentIndex(directory, base_offset, files)
        self.known = KnownBytes()
        self._size = -1  # -1: ask the file
        self._reserved = 0  # the position up to which space was reserved
        self._was_written = False  # since it was opened: the file was written, or the index is out of date
        self._max_timestamp: int | None = None  # None: ask the time index
        self._offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._is_index_rebuilt = False
        self._hints: dict[int, int] = {}  # where sequential readers will continue: offset -> position

    @classmethod
    def create(cls, directory: Directory, base_offset: int, files: FileCache, *, created_at: int) -> Segment:
        """Return a new, empty active segment. An old file of the same name is truncated."""
        segment = cls(directory, base_offset, files, created_at=created_at)
        if segment.log.get().size():
            segment.log.get().truncate(0)
        segment.start_empty()
        return segment

    def start_empty(self) -> None:
        """Become an empty active segment. Unless a file exists already, the first write creates it."""
        self._size = 0
        self.index.hold(OffsetIndex(), TimeIndex())
        self._max_timestamp, self._offset_of_max_timestamp, self._first_timestamp = -1, self.base_offset, None
        self._hints.clear()

    def adopt(
        self, size: int, offsets: OffsetIndex, times: TimeIndex, max_timestamp: int, offset_of_max_timestamp: int
    ) -> None:
        """Become a sealed segment that was written elsewhere, with the index entries built there."""
        self._size = size
        self.index.hold(offsets, times)
        self._max_timestamp, self._offset_of_max_timestamp = max_timestamp, offset_of_max_timestamp

    @property
    def size(self) -> int:
        """The size of all whole batches in bytes."""
        if self._size < 0:
            self._size = self.log.get().size()
        return self._size

    def resized(self, size: int) -> None:
        """Declare that the whole batches are the first `size` bytes of the file."""
        self._size = size

    def file_size(self) -> int:
        """Return the size of the file in bytes, and from now on take all of them for whole batches."""
        self._size = self.log.get().size()
        return self._size

    @property
    def names(self) -> list[str]:
        """The names of the segment's files, not all of which need exist."""
        return [self.log.name, *(layout.file_name(self.base_offset, suffix) for suffix in layout.SEGMENT_SUFFIXES[1:])]

    def rename_to_deleted(self) -> list[str]:
        """Close the files and rename them, so that a start deletes them; return the new names."""
        self.close()
        gone: list[str] = []
        for name in self.names:
            if self.directory.exists(name):
                self.directory.rename(name, name + layout.DELETED)
                gone.append(name + layout.DELETED)
        return gone

    # --- writing ---

    def append(self, data: Buffer, batches: list[tuple[BatchHeader, int]], interval_bytes: int) -> None:
        """Append whole batches in one write; `batches` has their headers and their positions within `data`.

        Call `load_index` first. If the write raises, the segment is unchanged, and the part that reached the file is
        truncated.
        """
        file = self.log.get()
        start = self.size
        self._was_written = True
        try:
            file.write(start, data)
        except OSError:
            with suppress(OSError):  # the caller gets the error of the write; `close` truncates the remains otherwise
                file.truncate(start)
            raise
        self._size = start + len(data)
        self.known.wrote(start, self._size, self.log)
        if self._size > self._reserved:
            self._reserve(file)
        for header, position in batches:
            self.index_batch(header.last_offset, header.max_timestamp, start + position, interval_bytes)

    def preallocate(self, size: int) -> None:
        """Reserve the space of a whole segment before its first record is written.

        A file system without that much space grants none, and none is requested later.
        """
        self.log.get().reserve(0, size)
        self._reserved = size

    def _reserve(self, file: File) -> None:
        """Reserve as much space as the segment already takes, up to a limit.

        A file system allocates that more cheaply than block by block, and contiguously. Small segments, of which there
        may be thousands, reserve none.
        """
        size = self._size
        if size < _RESERVE_FROM_BYTES:
            self._reserved = _RESERVE_FROM_BYTES - 1
            return
        ahead = min(size, _RESERVE_AT_MOST_BYTES)
        file.reserve(size, ahead)
        self._reserved = size + ahead

    @property
    def needs_closing(self) -> bool:
        """True if the file may end in a torn tail, or the index is not on disk."""
        return self._was_written or bool(self.index.offsets)

    @property
    def is_short(self) -> bool:
        """True if the index is in memory and has no entries: reading the whole segment costs no more than its end."""
        offsets = self.index.offsets
        return offsets is not None and not offsets

    def truncate_torn_tail(self) -> None:
        """Truncate the remains of failed writes after the last whole batch, and reserved space that was not used.

        A file that was active before a crash may have either, and is truncated as well.
        """
        file = self.log.get()
        if self._reserved >= _RESERVE_FROM_BYTES or file.size() >= _RESERVE_FROM_BYTES or file.size() > self.size:
            file.truncate(self.size)
        self._reserved = 0

    def index_batch(self, last_offset: int, max_timestamp: int, position: int, interval_bytes: int) -> None:
        """Record a batch at `position`: its timestamp, and an index entry if one is due."""
        offsets, times = self.load_index()
        if self._max_timestamp is None or max_timestamp > self._max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = max_timestamp, last_offset
        if self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        if position - offsets.last_position() > interval_bytes:
            offsets.append(last_offset - self.base_offset, position)
            times.append(self._max_timestamp, self._offset_of_max_timestamp - self.base_offset)

    def has_room(self, data_bytes: int, last_offset: int, *, segment_bytes: int, index_bytes: int) -> bool:
        """Return whether a set of batches fits: by bytes, index entries and the 32 bits of a relative offset."""
        offsets, times = self.load_index()
        return (
            self.size + data_bytes <= segment_bytes
            and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and len(offsets) < index_bytes // OFFSET_ENTRY_BYTES
            and len(times) < index_bytes // TIME_ENTRY_BYTES - 1
        )

    def age_ms(self, now: int, batch_timestamp: int) -> int:
        """Return the segment's age, from the timestamps of its first and its next batch if known, else by the clock."""
        first = self.first_timestamp()
        if first is not None and first >= 0 and batch_timestamp >= 0:
            return batch_timestamp - first
        return now - self.created_at

    def load_index(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the index entries and hold them in memory, as appending needs; read the index files if necessary."""
        offsets, times = self.index.offsets, self.index.times
        if offsets is None or times is None:
            self.max_timestamp()  # now: entries in memory are no longer verified
            offsets, times = self.index.load()
        return offsets, times

    def seal(self) -> None:
        """Seal the segment against appends: end the time index with the largest timestamp."""
        _, times = self.load_index()
        timestamp, offset = self.max_timestamp()
        times.append(timestamp, offset - self.base_offset)

    def truncate(self, end_offset: int) -> int:
        """Drop the batches that reach `end_offset` or beyond; return the end offset of those left.

        The truncation is durable, and the segment becomes active again. Blocks for the sync.
        """
        offsets, times = self.load_index()
        self.index.delete_files()
        self.directory.delete(layout.file_name(self.base_offset, layout.TRANSACTION_INDEX))
        self._was_written = True
        self._hints.clear()
        found = self.find(end_offset)
        if found is None:
            return self.end_offset()
        file = self.log.get()
        file.truncate(found.position)
        file.sync()
        self._size = found.position
        self.known.forget()
        self._reserved = 0
        offsets.truncate(found.base_offset - self.base_offset)
        times.truncate(found.base_offset - self.base_offset)
        self._max_timestamp = None
        if not self._size:
            self.start_empty()
        self.max_timestamp()
        return self.end_offset()

    # --- reading ---

    def find(self, offset: int) -> BatchPosition | None:
        """Return the first batch whose last offset is `offset` or more, or None."""
        hint = self._hints.get(offset)
        for placed in self.walk(self.index.entry_for(offset)[1] if hint is None else hint):
            if placed.last_offset >= offset:
                return placed
        return None

    def find_start(self, offset: int) -> tuple[int, int, int] | None:
        """Return the position, expected base offset and apparent base offset of the batch that `find` would return.

        After a gap the batch may begin later than expected. Both base offsets are `offset` itself if a reader was given
        everything before it. Raises CorruptSegment if the batches on the way are out of order, or if an index entry
        names none of them.
        """
        hint = self._hints.get(offset)
        if hint is not None and hint < self.size:
            return hint, offset, offset
        last_offset, start = self.index.entry_for(offset)
        if start and last_offset > offset:
            raise CorruptSegment(self.log.name, start, "an index entry is out of order")
        expected = near = self.base_offset
        for placed in self.walk_from(last_offset, start):
            if placed.last_offset >= offset:
                base_offset = placed.base_offset
                return placed.position, base_offset if placed.position == start > 0 else expected, base_offset
            if placed.position == start:
                near = start + placed.size + FAR_BYTES
            elif placed.position > near and not self.index.is_in_memory and not self._is_index_rebuilt:
                raise CorruptSegment(self.log.name, start, "the nearest index entry is too far away")
            expected = placed.last_offset + 1
        return None

    def intact_batches(self, offset: int, end_offset: int, epochs: Epochs) -> Iterator[IntactBatch | CorruptSegment]:
        """Yield the intact batches from before `offset` on, and the damage between them (`verifying.batches_from`)."""
        return batches_from(self._as_file(end_offset, epochs), self.index.anchors(), offset)

    def _as_file(self, end_offset: int, epochs: Epochs) -> SegmentFile:
        end_offset = min(end_offset, self.base_offset + MAX_RELATIVE_OFFSET + 1)
        return SegmentFile(self.log, self.log.name, self.size, self.base_offset, end_offset, epochs)

    def rebuild_index(self, end_offset: int, epochs: Epochs, interval_bytes: int) -> bool:
        """Rebuild the index entries of a sealed segment by reading all intact batches, and hold them in memory.

        Returns False if that was done before: a second attempt would not help. Damaged batches get no entries; readers
        that reach them will find the damage.
        """
        if self._is_index_rebuilt or self.index.is_in_memory:
            return False
        self._is_index_rebuilt = True
        offsets, times = OffsetIndex(), TimeIndex()
        timestamp, offset = -1, self.base_offset
        for found in batches_from(self._as_file(end_offset, epochs), [], self.base_offset):
            if isinstance(found, CorruptSegment):
                continue
            if found.max_timestamp > timestamp:
                timestamp, offset = found.max_timestamp, found.last_offset
            if found.position - offsets.last_position() > interval_bytes:
                offsets.append(found.last_offset - self.base_offset, found.position)
                times.append(timestamp, offset - self.base_offset)
        times.append(timestamp, offset - self.base_offset)
        self.index.hold(offsets, times)
        self._max_timestamp, self._offset_of_max_timestamp, self._first_timestamp = timestamp, offset, None
        self._hints.clear()
        return True

    def end_offset(self) -> int:
        """Return one past the last offset, found by walking the last index interval.

        Raises CorruptSegment if that interval is not made of whole batches, or the last one's offset is below others.
        """
        indexed, position = self.index.entry_before(self.size, self.size)
        end_offset, highest = self.base_offset, indexed if position else self.base_offset - 1
        for placed in self.walk(position):
            highest, end_offset = max(highest, end_offset - 1), placed.last_offset + 1
        if end_offset <= highest:
            raise CorruptSegment(self.log.name, self.size, f"the last offset is {end_offset - 1}, after {highest}")
        return end_offset

    def remember_position(self, offset: int, position: int) -> None:
        """Remember that a reader was given everything before `offset`, which ends at `position`."""
        self.index.window = None
        if len(self._hints) >= _HINTS and offset not in self._hints:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = position

    def last_boundary(self, start: int, limit: int, *, min_one_batch: bool) -> tuple[int, int | None]:
        """Return the last batch boundary not beyond `limit`, and the base offset there; None at the segment's end.

        `start` is the position of a batch. If that batch does not fit, the boundary is its end with `min_one_batch`,
        and `start` itself without.
        """
        position = max(start, self.index.entry_before(limit, self.size)[1])
        for placed in self.walk(position):
            if placed.position + placed.size > limit and (placed.position != start or not min_one_batch):
                return placed.position, placed.base_offset
        return self.size, None

    def batch_at(self, position: int) -> BatchPosition:
        """Return the batch that begins at `position`."""
        for placed in self.walk(position):
            return placed
        raise CorruptSegment(self.log.name, position, "the segment ends here")

    def walk(self, position: int = 0, chunk_bytes: int = _LOOKUP_CHUNK_BYTES) -> Iterator[BatchPosition]:
        """Yield the batches from `position` on, by their headers alone."""
        return walk(self.log.get(), self.log.name, position, self.size, chunk_bytes)

    # --- time ---

    def first_timestamp(self) -> int | None:
        """Return the largest timestamp of the first batch; None if the segment is empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self.batch_at(0).max_timestamp
        return self._first_timestamp

    def max_timestamp(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of the batch that has it.

        Returns -1 and the base offset if no batch has a timestamp. If files are damaged, only intact batches count.
        """
        if self._max_timestamp is None:
            try:
                timestamp, offset = self._last_time_entry()
                # In every interval that an index entry ended, a larger timestamp brought a time entry: only the
                # batches after the last entry are unknown.
                for placed in self.walk_from(*self.index.entry_before(self.size, self.size)):
                    if placed.max_timestamp > timestamp:
                        timestamp, offset = placed.max_timestamp, placed.last_offset
            except CorruptSegment:
                end_offset = self.base_offset + self.index.span if self.index.span else 1 << 63
                intact = batches_from(self._as_file(end_offset, LeaderEpochs()), [], self.base_offset)
                times = [(each.max_timestamp, -each.last_offset) for each in intact if isinstance(each, IntactBatch)]
                timestamp, offset = max(times, default=(-1, -self.base_offset))
                offset = -offset
            self._max_timestamp, self._offset_of_max_timestamp = timestamp, offset
        return self._max_timestamp, self._offset_of_max_timestamp

    def _last_time_entry(self) -> tuple[int, int]:
        last = self.index.last_time_entry()
        if last is None:
            return -1, self.base_offset
        if not self.index.is_in_memory:
            self.check_time_entry(*last)
        return last[0], self.base_offset + last[1]

    def check_time_entry(self, timestamp: int, relative_offset: int) -> None:
        """Check that a time entry names the batch that has this timestamp. Raises CorruptSegment."""
        offset = self.base_offset + relative_offset
        placed = self.find(offset)
        if placed is None or (placed.last_offset, placed.max_timestamp) != (offset, timestamp):
            raise CorruptSegment(self.log.name, 0, "a time index entry names another batch")

    def walk_from(self, last_offset: int, position: int) -> Iterator[BatchPosition]:
        """Yield the batches from an index entry on. CorruptSegment if it names another, or they are out of order."""
        expected = self.base_offset
        if position and position >= self.size:
            raise CorruptSegment(self.log.name, position, "an index entry points beyond the end")
        for placed in self.walk(position):
            if position and placed.position == position:
                if placed.last_offset != last_offset:
                    raise CorruptSegment(self.log.name, position, "an index entry names another batch")
                expected = placed.base_offset
            if placed.base_offset < expected:
                raise CorruptSegment(
                    self.log.name, placed.position, f"base offset {placed.base_offset} is below {expected}"
                )
            expected = placed.last_offset + 1
            yield placed

    # --- files ---

    def drop_index(self) -> None:
        """Drop the index entries in memory; from now on lookups read the index files."""
        self.max_timestamp()
        self.index.drop()

    def move_to(self, files: FileCache) -> None:
        """Close the files; from now on `files` opens them."""
        self.log.move_to(files)
        self.index.move_to(files)

    def close(self) -> None:
        """Close the files; they reopen on use."""
        self.log.close()
        self.index.close()
