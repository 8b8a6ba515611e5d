"""The segments of one log, in order: which of them holds an offset, and where each one ends.

The end offset of a sealed segment is the base offset of the next one. That of the active segment, the last one, is the
log's end, which the log passes in.

Invariants: the base offsets strictly ascend, and the list of them that is searched agrees with the segments. There is
always an active segment, except after a truncation that failed halfway (`PartitionLog.is_half_truncated`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import overload

from kraftpy.log.segment import Segment


class Segments:
    """A log's segments, as a sequence that only the log changes."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        for segment, following in pairwise(segments):
            segment.index.span = following.base_offset - segment.base_offset

    def __len__(self) -> int:
        return len(self._segments)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        return self._segments[number]

    @property
    def active(self) -> Segment:
        """The last segment, to which records are appended."""
        return self._segments[-1]

    @property
    def bases(self) -> Sequence[int]:
        """The base offset of each segment."""
        return self._bases

    @property
    def size_bytes(self) -> int:
        """The total size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    # --- lookups ---

    def holding(self, offset: int) -> Segment | None:
        """Return the segment whose range includes an offset; None if it is before the first segment."""
        number = bisect_right(self._bases, offset) - 1
        return None if number < 0 else self._segments[number]

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment that follows this one, or None."""
        number = bisect_right(self._bases, segment.base_offset)
        return self._segments[number] if number < len(self._segments) else None

    def end_offset_of(self, segment: Segment, log_end_offset: int) -> int:
        """Return the end offset of a segment of a log that ends at `log_end_offset`."""
        bases = self._bases
        following = bisect_right(bases, segment.base_offset)
        return bases[following] if following < len(bases) else log_end_offset

    def from_offset(self, offset: int, log_end_offset: int) -> Iterator[tuple[Segment, int]]:
        """Yield the segments from the one that holds `offset` on, each with its end offset."""
        segments, bases = self._segments, self._bases
        for number in range(max(0, bisect_right(bases, offset) - 1), len(segments)):
            yield segments[number], bases[number + 1] if number + 1 < len(bases) else log_end_offset

    def wholly_before(self, offset: int) -> list[Segment]:
        """Return the sealed segments that end at `offset` or before."""
        return self._segments[: max(0, bisect_right(self._bases, offset) - 1)]

    def beginning_after(self, offset: int) -> list[Segment]:
        """Return the segments that begin after `offset`."""
        return self._segments[bisect_right(self._bases, offset) :]

    # --- changes ---

    def append(self, segment: Segment) -> None:
        """Add a new active segment; the one before it is sealed now and ends where the new one begins."""
        if self._segments:
            sealed = self._segments[-1]
            assert segment.base_offset > sealed.base_offset
            sealed.index.span = segment.base_offset - sealed.base_offset
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def remove(self, removed: Collection[Segment]) -> None:
        """Remove segments. The list is replaced, so an iteration in progress still sees all of them."""
        self._became([segment for segment in self._segments if segment not in removed])

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one sealed segment in the place of adjacent ones, the first of which has its base offset."""
        number = self._segments.index(old[0])
        self._became([*self._segments[:number], new, *self._segments[number + len(old) :]])

    def _became(self, segments: list[Segment]) -> None:
        self._segments, self._bases = segments, [segment.base_offset for segment in segments]
