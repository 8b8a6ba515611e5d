"""Opening what a crash, a full disk or an old hand left."""

from __future__ import annotations

import random
import struct

import pytest
from log_model import NOW, batch, check_invariants, config, copies, numbered, open_log, read_batches, values

from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.log.segment import CorruptSegment
from kraftpy.log.time_search import search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import iter_records
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk

RECORDS = 30


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def filled(disk: MemoryDisk, *, flushed: bool = False) -> tuple[MemoryDirectory, PartitionLog]:
    """Thirty records, two to a batch, in three segments; not closed."""
    directory = disk.root.child("t-0")
    disk.root.sync()
    log = open_log(directory, topic=config(segment_bytes=600))
    for number in range(0, RECORDS, 2):
        log.append(numbered(number, 2, size=10), leader_epoch=0, now=NOW)
    if flushed:
        log.flush()
    return directory, log


def reopened(disk: MemoryDisk, **how: object) -> PartitionLog:
    log = open_log(disk.root.child("t-0"), topic=config(segment_bytes=600), **how)
    check_invariants(log)
    return log


def numbers(log: PartitionLog) -> list[int]:
    return [int(value.split(b":")[0]) for value in values(log) if value is not None]


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def last_name(directory: MemoryDirectory) -> str:
    return [name for name in directory.names() if name.endswith(".log")][-1]


def test_a_clean_stop_opens_without_a_scan(disk: MemoryDisk) -> None:
    _, log = filled(disk)
    log.close()
    reads: list[str] = []
    disk.on_operation = lambda operation, path: reads.append(path) if operation == "read" else None
    again = open_log(disk.root.child("t-0"), topic=config(segment_bytes=600), clean=True)
    assert again.report.clean
    assert {path for path in reads if path.endswith(".log")} == {f"/t-0/{last_name(disk.root.child('t-0'))}"}
    disk.on_operation = None
    assert numbers(again) == list(range(RECORDS))
    assert str(again.report) == f"{len(bases(again))} segments, clean"


def test_after_a_crash_segments_before_the_recovery_point_are_not_scanned(disk: MemoryDisk) -> None:
    _, log = filled(disk, flushed=True)
    log.append(numbered(RECORDS, 2, size=10), leader_epoch=0, now=NOW)
    again = reopened(disk, recovery_point=log.recovery_point)
    assert again.report.scanned_segments == 1
    assert again.recovery_point == RECORDS
    assert numbers(again) == list(range(RECORDS + 2))


NO_HEADERS = {
    "many zeros": b"\0" * 1000,
    "few zeros": b"\0" * 10,
    "garbage": b"garbage",
    "cut batch": numbered(30, 2)[:-1],
    "cut header": numbered(30, 2)[:60],
    "huge length": struct.pack(">qi", 30, 2**31 - 1) + b"\0\0\0\0\2" + b"\0" * 100,
    "negative length": struct.pack(">qi", 30, -5) + b"\0\0\0\0\2" + b"\0" * 100,
    "length 0": struct.pack(">qi", 30, 0) + b"\0\0\0\0\2" + b"\0" * 100,
}
WHOLE_HEADERS = {
    "wrong crc": copies([(30, numbered(30, 2))], 0)[:-1] + b"\1",
    "offsets again": copies([(28, numbered(28, 2))], 0),
}


@pytest.mark.parametrize(
    ("clean", "tail"),
    # behind a stop that was clean nothing but headers is looked at
    [pytest.param(False, tail, id=name) for name, tail in (NO_HEADERS | WHOLE_HEADERS).items()]
    + [pytest.param(True, tail, id=f"clean, {name}") for name, tail in NO_HEADERS.items()],
)
def test_a_torn_tail_is_cut(disk: MemoryDisk, clean: bool, tail: bytes) -> None:
    directory, log = filled(disk)
    log.close()
    name = last_name(directory)
    file = directory.open(name)
    size = file.size()
    file.write(size, tail)
    again = reopened(disk, clean=clean, recovery_point=0)
    assert not again.report.clean
    assert again.report.truncated_bytes == len(tail)
    assert numbers(again) == list(range(RECORDS))
    assert directory.open(name).size() == size
    again.append(numbered(RECORDS, 1), leader_epoch=0, now=NOW)
    assert numbers(again) == list(range(RECORDS + 1))


def test_the_first_bad_batch_ends_the_log_and_later_segments_go(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    second = bases(log)[1]
    log.close()
    disk.damage(f"t-0/{second:020d}.log", 150, 0x40)
    again = reopened(disk)
    assert again.log_end_offset == second + 2
    assert again.report.deleted_segments == len(bases(log)) - 2
    assert [name for name in directory.names() if name.endswith(".log")][-1] == f"{second:020d}.log"
    assert again.report.scanned_bytes == sum(segment.size for segment in again.segments)
    assert "the CRC does not match" in str(again.report)


def test_a_hole_between_segments_ends_the_log(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    log.close()
    first, second, third = bases(log)[:3]
    directory.delete(f"{second:020d}.log")
    again = reopened(disk)
    assert (again.log_end_offset, bases(again)) == (second, [first])
    assert f"no records from {second} to {third}" in str(again.report)


def test_damage_before_the_recovery_point_is_kept_and_told(disk: MemoryDisk) -> None:
    """Damage to synced bytes is the disk's fault: deleting them, and everything after them, would make it worse."""
    directory, log = filled(disk)
    log.close()
    size = log.segments[0].size
    file = directory.open("00000000000000000000.log")
    file.write(size // 2, b"\0" * 100)
    directory.delete("00000000000000000000.index")
    again = open_log(directory, topic=config(segment_bytes=600), recovery_point=RECORDS)
    assert "damaged" in str(again.report)
    assert again.log_end_offset == RECORDS
    with pytest.raises(CorruptSegment) as caught:
        read_batches(again)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    second = bases(again)[1]
    assert len(read_batches(again, second)) == (RECORDS - second) // 2


@pytest.mark.parametrize("name", ["00000000000000000000.index", "00000000000000000000.timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "zeros", "beyond", "prefix"])
def test_a_damaged_index_is_made_anew(disk: MemoryDisk, name: str, damage: str) -> None:
    directory, log = filled(disk)
    log.close()
    data = directory.read(name)
    new = {
        "missing": None,
        "empty": b"",
        "half": data[:-3],
        "zeros": b"\0" * len(data),
        "beyond": data[:-4] + b"\x7f\xff\xff\xff",
        "prefix": data[: 8 if name.endswith(".index") else 0],
    }[damage]
    if new is None:
        directory.delete(name)
    else:
        directory.replace(name, new)
    again = reopened(disk, recovery_point=RECORDS)
    assert again.report.rebuilt_indexes == 1
    assert directory.read(name) == data
    assert numbers(again) == list(range(RECORDS))
    found = finish(search_timestamp(again, NOW))
    assert found is not None
    assert found.offset == 0


def test_leftovers_go(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    log.close()
    left = [
        "00000000000000000000.log.deleted", "00000000000000000000.index.deleted", "00000000000000000007.log.cleaned",
        "00000000000000000007.index.swap", "leader-epoch-checkpoint.tmp", "00000000000000000099.index",
        "00000000000000000099.timeindex",
    ]  # fmt: skip
    for name in left:
        directory.open(name)
    again = reopened(disk, clean=True)
    assert not set(left) & set(directory.names())
    assert numbers(again) == list(range(RECORDS))


def test_a_whole_swap_replaces_what_it_covers(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    log.close()
    first, second, third = bases(log)[:3]
    compacted = copies([(0, numbered(0, 2)), (third - 2, numbered(third - 2, 2))], 0)
    directory.open("00000000000000000000.log.swap").write(0, compacted)
    again = reopened(disk, clean=True)
    assert bases(again)[:2] == [first, third]
    assert f"{second:020d}.log" not in directory.names()
    assert numbers(again) == [0, 1, *range(third - 2, RECORDS)]
    assert [record.offset for record in iter_records(again.read(2, 1).records)] == [third - 2, third - 1]


def test_a_torn_swap_is_dropped(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    log.close()
    directory.open("00000000000000000000.log.swap").write(0, numbered(0, 2)[:-1])
    again = reopened(disk, clean=True)
    assert numbers(again) == list(range(RECORDS))
    assert "swap dropped" in str(again.report)


def test_a_log_that_ends_before_its_start_begins_anew(disk: MemoryDisk) -> None:
    _, log = filled(disk)
    log.close()
    again = reopened(disk, log_start_offset=100, clean=True)
    assert (again.log_start_offset, again.log_end_offset, bases(again)) == (100, 100, [100])
    assert again.append(numbered(100, 1), leader_epoch=0, now=NOW).base_offset == 100


def test_a_damaged_epoch_file_is_made_from_the_log(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    log.append(numbered(RECORDS, 2), leader_epoch=3, now=NOW)
    log.close()
    entries = log.epochs.entries()
    assert entries == [(0, 0), (3, RECORDS)]
    directory.replace(layout.LEADER_EPOCHS, b"0\n1\n9 9\nxxh64 0\n")
    again = reopened(disk, clean=True)
    assert again.epochs.entries() == entries
    directory.delete(layout.LEADER_EPOCHS)
    assert reopened(disk, clean=True).epochs.entries() == entries


def test_a_damaged_snapshot_is_made_from_the_log(disk: MemoryDisk) -> None:
    directory, log = filled(disk)
    data = numbered(RECORDS, 2, producer_id=5, producer_epoch=0, base_sequence=0)
    first = log.append(data, leader_epoch=0, now=NOW)
    log.close()
    for name in directory.names():
        if name.endswith(layout.SNAPSHOT):
            disk.damage(f"t-0/{name}", 9)
    again = reopened(disk, clean=True)
    assert again.report.replayed_batches == RECORDS // 2 + 1
    assert not [name for name in directory.names() if name.endswith(layout.SNAPSHOT)]
    duplicate = again.append(data, leader_epoch=0, now=NOW)
    assert duplicate.is_duplicate
    assert duplicate.base_offset == first.base_offset


def test_batches_larger_than_a_read_are_verified(disk: MemoryDisk) -> None:
    directory = disk.root.child("t-0")
    topic = config(segment_bytes=10**7, max_message_bytes=10**7)
    log = open_log(directory, topic=topic)
    large = random.Random(1).randbytes(3_000_000)
    for value in (b"small", large, b"after"):
        log.append(numbered(0, 1) if value != large else copies([(0, _one(large))], 0), leader_epoch=0, now=NOW)
    told: list[tuple[int, int]] = []
    again = open_log(directory, topic=topic, progress=lambda done, total: told.append((done, total)))
    assert again.log_end_offset == 3
    disk.damage("t-0/00000000000000000000.log", 2_900_000)
    assert open_log(directory, topic=topic).log_end_offset == 1


def _one(value: bytes) -> bytes:
    return batch(value)


def test_progress_is_told(disk: MemoryDisk) -> None:
    directory = disk.root.child("t-0")
    topic = config(segment_bytes=2**30, max_message_bytes=10**8)
    log = open_log(directory, topic=topic)
    for _ in range(5):
        log.append(_one(b"x" * 9_000_000), leader_epoch=0, now=NOW)
    told: list[tuple[int, int]] = []
    open_log(directory, topic=topic, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) == 4
    assert (told[0][0], told[-1][0]) == (0, log.segments.size_bytes)
    assert {total for _, total in told} == {log.segments.size_bytes}


def test_leader_epochs_that_fall_end_the_log(disk: MemoryDisk) -> None:
    """Records of a history that was truncated, come back behind those that replaced it."""
    directory, log = filled(disk)
    log.append(numbered(RECORDS, 1), leader_epoch=4, now=NOW)
    log.close()
    name = last_name(directory)
    file = directory.open(name)
    file.write(file.size(), copies([(RECORDS + 1, numbered(RECORDS + 1, 1))], 3))
    again = reopened(disk)
    assert again.log_end_offset == RECORDS + 1
    assert "leader epoch 3 after 4" in str(again.report)


def test_the_topic_id_is_written_before_data_and_checked(disk: MemoryDisk) -> None:
    directory = disk.root.child("t-0")
    written: list[str] = []
    disk.on_operation = lambda operation, path: written.append(path) if operation in ("replace", "open") else None
    topic_id = bytes(range(16))
    open_log(directory, topic_id=topic_id)
    assert written[0] == "/t-0/partition.metadata"
    assert layout.read_topic_id(directory) == topic_id
    open_log(directory, topic_id=topic_id)
    with pytest.raises(layout.CorruptFile, match="belongs to topic"):
        open_log(directory, topic_id=bytes(16))


def test_a_crash_during_a_copy_from_the_leader_keeps_whole_batches(disk: MemoryDisk) -> None:
    directory, log = filled(disk, flushed=True)
    several = copies([(RECORDS, numbered(RECORDS, 2)), (RECORDS + 2, numbered(RECORDS + 2, 2))], 0)
    log.append(several, leader_epoch=0, now=NOW, origin=Origin.REPLICA)
    ends = set()
    for seed in range(40):
        copy = MemoryDisk()
        for name in directory.names():
            copy.root.child("t-0").replace(name, directory.read(name))
        copy.root.sync()
        target = copy.root.child("t-0").open(last_name(directory))
        target.write(target.size(), copies([(RECORDS + 4, numbered(RECORDS + 4, 3, size=900))], 0))
        copy.crash(random.Random(seed), Loss.SECTORS)
        again = reopened(copy)
        ends.add(again.log_end_offset)
        assert numbers(again) == list(range(again.log_end_offset))
    assert ends == {RECORDS + 4, RECORDS + 7}


def test_rule_44_only_what_is_behind_the_recovery_point_is_read(disk: MemoryDisk) -> None:
    """In the segments before it, at most the last index interval is read, independent of their size."""
    topic = config(segment_bytes=50_000)
    directory = disk.root.child("t-0")
    log = open_log(directory, topic=topic)
    for number in range(1000):
        log.append(numbered(number, 1, size=150), leader_epoch=0, now=NOW)
    log.flush()
    for number in range(1000, 1100):
        log.append(numbered(number, 1, size=150), leader_epoch=0, now=NOW)
    sealed = [segment for segment in log.segments[:-1] if segment.base_offset < log.recovery_point - 250]
    assert len(sealed) >= 3
    first = max(segment.base_offset for segment in log.segments if segment.base_offset <= log.recovery_point)
    behind = sum(segment.size for segment in log.segments if segment.base_offset >= first)
    disk.bytes_read.clear()
    again = open_log(directory, topic=topic, recovery_point=log.recovery_point)
    assert again.report.scanned_bytes == behind
    for segment in sealed:
        assert disk.bytes_read[f"/t-0/{segment.log.name}"] < 1000 < segment.size
    all_read = sum(count for path, count in disk.bytes_read.items() if path.endswith(".log"))
    assert behind <= all_read < behind + 1000 * len(log.segments)
    assert again.recovery_point == log.recovery_point, "recovery makes nothing durable"
    assert again.log_end_offset == 1100


def test_rule_44_synced_records_that_are_missing_are_told_of(disk: MemoryDisk) -> None:
    """The owner then writes the lower recovery point before anything is appended (`missing_offsets`)."""
    filled(disk)
    again = reopened(disk, recovery_point=RECORDS + 7)
    assert again.report.missing_offsets == 7
    assert again.recovery_point == RECORDS
    assert "7 synced offsets missing" in str(again.report)
