"""One `.log` file with its indexes.

A segment is being written (the last of its log) or sealed. Being written, it holds its index entries in memory and
nobody reads the index files; sealing hands the entries to the next flush, and from then on lookups read the files.
`position` and `size` are bytes in the `.log`, offsets are the partition's.

The file is addressed by position and its size is kept here: what a failed write left beyond `size` is overwritten by
the next one, or cut off by `close` and by recovery.

Invariants: `[0, size)` is whole batches in offset order; every index entry is the last offset and start of one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kraftpy.log import layout
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.index import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    last_time_entry,
    offset_window,
    position_window,
    time_window,
)
from kraftpy.ports import Buffer, Directory, File
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC, BatchHeader

# The part of a batch header a walk needs: base offset, length, leader epoch, magic, last offset delta, max timestamp.
_WALK: Final = struct.Struct(">qiib6xi8xq")
_PREFIX_BYTES: Final = 12
_LOOKUP_CHUNK_BYTES: Final = 4096 + HEADER_BYTES
_HINTS: Final = 8


class CorruptSegment(KafkaError):
    """The bytes at `position` are not the batch that belongs there. A reader gets CORRUPT_MESSAGE."""

    def __init__(self, name: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{name} at byte {position}: {reason}")
        self.position = position


class Placed(NamedTuple):
    """A batch in a segment: where it lies and what a search asks of it."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int


def walk(file: File, name: str, position: int, end: int, chunk_bytes: int = _LOOKUP_CHUNK_BYTES) -> Iterator[Placed]:
    """The batches from `position` to `end`, by their headers alone; large batches are skipped, not read.

    CorruptSegment where there is something else.
    """
    chunk, start = b"", position
    while position < end:
        at = position - start
        if at + _WALK.size > len(chunk):
            chunk, start, at = file.read(position, min(chunk_bytes, end - position)), position, 0
            if len(chunk) < _WALK.size:
                raise CorruptSegment(name, position, f"{len(chunk)} bytes are no batch")
        base_offset, length, leader_epoch, magic, delta, max_timestamp = _WALK.unpack_from(chunk, at)
        size = length + _PREFIX_BYTES
        if magic != MAGIC or size < HEADER_BYTES or delta < 0 or position + size > end:
            raise CorruptSegment(
                name, position, f"magic {magic}, {size} bytes of {end - position}, offset delta {delta}"
            )
        yield Placed(position, size, base_offset, base_offset + delta, leader_epoch, max_timestamp)
        position += size


class Segment:
    """A file of batches from `base_offset` on."""

    __slots__ = (
        "_first_timestamp",
        "_hints",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_size",
        "base_offset",
        "created_at",
        "directory",
        "index_file",
        "log",
        "offset_index",
        "offsets",
        "time_index",
        "time_index_file",
    )

    def __init__(self, directory: Directory, base_offset: int, files: FileCache, *, created_at: int = 0) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.created_at = created_at
        self.log = LazyFile(directory, layout.file_name(base_offset, layout.LOG), files)
        self.index_file = LazyFile(directory, layout.file_name(base_offset, layout.INDEX), files)
        self.time_index_file = LazyFile(directory, layout.file_name(base_offset, layout.TIME_INDEX), files)
        self.offset_index: OffsetIndex | None = None  # None: on disk
        self.time_index: TimeIndex | None = None
        self.offsets = 0
        """How many offsets it spans, once it is sealed; 0 where that is not known. A hint for look-ups."""
        self._size = -1  # -1: ask the file
        self._max_timestamp: int | None = None  # None: ask the time index
        self._offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._hints: dict[int, int] = {}  # where a reader that goes on will ask next: offset -> position

    @classmethod
    def create(cls, directory: Directory, base_offset: int, files: FileCache, *, created_at: int) -> Segment:
        """A new, empty segment to write to. What an old file of that name held is cut off."""
        segment = cls(directory, base_offset, files, created_at=created_at)
        if segment.log.get().size():
            segment.log.get().truncate(0)
        segment.start_empty()
        return segment

    def start_empty(self) -> None:
        """Be an empty segment that is being written."""
        self._size = 0
        self.offset_index, self.time_index = OffsetIndex(), TimeIndex()
        self._max_timestamp, self._offset_of_max_timestamp, self._first_timestamp = -1, self.base_offset, None
        self._hints.clear()

    def adopt(
        self, size: int, offsets: OffsetIndex, times: TimeIndex, max_timestamp: int, offset_of_max_timestamp: int
    ) -> None:
        """Be a sealed segment that was written elsewhere, with the index entries made there."""
        self._size = size
        self.offset_index, self.time_index = offsets, times
        self._max_timestamp, self._offset_of_max_timestamp = max_timestamp, offset_of_max_timestamp

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        if self._size < 0:
            self._size = self.log.get().size()
        return self._size

    def resized(self, size: int) -> None:
        """Its whole batches are the first `size` bytes of the file."""
        self._size = size

    def file_size(self) -> int:
        """Bytes in the file, whole batches or not; from here on they count as whole."""
        self._size = self.log.get().size()
        return self._size

    @property
    def names(self) -> list[str]:
        """Its files."""
        return [self.log.name, self.index_file.name, self.time_index_file.name]

    # --- writing ---

    def append(self, data: Buffer, batches: list[tuple[BatchHeader, int]], interval_bytes: int) -> None:
        """Write whole batches in one write: their headers, and each one's position within `data`.

        Needs `load_indexes`. When the write raises nothing has changed here, and what reached the file is cut off
        again.
        """
        file = self.log.get()
        start = self.size
        try:
            file.write(start, data)
        except OSError:
            self._cut_torn_write(file, start)
            raise
        self._size = start + len(data)
        for header, position in batches:
            self.indexed(header.base_offset, header.last_offset, header.max_timestamp, start + position, interval_bytes)

    @staticmethod
    def _cut_torn_write(file: File, size: int) -> None:
        try:
            file.truncate(size)
        except OSError:
            return  # the caller hears of the write that failed; the bytes are overwritten, or cut when it is closed

    def cut_torn_tail(self) -> None:
        """Cut off what failed writes left behind the last whole batch."""
        file = self.log.get()
        if file.size() > self.size:
            file.truncate(self.size)

    def indexed(
        self, base_offset: int, last_offset: int, max_timestamp: int, position: int, interval_bytes: int
    ) -> None:
        """Take note of a batch at `position`: the timestamps, and an index entry where one is due."""
        offsets, times = self.load_indexes()
        if self._max_timestamp is None or max_timestamp > self._max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = max_timestamp, last_offset
        if self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        if position - offsets.last_position() > interval_bytes:
            offsets.append(last_offset - self.base_offset, position)
            times.append(self._max_timestamp, self._offset_of_max_timestamp - self.base_offset)

    def has_room(self, data_bytes: int, last_offset: int, *, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch set fits by bytes, index entries and the 32 bits of a relative offset."""
        offsets, times = self.load_indexes()
        return (
            self.size + data_bytes <= segment_bytes
            and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and len(offsets) < index_bytes // OFFSET_ENTRY_BYTES
            and len(times) < index_bytes // TIME_ENTRY_BYTES - 1
        )

    def age_ms(self, now: int, batch_timestamp: int) -> int:
        """How long it has been written to: by its first batch's timestamp and the next one's, else by the clock."""
        first = self.first_timestamp()
        if first is not None and first >= 0 and batch_timestamp >= 0:
            return batch_timestamp - first
        return now - self.created_at

    def load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The index entries, held in memory as appending needs. Reads the index files where they were on disk."""
        offsets, times = self.offset_index, self.time_index
        if offsets is None or times is None:
            file = self.index_file.get()
            offsets = OffsetIndex.decode(file.read(0, file.size()))
            file = self.time_index_file.get()
            times = TimeIndex.decode(file.read(0, file.size()))
            self.max_timestamp()
            self.offset_index, self.time_index = offsets, times
        return offsets, times

    def seal(self) -> None:
        """No more appends: end the time index with the largest timestamp."""
        _, times = self.load_indexes()
        timestamp, offset = self.max_timestamp()
        times.append(timestamp, offset - self.base_offset)

    def truncate(self, end_offset: int) -> int:
        """Drop the batches that reach `end_offset` or beyond; where the last one left ends.

        Durable, and the segment is written to again. Blocks for the sync.
        """
        offsets, times = self.load_indexes()
        self.delete_stored_indexes()
        self._hints.clear()
        found = self.find(end_offset)
        if found is None:
            return self.end_offset()
        file = self.log.get()
        file.truncate(found.position)
        file.sync()
        self._size = found.position
        offsets.truncate(found.base_offset - self.base_offset)
        times.truncate(found.base_offset - self.base_offset)
        self._max_timestamp = None
        if not self._size:
            self.start_empty()
        self.max_timestamp()
        return self.end_offset()

    # --- reading ---

    def find(self, offset: int) -> Placed | None:
        """The first batch whose last offset is `offset` or more; None where there is none."""
        hint = self._hints.get(offset)
        start = self._index_position(offset) if hint is None else hint
        for placed in self.walk(start):
            if placed.last_offset >= offset:
                return placed
        return None

    def find_start(self, offset: int) -> int | None:
        """The position of the batch `find` would return, not looked at where a reader is known to go on there."""
        hint = self._hints.get(offset)
        if hint is not None and hint < self.size:
            return hint
        found = self.find(offset)
        return None if found is None else found.position

    def end_offset(self) -> int:
        """One past the last offset, by a look at the last index interval.

        CorruptSegment where that is not whole batches.
        """
        end_offset = self.base_offset
        for placed in self.walk(self._index_boundary(self.size)):
            end_offset = placed.last_offset + 1
        return end_offset

    def offset_after(self, position: int) -> int:
        """One past the last offset of the batches before `position`, which is a batch's boundary."""
        end_offset = self.base_offset
        for placed in walk(self.log.get(), self.log.name, self._index_boundary(position - 1), position):
            end_offset = placed.last_offset + 1
        return end_offset

    def expect(self, offset: int, position: int) -> None:
        """Remember that a reader was given all before `offset`, up to `position`."""
        if len(self._hints) >= _HINTS and offset not in self._hints:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = position

    def cut(self, start: int, limit: int) -> tuple[int, int]:
        """The last batch boundary not beyond `limit`, and the base offset there, for a limit within the segment.

        `start` is a batch's; where that batch does not fit, the boundary is `start` itself.
        """
        position = max(start, self._index_boundary(limit))
        for placed in self.walk(position):
            if placed.position + placed.size > limit:
                return placed.position, placed.base_offset
        raise CorruptSegment(self.log.name, limit, "the segment ends before it should")

    def batch_at(self, position: int) -> Placed:
        """The batch that begins at `position`."""
        for placed in self.walk(position):
            return placed
        raise CorruptSegment(self.log.name, position, "the segment ends here")

    def walk(self, position: int = 0, chunk_bytes: int = _LOOKUP_CHUNK_BYTES) -> Iterator[Placed]:
        """The batches from `position` on."""
        return walk(self.log.get(), self.log.name, position, self.size, chunk_bytes)

    def _index_position(self, offset: int) -> int:
        relative_offset = offset - self.base_offset
        if relative_offset <= 0:
            return 0
        index = self.offset_index
        if index is None:
            part = relative_offset / self.offsets if self.offsets else 0.5
            index = offset_window(self.index_file.get(), relative_offset, part)
        return index.position_of(relative_offset)

    def _index_boundary(self, position: int) -> int:
        index = self.offset_index
        if index is None:
            index = position_window(self.index_file.get(), position, position / self.size if self.size else 0.0)
        return index.position_before(position)

    # --- time ---

    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch, None while there is none."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self.batch_at(0).max_timestamp
        return self._first_timestamp

    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp, and the last offset of the batch that brought it.

        -1 and the base offset where none did.
        """
        if self._max_timestamp is None:
            if self.time_index is not None:
                times = self.time_index
                last = (times.timestamps[-1], times.offsets[-1]) if times else None
            else:
                last = last_time_entry(self.time_index_file.get())
            timestamp, relative_offset = last if last is not None else (-1, 0)
            offset = self.base_offset + relative_offset
            # In every interval that an index entry ended, growth brought a time entry: only what follows the last is
            # unknown.
            for placed in self.walk(self._index_boundary(self.size)):
                if placed.max_timestamp > timestamp:
                    timestamp, offset = placed.max_timestamp, placed.last_offset
            self._max_timestamp, self._offset_of_max_timestamp = timestamp, offset
        return self._max_timestamp, self._offset_of_max_timestamp

    def first_at_least(self, timestamp: int, from_offset: int) -> Iterator[Placed]:
        """Batches that may hold the first record of that timestamp or more from an offset on: at most an interval is
        walked before the first of them.
        """
        times = self.time_index
        if times is None:
            first, last = self.first_timestamp() or 0, self.max_timestamp()[0]
            part = (timestamp - first) / (last - first) if first < last else 0.5
            times = time_window(self.time_index_file.get(), timestamp, part)
        relative_offset = times.first_at_least(timestamp)
        if relative_offset is None:  # only behind the last entry
            position = self._index_boundary(self.size)
        else:
            # The batch is in the interval that ends at this time entry: it begins at the index entry before.
            position = self._index_position(self.base_offset + relative_offset - 1)
        position = max(position, self._index_position(from_offset))
        for placed in self.walk(position):
            if placed.max_timestamp >= timestamp and placed.last_offset >= from_offset:
                yield placed

    # --- files ---

    def delete_stored_indexes(self) -> None:
        """Remove the index files: what they say of a segment that was cut must not be believed after a crash."""
        for handle in (self.index_file, self.time_index_file):
            handle.close()
            self.directory.delete(handle.name)

    def has_complete_index(self, interval_bytes: int) -> bool:
        """Whether nothing indexable follows the last entry of its `.index`. CorruptSegment where that leads nowhere."""
        last = self._index_boundary(self.size)
        return all(placed.position - last <= interval_bytes for placed in self.walk(last))

    def open_temporary_indexes(self) -> tuple[File, File]:
        """Files for a thread to write the index and the time index to. The caller closes them."""
        index, times = (
            self.directory.open(handle.name + layout.TEMPORARY) for handle in (self.index_file, self.time_index_file)
        )
        return index, times

    def finish_temporary_indexes(self, *, keep: bool) -> None:
        """Make them the index files, or remove them. The time index first: a complete index vouches for both."""
        for handle in (self.time_index_file, self.index_file):
            temporary = handle.name + layout.TEMPORARY
            if keep:
                handle.close()
                self.directory.rename(temporary, handle.name)
            else:
                self.directory.delete(temporary)

    def drop_indexes(self) -> None:
        """Read the index files from now on."""
        self.max_timestamp()
        self.offset_index = self.time_index = None

    def move_to(self, files: FileCache) -> None:
        """Close its files; from now on they open in that cache."""
        for file in (self.log, self.index_file, self.time_index_file):
            file.move_to(files)

    def close(self) -> None:
        """Close its files; they open again when used."""
        self.log.close()
        self.index_file.close()
        self.time_index_file.close()
