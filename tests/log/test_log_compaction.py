"""Compaction keeps the last record of each key at its offset, through interruptions and crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_model import NOW, begin, check_invariants, compact, config, open_log, read_batches, read_records

from kraftpy.log import compaction, layout
from kraftpy.log.compaction import Limits
from kraftpy.log.compaction_work import Cleaned, clean
from kraftpy.log.deletion import delete_old_segments
from kraftpy.log.key_map import ENTRY_BYTES
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.log.segment import CorruptSegment
from kraftpy.log.time_search import search_max_timestamp, search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.record_batch import (
    Compression,
    ControlType,
    CorruptBatch,
    Record,
    encode_batch,
    encode_control_batch,
    iter_records,
    read_header,
    stamp,
)
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk
from kraftpy.types import Millis

DAY = 86_400_000


def topic(**how: Any) -> Any:
    return config(
        **{
            "cleanup_policy": frozenset({"compact"}),
            "segment_bytes": 500,
            "min_cleanable_dirty_ratio": 0.0,
            "delete_retention_ms": DAY,
            **how,
        }
    )


def fresh(disk: MemoryDisk | None = None, **how: Any) -> PartitionLog:
    root = (disk or MemoryDisk()).root
    directory = root.child("t-0")
    root.sync()
    return open_log(directory, topic=topic(**how))


def put(log: PartitionLog, *pairs: tuple[str, str | None], now: int = NOW, **fields: Any) -> int:
    records = [(now, key.encode(), None if value is None else value.encode(), [("h", b"1")]) for key, value in pairs]
    result = log.append(encode_batch(records, **fields), leader_epoch=0, now=Millis(now))
    return result.base_offset


def held(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in read_records(log)
    ]


def test_keeps_the_last_record_of_each_key_where_it_was() -> None:
    log = fresh()
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    put(log, ("c", "1"), ("b", "2"))
    log.roll(NOW)
    put(log, ("a", "3"))
    before = {record.offset: record for record in read_records(log)}
    log.roll(NOW)
    put(log, ("c", "2"))  # never touched: it is being written
    result = compact(log)
    assert result is not None
    assert result.end_offset == 6
    assert result.bytes_after < result.bytes_before
    assert held(log) == [(3, "c", "1"), (4, "b", "2"), (5, "a", "3"), (6, "c", "2")]
    assert all(before.get(record.offset, record) == record for record in read_records(log))
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    assert compact(log, result.end_offset) is None
    put(log, ("a", "4"))
    log.roll(NOW)
    assert compact(log, result.end_offset) is not None
    assert held(log) == [(4, "b", "2"), (6, "c", "2"), (7, "a", "4")]


def test_a_deletion_is_kept_for_a_while_and_then_goes() -> None:
    log = fresh()
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"), now=NOW + 5)
    put(log, ("d", "1"), now=NOW + 7)
    log.roll(NOW)
    first = compact(log)
    assert first is not None
    assert held(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "d", "1")]
    assert [record.timestamp for record in read_records(log)] == [NOW, NOW + 5, NOW + 5, NOW + 7]
    horizons = [read_header(data).delete_horizon_ms for data in read_batches(log)]
    assert horizons == [None, NOW + DAY, None]
    put(log, ("x", "1"))
    log.roll(NOW)
    second = compact(log, first.end_offset, now=NOW + DAY - 1)
    assert second is not None
    assert (2, "a", None) in held(log)
    assert [read_header(data).delete_horizon_ms for data in read_batches(log)][1] == NOW + DAY  # not put off
    put(log, ("y", "1"))
    log.roll(NOW)
    assert compact(log, second.end_offset, now=NOW + DAY) is not None
    assert held(log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1"), (5, "x", "1"), (6, "y", "1")]
    assert [record.timestamp for record in read_records(log)][:3] == [NOW, NOW + 5, NOW + 7]
    found = finish(search_timestamp(log, NOW + 6))
    assert found is not None
    assert (found.offset, found.timestamp) == (4, NOW + 7)


def test_what_is_young_undecided_or_above_the_watermark_is_left_alone() -> None:
    log = fresh(min_compaction_lag_ms=1000)
    for value in range(4):
        put(log, ("a", str(value)), now=NOW + value * 1000)
        log.roll(NOW)
    assert compact(log, now=NOW + 999) is None
    assert compact(log, now=NOW + 2500, high_watermark=1) is not None
    assert len(held(log)) == 4
    assert compact(log, now=NOW + 2500) is not None
    assert [offset for offset, _, _ in held(log)] == [1, 2, 3]


def test_waits_until_enough_is_dirty_or_something_for_too_long() -> None:
    log = fresh(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=DAY)
    for number in range(8):
        put(log, (f"k{number}", "v"))
    log.roll(NOW)
    result = compact(log)
    assert result is not None
    put(log, ("k0", "w"), now=NOW + 10)
    log.roll(NOW)
    assert compact(log, result.end_offset, now=NOW + 10) is None
    assert compact(log, result.end_offset, now=NOW + 11 + DAY) is not None


def test_only_for_topics_that_are_compacted() -> None:
    log = fresh(cleanup_policy=frozenset({"delete"}))
    put(log, ("a", "1"))
    log.roll(NOW)
    assert compact(log) is None


def test_a_small_map_takes_several_passes() -> None:
    log = fresh(segment_bytes=400)
    for number in range(60):
        put(log, (f"k{number % 20}", str(number)), (f"k{(number + 7) % 20}", str(number)))
    log.roll(NOW)
    first_dirty, passes = 0, 0
    while (result := compact(log, first_dirty, limits=Limits(5 * ENTRY_BYTES, 1.0))) is not None:
        assert result.end_offset > first_dirty
        first_dirty, passes = result.end_offset, passes + 1
    assert passes > 3
    assert first_dirty == log.log_end_offset
    assert len(held(log)) == 20
    assert len({key for _, key, _ in held(log)}) == 20


def test_transactions() -> None:
    """Aborted records go at once and hide nothing; markers stay; nothing goes while a transaction is open."""
    log = fresh()

    def mark(producer_id: int, kind: ControlType) -> None:
        marker = encode_control_batch(
            kind, timestamp=NOW, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0
        )
        log.append(marker, leader_epoch=0, now=NOW, origin=Origin.COORDINATOR)

    put(log, ("a", "old"), ("b", "old"))
    put(log, ("a", "aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    put(log, ("b", "new"), producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.roll(NOW)
    assert compact(log) is None
    mark(1, ControlType.ABORT)
    mark(2, ControlType.COMMIT)
    put(log, ("z", "1"), producer_id=1, producer_epoch=0, base_sequence=1)
    log.roll(NOW)
    assert compact(log) is not None
    kept = [(r.offset, r.value) for r in read_records(log) if r.key in (b"a", b"b", b"z")]
    assert kept == [(0, b"old"), (3, b"new"), (6, b"1")]
    assert sum(read_header(data).is_control for data in read_batches(log)) == 2


def test_a_producer_is_still_known_when_its_records_are_gone() -> None:
    disk = MemoryDisk()
    log = fresh(disk)
    data = encode_batch([(NOW, b"a", b"1", ())] * 2, producer_id=9, producer_epoch=3, base_sequence=0)
    log.append(data, leader_epoch=0, now=NOW)
    put(log, ("a", "2"))
    put(log, ("b", "2"))
    log.roll(NOW)
    assert compact(log) is not None
    assert [offset for offset, _, _ in held(log)] == [2, 3]
    assert [read_header(data).records_count for data in read_batches(log)] == [0, 1, 1]
    assert log.read(0, 1).next_offset == 3, "a reader is never given emptied batches only"
    disk.crash(random.Random(0), Loss.NOTHING)
    again = fresh(disk)
    assert again.append(data, leader_epoch=0, now=NOW).is_duplicate
    more = encode_batch([(NOW, b"a", b"3", ())], producer_id=9, producer_epoch=3, base_sequence=2)
    assert not again.append(more, leader_epoch=0, now=NOW).is_duplicate


@pytest.mark.parametrize("compression", list(Compression))
def test_every_codec_is_kept(compression: Compression) -> None:
    log = fresh()
    put(log, *[(f"k{number % 3}", "x" * 30) for number in range(9)], compression=compression)
    put(log, ("q", None), compression=compression)
    log.roll(NOW)
    assert compact(log) is not None
    assert [offset for offset, _, _ in held(log)] == [6, 7, 8, 9]
    assert {read_header(data).compression for data in read_batches(log)} == {compression}
    assert all(record.headers == (("h", b"1"),) for record in read_records(log))


def test_log_append_time_stays() -> None:
    log = fresh(message_timestamp_type="LogAppendTime")
    put(log, ("a", "1"), ("a", None), ("b", "1"))
    log.roll(NOW)
    assert compact(log, now=NOW + 100) is not None
    assert [(record.offset, record.timestamp) for record in read_records(log)] == [(1, NOW), (2, NOW)]


def test_what_changed_meanwhile_is_not_undone() -> None:
    for disturb in ("truncate", "delete", "fail"):
        disk = MemoryDisk()
        log = fresh(disk)
        for number in range(12):
            put(log, ("a", str(number)))
            log.roll(NOW)
        job = begin(log)
        assert job is not None
        assert begin(log) is None
        steps = clean(job.plan, log.directory)
        if disturb == "fail":
            disk.fail("sync", name=".cleaned")
            with pytest.raises(OSError, match="Input/output"):
                next(steps)
        else:
            cleaned = next(steps)
            assert isinstance(cleaned, Cleaned)
        if disturb == "truncate":
            log.truncate_to(2)
        elif disturb == "delete":
            log.advance_log_start(3)
            delete_old_segments(log, NOW, 12)
        before = held(log)
        if disturb != "fail":
            assert not compaction.stage(log, job, cleaned)
        assert compaction.finish(log, job) is None
        assert held(log) == before
        check_invariants(log)
        assert not [name for name in log.directory.names() if layout.CLEANED in name or layout.SWAP in name]
        put(log, ("a", "again"))
        log.roll(NOW)
        assert compact(log) is not None


def test_nothing_is_deleted_while_it_is_about_to_be_replaced() -> None:
    """A crash would complete the swap, and leave a hole behind it."""
    log = fresh(segment_bytes=80)
    for number in range(6):
        put(log, ("a", str(number)))
    job = begin(log)
    assert job is not None
    cleaned = next(clean(job.plan, log.directory))
    assert isinstance(cleaned, Cleaned)
    log.advance_log_start(5)
    assert compaction.stage(log, job, cleaned)
    assert delete_old_segments(log, NOW, 6) == []
    log.directory.sync()
    assert compaction.put_in_place(log, job)
    assert delete_old_segments(log, NOW, 6) == []
    log.directory.sync()
    compaction.complete(log, job)
    compaction.finish(log, job)
    assert delete_old_segments(log, NOW, 6)
    check_invariants(log)


def test_a_damaged_segment_is_left_alone() -> None:
    disk = MemoryDisk()
    log = fresh(disk)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW)
    disk.damage("t-0/00000000000000000000.log", 70)
    with pytest.raises(Exception, match="CRC"):
        compact(log)
    assert not log.is_compacting
    assert len(log.segments) == 2
    assert len(read_batches(log, 1)) == 1
    with pytest.raises(CorruptSegment):
        log.read(0, 100)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("bit", range(64))
def test_a_base_offset_that_became_another_is_no_base_offset(number: int, bit: int) -> None:
    """No checksum covers it. Believed, it would have a later value of a key taken for an earlier one (seed 817)."""
    disk = MemoryDisk()
    log = fresh(disk, index_interval_bytes=1)
    for value in range(3):
        put(log, ("a", str(value)), ("b", str(value)))
    log.roll(NOW)
    size = log.segments[0].size // 3
    disk.damage("t-0/00000000000000000000.log", number * size + 7 - bit // 8, 1 << bit % 8)
    before = log.directory.read("00000000000000000000.log")
    with pytest.raises(CorruptBatch, match="instead of"):
        compact(log)
    assert not log.is_compacting
    assert log.directory.read("00000000000000000000.log") == before


def test_a_checkpoint_that_cannot_be_is_none() -> None:
    """Rule 39: beyond the log's end or before its start, cleaning begins at the start."""
    for first_dirty in (-1, 10**9):
        log = fresh()
        put(log, ("a", "1"), ("a", "2"))
        log.roll(NOW)
        job = begin(log, first_dirty)
        assert job is not None
        assert job.plan.first_dirty == 0
        compaction.finish(log, job)
    log.advance_log_start(1)
    job = begin(log, 0)
    assert job is not None
    assert job.plan.first_dirty == 1
    compaction.finish(log, job)


def test_the_log_start_may_lie_within_a_batch() -> None:
    log = fresh()
    put(log, ("a", "1"), ("b", "1"), ("c", "1"))
    put(log, ("a", "2"))
    log.roll(NOW)
    log.advance_log_start(2)
    assert compact(log, 0) is not None
    assert log.log_start_offset == 2
    assert [offset for offset, _, _ in held(log)] == [2, 3]
    log.advance_log_start(4)
    assert held(log) == []


def test_only_what_is_dirty_has_to_be_old_enough() -> None:
    """KIP-58: a segment that was cleaned already does not get too young when the lag is raised."""
    log = fresh()
    put(log, ("a", "1"))
    log.roll(NOW)
    put(log, ("a", "2"), now=NOW + 10)
    log.roll(NOW)
    log.config = topic(min_compaction_lag_ms=10)
    assert compact(log, 1, now=NOW + 19) is None
    assert compact(log, 1, now=NOW + 20) is not None


def test_a_segment_of_a_compacted_topic_is_rolled_for_its_largest_lag() -> None:
    """KIP-354: or what is in it could not be cleaned in time."""
    log = fresh(max_compaction_lag_ms=100, min_cleanable_dirty_ratio=0.99, segment_bytes=10_000)
    put(log, ("a", "1"))
    put(log, ("a", "2"), now=NOW + 100)
    assert len(log.segments) == 1
    put(log, ("b", "1"), now=NOW + 101)
    assert len(log.segments) == 2
    assert compact(log, 0, now=NOW + 101) is not None
    assert [offset for offset, _, _ in held(log)] == [1, 2]


def test_records_without_a_key_go() -> None:
    """A topic that was not always compacted may have some."""
    log = fresh(cleanup_policy=frozenset({"delete"}))
    log.append(
        encode_batch([(NOW, None, b"1", ()), (NOW, b"a", b"1", ()), (NOW, None, None, ())]), leader_epoch=0, now=NOW
    )
    put(log, ("b", "1"))
    log.roll(NOW)
    log.config = topic()
    assert compact(log) is not None
    assert held(log) == [(1, "a", "1"), (3, "b", "1")]


def test_long_keys_are_told_apart() -> None:
    log = fresh(segment_bytes=5000)
    put(log, *[(f"{'x' * size}{number}", "v") for size in (38, 39, 40, 41, 300) for number in range(3)])
    put(log, *[(f"{'x' * size}1", "w") for size in (38, 39, 40, 41, 300)])
    log.roll(NOW)
    assert compact(log) is not None
    assert len(held(log)) == 15
    assert [value for _, key, value in held(log) if key.endswith("1")] == ["w"] * 5
    clean_end = log.log_end_offset
    put(log, ("x" * 301, "no such key yet"), (f"{'x' * 300}1", "again"))
    log.roll(NOW)
    assert compact(log, clean_end) is not None
    assert len(held(log)) == 16
    assert ("x" * 300 + "1", "again") in [(key, value) for _, key, value in held(log)]


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_s_own_codec_is_that_of_what_is_rewritten(name: str) -> None:
    log = fresh()
    for number in range(2):
        put(log, *[(f"k{each}", "x" * 30) for each in range(3)], (f"only {number}", "x"), compression=Compression.LZ4)
    log.roll(NOW)
    log.config = topic(compression_type=name)
    assert compact(log) is not None
    codecs = [read_header(data).compression for data in read_batches(log)]
    wanted = Compression.NONE if name == "uncompressed" else Compression[name.upper()]
    assert codecs == [wanted, Compression.LZ4], "the second was not touched"
    assert len(held(log)) == 5


def test_what_is_merged_stays_within_a_segment() -> None:
    """By bytes, by entries of its index, and by the 31 bits of a relative offset."""
    log = fresh(segment_bytes=200)
    for number in range(12):
        put(log, (f"k{number}", "x" * 20))
    log.config = topic(segment_bytes=400)
    log.roll(NOW)
    assert compact(log) is not None
    assert all(segment.size <= 400 for segment in log.segments)
    assert len(log.segments) < 12
    put(log, ("k0", "again"))
    log.config = topic(segment_bytes=10_000, segment_index_bytes=36, index_interval_bytes=300)
    log.roll(NOW)
    assert compact(log, 12) is not None
    assert all(segment.size <= 600 for segment in log.segments)


def test_a_merged_segment_spans_no_more_than_relative_offsets_can_say() -> None:
    directory = MemoryDisk().root.child("t-0")
    log = open_log(directory, topic=topic())
    far = 2**31 - 1
    for base_offset in (0, 10, far, far + 1):
        data = bytearray(encode_batch([(NOW, b"k%d" % base_offset, b"v", ())]))
        stamp(data, base_offset, 0)
        log.append(data, leader_epoch=0, now=NOW, origin=Origin.REPLICA)
        log.roll(NOW)
    assert compact(log) is not None
    assert [segment.base_offset for segment in log.segments] == [0, far + 1, far + 2]
    assert [offset for offset, _, _ in held(log)] == [0, 10, far, far + 1]


def test_an_emptied_batch_keeps_its_time_and_is_not_the_latest_record() -> None:
    """As in Kafka: a request for the largest timestamp returns a record that is there (KIP-734)."""
    log = fresh()
    put(log, ("a", "1"), now=NOW + 50, producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("a", "2"), now=NOW + 20)
    put(log, ("b", "1"), now=NOW + 10)
    log.roll(NOW)
    assert compact(log) is not None
    headers = [read_header(data) for data in read_batches(log)]
    assert [(h.records_count, h.max_timestamp - NOW) for h in headers] == [(0, 50), (1, 20), (1, 10)]
    latest = finish(search_max_timestamp(log))
    assert latest is not None
    assert latest[:2] == (1, NOW + 20)


def test_the_latest_record_is_one_that_may_still_be_read() -> None:
    log = fresh()
    put(log, ("a", "1"), now=NOW + 50)
    put(log, ("b", "1"), now=NOW + 20)
    put(log, ("c", "1"), now=NOW + 10)
    log.advance_log_start(1)
    latest = finish(search_max_timestamp(log))
    assert latest is not None
    assert latest[:2] == (1, NOW + 20)
    log.advance_log_start(3)
    assert finish(search_max_timestamp(log)) is None


def test_compact_and_delete_does_both() -> None:
    log = fresh(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000)
    put(log, ("a", "1"), ("b", "1"))
    log.roll(NOW)
    put(log, ("a", "2"), now=NOW + 500)
    log.roll(NOW)
    assert compact(log) is not None
    assert [offset for offset, _, _ in held(log)] == [1, 2]
    assert delete_old_segments(log, Millis(NOW + 1501), log.log_end_offset)
    assert held(log) == []


def test_leader_epochs_stay() -> None:
    disk = MemoryDisk()
    log = fresh(disk)
    for leader_epoch in range(4):
        log.assign_epoch(leader_epoch)
        data = encode_batch([(NOW, b"a", b"%d" % leader_epoch, ()), (NOW, b"%d" % leader_epoch, b"v", ())])
        log.append(data, leader_epoch=leader_epoch, now=NOW)
    log.roll(NOW)
    before = log.epochs.entries()
    assert compact(log) is not None
    assert log.epochs.entries() == before
    assert [read_header(data).partition_leader_epoch for data in read_batches(log)] == [0, 1, 2, 3]
    disk.crash(random.Random(1), Loss.EVERYTHING)
    assert open_log(_directory(disk), topic=log.config, recovery_point=log.recovery_point).epochs.entries() == before


# --- against a model --------------------------------------------------------------------------------------------------

PAIRS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["1", "22", None])), min_size=1, max_size=4)


class PowerCut(BaseException):
    pass


def check_compacted(log: PartitionLog, written: dict[int, Record], clean_end: int, untouched_from: int) -> None:
    found = read_records(log)
    assert all(written[record.offset] == record for record in found)
    offsets = {record.offset for record in found}
    last: dict[bytes | None, int] = {record.key: offset for offset, record in sorted(written.items())}
    last_clean = {record.key: offset for offset, record in sorted(written.items()) if offset < clean_end}
    for key, offset in last.items():
        assert offset in offsets or written[offset].value is None, f"{key!r} lost"
    for record in found:
        if record.offset < clean_end:
            assert last_clean[record.key] == record.offset, "a record that was overwritten is still there"
    assert {offset for offset in written if offset >= untouched_from} <= offsets
    for offset in range(log.log_start_offset, log.log_end_offset):
        batches = read_batches(log, offset, max_bytes=1)
        if batches:
            header = read_header(batches[0])
            assert header.last_offset >= offset


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.one_of(PAIRS, st.sampled_from(["roll", "compact", "reopen", "crash", "power"])), max_size=40),
    seed=st.integers(0, 2**32),
)
def test_keeps_what_a_map_keeps(steps: list[Any], seed: int) -> None:
    dice = random.Random(seed)
    disk = MemoryDisk()
    log = fresh(disk, segment_bytes=400, delete_retention_ms=50)
    written: dict[int, Record] = {}
    clean_end, untouched_from, now = 0, 0, int(NOW)
    for step in steps:
        now += 10
        if isinstance(step, list):
            put(log, *step, now=now)
            for data in read_batches(log, max(0, log.log_end_offset - 1)):
                written.update({record.offset: record for record in iter_records(data)})
        elif step == "roll":
            log.roll(Millis(now))
        elif step == "compact":
            result = compact(log, clean_end, now=now, limits=Limits(dice.choice([2, 10**6]) * ENTRY_BYTES, 1.0))
            clean_end = clean_end if result is None else result.end_offset
        else:
            if step == "reopen":
                log.close()
            else:
                log.flush()
                if step == "power":
                    _lose_power(log, disk, dice, clean_end, now)
                disk.crash(dice, dice.choice([*Loss]))
            log = open_log(
                _directory(disk), now=now, topic=log.config, clean=step == "reopen", recovery_point=log.recovery_point
            )
        check_invariants(log)
        if step == "power":  # it may have been cleaned further than is known
            untouched_from = log.log_end_offset
        check_compacted(log, written, clean_end, max(clean_end, untouched_from))


def _directory(disk: MemoryDisk) -> MemoryDirectory:
    return disk.root.child("t-0")


def _lose_power(log: PartitionLog, disk: MemoryDisk, dice: random.Random, first_dirty: int, now: int) -> None:
    left = dice.randint(0, 60)

    def count_down(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCut

    disk.on_operation = count_down
    try:
        compact(log, first_dirty, now=now)
    except PowerCut:
        pass
    finally:
        disk.on_operation = None
