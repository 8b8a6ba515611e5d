"""A flipped bit anywhere in a sealed segment, or in its index files, is found by every reader who gets there.

Returned batches are byte for byte what was appended; others are refused with CORRUPT_MESSAGE; and a reader who begins
behind the damage continues. Files are changed behind the log's back, before and after it has read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_model import NOW, config, numbered, open_log, read_batches, read_slice

from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.segment import CorruptSegment, Segment
from kraftpy.log.time_search import search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import read_header, split_batches
from kraftpy.testing.memory_files import MemoryDisk

LOG = "00000000000000000000.log"
BATCHES = 24


class Sealed:
    """A log of two segments; the first holds `BATCHES` batches of one to three records, in three leader epochs."""

    def __init__(self, seed: int = 0, *, interval: int = 300) -> None:
        dice = Random(seed)
        self.directory = MemoryDisk().root.child("t-0")
        topic = config(segment_bytes=10**6, index_interval_bytes=interval)
        self.log = open_log(self.directory, topic=topic)
        number = 0
        for turn in range(BATCHES + 1):
            if turn == BATCHES:
                self.log.roll(NOW)
            count = dice.randint(1, 3)
            codec = dice.choice([Compression.NONE, Compression.GZIP])
            data = numbered(number, count, size=dice.randint(5, 80), timestamp=NOW + number, compression=codec)
            self.log.append(bytearray(data), leader_epoch=turn // 9, now=NOW)
            number += count
        self.log.flush()
        self.batches = read_batches(self.log, max_bytes=10**6)
        self.data = bytes(self.directory.read(LOG))
        assert self.data == b"".join(self.batches[:-1])
        assert self.directory.read("00000000000000000000.index")

    def flip(self, name: str, bit: int) -> None:
        file = self.directory.open(name)
        byte = file.read(bit // 8, 1)[0] ^ (1 << bit % 8)
        file.write(bit // 8, bytes([byte]))
        file.close()

    def damaged(self, bit: int) -> int:
        """The number of the batch that bit is in."""
        position = 0
        for number, data in enumerate(self.batches):
            position += len(data)
            if bit // 8 < position:
                return number
        raise AssertionError(bit)


def everything(log: PartitionLog, max_bytes: int, *, sliced: bool) -> tuple[list[bytes], list[CorruptSegment]]:
    """Every batch that can be read from the beginning on, and the damage on the way, which is stepped over."""
    found: list[bytes] = []
    damage: list[CorruptSegment] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            piece = read_slice(log, offset, max_bytes) if sliced else None
            if piece is not None:
                records = piece.file.read(piece.position, piece.length)
                piece.release()
            else:
                records = log.read(offset, max_bytes).records
        except CorruptSegment as error:
            damage.append(error)
            assert error.end_offset is not None  # noqa: PT017
            offset = error.end_offset
            continue
        assert records
        pieces = split_batches(records)
        found += [bytes(data) for _, data in pieces]
        offset = pieces[-1][0].next_offset
    return found, damage


def check_all_is_found(sealed: Sealed, bit: int, max_bytes: int, *, sliced: bool) -> None:
    number = sealed.damaged(bit)
    found, damage = everything(sealed.log, max_bytes, sliced=sliced)
    header = read_header(sealed.batches[number])
    assert found == sealed.batches[:number] + sealed.batches[number + 1 :]
    assert [(each.name, each.first_offset, each.end_offset) for each in damage] == [
        (LOG, header.base_offset, header.next_offset)
    ]
    assert damage[0].code is ErrorCode.CORRUPT_MESSAGE
    assert damage[0].position == sum(map(len, sealed.batches[:number]))


@settings(max_examples=150)
@given(
    seed=st.integers(0, 5), where=st.floats(0, 1, exclude_max=True), max_bytes=st.sampled_from([1, 400, 10**6]),
    was_read=st.booleans(), sliced=st.booleans(), interval=st.sampled_from([0, 300, 1500]),
)  # fmt: skip
@example(seed=1, where=0.901480740834039, max_bytes=1, was_read=False, sliced=False, interval=0)
def test_any_one_bit(seed: int, where: float, max_bytes: int, was_read: bool, sliced: bool, interval: int) -> None:
    """All but the damaged batch is read, as it was; in front of the damage and behind it."""
    sealed = Sealed(seed, interval=interval)
    if was_read:
        everything(sealed.log, max_bytes, sliced=sliced)
    bit = int(where * len(sealed.data) * 8)
    sealed.flip(LOG, bit)
    check_all_is_found(sealed, bit, max_bytes, sliced=sliced)


def header_bits() -> Iterator[int]:
    """Every bit of a batch header."""
    yield from range(61 * 8)


@pytest.mark.parametrize("number", [0, 7, BATCHES - 1])
@pytest.mark.parametrize("sliced", [False, True])
def test_every_bit_of_a_header(number: int, sliced: bool) -> None:
    """Those the CRC covers and those it does not: base offset, length, leader epoch, magic, and itself."""
    sealed = Sealed(1)
    start = 8 * sum(map(len, sealed.batches[:number]))
    for bit in header_bits():
        sealed.flip(LOG, start + bit)
        check_all_is_found(sealed, start + bit, 500, sliced=sliced)
        sealed.flip(LOG, start + bit)
    assert everything(sealed.log, 500, sliced=sliced) == (sealed.batches, [])


@given(where=st.floats(0, 1, exclude_max=True), offset=st.integers(0, 60), wait=st.booleans())
def test_a_look_up_never_lands_elsewhere(where: float, offset: int, wait: bool) -> None:
    """A look-up returns the batch that holds the offset or an error, and never one behind it."""
    sealed = Sealed(2)
    bit = int(where * len(sealed.data) * 8)
    number = sealed.damaged(bit)
    sealed.flip(LOG, bit)
    offset = min(offset, sealed.log.log_end_offset - 1)
    holder = next(n for n, data in enumerate(sealed.batches) if read_header(data).last_offset >= offset)
    for _ in range(2):
        if holder == number:
            with pytest.raises(CorruptSegment):
                sealed.log.read(offset, 300)
        else:
            records = sealed.log.read(offset, 300).records
            assert records.startswith(sealed.batches[holder])


@pytest.mark.parametrize("how", ["zeros", "torn", "shorter"])
def test_a_lost_stretch(how: str) -> None:
    sealed = Sealed(3)
    starts = [sum(map(len, sealed.batches[:number])) for number in range(BATCHES)]
    file = sealed.directory.open(LOG)
    lost = range(9, 13)
    if how == "zeros":
        file.write(starts[9], bytes(starts[13] - starts[9]))
    elif how == "torn":
        file.write(starts[9] + 20, bytes(starts[13] - starts[9] - 40))
    else:
        lost = range(9, BATCHES)
        file.truncate(starts[9] + 30)
    found, damage = everything(sealed.log, 10**6, sliced=False)
    assert found == [data for number, data in enumerate(sealed.batches) if number not in lost]
    assert len(damage) == 1
    assert damage[0].end_offset == read_header(sealed.batches[lost[-1]]).next_offset


@settings(max_examples=80)
@given(
    name=st.sampled_from(["00000000000000000000.index", "00000000000000000000.timeindex"]),
    where=st.floats(0, 1, exclude_max=True),
    bits=st.integers(1, 200),
    dice=st.randoms(use_true_random=False),
)
def test_a_damaged_index_misleads_nobody(name: str, where: float, bits: int, dice: Random) -> None:
    """Every offset and every time is found as before, however much of an index is damaged, and no file is blamed."""
    sealed = Sealed(4, interval=100)
    size = 8 * len(sealed.directory.read(name))
    sealed.flip(name, int(where * size))
    for _ in range(bits - 1):
        sealed.flip(name, dice.randrange(size))
    offsets = list(range(sealed.log.log_end_offset))
    dice.shuffle(offsets)
    for offset in offsets:
        found = sealed.log.read(offset, 1).records
        assert found == next(data for data in sealed.batches if read_header(data).last_offset >= offset)
        in_time = finish(search_timestamp(sealed.log, NOW + offset))
        assert in_time is not None
        assert (in_time.offset, in_time.timestamp) == (offset, NOW + offset)


def test_a_damaged_index_is_made_anew_and_stored() -> None:
    sealed = Sealed(5, interval=100)
    before = sealed.directory.read("00000000000000000000.index")
    for entry in range(len(before) // 8):
        sealed.flip("00000000000000000000.index", entry * 64 + 56)  # of its position, the lowest bit
    for offset in range(sealed.log.log_end_offset):
        sealed.log.read(offset, 1)
    assert sealed.log.rebuilt_indexes == 1
    sealed.log.flush()
    assert sealed.directory.read("00000000000000000000.index") == before
    assert sealed.log.segments[0].index.offsets is None


@pytest.mark.parametrize("is_span_known", [True, False])
def test_the_largest_timestamp_is_that_of_the_intact_batches_if_the_time_index_is_damaged(is_span_known: bool) -> None:
    sealed = Sealed(5, interval=100)
    span = sealed.log.segments[1].base_offset

    def largest() -> tuple[int, int]:
        segment = Segment(sealed.directory, 0, FileCache())  # knows nothing but its files
        segment.index.span = span if is_span_known else 0
        return segment.max_timestamp()

    headers = [read_header(data) for data in sealed.batches[:-1]]
    assert largest() == (headers[-1].max_timestamp, headers[-1].last_offset)
    entries = len(sealed.directory.read("00000000000000000000.timeindex")) // 12
    sealed.flip("00000000000000000000.timeindex", 8 * (12 * entries - 1))  # of the last entry's offset
    assert largest() == (headers[-1].max_timestamp, headers[-1].last_offset)
    sealed.flip(LOG, 8 * (len(sealed.data) - 1))
    assert largest() == (headers[-2].max_timestamp, headers[-2].last_offset)


def test_a_time_in_a_damaged_batch_is_an_error() -> None:
    sealed = Sealed(6)
    sealed.flip(LOG, 8 * (sum(map(len, sealed.batches[:10])) + 70))
    header = read_header(sealed.batches[10])
    for _ in range(2):
        with pytest.raises(CorruptSegment) as caught:
            finish(search_timestamp(sealed.log, NOW + header.base_offset))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    for offset in (0, sealed.log.log_end_offset - 8):
        found = finish(search_timestamp(sealed.log, NOW + offset))
        assert found is not None
        assert found.offset == offset


def test_compaction_leaves_gaps_that_are_no_damage() -> None:
    sealed = Sealed(7)
    kept = [data for number, data in enumerate(sealed.batches[:-1]) if number % 3 == 0 or number == BATCHES - 1]
    file = sealed.directory.open(LOG)
    file.truncate(0)
    file.write(0, b"".join(kept))
    for name in ("00000000000000000000.index", "00000000000000000000.timeindex"):
        sealed.directory.delete(name)
    sealed.log.close()
    log = open_log(sealed.directory, topic=sealed.log.config)
    for max_bytes in (1, 300, 10**6):
        for sliced in (False, True):
            assert everything(log, max_bytes, sliced=sliced) == ([*kept, sealed.batches[-1]], [])


@pytest.mark.parametrize("sliced", [False, True])
def test_unchecked_reads_give_what_is_there(sliced: bool) -> None:
    """`kraftpy.fetch.check.crcs=false`."""
    sealed = Sealed(8)
    sealed.flip(LOG, 8 * 70)
    sealed.log.checks_reads = False
    found, damage = everything(sealed.log, 400, sliced=sliced)
    assert damage == []
    assert found[0] != sealed.batches[0]
    assert found[1:] == sealed.batches[1:]
