"""Records with headers without number, as Spark's reader cuts them into Arrow batches."""

from __future__ import annotations

from hostile_batches import batch_of, record

from kraftpy.client.ranges.columns import decode_columns
from kraftpy.spark.arrow import HEADER_BYTES_PER_BATCH, cuts


def test_rows_with_many_headers_are_cut_apart() -> None:
    columns = decode_columns(batch_of(*[record(number, headers=100_000) for number in range(20)]))
    found = list(cuts(columns))
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
    assert found[-1][1] == 20
    for start, stop in found:
        assert sum(columns.header_ends[start:stop] - columns.header_starts[start:stop]) <= HEADER_BYTES_PER_BATCH


def test_a_row_with_more_than_that_stands_alone() -> None:
    large = record(1, headers=0)
    columns = decode_columns(batch_of(record(0), large, record(2)))
    columns.header_ends[1:] += HEADER_BYTES_PER_BATCH + 1
    columns.header_starts[2:] += HEADER_BYTES_PER_BATCH + 1
    assert list(cuts(columns)) == [(0, 1), (1, 2), (2, 3)]
