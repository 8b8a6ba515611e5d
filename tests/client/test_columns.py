"""Columns against the record iterator: every shape of response must give the same records, or both must refuse it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kraftpy.client.ranges import columns as columns_module
from kraftpy.client.ranges.columns import (
    Columns,
    binary_array,
    decode_columns,
    headers_array,
    key_array,
    timestamp_array,
    value_array,
)
from kraftpy.client.visibility import Visibility
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import (
    ControlType,
    CorruptBatch,
    NewRecord,
    Record,
    encode_batch,
    encode_control_batch,
    iter_records,
    split_batches,
    stamp,
)

NOW = 1_700_000_000_000
ODD: list[NewRecord] = [
    (NOW, None, None, ()),
    (NOW - 5, b"", b"", (("", b""), ("h", None))),
    (NOW + 10**6, b"k" * 64, b"v" * 64, ()),
    (NOW, b"k" * 8192, b"v" * 20_000, (("é" * 70, b"x" * 9000),)),
    (0, b"", None, ()),
    (NOW + 2**40, None, b"", ()),
]
SMALL: list[NewRecord] = [(NOW + n, b"%d" % n, b"v" * (n % 200), ()) for n in range(300)]

blobs = st.none() | st.binary(max_size=80) | st.builds(bytes, st.integers(60, 70) | st.integers(8180, 8200))
records_lists = st.lists(
    st.tuples(
        st.integers(NOW - 10_000, NOW + 100_000) | st.integers(0, 2**62),
        blobs,
        blobs,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
batches_lists = st.lists(st.tuples(records_lists, st.sampled_from(Compression), st.integers(0, 50)), max_size=5)


def response(batches: list[tuple[list[NewRecord], Compression, int]], first_offset: int = 0) -> bytes:
    """Encode batches one after the other, each the given number of offsets after the one before."""
    out, offset = [], first_offset
    for records, codec, gap in batches:
        offset += gap
        out.append(encode_batch(records, base_offset=offset, compression=codec))
        offset += len(records)
    return b"".join(out)


def by_iterator(data: bytes) -> list[Record]:
    return [record for header, batch in split_batches(data) for record in iter_records(batch, header)]


def by_columns(columns: Columns) -> list[Record]:
    return [
        Record(offset, timestamp, columns.key(row), columns.value(row), columns.headers(row))
        for row, (offset, timestamp) in enumerate(
            zip(columns.offsets.tolist(), columns.timestamps.tolist(), strict=True)
        )
    ]


def with_payload(payload: bytes, count: int) -> bytes:
    """A batch header over any payload, with a CRC that matches."""
    out = bytearray(encode_batch(SMALL[:1])[:61] + payload)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">i", out, 23, count - 1)
    struct.pack_into(">i", out, 57, count)
    struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


# --- the same records -------------------------------------------------------------------------------------------------


@given(batches=batches_lists)
@example(batches=[(ODD, Compression.NONE, 0), (SMALL, Compression.NONE, 3)])
@example(batches=[(ODD, Compression.ZSTD, 0), (SMALL, Compression.NONE, 3), (ODD, Compression.GZIP, 0)])
@example(batches=[(ODD, Compression.LZ4, 0)])
@settings(deadline=None)
def test_columns_hold_what_the_iterator_gives(batches: list[tuple[list[NewRecord], Compression, int]]) -> None:
    data = response(batches)
    records = by_iterator(data)
    for buffer in (data, bytearray(data), memoryview(data)):
        columns = decode_columns(buffer)
        assert len(columns) == len(records)
        assert by_columns(columns) == records
        assert columns.next_offset == (records[-1].offset + 1 if records else 0)
    assert columns.timestamp_types.tolist() == [0] * len(records)


@given(batches=batches_lists)
@example(batches=[(ODD, Compression.NONE, 0), (SMALL, Compression.SNAPPY, 3)])
@settings(deadline=None)
def test_positions_lie_within_the_data_and_never_fall(batches: list[tuple[list[NewRecord], Compression, int]]) -> None:
    columns = decode_columns(response(batches))
    rows = np.stack(
        [
            columns.key_starts,
            columns.key_ends,
            columns.value_starts,
            columns.value_ends,
            columns.header_starts,
            columns.header_ends,
        ],
        axis=1,
    ).reshape(-1)
    assert (np.diff(rows) >= 0).all()
    assert len(rows) == 0 or (rows[0] >= 0 and rows[-1] <= len(columns.data))
    assert (columns.key_starts == columns.key_ends)[columns.key_nulls].all()
    assert (columns.value_starts == columns.value_ends)[columns.value_nulls].all()


def test_an_uncompressed_response_is_not_copied() -> None:
    data = bytearray(response([(SMALL, Compression.NONE, 0)] * 3))
    columns = decode_columns(data)
    assert isinstance(columns.data, memoryview)
    assert columns.data.obj is data


def test_thousands_of_records_in_one_batch() -> None:
    records: list[NewRecord] = [(NOW + 7 * n, None, b"v" * (n % 300), ()) for n in range(20_000)]
    assert by_columns(decode_columns(encode_batch(records))) == by_iterator(encode_batch(records))


def test_log_append_time_beside_create_time() -> None:
    second = bytearray(encode_batch(ODD))
    stamp(second, len(ODD), 0, log_append_time=NOW + 77)
    data = encode_batch(ODD) + bytes(second)
    columns = decode_columns(data)
    assert columns.timestamp_types.tolist() == [0] * len(ODD) + [1] * len(ODD)
    assert by_columns(columns) == by_iterator(data)
    assert set(columns.timestamps[len(ODD) :].tolist()) == {NOW + 77}


def test_nothing_gives_no_rows() -> None:
    columns = decode_columns(b"", start_offset=7)
    assert (len(columns), columns.next_offset) == (0, 7)
    assert value_array(columns).to_pylist() == headers_array(columns).to_pylist() == []


def test_a_cut_last_batch_is_left_for_the_next_fetch() -> None:
    first, second = response([(SMALL, Compression.NONE, 0)]), response([(ODD, Compression.NONE, 0)], len(SMALL))
    for size in (0, 1, 16, 17, 60, 61, 100, len(second) - 1):
        columns = decode_columns(first + second[:size])
        assert (len(columns), columns.next_offset) == (len(SMALL), len(SMALL))


def test_a_batch_that_compaction_emptied_moves_the_next_offset() -> None:
    empty = bytearray(encode_batch(ODD, base_offset=10)[:61])
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    struct.pack_into(">I", empty, 17, crc32c(empty[21:]))
    columns = decode_columns(encode_batch(SMALL[:10]) + bytes(empty), start_offset=3)
    assert (columns.offsets.tolist(), columns.next_offset) == (list(range(3, 10)), 10 + len(ODD))


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("start", [0, 99, 100, 101, 106, 107, 250, 999])
@pytest.mark.parametrize("end", [None, 0, 100, 103, 106, 200, 406, 9999])
def test_only_the_asked_offsets_are_there(codec: Compression, start: int, end: int | None) -> None:
    data = response([(ODD, codec, 0), (SMALL, codec, 0)], first_offset=100)
    columns = decode_columns(data, start_offset=start, end_offset=end)
    wanted = [record for record in by_iterator(data) if start <= record.offset and (end is None or record.offset < end)]
    assert by_columns(columns) == wanted
    assert columns.next_offset >= start
    if end is None or end >= 406:
        assert columns.next_offset == max(start, 406)


def test_slices_share_the_buffer() -> None:
    columns = decode_columns(response([(ODD, Compression.NONE, 0), (SMALL, Compression.NONE, 0)]))
    part = columns.slice(2, 9)
    assert part.data is columns.data
    assert by_columns(part) == by_columns(columns)[2:9]
    assert value_array(part).to_pylist() == value_array(columns).to_pylist()[2:9]


def test_memory_is_bounded_by_stopping_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data = response([(SMALL, Compression.ZSTD, 0)] * 4)
    columns = decode_columns(data, max_bytes=len(encode_batch(SMALL)))
    assert 0 < columns.next_offset == len(columns) < 4 * len(SMALL)
    monkeypatch.setattr(columns_module, "MAX_RECORDS", 301)
    seen: list[int] = []
    while len(seen) < 4 * len(SMALL):
        columns = decode_columns(data, start_offset=len(seen))
        assert len(columns) == 600
        seen += columns.offsets.tolist()
    assert seen == list(range(4 * len(SMALL)))


# --- transactions -----------------------------------------------------------------------------------------------------


def transactional(records: list[NewRecord], base_offset: int, producer_id: int) -> bytes:
    return encode_batch(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(control_type: ControlType, base_offset: int, producer_id: int) -> bytes:
    return encode_control_batch(
        control_type,
        timestamp=NOW,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        base_offset=base_offset,
    )


@pytest.fixture
def interleaved() -> bytes:
    """Producers 1 and 2 in transactions; 1 aborts, 2 commits, 1 then commits another; plain records between."""
    two = SMALL[:2]
    return b"".join(
        [
            transactional(two, 0, 1),
            transactional(two, 2, 2),
            encode_batch(two, base_offset=4),
            transactional(two, 6, 1),
            marker(ControlType.ABORT, 8, 1),
            marker(ControlType.COMMIT, 9, 2),
            transactional(two, 10, 1),
            marker(ControlType.COMMIT, 12, 1),
        ]
    )


def test_markers_are_never_rows(interleaved: bytes) -> None:
    columns = decode_columns(interleaved)
    assert columns.offsets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert columns.next_offset == 13


def test_aborted_transactions_are_hidden_from_their_first_offset_to_their_marker(interleaved: bytes) -> None:
    columns = decode_columns(interleaved, aborted=[(1, 0)])
    assert columns.offsets.tolist() == [2, 3, 4, 5, 10, 11]
    assert columns.next_offset == 13


def test_a_transaction_aborted_later_does_not_hide_the_one_before() -> None:
    data = b"".join(
        [
            transactional(SMALL[:2], 0, 1),
            marker(ControlType.COMMIT, 2, 1),
            transactional(SMALL[:2], 3, 1),
            marker(ControlType.ABORT, 5, 1),
        ]
    )
    assert decode_columns(data, aborted=[(1, 3)]).offsets.tolist() == [0, 1]
    assert decode_columns(data, aborted=[(1, 3), (7, 0), (1, 99)]).offsets.tolist() == [0, 1]


def test_an_abort_that_began_before_the_fetch_hides_from_the_first_batch_on() -> None:
    data = transactional(SMALL[:2], 100, 1) + marker(ControlType.ABORT, 102, 1)
    assert len(decode_columns(data, start_offset=101, aborted=[(1, 40)])) == 0


def test_only_the_range_of_unaborted_data_decodes_but_markers_below_it_count(interleaved: bytes) -> None:
    assert decode_columns(interleaved, start_offset=9, aborted=[(1, 0)]).offsets.tolist() == [10, 11]


def test_visibility_batch_by_batch(interleaved: bytes) -> None:
    visibility = Visibility([(1, 0)])
    assert [visibility.shows(*pair) for pair in split_batches(interleaved)] == [
        False,
        True,
        True,
        False,
        False,
        False,
        True,
        False,
    ]


# --- refusals ---------------------------------------------------------------------------------------------------------

RECORD = bytes.fromhex("10 00 00 00 02 6b 02 76 00")


@pytest.mark.parametrize(
    ("what", "payload", "count"),
    [
        ("nothing", b"", 1),
        ("more records than there are", RECORD, 2),
        ("fewer records than there are", RECORD * 2, 1),
        ("bytes but no records", RECORD, 0),
        ("bytes after the last record", RECORD + b"\0", 1),
        ("a cut record", RECORD[:-1], 1),
        ("a record longer than it says", b"\x0e" + RECORD[1:], 1),
        ("a record length below zero", b"\x11" + RECORD[1:], 1),
        ("a length of eleven bytes", b"\x80" * 10 + b"\x01" + RECORD, 1),
        ("a length of 65 bits", b"\x80" * 9 + b"\x02" + RECORD, 1),
        ("a key of length -2", bytes.fromhex("10 00 00 00 03 6b 02 76 00"), 1),
        ("a value of length -2", bytes.fromhex("10 00 00 00 02 6b 03 76 00"), 1),
        ("a key that goes on past the record", bytes.fromhex("10 00 00 00 7e 6b 02 76 00"), 1),
        ("lengths that add up again modulo 2^64", bytes.fromhex("26 000000 80ffffffffffffffff01 00000000000000"), 1),
        ("an offset below zero", bytes.fromhex("10 00 00 01 02 6b 02 76 00"), 1),
        ("an offset beyond the last", bytes.fromhex("10 00 00 02 02 6b 02 76 00"), 1),
        ("an offset twice", RECORD * 2, 2),
        ("a byte after no headers", bytes.fromhex("12 00 00 00 02 6b 02 76 00 00"), 1),
        ("headers that are not there", bytes.fromhex("10 00 00 00 02 6b 02 76 02"), 1),
    ],
)
def test_malformed_records_are_corrupt(what: str, payload: bytes, count: int) -> None:
    with pytest.raises(CorruptBatch):
        decode_columns(with_payload(payload, count))


def test_malformed_headers_are_corrupt_when_asked_for() -> None:
    columns = decode_columns(with_payload(bytes.fromhex("16 00 00 00 02 6b 02 76 02 03 61 01"), 1))
    with pytest.raises(CorruptBatch):
        columns.headers(0)
    with pytest.raises(CorruptBatch):
        headers_array(columns)


def test_a_wrong_crc_is_corrupt_unless_not_checked() -> None:
    data = bytearray(encode_batch(SMALL))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_columns(data)
    assert len(decode_columns(data, check_crcs=False)) == len(SMALL)


def test_batches_out_of_order_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="rise"):
        decode_columns(response([(ODD, Compression.NONE, 0)], 100) + response([(ODD, Compression.NONE, 0)], 105))


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**63 - 1, 2**63 - 2])
def test_offsets_that_cannot_be_are_corrupt(base_offset: int) -> None:
    with pytest.raises(CorruptBatch):
        decode_columns(encode_batch(SMALL, base_offset=base_offset))


def test_a_compressed_batch_has_a_bound() -> None:
    data = encode_batch([(0, None, bytes(100_000), ())], compression=Compression.GZIP)
    with pytest.raises(CorruptBatch, match="expand"):
        decode_columns(data, max_bytes=100_000)


# --- Arrow ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
def test_arrow_arrays_hold_the_same(codec: Compression) -> None:
    data = response([(ODD, codec, 0), (SMALL, Compression.NONE, 4)])
    records, columns = by_iterator(data), decode_columns(data)
    keys, values = key_array(columns), value_array(columns)
    keys.validate(full=True)
    values.validate(full=True)
    assert keys.type == values.type == pa.binary()
    assert keys.to_pylist() == [record.key for record in records]
    assert values.to_pylist() == [record.value for record in records]


def test_arrow_timestamps_are_microseconds_in_utc() -> None:
    times = timestamp_array(decode_columns(encode_batch([(NOW + 1, None, b"", ()), (-1, None, b"", ())])))
    assert times.type == pa.timestamp("us", tz="UTC")
    assert times.cast(pa.int64()).to_pylist() == [(NOW + 1) * 1000, -1000]


def test_arrow_headers_in_any_shape_of_that_type() -> None:
    columns = decode_columns(encode_batch(ODD))
    expected: list[Any] = [[{"key": key, "value": value} for key, value in headers] for *_, headers in ODD]
    assert headers_array(columns).to_pylist() == expected
    arrow_type = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
    array = headers_array(columns, arrow_type, empty_is_null=True)
    assert array.type == arrow_type
    assert array.to_pylist() == [headers or None for headers in expected]


def test_arrow_pieces_of_a_buffer() -> None:
    starts, ends = np.array([1, 3, 3, 3]), np.array([3, 3, 3, 6])
    array = binary_array(b"abcdefg", starts, ends, np.array([False, True, False, False]))
    assert array.to_pylist() == [b"bc", None, b"", b"def"]
