"""Appending to a log: what it accepts and refuses, when it rolls, and what it deletes."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from log_model import (
    NOW,
    batch,
    check_invariants,
    config,
    copies,
    numbered,
    open_log,
    read_batches,
    read_records,
    read_slice,
    values,
)

from kraftpy.broker.runtime import OsDirectory
from kraftpy.log.deletion import delete_files, delete_old_segments
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.log.retention import SegmentAge, segments_to_delete
from kraftpy.log.time_search import search_timestamp
from kraftpy.log.work import finish
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    Compression,
    CorruptBatch,
    check_crc,
    encode_batch,
    iter_records,
    read_header,
)
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis

HOUR = 3_600_000


def fresh(**settings: Any) -> PartitionLog:
    return open_log(MemoryDisk().root.child("t-0"), topic=config(**{"segment_bytes": 10**6, **settings}))


def refused(log: PartitionLog, data: bytes, *, origin: Origin = Origin.CLIENT, leader_epoch: int = 0) -> ErrorCode:
    before = (log.log_end_offset, log.segments.size_bytes, log.epochs.entries())
    with pytest.raises(KafkaError) as caught:
        log.append(data, leader_epoch=leader_epoch, now=NOW, origin=origin)
    assert (log.log_end_offset, log.segments.size_bytes, log.epochs.entries()) == before
    return caught.value.code


def test_stamps_in_place_and_keeps_the_rest() -> None:
    log = fresh()
    log.append(numbered(0, 3), leader_epoch=4, now=NOW)
    sent = bytearray(numbered(3, 2, compression=Compression.GZIP))
    original = bytes(sent)
    result = log.append(sent, leader_epoch=5, now=NOW)
    assert (result.base_offset, result.last_offset, result.log_append_time) == (3, 4, -1)
    assert (result.log_start_offset, result.log_end_offset, result.is_duplicate) == (0, 5, False)
    stored = read_batches(log)[1]
    assert sent == stored  # no copy was made of what could be written to
    assert stored[21:] == original[21:]
    assert struct.unpack_from(">qii", stored) == (3, len(stored) - 12, 5)


def test_what_cannot_be_written_to_is_left_alone() -> None:
    log = fresh()
    sent = numbered(0, 1)
    kept = bytes(sent)
    log.append(memoryview(sent), leader_epoch=9, now=NOW)
    assert sent == kept


def test_log_append_time_is_stamped() -> None:
    log = fresh(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0)
    result = log.append(numbered(0, 2, timestamp=NOW + HOUR), leader_epoch=0, now=NOW)
    assert result.log_append_time == NOW
    (stored,) = read_batches(log)
    assert check_crc(stored)
    assert [record.timestamp for record in read_records(log)] == [NOW, NOW]
    found = finish(search_timestamp(log, NOW))
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW)


def test_a_duplicate_is_answered_with_its_first_append_time() -> None:
    log = fresh(message_timestamp_type="LogAppendTime")
    data = numbered(0, 2, producer_id=1, producer_epoch=0, base_sequence=0)
    log.append(data, leader_epoch=0, now=NOW)
    again = log.append(data, leader_epoch=0, now=Millis(NOW + 5))
    assert again.is_duplicate
    assert again.log_append_time == NOW


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (numbered(0, 1) + numbered(1, 1), ErrorCode.INVALID_RECORD),
        (numbered(0, 1)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (numbered(0, 1)[:40], ErrorCode.CORRUPT_MESSAGE),
        (numbered(0, 1)[:-1] + b"\7", ErrorCode.CORRUPT_MESSAGE),
        (numbered(0, 1, base_offset=5), ErrorCode.INVALID_RECORD),
        (b"\0" * 16 + b"\1" + b"\0" * 50, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (numbered(0, 1, size=3000), ErrorCode.MESSAGE_TOO_LARGE),
        (numbered(0, 1, timestamp=NOW + HOUR + 1), ErrorCode.INVALID_TIMESTAMP),
        (numbered(0, 1, timestamp=NOW - HOUR - 1), ErrorCode.INVALID_TIMESTAMP),
        (numbered(0, 1, is_control=True), ErrorCode.INVALID_RECORD),
    ],
)
def test_refuses(data: bytes, code: ErrorCode) -> None:
    log = fresh(max_message_bytes=2000, message_timestamp_before_max_ms=HOUR, message_timestamp_after_max_ms=HOUR)
    log.append(numbered(0, 1, timestamp=NOW + HOUR), leader_epoch=0, now=NOW)
    log.append(numbered(0, 1, timestamp=NOW - HOUR), leader_epoch=0, now=NOW)
    log.append(numbered(0, 1, timestamp=-1), leader_epoch=0, now=NOW)
    assert refused(log, data) is code
    assert log.log_end_offset == 3


def test_a_batch_may_not_be_larger_than_a_segment() -> None:
    log = fresh(segment_bytes=500)
    assert refused(log, numbered(0, 1, size=600)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_compacted_topic_wants_keys() -> None:
    log = fresh(cleanup_policy=frozenset({"compact"}))
    mixed = encode_batch([(NOW, b"k", b"v", ()), (NOW, None, b"v", ())])
    assert refused(log, mixed) is ErrorCode.INVALID_RECORD
    log.append(batch(b"v", key=b""), leader_epoch=0, now=NOW)
    fresh().append(mixed, leader_epoch=0, now=NOW)


@pytest.mark.parametrize("sent", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_want_its_own_codec(sent: Compression, wanted: str) -> None:
    log = fresh(compression_type=wanted)
    data = numbered(0, 5, compression=sent, producer_id=3, producer_epoch=1, base_sequence=0)
    log.append(data, leader_epoch=2, now=NOW)
    (stored,) = read_batches(log)
    codecs = {"producer": sent, "uncompressed": Compression.NONE}
    expected = codecs[wanted] if wanted in codecs else Compression[wanted.upper()]
    header = read_header(stored)
    assert header.compression == expected
    assert check_crc(stored)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.partition_leader_epoch) == (
        3,
        1,
        0,
        2,
    )
    assert read_records(log) == list(iter_records(data))
    assert log.append(data, leader_epoch=2, now=NOW).is_duplicate


def test_an_older_leader_epoch_is_refused() -> None:
    log = fresh()
    log.append(numbered(0, 1), leader_epoch=3, now=NOW)
    assert refused(log, numbered(0, 1), leader_epoch=2) is ErrorCode.FENCED_LEADER_EPOCH


def test_copies_must_follow_the_log() -> None:
    log = fresh()
    log.append(numbered(0, 4), leader_epoch=3, now=NOW)
    for base_offset, epoch in ((3, 3), (0, 3), (4, 2)):
        data = copies([(base_offset, numbered(0, 2))], epoch)
        assert refused(log, data, origin=Origin.REPLICA, leader_epoch=9) is ErrorCode.CORRUPT_MESSAGE
    torn = copies([(4, numbered(0, 2)), (6, numbered(0, 2))], 3)
    bad = torn[:-1] + b"\7"
    assert refused(log, bad, origin=Origin.REPLICA, leader_epoch=9) is ErrorCode.CORRUPT_MESSAGE
    # a batch that is cut short at the end, or of an epoch after the one the leader was asked in, is left out
    newer = copies([(6, numbered(0, 2))], 8) + copies([(8, numbered(0, 2))], 8)
    result = log.append(torn[:-1] + b"", leader_epoch=3, now=NOW, origin=Origin.REPLICA)
    assert (result.base_offset, result.last_offset) == (4, 5)
    result = log.append(newer, leader_epoch=7, now=NOW, origin=Origin.REPLICA)
    assert (result.base_offset, result.last_offset, result.log_end_offset) == (6, 5, 6)
    log.append(newer, leader_epoch=8, now=NOW, origin=Origin.REPLICA)
    assert log.log_end_offset == 10
    check_invariants(log)


def test_rolls_by_size() -> None:
    size = len(numbered(0, 1))
    log = fresh(segment_bytes=3 * size)
    assert [log.append(numbered(n, 1), leader_epoch=0, now=NOW).rolled for n in range(7)] == [
        False, False, False, True, False, False, True,
    ]  # fmt: skip
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_rolls_by_the_time_of_its_batches_and_else_by_the_clock() -> None:
    log = fresh(segment_ms=1000)
    for later, rolled in ((0, False), (1000, False), (1001, True), (1500, False)):
        data = numbered(0, 1, timestamp=NOW + later)
        assert log.append(data, leader_epoch=0, now=NOW).rolled is rolled
    timeless = fresh(segment_ms=1000)
    for later, rolled in ((0, False), (1000, False), (1001, True)):
        data = numbered(0, 1, timestamp=-1)
        assert timeless.append(data, leader_epoch=0, now=Millis(NOW + later)).rolled is rolled


def test_jitter_rolls_partitions_at_different_times_and_each_always_at_the_same() -> None:
    ages = set()
    for partition in range(20):
        for _ in range(2):
            topic = config(segment_ms=1000, segment_jitter_ms=500, segment_bytes=10**6)
            log = open_log(MemoryDisk().root.child(f"t-{partition}"), topic=topic)
            later = 0
            while not log.append(numbered(0, 1, timestamp=NOW + later), leader_epoch=0, now=NOW).rolled:
                later += 10
            ages.add((partition, later))
    assert len(ages) == 20
    assert len({later for _, later in ages}) > 5
    assert all(500 <= later <= 1010 for _, later in ages)


def test_a_relative_offset_has_31_bits() -> None:
    log = fresh()
    log.append(numbered(0, 1), leader_epoch=0, now=NOW)
    far = copies([(2**31 - 1, numbered(0, 1))], 0)
    assert not log.append(far, leader_epoch=0, now=NOW, origin=Origin.REPLICA).rolled
    assert log.append(numbered(0, 1), leader_epoch=0, now=NOW).rolled
    assert log.segments[1].base_offset == 2**31


def test_flush_is_due_after_flush_messages() -> None:
    log = fresh(flush_messages=3)
    assert [log.append(numbered(0, 1), leader_epoch=0, now=NOW).flush_due for _ in range(3)] == [False, False, True]
    log.flush()
    assert not log.append(numbered(0, 1), leader_epoch=0, now=NOW).flush_due


def test_a_closed_log_takes_nothing() -> None:
    log = fresh()
    log.close()
    assert refused(log, numbered(0, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
    log.close()


@pytest.mark.parametrize(
    ("settings", "start", "watermark", "going"),
    [
        ({"retention_ms": -1}, 0, 40, 0),
        ({"retention_ms": 99}, 0, 40, 1),  # the first is 100 old
        ({"retention_ms": 100}, 0, 40, 0),
        ({"retention_ms": 0}, 0, 40, 3),
        ({"retention_ms": 0}, 0, 29, 2),  # never above the high watermark
        ({"retention_ms": -1, "retention_bytes": 300}, 0, 40, 0),
        ({"retention_ms": -1, "retention_bytes": 299}, 0, 40, 0),  # less than that would be left
        ({"retention_ms": -1, "retention_bytes": 250}, 0, 40, 0),
        ({"retention_ms": -1, "retention_bytes": 200}, 0, 40, 1),
        ({"retention_ms": -1, "retention_bytes": 0}, 0, 40, 3),
        ({"retention_ms": -1}, 10, 40, 1),
        ({"retention_ms": -1}, 29, 40, 2),
        ({"retention_ms": 0, "cleanup_policy": frozenset({"compact"})}, 10, 40, 1),
    ],
)
def test_retention(settings: dict[str, Any], start: int, watermark: int, going: int) -> None:
    ages = [SegmentAge(10, 100, 900), SegmentAge(20, 100, 960), SegmentAge(30, 100, 999)]
    found = segments_to_delete(
        ages,
        config(**settings),
        log_bytes=lambda: 300,
        now=Millis(1000),
        log_start_offset=start,
        high_watermark=watermark,
    )
    assert found == going


def test_an_expired_log_goes_on_in_an_empty_segment_and_readers_are_not_hurt() -> None:
    disk = MemoryDisk()
    directory = disk.root.child("t-0")
    log = open_log(directory, topic=config(retention_ms=100, segment_bytes=400))
    for number in range(10):
        log.append(numbered(number, 1), leader_epoch=0, now=NOW)
    slice_ = read_slice(log, 0, 10**6)
    assert slice_ is not None
    before = slice_.file.read(slice_.position, slice_.length)
    gone = delete_old_segments(log, Millis(NOW + 101), high_watermark=10)
    assert (log.log_start_offset, log.log_end_offset, log.segments.size_bytes) == (10, 10, 0)
    assert all(name.endswith(".deleted") for name in gone)
    assert [name for name in directory.names() if name.endswith(".log")] == ["00000000000000000010.log"]
    delete_files(directory, gone)
    assert slice_.file.read(slice_.position, slice_.length) == before
    slice_.release()
    with pytest.raises(OSError, match="Bad file"):
        slice_.file.size()
    with pytest.raises(KafkaError) as caught:
        log.read(0, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not delete_old_segments(log, Millis(NOW + 10**9), high_watermark=10)
    assert log.append(numbered(10, 1), leader_epoch=0, now=NOW).base_offset == 10
    assert not [name for name in directory.names() if name.endswith(".deleted")]


def test_records_cannot_be_deleted_beyond_the_end() -> None:
    log = fresh()
    log.append(numbered(0, 3), leader_epoch=0, now=NOW)
    with pytest.raises(KafkaError) as caught:
        log.advance_log_start(4)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(2)
    assert [record.offset for record in read_records(log)] == [2]
    assert not log.advance_log_start(1)
    assert log.log_start_offset == 2


def test_reading_does_not_touch_what_is_not_asked_for() -> None:
    """A read in the middle costs a few small reads and its own bytes, however much lies around it."""
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"), topic=config(segment_bytes=200_000, index_interval_bytes=4096))
    for number in range(5000):
        log.append(numbered(number, 1, size=100), leader_epoch=0, now=NOW)
    log.flush()
    touched: list[str] = []
    disk.on_operation = lambda operation, path: touched.append(operation)
    for offset in (1, 2500, 4990):
        touched.clear()
        result = log.read(offset, 10_000)
        assert 8_000 < len(result.records) <= 10_000 or offset == 4990
        assert touched.count("read") <= 8
    touched.clear()
    log.read(result.next_offset - 1, 10_000)
    log.append(numbered(5000, 1), leader_epoch=0, now=NOW)
    touched.clear()
    log.read(5000, 10_000)  # a reader that was at the end continues there: nothing is looked up
    assert touched == ["read"]


def test_control_batches_come_from_coordinators_only_and_need_their_crc() -> None:
    log = fresh()
    marker = encode_batch(
        [(NOW, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0), ())],
        producer_id=1, producer_epoch=0, is_transactional=True, is_control=True,
    )  # fmt: skip
    assert refused(log, marker) is ErrorCode.INVALID_RECORD
    assert refused(log, marker[:-2] + b"\7\7", origin=Origin.COORDINATOR) is ErrorCode.CORRUPT_MESSAGE
    assert log.append(marker, leader_epoch=0, now=NOW, origin=Origin.COORDINATOR).base_offset == 0


def test_on_real_files(tmp_path: Path) -> None:
    directory = OsDirectory(tmp_path).child("t-0")
    log = open_log(directory, topic=config(segment_bytes=2000), topic_id=bytes(range(16)))
    for number in range(0, 100, 2):
        log.append(numbered(number, 2), leader_epoch=1, now=NOW)
        if number == 60:
            log.flush()
    expected = values(log)
    assert len(expected) == 100
    recovery_point = log.recovery_point
    recovered = open_log(directory, topic=config(segment_bytes=2000), recovery_point=recovery_point)
    assert values(recovered) == expected
    assert recovered.report.scanned_segments < len(recovered.segments)
    recovered.truncate_to(50)
    recovered.append(numbered(50, 2), leader_epoch=2, now=NOW)
    assert values(recovered) == expected[:52]
    recovered.close()
    again = open_log(directory, topic=config(segment_bytes=2000), clean=True)
    assert values(again) == expected[:52]
    assert again.epochs.entries() == [(1, 0), (2, 50)]
    check_invariants(again)
    assert read_header(again.read(50, 1).records).partition_leader_epoch == 2
    again.truncate_fully_and_start_at(7)
    again.append(numbered(7, 1), leader_epoch=3, now=NOW)
    again.close()
    assert [name for name in directory.names() if name.endswith(".log")] == ["00000000000000000007.log"]


def test_an_empty_log_reaches_back_to_a_batch_its_leader_begins_within() -> None:
    """A leader's log start may lie within a batch (DeleteRecords); a follower that starts over there gets all of it."""
    disk = MemoryDisk()
    log = open_log(disk.root.child("t-0"))
    log.truncate_fully_and_start_at(5)
    sent = copies([(3, numbered(3, 4)), (7, numbered(7, 2))], leader_epoch=1)
    result = log.append(sent, leader_epoch=1, now=NOW, origin=Origin.REPLICA)
    assert (result.base_offset, result.last_offset) == (3, 8)
    assert (log.log_start_offset, log.log_end_offset) == (5, 9)
    assert log.epochs.entries() == [(1, 5)]
    assert [record.offset for record in read_records(log)] == [5, 6, 7, 8]
    with pytest.raises(CorruptBatch):  # only an empty log does
        log.append(copies([(8, numbered(8, 4))], leader_epoch=1), leader_epoch=1, now=NOW, origin=Origin.REPLICA)
    check_invariants(log)
    disk.root.sync()
    disk.crash(Random(0), Loss.NOTHING)
    again = open_log(disk.root.child("t-0"), recovery_point=5, log_start_offset=5)
    assert [record.offset for record in read_records(again)] == [5, 6, 7, 8]
    assert again.epochs.entries() == [(1, 5)]
    check_invariants(again)
