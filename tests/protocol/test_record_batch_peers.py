"""Record batches against kafka-python, aiokafka and kio: both directions, byte for byte unless they are compressed."""

from __future__ import annotations

import io
import warnings
from datetime import UTC, datetime
from typing import Any

import kio.records.readers
import kio.records.schema
import kio.records.writers
import pytest
from aiokafka.record import default_records as aiokafka_records
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER
from aiokafka.record.control_record import ControlRecord as AiokafkaControlRecord
from aiokafka.record.memory_records import MemoryRecords as AiokafkaMemoryRecords
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import (
    ControlType,
    NewRecord,
    check_crc,
    encode_batch,
    encode_control_batch,
    iter_records,
    read_header,
    split_batches,
    stamp,
    validate_batch,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka.record import MemoryRecords as KafkaPythonMemoryRecords
    from kafka.record import default_records as kafka_python_records

KAFKA_PYTHON_CODECS = [Compression.NONE, Compression.GZIP, Compression.LZ4]  # and two that need packages of their own
KAFKA_PYTHON_CODECS += [Compression.SNAPPY] if kafka.codec.has_snappy() else []
KAFKA_PYTHON_CODECS += [Compression.ZSTD] if kafka.codec.has_zstd() else []

each_codec = pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)

SECONDS = 1_700_000_000
blobs = st.none() | st.binary(max_size=70) | st.builds(bytes, st.integers(60, 70) | st.integers(8180, 8200))
records_lists = st.lists(
    st.tuples(
        st.integers(SECONDS, SECONDS + 10**6).map(lambda second: second * 1000),  # kio knows whole seconds only
        blobs,
        blobs,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
MANY: list[NewRecord] = [
    (SECONDS * 1000 + n % 7 * 1000, b"key %d" % n if n % 3 else None, b"value" * (n % 50), ()) for n in range(9000)
]
ODD: list[NewRecord] = [
    (SECONDS * 1000, None, None, ()),
    (SECONDS * 1000 - 5000, b"", b"", (("", b""), ("h", None))),
    (SECONDS * 1000 + 10**9, b"k" * 8192, b"v" * 20_000, (("é" * 70, b"x" * 9000),)),
]


def by_kafka_python(records: list[NewRecord], codec: Compression, producer: tuple[int, int, int]) -> bytes:
    builder = kafka_python_records.DefaultRecordBatchBuilder(2, int(codec), False, *producer, 1 << 30)
    for number, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(number, timestamp, key, value, list(headers))
    return bytes(builder.build())


def by_aiokafka(records: list[NewRecord], codec: Compression, producer: tuple[int, int, int]) -> bytes:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, int(codec), 0, *producer, 1 << 30)
    for number, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(number, timestamp, key, value, list(headers))
    return bytes(builder.build())


def by_kio(records: list[NewRecord], codec: Compression, producer: tuple[int, int, int]) -> bytes:
    assert codec == Compression.NONE
    batch = kio.records.schema.NewRecordBatch(
        producer_id=i64(producer[0]),
        producer_epoch=i16(producer[1]),
        base_sequence=i32(producer[2]),
        partition_leader_epoch=i32(-1),
        attributes=i16(0),
        records=tuple(
            kio.records.schema.Record(
                attributes=i8(0),
                timestamp=TZAwareMicros.parse(datetime.fromtimestamp(timestamp // 1000, UTC)),
                offset=i64(number),
                key=key,
                value=value,
                headers=tuple(kio.records.schema.RecordHeader(key=k.encode(), value=v) for k, v in headers),
            )
            for number, (timestamp, key, value, headers) in enumerate(records)
        ),
    )
    out = io.BytesIO()
    kio.records.writers.write_batch(out, batch)
    return out.getvalue()


def as_peers_see_them(records: Any) -> list[tuple[int, int, bytes | None, bytes | None, list[Any]]]:
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


def expected(records: list[NewRecord]) -> list[tuple[int, int, bytes | None, bytes | None, list[Any]]]:
    return [(n, timestamp, key, value, list(headers)) for n, (timestamp, key, value, headers) in enumerate(records)]


@given(records=records_lists, producer=st.sampled_from([(-1, -1, -1), (7, 2, 1000)]))
@example(records=MANY, producer=(-1, -1, -1))
@example(records=ODD, producer=(2**62, 32767, 2**31 - 1))
@settings(deadline=None, max_examples=60)
def test_uncompressed_the_bytes_are_the_same(records: list[NewRecord], producer: tuple[int, int, int]) -> None:
    ours = encode_batch(
        records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2], leader_epoch=-1
    )
    assert ours == by_kio(records, Compression.NONE, producer)
    # kafka-python and aiokafka write another leader epoch, which the CRC does not cover and the broker overwrites
    for theirs in (by_kafka_python, by_aiokafka):
        other = bytearray(theirs(records, Compression.NONE, producer))
        stamp(other, 0, -1)
        assert ours == other


@pytest.mark.parametrize(
    ("write", "codec"),
    [(by_aiokafka, codec) for codec in Compression] + [(by_kafka_python, codec) for codec in KAFKA_PYTHON_CODECS],
)
@pytest.mark.parametrize("records", [MANY, ODD, MANY[1:2]], ids=["many", "odd", "one"])
def test_we_read_what_they_write(write: Any, codec: Compression, records: list[NewRecord]) -> None:
    batch = write(records, codec, (-1, -1, -1))
    ((header, view),) = split_batches(batch)
    validate_batch(header, view)
    # aiokafka leaves a batch uncompressed where compressing would make it larger
    assert header.compression in (codec, Compression.NONE)
    assert as_peers_see_them(iter_records(view, header)) == expected(records)


@each_codec
@pytest.mark.parametrize("records", [MANY, ODD, MANY[1:2]], ids=["many", "odd", "one"])
def test_they_read_what_we_write(codec: Compression, records: list[NewRecord]) -> None:
    batch = encode_batch(records, compression=codec)
    readers = [aiokafka_records.DefaultRecordBatch]
    if codec in KAFKA_PYTHON_CODECS:
        readers.append(kafka_python_records.DefaultRecordBatch)
    for read_batch in readers:
        theirs = read_batch(batch)
        assert theirs.validate_crc()
        assert as_peers_see_them(theirs) == expected(records)


def test_kio_reads_what_we_write() -> None:
    batch = encode_batch(ODD, base_offset=40, producer_id=3, producer_epoch=1, base_sequence=5, is_transactional=True)
    theirs, size = kio.records.readers.read_batch(batch, 0)
    header = read_header(batch)
    assert size == len(batch)
    assert (theirs.base_offset, theirs.batch_length, theirs.crc) == (40, header.batch_length, header.crc)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (3, 1, 5)
    assert (theirs.attributes, theirs.last_offset_delta) == (0x10, 2)
    assert [(r.offset, int(r.timestamp.timestamp()) * 1000, r.key, r.value) for r in theirs.records] == [
        (r.offset, r.timestamp, r.key, r.value) for r in iter_records(batch)
    ]
    assert [[(h.key, h.value) for h in r.headers] for r in theirs.records] == [
        [(key.encode(), value) for key, value in headers] for *_, headers in ODD
    ]


@pytest.mark.parametrize("log_append_time", [None, 1_800_000_000_000])
def test_what_the_leader_stamps_is_what_they_see(log_append_time: int | None) -> None:
    batches = b""
    for base_offset in (0, 3):
        batch = bytearray(encode_batch(ODD, compression=Compression.LZ4))
        stamp(batch, base_offset, 5, log_append_time)
        assert check_crc(batch)
        batches += batch
    for memory_records in (KafkaPythonMemoryRecords(batches), AiokafkaMemoryRecords(batches)):
        offsets = []
        while memory_records.has_next():
            batch_seen = memory_records.next_batch()
            assert batch_seen.validate_crc()
            assert batch_seen.timestamp_type == (0 if log_append_time is None else 1)
            for record in batch_seen:
                offsets.append(record.offset)
                assert log_append_time in (None, record.timestamp)
        assert offsets == list(range(6))


@pytest.mark.parametrize(
    ("control_type", "theirs"), [(ControlType.COMMIT, COMMIT_MARKER), (ControlType.ABORT, ABORT_MARKER)]
)
def test_aiokafka_understands_our_markers(control_type: ControlType, theirs: Any) -> None:
    marker = encode_control_batch(control_type, timestamp=1, producer_id=9, producer_epoch=1, coordinator_epoch=4)
    batch = aiokafka_records.DefaultRecordBatch(marker)
    assert batch.is_control_batch
    assert batch.is_transactional
    assert batch.producer_id == 9
    (record,) = batch
    assert AiokafkaControlRecord.parse(record.key) == theirs
