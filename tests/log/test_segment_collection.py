"""The collection of a log's segments: what holds an offset, what comes before and after, and where each one ends."""

from __future__ import annotations

import pytest
from log_model import NOW

from kraftpy.log.files import FileCache
from kraftpy.log.segment import Segment
from kraftpy.log.segments import Segments
from kraftpy.testing.memory_files import MemoryDisk

END = 40


def made(*bases: int) -> Segments:
    directory, files = MemoryDisk().root, FileCache()
    return Segments([Segment.create(directory, base, files, created_at=NOW) for base in bases])


def bases_of(segments: list[Segment]) -> list[int]:
    return [segment.base_offset for segment in segments]


def test_each_offset_is_held_by_one_segment_which_ends_where_the_next_begins() -> None:
    segments = made(10, 20, 30)
    held = [segments.holding(offset) for offset in (9, 10, 19, 20, 35, 99)]
    assert [each and each.base_offset for each in held] == [None, 10, 10, 20, 30, 30]
    assert [segments.end_offset_of(each, END) for each in segments] == [20, 30, END]
    assert [each.index.span for each in segments] == [10, 10, 0]


@pytest.mark.parametrize(
    ("offset", "wanted"),
    [(0, [(10, 20), (20, 30), (30, END)]), (20, [(20, 30), (30, END)]), (29, [(20, 30), (30, END)]), (50, [(30, END)])],
)
def test_from_an_offset_on_segments_have_their_ends(offset: int, wanted: list[tuple[int, int]]) -> None:
    found = made(10, 20, 30).from_offset(offset, END)
    assert [(segment.base_offset, end_offset) for segment, end_offset in found] == wanted


def test_what_lies_before_and_what_begins_after_an_offset() -> None:
    segments = made(10, 20, 30)
    assert [bases_of(segments.wholly_before(offset)) for offset in (5, 19, 20, 30, 99)] == [
        [],
        [],
        [10],
        [10, 20],
        [10, 20],
    ]
    assert [bases_of(segments.beginning_after(offset)) for offset in (5, 10, 20, 30)] == [
        [10, 20, 30],
        [20, 30],
        [30],
        [],
    ]
    assert segments.after(segments[0]) is segments[1]
    assert segments.after(segments.active) is None


def test_every_change_keeps_the_bases_that_are_searched_in_step() -> None:
    segments, more = made(10, 20, 30), made(10, 40)
    before = iter(segments)
    segments.append(more[1])
    assert (list(segments.bases), segments[2].index.span, segments.active) == ([10, 20, 30, 40], 10, more[1])
    segments.replace(segments[:2], more[0])
    assert list(segments.bases) == [10, 30, 40]
    assert segments.holding(25) is more[0]
    segments.remove([segments[0], segments[2]])
    assert (list(segments.bases), bases_of(list(segments)), len(segments)) == ([30], [30], 1)
    assert segments.holding(10) is None
    assert bases_of(list(before)) == [10, 20, 30, 40], "an iteration in progress sees what was there"
