"""A base offset in which a bit has flipped, across a restart: no checksum covers it, but its neighbours give it away.

Any bit of any batch may flip, and the log may have been left in any way: it opens, and every record that is read stands
at its own offset. If a recovery scans the batch, it truncates the log there; a segment that was synced before is kept,
and readers who reach the damage get an error.

Left out: the very last batch of a log whose end is not known, moved up by less than 2^31.
"""

from __future__ import annotations

import pytest
from log_model import NOW, config, copies, numbered, open_log

from kraftpy.log import layout
from kraftpy.log.index import MAX_RELATIVE_OFFSET
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.log.segment import CorruptSegment
from kraftpy.protocol.record_batch import iter_records
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import Millis

TOPIC = config(segment_bytes=4_000, index_interval_bytes=200)
BATCHES = 9
"""In each of two segments, of two records each."""
END = 4 * BATCHES
CLEAN, CLEAN_UNKNOWN = "clean", "clean, its end unknown"
CRASHED, CRASHED_UNSYNCED, CRASHED_WITHOUT_INDEXES = "crashed", "crashed, unsynced", "crashed, no index"


def reopened(how: str, segment: int, number: int, bit: int) -> PartitionLog:
    """Two segments, left in that way, with this bit of the base offset of that batch flipped; opened again."""
    disk = MemoryDisk()
    directory = disk.root.child("t-0")
    disk.root.sync()
    log = open_log(directory, topic=TOPIC)
    for turn in range(2 * BATCHES):
        log.append(numbered(2 * turn, 2, size=100), leader_epoch=0, now=Millis(NOW))
        if turn == BATCHES - 1:
            log.roll(NOW)
    log.flush()
    name = layout.file_name(log.segments[segment].base_offset, layout.LOG)
    position = [placed.position for placed in log.segments[segment].walk()][number]
    is_clean = how in (CLEAN, CLEAN_UNKNOWN)
    if is_clean:
        log.close()
    else:
        log.release()
    if how == CRASHED_WITHOUT_INDEXES:
        for index in [each for each in directory.names() if each.endswith("index")]:
            directory.delete(index)
    disk.damage(f"t-0/{name}", position + 7 - bit // 8, 1 << bit % 8)
    is_known = how not in (CLEAN_UNKNOWN, CRASHED_UNSYNCED)
    return open_log(directory, topic=TOPIC, clean=is_clean, recovery_point=END if is_known else 0)


def read_from(log: PartitionLog, offset: int) -> tuple[list[int], bool]:
    """The offsets that are read, each of which must hold its own record; and whether damage was met."""
    found: list[int] = []
    try:
        while offset < log.log_end_offset:
            read = log.read(offset, 1, min_one_batch=True)
            for record in iter_records(bytes(read.records)):
                assert record.value is not None
                assert int(record.value.split(b":")[0]) == record.offset
                found.append(record.offset)
            offset = read.next_offset
    except CorruptSegment:
        return found, True
    return found, False


@pytest.mark.parametrize("how", [CLEAN, CLEAN_UNKNOWN, CRASHED, CRASHED_UNSYNCED, CRASHED_WITHOUT_INDEXES])
@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("number", [0, 1, 4, BATCHES - 2, BATCHES - 1])
def test_any_bit_of_a_base_offset(how: str, segment: int, number: int) -> None:
    damaged = 2 * (segment * BATCHES + number)
    is_last = (segment, number) == (1, BATCHES - 1)
    is_kept = how in (CLEAN, CLEAN_UNKNOWN) or (segment == 0 and how != CRASHED_UNSYNCED)
    for bit in range(64):
        log = reopened(how, segment, number, bit)
        moved_up = bit < 63 and not damaged & 1 << bit
        if is_last and moved_up and bit < 31 and how != CLEAN:
            continue  # left out
        found, met_damage = read_from(log, 0)
        assert found == list(range(damaged)), bit
        if is_kept and (not is_last or (moved_up and how != CLEAN_UNKNOWN)):
            assert (log.log_end_offset, met_damage) == (END, True), bit
            if segment == 0:
                assert read_from(log, 2 * BATCHES) == (list(range(2 * BATCHES, END)), False), bit
        else:
            assert (log.log_end_offset, met_damage) == (damaged, False), bit
        log.release()


@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_a_segment_goes_on_to_the_last_offset_that_its_index_can_name(how: str) -> None:
    """A copy of a compacted log may have that gap."""
    disk = MemoryDisk()
    directory = disk.root.child("t-0")
    disk.root.sync()
    log = open_log(directory, topic=TOPIC)
    far = MAX_RELATIVE_OFFSET
    log.append(
        copies([(0, numbered(0, 1)), (far, numbered(far, 1))], 0), leader_epoch=0, now=NOW, origin=Origin.REPLICA
    )
    assert [segment.base_offset for segment in log.segments] == [0]
    log.flush()
    if how == CLEAN:
        log.close()
    else:
        log.release()
    for index in [each for each in directory.names() if each.endswith("index")]:
        directory.delete(index)
    log = open_log(directory, topic=TOPIC, clean=how == CLEAN, recovery_point=0)
    assert read_from(log, 0) == ([0, far], False)
    assert log.log_end_offset == far + 1
