"""The index files: Kafka's bytes, and the same answers from a window of a file as from the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_model import NOW, batch, config, numbered, open_log, reference_index

from kraftpy.log.index import (
    OffsetIndex,
    TimeIndex,
    is_sane,
    last_time_entry,
    offset_window,
    position_window,
    time_window,
)
from kraftpy.ports import File
from kraftpy.testing.memory_files import MemoryDisk

PART = st.floats(-0.5, 1.5)
"""Where in the file it is expected: right, wrong, or out of bounds."""
GROWING = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=1200).map(sorted)


def stored(data: bytes) -> File:
    file = MemoryDisk().root.open("index")
    file.write(0, data)
    return file


def test_golden_bytes() -> None:
    offsets = OffsetIndex()
    offsets.append(5, 4161)
    offsets.append(2**31 - 1, 2**31 - 2)
    assert offsets.encode().hex() == "00000005" + "00001041" + "7fffffff" + "7ffffffe"
    times = TimeIndex()
    times.append(1_700_000_000_000, 9)
    times.append(1_700_000_000_000, 10)  # not larger: no entry
    times.append(1_700_000_000_001, 300)
    assert times.encode().hex() == "0000018bcfe56800" + "00000009" + "0000018bcfe56801" + "0000012c"


def test_a_segment_has_the_golden_index() -> None:
    """An interval of 250 bytes and batches of 103: an entry before every third, of its last offset and its start."""
    directory = MemoryDisk().root.child("t-0")
    log = open_log(directory, topic=config(index_interval_bytes=250, segment_bytes=10**6))
    for number in range(9):
        data = batch(b"x" * 25, b"y", timestamp=1000 + number * 10)
        log.append(data, leader_epoch=0, now=NOW)
    log.close()
    size = len(data)
    assert size == 103
    assert directory.read("00000000000000000000.index").hex() == (f"{7:08x}{3 * size:08x}" + f"{13:08x}{6 * size:08x}")
    assert directory.read("00000000000000000000.timeindex").hex() == (
        f"{1031:016x}{7:08x}" + f"{1061:016x}{13:08x}" + f"{1081:016x}{17:08x}"  # the last one at the clean stop
    )


@given(offsets=GROWING, positions=GROWING, wanted=st.integers(0, 2**31), part=PART)
def test_a_window_answers_as_the_whole_offset_index(
    offsets: list[int], positions: list[int], wanted: int, part: float
) -> None:
    whole = OffsetIndex()
    for offset, position in zip(offsets, positions, strict=False):
        whole.append(offset, position)
    file = stored(whole.encode() + b"\x00\x01\x02")  # a torn last entry is not one
    for asked in {wanted, *whole.offsets[:3], *whole.offsets[-3:], *whole.positions[-3:]}:
        assert offset_window(file, asked, part).entry_of(asked) == whole.entry_of(asked)
        assert position_window(file, asked, part).entry_before(asked) == whole.entry_before(asked)
    assert OffsetIndex.decode(whole.encode()).encode() == whole.encode()


@given(times=GROWING, offsets=GROWING, wanted=st.integers(-1, 2**31), part=PART)
def test_a_window_answers_as_the_whole_time_index(
    times: list[int], offsets: list[int], wanted: int, part: float
) -> None:
    whole = TimeIndex()
    for timestamp, offset in zip(times, offsets, strict=False):
        whole.append(timestamp + 2**40, offset)
    file = stored(whole.encode())
    for asked in {wanted + 2**40, *whole.timestamps[:3], *whole.timestamps[-3:]}:
        assert time_window(file, asked, part).first_at_least(asked) == whole.first_at_least(asked)
    last = (whole.timestamps[-1], whole.offsets[-1]) if whole else None
    assert last_time_entry(file) == last
    assert TimeIndex.decode(whole.encode()).encode() == whole.encode()


@given(offsets=GROWING, cut=st.integers(0, 2**31))
def test_truncation_keeps_what_is_below(offsets: list[int], cut: int) -> None:
    index, times = OffsetIndex(), TimeIndex()
    for number, offset in enumerate(offsets):
        index.append(offset, number + 1)
        times.append(number, offset)
    index.truncate(cut)
    times.truncate(cut)
    assert list(index.offsets) == list(times.offsets) == [offset for offset in offsets if offset < cut]
    assert len(index.positions) == len(times.timestamps) == len(index.offsets)


@given(sizes=st.lists(st.integers(0, 150), min_size=1, max_size=40), interval=st.sampled_from([0, 100, 300, 4096]))
def test_live_stored_and_rebuilt_indexes_are_the_reference(sizes: list[int], interval: int) -> None:
    disk = MemoryDisk()
    directory = disk.root.child("t-0")
    topic = config(index_interval_bytes=interval, segment_bytes=1500)
    log = open_log(directory, topic=topic)
    for number, size in enumerate(sizes):
        log.append(batch(b"x" * size, timestamp=NOW + size * 7 % 50 + number), leader_epoch=0, now=NOW)
    bases = [segment.base_offset for segment in log.segments]
    log.close()

    def check() -> None:
        for base in bases:
            expected = reference_index(directory.read(f"{base:020d}.log"), base, interval, sealed=True)
            if base == bases[-1] and not expected[0]:  # read whole when the log is opened: less than one interval
                assert not directory.exists(f"{base:020d}.index")
                continue
            found = (directory.read(f"{base:020d}.index"), directory.read(f"{base:020d}.timeindex"))
            assert found == expected

    check()
    for base in bases:
        directory.delete(f"{base:020d}.index")
    recovered = open_log(directory, topic=topic, recovery_point=log.log_end_offset)
    assert recovered.report.scanned_segments == 1
    assert recovered.report.rebuilt_indexes == len(bases) - 1
    recovered.close()
    check()


@pytest.mark.parametrize(
    ("index", "times", "why"),
    [
        (b"\0" * 16, None, "zeros"),
        (b"\0\0\0\5\0\0\0", None, "half an entry"),
        (b"\0\0\0\2\0\0\0\x40\0\0\0\1\0\0\0\x80", None, "falling offsets"),
        (b"\0\0\0\2\0\0\x10\0", None, "a position beyond the file"),
        (b"\0\0\0\x70\0\0\0\x40", None, "an offset beyond the segment"),
        (None, b"", "no time entry"),
        (None, b"\0" * 24, "zeros"),
        (None, b"\1" * 13, "half an entry"),
        (None, b"\0" * 7 + b"\1" + b"\0\0\0\x70", "an offset beyond the segment"),
    ],
)
def test_what_no_segment_can_have_is_not_sane(index: bytes | None, times: bytes | None, why: str) -> None:
    good_index, good_times = b"\0\0\0\2\0\0\0\x40", b"\0\0\0\0\0\0\0\x09\0\0\0\3"
    assert is_sane(stored(good_index), stored(good_times), 500, 100)
    assert not is_sane(
        stored(good_index if index is None else index), stored(good_times if times is None else times), 500, 100
    ), why


@pytest.mark.parametrize(("step_ms", "entries"), [(0, 6), (1, 3)])
def test_rolls_when_an_index_is_full(step_ms: int, entries: int) -> None:
    """48 bytes are six entries of an offset index, or all but one of the four of a time index."""
    log = open_log(MemoryDisk().root, topic=config(index_interval_bytes=1, segment_index_bytes=48, segment_bytes=10**6))
    batches = [numbered(number, 1, timestamp=NOW + number * step_ms) for number in range(entries + 2)]
    rolled = [log.append(data, leader_epoch=0, now=NOW).rolled for data in batches]
    assert rolled == [False] * (entries + 1) + [True]
