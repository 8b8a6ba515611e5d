"""A batch in a topic that expands to gigabytes: readers hold a bounded part of it, or report its position."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hostile_batches import NOW, batch_of, bomb, many_records, record

from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.ranges import columns as columns_module
from kraftpy.client.ranges.columns import decode_columns
from kraftpy.client.share.reading import acquired_offsets, acquired_records
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.messages.share_fetch import AcquiredRecords
from kraftpy.protocol.record_batch import CorruptBatch, encode_batch, iter_records
from kraftpy.types import TopicPartition

T0 = TopicPartition("t", 0)
MIB = 1 << 20


@contextmanager
def at_most(peak_bytes: int) -> Iterator[None]:
    """Allocate no more than that at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


def reader_at(offset: int, *batches: bytes | bytearray) -> PartitionReader:
    reader = PartitionReader(T0)
    reader.seek(offset)
    reader.received(b"".join(batches), None)
    return reader


def test_a_record_with_millions_of_headers_is_named_and_costs_no_more_than_its_bytes() -> None:
    plain = encode_batch([(NOW, None, b"before", ())])
    reader = reader_at(0, plain, batch_of(record(headers=2_000_000), base_offset=1))
    assert reader.decode_next(check_crcs=True)
    assert [each.value for each in reader.hand_out(10)] == [b"before"]
    for _ in range(2):  # it stays there, as any batch that cannot be read
        with at_most(20 * MIB), pytest.raises(CorruptBatch, match=r"t-0: the batch at offset 1 .*2000000 headers"):
            reader.decode_next(check_crcs=True)
        assert reader.position == 1
    reader.seek(2)
    assert not reader.decode_next(check_crcs=True)


def test_all_readers_refuse_it() -> None:
    with at_most(64 * MIB):
        with pytest.raises(CorruptBatch, match="8000000 headers"):
            list(iter_records(bomb()))
        found = decode_columns(bomb())
        with pytest.raises(CorruptBatch, match=r"offset 0 .*8000000 headers"):
            found.headers(0)
        with pytest.raises(CorruptBatch, match=r"t-0: the batch at offset 0 .*8000000 headers"):
            acquired_records(
                T0, bomb(), [AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1)], check_crcs=True
            )


def test_as_many_headers_as_are_allowed_are_read() -> None:
    (found,) = iter_records(batch_of(record(headers=131_072)))
    assert len(found.headers) == 131_072


def test_a_large_batch_is_decoded_in_parts_and_handed_out_whole() -> None:
    reader = reader_at(5, many_records(50_000), encode_batch([(NOW, None, b"after", ())], base_offset=50_000))
    offsets: list[int] = []
    while reader.decode_next(check_crcs=True):
        assert len(reader.decoded) <= 16_384
        assert reader.buffered_bytes > 0 or reader.decoded[-1].offset >= 49_999
        offsets += [each.offset for each in reader.hand_out(10_000)]
        assert reader.position == offsets[-1] + 1
    assert offsets == list(range(5, 50_001))
    assert reader.buffered_bytes == 0


def test_records_with_many_headers_are_decoded_a_few_at_a_time() -> None:
    records = [record(number, headers=30_000) for number in range(20)]
    reader = reader_at(0, batch_of(*records))
    offsets: list[int] = []
    with at_most(64 * MIB):
        while reader.decode_next(check_crcs=True):
            assert len(reader.decoded) <= 3
            offsets += [each.offset for each in reader.hand_out(100)]
    assert offsets == list(range(20))


def test_a_part_that_is_malformed_is_told_when_it_comes_and_again_when_it_is_fetched_again() -> None:
    last = bytearray(record(30_000, value=b""))
    last[-1] = 7  # headers below zero
    data = batch_of(*[record(number, value=b"") for number in range(30_000)], bytes(last), codec=Compression.NONE)
    reader = reader_at(0, data)
    assert reader.decode_next(check_crcs=True)
    reader.hand_out(1 << 20)
    position = reader.position
    with pytest.raises(CorruptBatch, match="t-0: the batch at offset 0"):
        reader.decode_next(check_crcs=True)
    assert reader.position == position == 16_384
    reader.refetch()
    reader.received(data, None)
    with pytest.raises(CorruptBatch, match="t-0: the batch at offset 0"):
        reader.decode_next(check_crcs=True)


def test_seeking_in_the_middle_of_a_batch_drops_what_is_left_of_it() -> None:
    reader = reader_at(0, many_records(40_000))
    assert reader.decode_next(check_crcs=True)
    reader.seek(39_999)
    assert not reader.decode_next(check_crcs=True)
    reader.received(many_records(40_000), None)
    assert reader.decode_next(check_crcs=True)
    assert [each.offset for each in reader.hand_out(10)] == [39_999]


def test_columns_have_no_more_records_of_a_batch_than_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MAX_RECORDS_OF_A_BATCH", 1000)
    assert len(decode_columns(many_records(1000))) == 1000
    with pytest.raises(CorruptBatch, match=r"the batch at offset 0 .*1001 records"):
        decode_columns(many_records(1001))


def test_acquired_ranges_are_not_believed_beyond_what_batches_hold() -> None:
    for first, last in ((0, 1 << 60), (5, 4)):
        with at_most(MIB), pytest.raises(CorruptBatch):
            acquired_offsets([AcquiredRecords(first_offset=first, last_offset=last, delivery_count=1)])
