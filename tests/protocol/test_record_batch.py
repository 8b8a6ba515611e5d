"""Record batches: the bytes, what a producer may send, what a leader stamps, and reading back what was written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kraftpy.client.ranges.columns import decode_columns
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    BatchBuilder,
    BatchHeader,
    ControlRecord,
    ControlType,
    CorruptBatch,
    NewRecord,
    Record,
    TimestampType,
    check_crc,
    decode_control_record,
    encode_batch,
    encode_control_batch,
    iter_records,
    one_batch,
    read_header,
    record_size_bound,
    split_batches,
    stamp,
    validate_batch,
)
from kraftpy.protocol.records import check_records, decode_headers, encode_varint, read_unsigned, zigzag

NOW = 1_700_000_000_000
ONE: list[NewRecord] = [(NOW, b"k", b"v", ())]
ODD: list[NewRecord] = [
    (NOW, None, None, ()),
    (NOW - 5, b"", b"", [("", b""), ("h", None), ("h", b"twice")]),
    (NOW + 100_000, b"k" * 64, b"v" * 64, ()),
    (NOW, b"k" * 8192, b"v" * 20_000, [("é" * 70, b"x" * 9000)]),
]

blobs = st.none() | st.binary(max_size=80) | st.builds(bytes, st.integers(60, 70) | st.integers(8180, 8200))
records_lists = st.lists(
    st.tuples(
        st.integers(NOW - 10_000, NOW + 100_000) | st.integers(0, 2**62),
        blobs,
        blobs,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def read(batch: bytes | bytearray) -> list[NewRecord]:
    return [(r.timestamp, r.key, r.value, r.headers) for r in iter_records(batch)]


def plain(records: list[NewRecord]) -> list[NewRecord]:
    return [(timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in records]


def patched(batch: bytes, position: int, layout: str, *values: int, crc: bool = True) -> bytes:
    """Return the batch with some bytes replaced and, by default, a CRC that matches again."""
    out = bytearray(batch)
    struct.pack_into(layout, out, position, *values)
    if crc:
        struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


def with_payload(payload: bytes, count: int, last_offset_delta: int | None = None) -> bytes:
    """A batch header over any payload."""
    out = bytearray(encode_batch(ONE)[:HEADER_BYTES] + payload)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">i", out, 23, count - 1 if last_offset_delta is None else last_offset_delta)
    struct.pack_into(">i", out, 57, count)
    return patched(bytes(out), 0, ">q", 0)


def refusal(batch: bytes) -> ErrorCode:
    """The code a producer gets for this batch."""
    with pytest.raises(KafkaError) as caught:
        validate_batch(read_header(batch), batch)
    return caught.value.code


# --- the bytes --------------------------------------------------------------------------------------------------------


def test_one_record_byte_for_byte() -> None:
    batch = encode_batch([(1, b"k", b"v", [("h", b"x")])], base_offset=5, leader_epoch=3)
    record = bytes.fromhex("18 00 00 00 02 6b 02 76 02 02 68 02 78")
    header = struct.pack(">hiqqqhii", 0, 0, 1, 1, -1, -1, -1, 1)
    crc = struct.pack(">I", crc32c(header + record))
    assert batch == struct.pack(">qiib", 5, 49 + len(record), 3, 2) + crc + header + record


def test_a_header_says_what_was_asked_for() -> None:
    batch = encode_batch(
        ODD,
        base_offset=1000,
        compression=Compression.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        leader_epoch=4,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        is_transactional=True,
        is_control=True,
    )
    header = read_header(batch)
    assert header == BatchHeader(
        1000, len(batch) - 12, 4, 2, header.crc, 0x3B, 3, NOW, NOW + 100_000, 7, 2, 2**31 - 2, 4
    )
    assert header.size_bytes == len(batch)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (1003, 1004, 1)
    assert (header.compression, header.timestamp_type) == (Compression.LZ4, TimestampType.LOG_APPEND_TIME)
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (True, True, False)
    assert header.delete_horizon_ms is None


def test_without_a_sequence_there_is_no_last_one() -> None:
    assert read_header(encode_batch(ODD)).last_sequence == -1


def test_a_delete_horizon_replaces_the_base_timestamp_and_deltas_count_from_it() -> None:
    batch = patched(encode_batch(ONE), 21, ">h", 0x40)
    header = read_header(batch)
    assert header.has_delete_horizon
    assert header.delete_horizon_ms == NOW
    assert read(batch) == ONE


@pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name)
@given(records=records_lists, base_offset=st.integers(0, 2**62))
@example(records=ODD, base_offset=0)
@settings(deadline=None, max_examples=40)
def test_what_was_written_is_read(compression: Compression, records: list[NewRecord], base_offset: int) -> None:
    batch = encode_batch(records, base_offset=base_offset, compression=compression)
    assert check_crc(batch)
    assert read(batch) == plain(records)
    assert [record.offset for record in iter_records(batch)] == list(range(base_offset, base_offset + len(records)))
    if base_offset == 0 and all(record[0] >= records[0][0] for record in records):
        validate_batch(read_header(batch), batch)


def test_thousands_of_records_with_offsets_of_one_two_and_three_bytes() -> None:
    records: list[NewRecord] = [(NOW + 7 * n, b"%d" % n, None, ()) for n in range(10_000)]
    assert read(encode_batch(records)) == records


def test_an_empty_batch_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    header = bytearray(encode_batch(ODD, base_offset=10)[:HEADER_BYTES])
    struct.pack_into(">i", header, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", header, 57, 0)
    assert list(iter_records(header)) == []
    assert read_header(header).next_offset == 14


def test_offsets_may_have_gaps_after_compaction() -> None:
    payload = b"".join(bytes([12, 0, 0, delta << 1, 1, 1, 0]) for delta in (1, 5, 6))
    assert [record.offset for record in iter_records(with_payload(payload, 3, last_offset_delta=9))] == [1, 5, 6]


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert len(encoded) <= 10
    raw, position = read_unsigned(encoded, 0)
    assert (zigzag(raw), position) == (value, len(encoded))


# --- the builder ------------------------------------------------------------------------------------------------------


@given(records=records_lists)
@settings(deadline=None, max_examples=40)
def test_a_builder_never_outgrows_its_bound(records: list[NewRecord]) -> None:
    builder = BatchBuilder()
    sizes = [builder.append(*record) for record in records]
    assert sizes == sorted(sizes)
    assert len(builder.build()) <= builder.size_bytes == sizes[-1]
    assert len(builder) == len(records)
    assert read(builder.build()) == plain(records)


def test_the_bound_is_close_for_small_records() -> None:
    assert record_size_bound(b"k" * 8, b"v" * 100) <= 108 + 24
    assert record_size_bound(None, None) >= len(encode_batch([(0, None, None, ())])) - HEADER_BYTES


def test_a_batch_can_be_built_again_for_another_producer_epoch() -> None:
    builder = BatchBuilder(Compression.ZSTD, level=1, is_transactional=True)
    builder.append(NOW, b"k", b"v", [("h", b"x")])
    first = builder.build(producer_id=1, producer_epoch=0, base_sequence=9)
    second = builder.build(producer_id=1, producer_epoch=1, base_sequence=0)
    assert read(first) == read(second)
    header = read_header(second)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 1, 0)
    assert header.is_transactional
    assert check_crc(second)


# --- splitting --------------------------------------------------------------------------------------------------------


def test_batches_are_split_without_copying() -> None:
    first, second = encode_batch(ODD), encode_batch(ONE, base_offset=4)
    whole = bytearray(first + second)
    batches = split_batches(whole)
    assert [header.base_offset for header, _ in batches] == [0, 4]
    assert [bytes(view) for _, view in batches] == [first, second]
    stamp(batches[1][1], 400, 0)
    assert read_header(whole, len(first)).base_offset == 400
    assert split_batches(b"") == []


def test_a_cut_last_batch_is_an_error_unless_the_reader_allows_it() -> None:
    first, second = encode_batch(ODD), encode_batch(ONE)
    for size in range(1, len(second)):
        with pytest.raises(CorruptBatch):
            split_batches(first + second[:size])
        assert [view.nbytes for _, view in split_batches(first + second[:size], allow_partial=True)] == [len(first)]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_batch_length_below_the_header_is_corrupt(length: int) -> None:
    for partial in (False, True):
        with pytest.raises(CorruptBatch) as caught:
            split_batches(patched(encode_batch(ONE), 8, ">i", length), allow_partial=partial)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_get_their_own_error(magic: int) -> None:
    body = struct.pack(">bbii", magic, 0, -1, -1)
    message_set = struct.pack(">qiI", 0, len(body) + 4, 0) + body
    with pytest.raises(CorruptBatch) as caught:
        split_batches(message_set)
    assert caught.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert refusal(patched(encode_batch(ONE), 16, ">b", magic)) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_a_magic_nobody_knows_is_corrupt(magic: int) -> None:
    batch = patched(encode_batch(ONE), 16, ">b", magic)
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(CorruptBatch) as caught:
        split_batches(batch)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


# --- what a producer may send -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name)
def test_a_sound_batch_is_accepted(compression: Compression) -> None:
    for extra in ({}, {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}):
        batch = encode_batch(ONE, compression=compression, **extra)  # type: ignore[arg-type]
        ((header, view),) = split_batches(batch)
        validate_batch(header, view)


@pytest.mark.parametrize("position", [21, 30, 60, 61, 66])
def test_any_flipped_bit_under_the_crc_is_found(position: int) -> None:
    batch = bytearray(encode_batch(ONE))
    batch[position] ^= 4
    assert not check_crc(batch)
    assert refusal(bytes(batch)) == ErrorCode.CORRUPT_MESSAGE


def test_too_few_bytes_have_no_crc_and_no_header() -> None:
    assert not check_crc(b"")
    assert not check_crc(encode_batch(ONE)[:60])
    for position in (0, 7, -1, 10**9):
        with pytest.raises(CorruptBatch):
            read_header(encode_batch(ONE)[: 60 + max(0, min(position, 1))], position)


@pytest.mark.parametrize(
    ("what", "position", "layout", "values", "code"),
    [
        ("base offset", 0, ">q", [1], ErrorCode.INVALID_RECORD),
        ("base offset", 0, ">q", [-1], ErrorCode.INVALID_RECORD),
        ("batch length", 8, ">i", [48], ErrorCode.CORRUPT_MESSAGE),
        ("batch length", 8, ">i", [10**9], ErrorCode.CORRUPT_MESSAGE),
        ("codec 5", 21, ">h", [5], ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("codec 7", 21, ">h", [7], ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("control", 21, ">h", [0x20], ErrorCode.INVALID_RECORD),
        ("control and more", 21, ">h", [0x38], ErrorCode.INVALID_RECORD),
        ("transactional without a producer", 21, ">h", [0x10], ErrorCode.INVALID_RECORD),
        ("last offset", 23, ">i", [1], ErrorCode.INVALID_RECORD),
        ("last offset", 23, ">i", [-1], ErrorCode.INVALID_RECORD),
        ("timestamps", 27, ">qq", [-2, 0], ErrorCode.INVALID_TIMESTAMP),
        ("producer id", 43, ">q", [-2], ErrorCode.INVALID_RECORD),
        ("producer without sequence", 43, ">qhi", [0, 0, -1], ErrorCode.INVALID_RECORD),
        ("producer without epoch", 43, ">qhi", [0, -1, 0], ErrorCode.INVALID_RECORD),
        ("no records", 57, ">i", [0], ErrorCode.INVALID_RECORD),
        ("negative records", 57, ">i", [-1], ErrorCode.INVALID_RECORD),
        ("two records", 57, ">i", [2], ErrorCode.INVALID_RECORD),
        ("two billion records", 57, ">i", [2**31 - 1], ErrorCode.INVALID_RECORD),
    ],
)
def test_what_a_producer_may_not_send(
    what: str, position: int, layout: str, values: list[int], code: ErrorCode
) -> None:
    assert refusal(patched(encode_batch(ONE), position, layout, *values)) == code, what


def test_a_record_count_the_payload_cannot_hold_is_refused() -> None:
    minimal = bytes([12, 0, 0, 0, 1, 1, 0])
    validate_batch(read_header(good := with_payload(minimal * 3, 3)), good)
    assert refusal(with_payload(minimal * 3, 4)) == ErrorCode.INVALID_RECORD
    assert refusal(with_payload(minimal * 3, 2**31 - 1)) == ErrorCode.INVALID_RECORD
    assert refusal(patched(with_payload(b"", 1), 21, ">h", 1)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("attributes", [0x08, 0x40, 0x80, 0x100, -0x8000])
def test_attribute_bits_without_a_meaning_here_are_accepted(attributes: int) -> None:
    """The log decides about a producer's log append time: it depends on the topic."""
    batch = patched(encode_batch(ONE), 21, ">h", attributes)
    validate_batch(read_header(batch), batch)


GOOD = encode_batch(ONE)
OLD = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)


@pytest.mark.parametrize(
    ("what", "records", "code"),
    [
        ("nothing", b"", ErrorCode.INVALID_RECORD),
        ("less than a length", GOOD[:11], ErrorCode.INVALID_RECORD),
        ("a length", GOOD[:12], ErrorCode.INVALID_RECORD),
        ("no magic yet", GOOD[:16], ErrorCode.INVALID_RECORD),
        ("a header", GOOD[:61], ErrorCode.INVALID_RECORD),
        ("all but a byte", GOOD[:-1], ErrorCode.INVALID_RECORD),
        ("a larger length", patched(GOOD, 8, ">i", 10**6), ErrorCode.INVALID_RECORD),
        ("a length of no format", patched(GOOD, 8, ">i", 13), ErrorCode.CORRUPT_MESSAGE),
        ("a negative length", patched(GOOD, 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
        ("a length that no batch has", patched(GOOD, 8, ">i", 48), ErrorCode.CORRUPT_MESSAGE),
        ("magic 0", patched(GOOD, 16, ">b", 0), ErrorCode.INVALID_RECORD),
        ("magic 1", patched(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD),
        ("magic 3", patched(GOOD, 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
        ("magic -1", patched(GOOD, 16, ">b", -1), ErrorCode.CORRUPT_MESSAGE),
        ("an old message", OLD, ErrorCode.INVALID_RECORD),
        ("old messages", OLD * 9, ErrorCode.INVALID_RECORD),
        ("two batches", GOOD + GOOD, ErrorCode.INVALID_RECORD),
        ("an old message behind", GOOD + OLD, ErrorCode.INVALID_RECORD),
        ("garbage behind", GOOD + bytes(12), ErrorCode.CORRUPT_MESSAGE),
        ("another magic behind", GOOD + patched(GOOD, 16, ">b", 9), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_no_single_batch_is_refused_as_kafka_does(what: str, records: bytes, code: ErrorCode) -> None:
    with pytest.raises(CorruptBatch) as refused:
        one_batch(records, 9)
    assert refused.value.code == code, what


@pytest.mark.parametrize("behind", [b"", b"\0", bytes(11), GOOD[:12], GOOD[:16], GOOD[:40], GOOD[:-1]])
def test_what_is_too_short_to_be_a_second_batch_is_cut_off(behind: bytes) -> None:
    header, batch = one_batch(GOOD + behind, 9)
    assert (header, bytes(batch)) == (read_header(GOOD), GOOD)


@pytest.mark.parametrize("timestamps", [(-1, -1), (5, -1), (5, 5), (-1, 5), (5, -2), (5, 4)])
def test_timestamps_some_clients_send_are_accepted(timestamps: tuple[int, int]) -> None:
    batch = patched(encode_batch(ONE), 27, ">qq", *timestamps)
    validate_batch(read_header(batch), batch)


# --- stamping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))])
def test_stamping_leaves_the_crc_alone(wrap: Callable[[bytes], Any]) -> None:
    batch = wrap(encode_batch(ODD))
    before = read_header(batch)
    stamped = stamp(batch, 2**40, 9, header=before.copy())
    before.base_offset, before.partition_leader_epoch = 2**40, 9
    assert stamped == read_header(batch) == before
    assert check_crc(batch)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_log_append_time_is_every_records_time(compression: Compression) -> None:
    batch = bytearray(encode_batch(ODD, compression=compression))
    stamped = stamp(batch, 10, 1, log_append_time=NOW + 999)
    header = read_header(batch)
    assert stamped == header
    assert check_crc(batch)
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (1, NOW + 999, NOW)
    assert header.compression == compression
    assert {record.timestamp for record in iter_records(batch)} == {NOW + 999}


# --- control records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control_type", ControlType)
def test_markers(control_type: ControlType) -> None:
    batch = encode_control_batch(
        control_type,
        timestamp=NOW,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=11,
        base_offset=20,
        leader_epoch=2,
    )
    header = read_header(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence, header.last_offset) == (
        True,
        True,
        -1,
        20,
    )
    (record,) = iter_records(batch)
    assert record.key == bytes([0, 0, 0, control_type])
    assert record.value == b"\0\0\0\0\0\x0b"
    assert decode_control_record(record) == ControlRecord(control_type, 11)
    assert refusal(patched(batch, 0, ">q", 0)) == ErrorCode.INVALID_RECORD


def test_a_marker_of_another_type_keeps_its_number() -> None:
    assert decode_control_record(Record(0, 0, b"\0\0\0\x05", b"anything", ())) == ControlRecord(5, -1)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_marker_without_a_key_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        decode_control_record(Record(0, 0, key, b"", ()))


# --- malformed records ------------------------------------------------------------------------------------------------

RECORD = bytes.fromhex("10 00 00 00 02 6b 02 76 00")


@pytest.mark.parametrize(
    ("what", "payload", "count"),
    [
        ("nothing", b"", 1),
        ("more records than there are", RECORD, 2),
        ("fewer records than there are", RECORD * 2, 1),
        ("bytes after the last record", RECORD + b"\0", 1),
        ("a cut record", RECORD[:-1], 1),
        ("a record longer than it says", b"\x0e" + RECORD[1:], 1),
        ("a record shorter than it says", b"\x12" + RECORD[1:], 1),
        ("a record length below zero", b"\x0f" + RECORD[1:], 1),
        ("a length of eleven bytes", b"\x80" * 10 + b"\x01" + RECORD, 1),
        ("a length of 65 bits", b"\x80" * 9 + b"\x02" + RECORD, 1),
        ("a length of 2^31", encode_varint(2**31) + RECORD[1:], 1),
        ("a length of 2^62", encode_varint(2**62) + RECORD[1:], 1),
        ("a key of length -2", bytes.fromhex("10 00 00 00 03 6b 02 76 00"), 1),
        ("a value of length -2", bytes.fromhex("10 00 00 00 02 6b 03 76 00"), 1),
        ("a key of length 2^62", bytes.fromhex("26 00 00 00") + encode_varint(2**62) + b"\1" * 6, 1),
        ("an offset below zero", bytes.fromhex("10 00 00 01 02 6b 02 76 00"), 1),
        ("an offset beyond the last", bytes.fromhex("10 00 00 02 02 6b 02 76 00"), 1),
        ("an offset twice", RECORD * 2, 2),
        ("headers below zero", bytes.fromhex("10 00 00 00 02 6b 02 76 01"), 1),
        ("headers that are not there", bytes.fromhex("10 00 00 00 02 6b 02 76 02"), 1),
        ("2^30 headers", bytes.fromhex("18 00 00 00 02 6b 02 76") + encode_varint(2**30), 1),
        ("a header without a key", bytes.fromhex("14 00 00 00 02 6b 02 76 02 01 01"), 1),
        ("a header value of length -2", bytes.fromhex("16 00 00 00 02 6b 02 76 02 02 68 03"), 1),
    ],
)
def test_malformed_records_are_corrupt(what: str, payload: bytes, count: int) -> None:
    with pytest.raises(CorruptBatch):
        list(iter_records(with_payload(payload, count)))


def test_a_header_key_that_is_not_utf_8_is_read_with_replacements() -> None:
    """Clients that send any bytes exist, and a record that is refused on reading would be met again and again."""
    payload = bytes.fromhex("18 00 00 00 02 6b 02 76 02 04 ff 68 01")
    assert [record.headers for record in iter_records(with_payload(payload, 1))] == [(("\ufffdh", None),)]
    assert decode_headers(payload[8:]) == (("\ufffdh", None),)
    assert decode_columns(with_payload(payload, 1)).headers(0) == (("\ufffdh", None),)
    checking = check_records(payload, 1, needs_keys=True, max_headers=1)
    with pytest.raises(StopIteration):  # a broker takes it, too
        next(checking)


def test_a_lying_count_is_refused_before_anything_is_read() -> None:
    for count in (-1, -(2**30), 2**31 - 1):
        with pytest.raises(CorruptBatch):
            iter_records(with_payload(RECORD, count))


def test_records_of_a_compressed_batch_have_a_bound() -> None:
    batch = encode_batch([(0, None, bytes(100_000), ())], compression=Compression.GZIP)
    assert len(list(iter_records(batch, max_bytes=100_100))) == 1
    with pytest.raises(CorruptBatch, match="expand"):
        iter_records(batch, max_bytes=100_000)


def test_a_codec_nobody_knows_is_named_as_such() -> None:
    with pytest.raises(CorruptBatch) as caught:
        iter_records(patched(encode_batch(ONE), 21, ">h", 6))
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x02h\x02", b"\x00\x00", b"\x01", b"\x02\x02h\x02xx"])
def test_a_header_section_that_is_not_one(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_headers(data)


def test_a_header_section() -> None:
    assert decode_headers(memoryview(b"\x04\x02h\x02x\x02h\x01")) == (("h", b"x"), ("h", None))
