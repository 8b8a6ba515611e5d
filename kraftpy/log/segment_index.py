"""The two sparse indexes of one segment: in memory while it is written, later in its `.index` and `.timeindex` files.

Both indexes are in the same place. In memory they are complete up to the last batch. On disk a lookup reads a small
window of a file (`index`), so an idle segment costs no memory. Positions are bytes in the `.log`; offsets
are those of the partition, except in the entries themselves, which are relative to the segment's base offset.

Invariant: every entry is the last offset and the position of a batch of the segment. The files may be damaged, so
an entry from a file is compared with the batch that it names (`Segment.walk_from`).
"""

from __future__ import annotations

from typing import Final

from kraftpy.log import layout
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.index import (
    OffsetIndex,
    TimeIndex,
    last_time_entry,
    offset_window,
    position_window,
    time_window,
)
from kraftpy.log.verifying import Anchor
from kraftpy.ports import Directory

_HALFWAY: Final = 0.5


class SegmentIndex:
    """The indexes of the segment that begins at `base_offset`."""

    __slots__ = ("_directory", "base_offset", "offset_file", "offsets", "span", "time_file", "times", "window")

    def __init__(self, directory: Directory, base_offset: int, files: FileCache) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.offset_file = LazyFile(directory, layout.file_name(base_offset, layout.INDEX), files)
        self.time_file = LazyFile(directory, layout.file_name(base_offset, layout.TIME_INDEX), files)
        self.offsets: OffsetIndex | None = None
        """The entries by offset; None while they are on disk."""
        self.times: TimeIndex | None = None
        """The entries by time; None while they are on disk."""
        self.span = 0
        """The number of offsets that a sealed segment spans; 0 if unknown. A hint for lookups."""
        self.window: OffsetIndex | None = None
        """The part of a file that a lookup read last, until the read that needed it is done."""

    # --- in memory or on disk ---

    @property
    def is_in_memory(self) -> bool:
        """True if the entries are held in memory; otherwise lookups read the files."""
        return self.offsets is not None

    def hold(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Hold these entries in memory."""
        self.offsets, self.times = offsets, times

    def load(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the entries and hold them in memory; read the files if necessary."""
        offsets, times = self.offsets, self.times
        if offsets is None or times is None:
            offsets = self._read_offsets()
            file = self.time_file.get()
            times = TimeIndex.decode(file.read(0, file.size()))
            self.hold(offsets, times)
        return offsets, times

    def drop(self) -> None:
        """Drop the entries in memory; from now on lookups read the files."""
        self.offsets = self.times = None

    def _read_offsets(self) -> OffsetIndex:
        file = self.offset_file.get()
        return OffsetIndex.decode(file.read(0, file.size()))

    # --- lookups ---

    def entry_for(self, offset: int) -> tuple[int, int]:
        """Return the last offset and position of the batch to start a search from, or the segment's beginning."""
        relative_offset = offset - self.base_offset
        index = self.offsets
        if relative_offset <= 0:
            return self.base_offset, 0
        if index is None:
            part = relative_offset / self.span if self.span else _HALFWAY
            index = self.window = offset_window(self.offset_file.get(), relative_offset, part)
        found, position = index.entry_of(relative_offset)
        return (self.base_offset + found, position) if position else (self.base_offset, 0)

    def entry_before(self, position: int, size: int) -> tuple[int, int]:
        """Return the last offset and position of the last indexed batch that begins at or before `position`.

        `size` is the segment's size in bytes.
        """
        index = self.offsets
        if index is None:
            near, self.window = self.window, None
            if near is not None and near and near.positions[0] <= position < near.positions[-1]:
                index = near  # the end of a read is at most a window away from its start
            else:
                index = position_window(self.offset_file.get(), position, position / size if size else 0.0)
        found, boundary = index.entry_before(position)
        return self.base_offset + max(0, found), boundary

    def time_entries(self, timestamp: int, part: float) -> TimeIndex:
        """Return time entries that include the first at or after `timestamp` and the one before it, if they exist.

        `part` (0 to 1) estimates how far into the file they are.
        """
        times = self.times
        return time_window(self.time_file.get(), timestamp, part) if times is None else times

    def last_time_entry(self) -> tuple[int, int] | None:
        """Return the timestamp and relative offset of the last time entry, or None."""
        times = self.times
        if times is None:
            return last_time_entry(self.time_file.get())
        return (times.timestamps[-1], times.offsets[-1]) if times else None

    def anchors(self) -> list[Anchor]:
        """Return the claims of all entries, in order. Entries on disk are read, but not held."""
        index = self._read_offsets() if self.offsets is None else self.offsets
        return [
            Anchor(position, self.base_offset + offset)
            for offset, position in zip(index.offsets, index.positions, strict=True)
        ]

    # --- files ---

    def delete_files(self) -> None:
        """Delete the files, so that after a crash nothing trusts their entries for a truncated segment."""
        for handle in (self.offset_file, self.time_file):
            handle.close()
            self._directory.delete(handle.name)

    def finish_temporary_files(self, *, keep: bool) -> None:
        """Rename the temporary index files, or remove them. Time index first: a complete `.index` vouches for both."""
        for handle in (self.time_file, self.offset_file):
            temporary = handle.name + layout.TEMPORARY
            if keep:
                handle.close()
                self._directory.rename(temporary, handle.name)
            else:
                self._directory.delete(temporary)

    def move_to(self, files: FileCache) -> None:
        """Close the files; from now on `files` opens them."""
        self.offset_file.move_to(files)
        self.time_file.move_to(files)

    def close(self) -> None:
        """Close the files; they reopen on use."""
        self.offset_file.close()
        self.time_file.close()
