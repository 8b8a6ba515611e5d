"""Records that cost more than they are worth, as a log meets them: refused, or gone through in counted steps."""

from __future__ import annotations

import tracemalloc
from itertools import chain
from random import Random
from struct import pack_into
from typing import Any

import pytest
from crc32c import crc32c
from hostile_batches import batch_of, bomb, empty_members, many_records, record
from hypothesis import given, settings
from hypothesis import strategies as st
from log_model import NOW, batch, config, open_log

from kraftpy.log.appending import KEYS, BatchLimits, Prepared, demand_of, prepared
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.time_search import search_max_timestamp, search_timestamp
from kraftpy.log.work import Work, finish
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    BatchHeader,
    CorruptBatch,
    encode_batch,
    iter_records,
    read_header,
    record_payload,
)
from kraftpy.protocol.records import SLICE_RECORDS, check_records, decode_records, record_times
from kraftpy.testing.memory_files import MemoryDisk

MIB = 1 << 20
PLENTY = 1 << 40


def fresh(**settings: Any) -> PartitionLog:
    return open_log(MemoryDisk().root.child("t-0"), topic=config(**{"segment_bytes": 200 * MIB, **settings}))


def refused(log: PartitionLog, data: bytearray) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        log.append(data, leader_epoch=0, now=NOW)
    assert log.log_end_offset == 0
    return caught.value


def only_batch(log: PartitionLog) -> tuple[BatchHeader, bytes]:
    data = log.read(0, 1).records
    return read_header(data), data


def pauses(work: Work[Any]) -> tuple[int, int, Any]:
    """Return how often the work paused, how much it gave to a thread, and its result."""
    paused = given_away = 0
    step = next(work)
    while True:
        try:
            if step is None:
                paused += 1
                step = work.send(None)
            else:
                given_away += 1
                step = work.send(step())
        except StopIteration as done:
            return paused, given_away, done.value


# --- validation without objects ---------------------------------------------------------------------------------------

HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
RECORDS = st.lists(
    st.tuples(
        st.integers(NOW - 5000, NOW + 5000) | st.integers(0, 1 << 62),
        st.none() | st.binary(max_size=80),
        st.none() | st.binary(max_size=200),
        HEADERS,
    ),
    min_size=1,
    max_size=20,
)


def decoded(payload: bytes, count: int, *, last: int) -> list[Any] | None:
    options: Any = {"records_count": count, "base_offset": 0, "last_offset_delta": last, "base_timestamp": 0}
    try:
        return list(decode_records(payload, **options, append_time=None))
    except CorruptBatch:
        return None


@given(RECORDS, st.randoms(use_true_random=False))
@settings(max_examples=400)
def test_what_is_checked_is_what_can_be_decoded(records: list[Any], chance: Random) -> None:
    encoded = encode_batch(records)
    header = read_header(encoded)
    payload = bytearray(record_payload(header, encoded))
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        payload[chance.randrange(len(payload))] = chance.choice((0, 1, 2, 127, 128, 255, chance.randrange(256)))
    data, count = bytes(payload), header.records_count
    found = decoded(data, count, last=count - 1)
    try:
        deltas = finish(check_records(data, count, needs_keys=False, max_headers=PLENTY))
    except CorruptBatch:
        assert found is None
        return
    assert found is not None
    assert deltas == (min(each.timestamp for each in found), max(each.timestamp for each in found))
    offsets, times = zip(*record_times(data, count), strict=True)
    assert [*chain(*offsets)] == [each.offset for each in found]
    assert [*chain(*times)] == [each.timestamp for each in found]
    if any(each.key is None for each in found):
        with pytest.raises(CorruptBatch) as caught:
            finish(check_records(data, count, needs_keys=True, max_headers=PLENTY))
        assert caught.value.code == ErrorCode.INVALID_RECORD


@given(RECORDS, st.sampled_from(Compression), st.sampled_from(("uncompressed", "gzip", "snappy", "lz4", "zstd")))
@settings(max_examples=100)
def test_another_codec_changes_nothing_else(records: list[Any], codec: Compression, name: str) -> None:
    log = fresh(compression_type=name, message_timestamp_after_max_ms=1 << 62)
    sent = encode_batch(records, compression=codec, producer_id=5, producer_epoch=1, base_sequence=0)
    log.append(sent, leader_epoch=0, now=NOW)
    header, stored = only_batch(log)
    assert list(iter_records(stored)) == list(iter_records(sent))
    assert header.compression is (Compression.NONE if name == "uncompressed" else Compression[name.upper()])
    assert header.max_timestamp == max(each[0] for each in records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 0)


# --- limits -----------------------------------------------------------------------------------------------------------

LOOKING = ({"compression_type": "lz4"}, {"cleanup_policy": frozenset({"compact"})})


@pytest.mark.parametrize("settings", LOOKING, ids=["codec", "compacted"])
@pytest.mark.parametrize("headers", [8_000_000, 131_073])
def test_millions_of_headers_are_refused_before_any_is_made(settings: dict[str, Any], headers: int) -> None:
    log, data = fresh(**settings), bomb(headers)
    tracemalloc.start()
    try:
        error = refused(log, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.code == ErrorCode.INVALID_RECORD
    assert str(headers) in error.message
    assert peak < 3 * 2 * headers + MIB


@pytest.mark.parametrize("settings", LOOKING, ids=["codec", "compacted"])
def test_headers_of_all_records_together_have_a_limit(settings: dict[str, Any]) -> None:
    log = fresh(**settings)
    log.limits = BatchLimits(max_headers=100)
    assert refused(log, batch_of(record(0, headers=60), record(1, headers=41))).code == ErrorCode.INVALID_RECORD
    log.append(batch_of(record(0, headers=60), record(1, headers=40)), leader_epoch=0, now=NOW)


def test_more_records_than_a_batch_may_have_are_refused_by_its_header_in_every_topic() -> None:
    log = fresh()
    log.limits = BatchLimits(max_records=1000)
    log.append(many_records(1000), leader_epoch=0, now=NOW)
    log = fresh()
    log.limits = BatchLimits(max_records=999)
    assert refused(log, many_records(1000)).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("settings", LOOKING, ids=["codec", "compacted"])
@pytest.mark.parametrize("codec", [each for each in Compression if each])
def test_a_batch_that_expands_too_far_is_too_large(settings: dict[str, Any], codec: Compression) -> None:
    log = fresh(**settings)
    log.limits = BatchLimits(max_expanded_bytes=MIB)
    data = batch_of(record(value=bytes(MIB)), codec=codec)
    if demand_of(log.config) == KEYS or codec != Compression.LZ4:
        assert refused(log, data).code == ErrorCode.MESSAGE_TOO_LARGE
        log.limits = BatchLimits(max_expanded_bytes=MIB + 100)
    log.append(data, leader_epoch=0, now=NOW)


def test_what_becomes_larger_than_a_batch_may_be_is_not_stored() -> None:
    log = fresh(compression_type="uncompressed", max_message_bytes=10_000)
    assert refused(log, batch_of(record(value=bytes(10_000)))).code == ErrorCode.MESSAGE_TOO_LARGE
    assert refused(log, batch_of(record(value=bytes(9_930)))).code == ErrorCode.MESSAGE_TOO_LARGE
    log.append(batch_of(record(value=bytes(9_900))), leader_epoch=0, now=NOW)
    log = fresh(compression_type="gzip", max_message_bytes=10_000)
    noise = Random(1).randbytes(9_000)  # which gzip does not remember for 40,000 bytes
    assert refused(log, batch_of(record(value=noise + bytes(40_000) + noise))).code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_empty_members_are_corrupt(codec: Compression) -> None:
    log = fresh(compression_type="snappy", max_message_bytes=2 * MIB)
    assert refused(log, empty_members(codec)).code == ErrorCode.CORRUPT_MESSAGE


def test_timestamps_beyond_64_bits_are_invalid() -> None:
    log = fresh(compression_type="gzip", message_timestamp_after_max_ms=1 << 62)
    late = encode_batch([(1 << 62, None, b"v", ())])
    shifted = bytearray(late)
    body = b"\0" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1" + b"\0\1\2v\0"
    shifted[61:] = bytes([len(body) * 2]) + body
    pack_into(">i", shifted, 8, len(shifted) - 12)
    pack_into(">I", shifted, 17, crc32c(memoryview(shifted)[21:]))
    assert refused(log, shifted).code == ErrorCode.INVALID_TIMESTAMP


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_small_batch_is_prepared_without_a_pause_and_a_plain_topic_prepares_nothing() -> None:
    log = fresh(compression_type="gzip")
    work = log.prepare(batch(b"v"), NOW)
    assert work is not None
    with pytest.raises(StopIteration):
        next(work)
    assert fresh().prepare(batch(b"v"), NOW) is None
    assert fresh().is_prepared(None, batch(b"v"), NOW)


@pytest.mark.parametrize("settings", LOOKING, ids=["codec", "compacted"])
def test_a_large_batch_is_checked_in_slices_and_expanded_and_compressed_elsewhere(settings: dict[str, Any]) -> None:
    log = fresh(max_message_bytes=2 * MIB, **settings)
    count = 40 * SLICE_RECORDS
    data = batch_of(*[record(number, value=bytes(20)) for number in range(count)])
    work = log.prepare(data, NOW)
    assert work is not None
    paused, given_away, batch = pauses(work)
    assert paused == 39
    assert given_away == 1 + ("compression_type" in settings)
    assert isinstance(batch, Prepared)
    log.append(data, leader_epoch=0, now=NOW, batch=batch)
    assert log.log_end_offset == count


def test_many_headers_are_checked_in_slices_too() -> None:
    data = batch_of(*[record(number, headers=4000) for number in range(100)])
    paused, _, _ = pauses(prepared(read_header(data), memoryview(data), KEYS, config(), BatchLimits(), NOW))
    assert paused >= 49


def test_what_was_prepared_for_other_settings_is_prepared_again() -> None:
    log = fresh(compression_type="gzip")
    data = batch_of(record(value=bytes(1000)), codec=Compression.NONE)
    work = log.prepare(data, NOW)
    assert work is not None
    batch = finish(work)
    log.config = config(compression_type="zstd", segment_bytes=200 * MIB)
    assert not log.is_prepared(batch, data, NOW)
    log.append(data, leader_epoch=0, now=NOW, batch=batch)
    header, _ = only_batch(log)
    assert header.compression is Compression.ZSTD


def test_a_search_by_time_goes_through_a_large_batch_in_slices() -> None:
    log = fresh()
    log.append(many_records(64 * SLICE_RECORDS, max_timestamp=NOW + 10), leader_epoch=0, now=NOW)
    paused, given_away, found = pauses(search_timestamp(log, NOW + 1))
    assert (paused, given_away, found) == (64, 1, None)  # 63 times within the batch, and once after it
    paused, given_away, found = pauses(search_max_timestamp(log))
    assert (paused, given_away, found) == (63, 1, (0, NOW, 0))
    assert finish(search_timestamp(log, NOW)) == (0, NOW, 0)


def test_a_search_does_not_decode_the_headers_of_what_it_goes_by() -> None:
    log = fresh()
    log.append(bomb(), leader_epoch=0, now=NOW)
    tracemalloc.start()
    try:
        assert finish(search_timestamp(log, NOW)) == (0, NOW, 0)
        assert finish(search_max_timestamp(log)) == (0, NOW, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB


def test_all_headers_are_looked_at_in_steps_when_the_latest_batch_is_hidden() -> None:
    log = fresh()
    log.append(batch(b"v", timestamp=NOW + 1000), leader_epoch=0, now=NOW)
    for number in range(6000):
        log.append(batch(b"v", timestamp=NOW + number % 100), leader_epoch=0, now=NOW)
    log.advance_log_start(1)
    paused, _, found = pauses(search_max_timestamp(log))
    assert found == (100, NOW + 99, 0)
    assert paused == 3
