"""Records and partitions made from Arrow columns are those made record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.client.producer.partitioner import murmur2
from kraftpy.protocol.records import encode_records
from kraftpy.spark.sink_records import Rows, as_binary, encode_rows, encoded_headers, murmur2_of

HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BLOBS = st.none() | st.binary(max_size=80) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"z" * 8192])
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


def rows_of(records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> Rows:
    headers = pa.array([[{"key": k, "value": v} for k, v in each] or None for _, _, each in records], HEADER_TYPE)
    return Rows(
        keys=pa.array([key for key, _, _ in records], pa.binary()),
        values=pa.array([value for _, value, _ in records], pa.binary()),
        headers=encoded_headers(headers),
    )


@given(st.lists(st.tuples(BLOBS, BLOBS, HEADERS), min_size=1, max_size=90), st.integers(0, 20))
def test_the_bytes_are_those_of_the_codec(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], skipped: int
) -> None:
    skipped = min(skipped, len(records) - 1)
    rows = rows_of(records).slice(skipped, len(records))
    records = records[skipped:]
    data, starts = encode_rows(rows, np.arange(len(rows)))
    wanted, _ = encode_records([(5, *record) for record in records], 5)
    assert bytes(data[starts[0] : starts[-1]]) == wanted
    assert len(starts) == len(rows) + 1
    assert (np.diff(starts) <= rows.size_bounds()).all()


def test_offset_deltas_of_several_bytes() -> None:
    records = [(b"k", b"v", [])] * 20_000
    data, starts = encode_rows(rows_of(list(records)), np.arange(20_000))
    wanted, _ = encode_records([(0, *record) for record in records], 0)
    assert bytes(data[: starts[-1]]) == wanted


def test_rows_without_keys_and_in_another_order() -> None:
    rows = Rows(keys=None, values=pa.array([b"a", None, b"c"], pa.binary()), headers=None)
    data, starts = encode_rows(rows.take(np.array([2, 0, 1])), np.array([0, 0, 1]))
    first, _ = encode_records([(0, None, b"c", ())], 0)
    second, _ = encode_records([(0, None, b"a", ()), (0, None, None, ())], 0)
    assert bytes(data[: starts[-1]]) == first + second


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 5))
def test_keys_have_the_partition_every_client_gives_them(keys: list[bytes], skipped: int) -> None:
    found = murmur2_of(pa.array(keys, pa.binary()).slice(skipped))
    assert found.tolist() == [murmur2(key) for key in keys[skipped:]]


def test_strings_are_bytes() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary()):
        assert as_binary(pa.array(["ä", None], kind)).to_pylist() == ["ä".encode(), None]


def test_a_header_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="a header's key is null"):
        encoded_headers(pa.array([[{"key": None, "value": b"v"}]], HEADER_TYPE))
