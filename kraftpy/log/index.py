"""Sparse indexes of a segment: from an offset to a position, and from a timestamp to an offset.

On disk they are Kafka's `.index` and `.timeindex`: big-endian entries of int32 relative offset + int32 position, and of
int64 timestamp + int32 relative offset. A batch gets an entry if more than `index.interval.bytes` precede it since the
last entry; the entry names the batch's *last* offset and its start position. A time entry holds the largest timestamp
so far, and the last offset of the batch that has it.

A segment that is being written holds its entries here, in flat arrays. A sealed one holds none: a lookup reads a few
bytes of the file and returns a small window of it (`*_window`), so a thousand idle partitions cost no memory, and a
lookup's cost does not depend on earlier reads.

Invariants: within an index, offsets, positions and timestamps strictly grow. A damaged file on disk may violate this
(`is_sane`).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final, TypeVar

from kraftpy.ports import File

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_WINDOW_ENTRIES: Final = 256
_SWAP: Final = sys.byteorder == "little"
_HIGH: Final = 1 if _SWAP else 0  # the position of the high word in a native int64


class OffsetIndex:
    """The entries of an `.index`: relative offset and position, in order."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.offsets)

    def __bool__(self) -> bool:
        return len(self) > 0

    def append(self, relative_offset: int, position: int) -> None:
        """Add the entry of a batch: its last offset and its start."""
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def last_position(self) -> int:
        """Return the last entry's position, or 0."""
        return self.positions[-1] if self.positions else 0

    def entry_of(self, relative_offset: int) -> tuple[int, int]:
        """Return the relative offset and position of the last entry up to an offset, or (-1, 0)."""
        found = bisect_right(self.offsets, relative_offset)
        return (self.offsets[found - 1], self.positions[found - 1]) if found else (-1, 0)

    def entry_before(self, position: int) -> tuple[int, int]:
        """Return the relative offset and position of the last entry up to a position, or (-1, 0)."""
        found = bisect_right(self.positions, position)
        return (self.offsets[found - 1], self.positions[found - 1]) if found else (-1, 0)

    def truncate(self, relative_offset: int) -> None:
        """Keep the entries below an offset."""
        keep = bisect_left(self.offsets, relative_offset)
        self.offsets = self.offsets[:keep]  # new arrays: a thread may be writing the old ones
        self.positions = self.positions[:keep]

    def frozen(self) -> OffsetIndex:
        """Return these entries for a thread to encode; valid until the next append."""
        index = OffsetIndex()
        index.offsets, index.positions = self.offsets, self.positions
        return index

    def encode(self) -> bytes:
        """Return the entries in the format on disk."""
        words = array("I", bytes(OFFSET_ENTRY_BYTES * len(self)))
        words[0::2] = self.offsets
        words[1::2] = self.positions
        if _SWAP:
            words.byteswap()
        return words.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> OffsetIndex:
        """Return the whole entries in `data`; a torn last one is ignored."""
        index = cls()
        words = array("I", data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES])
        if _SWAP:
            words.byteswap()
        index.offsets = words[0::2]
        index.positions = words[1::2]
        return index


class TimeIndex:
    """The entries of a `.timeindex`: timestamp in ms and relative offset, in order."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")

    def __len__(self) -> int:
        return len(self.timestamps)

    def __bool__(self) -> bool:
        return len(self) > 0

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if the timestamp is larger than the last one's and not below 0; else do nothing."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def first_at_least(self, timestamp: int) -> int | None:
        """Return the relative offset of the first entry at or after `timestamp`, or None."""
        found = bisect_left(self.timestamps, timestamp)
        return self.offsets[found] if found < len(self.offsets) else None

    def entries(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the timestamp and relative offset of those of the entries with these numbers that exist."""
        start = max(0, start)
        return list(zip(self.timestamps[start:stop], self.offsets[start:stop], strict=True))

    def truncate(self, relative_offset: int) -> None:
        """Keep the entries below an offset."""
        keep = bisect_left(self.offsets, relative_offset)
        self.timestamps = self.timestamps[:keep]
        self.offsets = self.offsets[:keep]

    def frozen(self) -> TimeIndex:
        """Return these entries for a thread to encode; valid until the next append."""
        index = TimeIndex()
        index.timestamps, index.offsets = self.timestamps, self.offsets
        return index

    def encode(self) -> bytes:
        """Return the entries in the format on disk."""
        halves = array("I", self.timestamps.tobytes())
        words = array("I", bytes(TIME_ENTRY_BYTES * len(self)))
        words[0::3] = halves[_HIGH::2]
        words[1::3] = halves[1 - _HIGH :: 2]
        words[2::3] = self.offsets
        if _SWAP:
            words.byteswap()
        return words.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> TimeIndex:
        """Return the whole entries in `data`; a torn last one is ignored."""
        index = cls()
        words = array("I", data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES])
        if _SWAP:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[_HIGH::2] = words[0::3]
        halves[1 - _HIGH :: 2] = words[1::3]
        index.timestamps = array("q", halves.tobytes())
        index.offsets = words[2::3]
        return index


# --- looking into a file ----------------------------------------------------------------------------------------------
#
# The batches of a segment tend to have similar sizes, so the wanted entry is mostly near `part` (0 to 1) of the way
# through the file, and reading one window there finds it. If it does not, a binary search narrows the file to a window.


def offset_window(file: File, relative_offset: int, part: float) -> OffsetIndex:
    """Return a few entries of an `.index` file, among them the one that `entry_of` finds in the whole file."""
    return _offset_window(file, part, lambda index, entry: index.offsets[entry] <= relative_offset)


def position_window(file: File, position: int, part: float) -> OffsetIndex:
    """Return a few entries of an `.index` file, among them the one that `entry_before` finds in the whole file."""
    return _offset_window(file, part, lambda index, entry: index.positions[entry] <= position)


def _offset_window(file: File, part: float, is_before: Callable[[OffsetIndex, int], bool]) -> OffsetIndex:
    def read(low: int, high: int) -> OffsetIndex:
        return OffsetIndex.decode(file.read(low * OFFSET_ENTRY_BYTES, (high - low) * OFFSET_ENTRY_BYTES))

    return _window(file.size() // OFFSET_ENTRY_BYTES, part, read, is_before)


def time_window(file: File, timestamp: int, part: float) -> TimeIndex:
    """Return a few entries of a `.timeindex` file, among them the one that `first_at_least` finds in the whole file."""

    def read(low: int, high: int) -> TimeIndex:
        return TimeIndex.decode(file.read(low * TIME_ENTRY_BYTES, (high - low) * TIME_ENTRY_BYTES))

    return _window(
        file.size() // TIME_ENTRY_BYTES, part, read, lambda index, entry: index.timestamps[entry] < timestamp
    )


_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


def _window(
    entries: int, part: float, read: Callable[[int, int], _Index], is_before: Callable[[_Index, int], bool]
) -> _Index:
    """Return a window with the last entry for which `is_before` is true, and the entry after it.

    `is_before` must be true for a prefix of the entries.
    """
    low, high = 0, entries
    if entries > _WINDOW_ENTRIES:
        start = min(max(0, int(entries * part) - _WINDOW_ENTRIES // 2), entries - _WINDOW_ENTRIES)
        window = read(start, start + _WINDOW_ENTRIES)
        if not is_before(window, 0):
            high = start + 1
        elif is_before(window, -1):
            low = start + _WINDOW_ENTRIES - 1
        else:
            return window
    while high - low > _WINDOW_ENTRIES:
        middle = (low + high) // 2
        if is_before(read(middle, middle + 1), 0):
            low = middle
        else:
            high = middle + 1
    return read(low, high)


def last_time_entry(file: File) -> tuple[int, int] | None:
    """Return the timestamp and relative offset of the last entry of a `.timeindex` file; None if it is empty."""
    entries = file.size() // TIME_ENTRY_BYTES
    if not entries:
        return None
    last = TimeIndex.decode(file.read((entries - 1) * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES))
    return last.timestamps[0], last.offsets[0]


def is_sane(index: File, time_index: File, segment_bytes: int, segment_offsets: int) -> bool:
    """Return whether two index files can belong to a segment of that size. Looks only at both ends of the files."""
    index_bytes, time_bytes = index.size(), time_index.size()
    if index_bytes % OFFSET_ENTRY_BYTES or time_bytes % TIME_ENTRY_BYTES:
        return False
    if segment_bytes and not time_bytes:
        return False  # a sealed segment ends with a time entry, unless it has no timestamps at all
    if index_bytes:
        ends = OffsetIndex.decode(
            index.read(0, OFFSET_ENTRY_BYTES) + index.read(index_bytes - OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
        )
        # position 0 is never indexed, so the first entry shows a zero-filled file, the last a half-written one
        if not 0 < ends.positions[0] <= ends.positions[1] < segment_bytes:
            return False
        if not ends.offsets[0] <= ends.offsets[1] < segment_offsets:
            return False
    if time_bytes:
        last = last_time_entry(time_index)
        return last is not None and last[1] < segment_offsets and last != (0, 0)  # as in a file of zeros
    return True
