"""The common parts of the log's tests: batches, whole reads, and a plain list as the model of a log."""

from __future__ import annotations

from typing import Any

from kraftpy.config.topic import TopicConfig
from kraftpy.log import compaction
from kraftpy.log.compaction_work import Cleaned, Done, clean
from kraftpy.log.deletion import delete_files
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import LogSlice
from kraftpy.ports import Directory
from kraftpy.protocol.record_batch import Record, encode_batch, iter_records, read_header, split_batches, stamp
from kraftpy.types import Millis

NOW = Millis(1_700_000_000_000)
SMALL = {"segment_bytes": 1500, "index_interval_bytes": 200}


def config(**settings: Any) -> TopicConfig:
    return TopicConfig(**{**SMALL, **settings})


def open_log(directory: Directory, *, now: int = NOW, topic: TopicConfig | None = None, **how: Any) -> PartitionLog:
    return PartitionLog.open(directory, config() if topic is None else topic, now=Millis(now), **how)


def read_slice(log: PartitionLog, offset: int, max_bytes: int, **bounds: Any) -> LogSlice | None:
    """The result of `read` as a slice; None if it is empty or has to be copied."""
    read = log.read_or_slice(offset, max_bytes, 1, **bounds)
    return read if isinstance(read, LogSlice) else None


def batch(*values: bytes, timestamp: int = NOW, key: bytes | None = b"k", step_ms: int = 1, **fields: Any) -> bytes:
    """A batch of records with these values, their timestamps `step_ms` apart."""
    return encode_batch(
        [(timestamp + number * step_ms, key, value, ()) for number, value in enumerate(values)], **fields
    )


def numbered(first: int, count: int, *, size: int = 20, **fields: Any) -> bytes:
    """A batch of `count` records whose values say their number."""
    return batch(*(b"%d:" % number + b"x" * size for number in range(first, first + count)), **fields)


def copies(batches: list[tuple[int, bytes]], leader_epoch: int) -> bytes:
    """Batches as a leader would send them: (base offset, batch) pairs, stamped."""
    out = []
    for base_offset, data in batches:
        stamped = bytearray(data)
        stamp(stamped, base_offset, leader_epoch)
        out.append(bytes(stamped))
    return b"".join(out)


def read_batches(
    log: PartitionLog, start: int | None = None, *, max_bytes: int = 400, end_offset: int | None = None
) -> list[bytes]:
    """Every whole batch from an offset on, by as many reads as it takes."""
    offset = log.log_start_offset if start is None else start
    found: list[bytes] = []
    while True:
        result = log.read(offset, max_bytes, end_offset=end_offset)
        if not result.records:
            assert result.next_offset == offset
            return found
        pieces = split_batches(result.records)
        assert len(result.records) <= max_bytes or len(pieces) == 1
        assert pieces[0][0].last_offset >= offset
        assert result.next_offset > pieces[-1][0].last_offset
        if end_offset is not None:
            assert pieces[-1][0].last_offset < end_offset
        found += [bytes(piece) for _, piece in pieces]
        offset = result.next_offset


def read_records(log: PartitionLog, start: int | None = None, **how: Any) -> list[Record]:
    """Every record from an offset on."""
    first = log.log_start_offset if start is None else start
    return [
        record for data in read_batches(log, start, **how) for record in iter_records(data) if record.offset >= first
    ]


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in read_records(log)]


def check_invariants(log: PartitionLog) -> None:
    """Check the invariants of a log, which hold at any time."""
    segments = log.segments
    assert segments[0].base_offset <= log.log_start_offset <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    expected = segments[0].base_offset
    for segment in segments:
        assert segment.base_offset == expected
        position = 0
        for placed in segment.walk():
            assert placed.position == position
            assert placed.base_offset >= expected
            position += placed.size
            expected = placed.last_offset + 1
        assert position == segment.size
        starts = {placed.position: placed.last_offset for placed in segment.walk()}
        if segment.index.offsets is not None:
            assert segment.index.times is not None
            offsets = [segment.base_offset + offset for offset in segment.index.offsets.offsets]
            assert offsets == [starts[position] for position in segment.index.offsets.positions]
            assert list(segment.index.times.timestamps) == sorted(set(segment.index.times.timestamps))
    assert expected == log.log_end_offset
    entries = log.epochs.entries()
    assert entries == sorted(entries)
    for epoch, start in entries:
        assert start <= log.log_end_offset
        if start < log.log_end_offset:
            assert log.epochs.epoch_of(start) == epoch


def reference_index(data: bytes, base_offset: int, interval: int, *, sealed: bool) -> tuple[bytes, bytes]:
    """The `.index` and `.timeindex` that belong to a segment's bytes, by the rule, written as plainly as possible."""
    index, times = b"", b""
    last_position, largest, offset_of_largest, last_time = 0, -1, base_offset, -1
    position = 0
    while position < len(data):
        header = read_header(data, position)
        if header.max_timestamp > largest:
            largest, offset_of_largest = header.max_timestamp, header.last_offset
        if position - last_position > interval:
            index += (header.last_offset - base_offset).to_bytes(4, "big") + position.to_bytes(4, "big")
            last_position = position
            if largest > last_time:
                times += largest.to_bytes(8, "big") + (offset_of_largest - base_offset).to_bytes(4, "big")
                last_time = largest
        position += header.size_bytes
    if sealed and largest > last_time:
        times += largest.to_bytes(8, "big") + (offset_of_largest - base_offset).to_bytes(4, "big")
    return index, times


def compact(
    log: PartitionLog,
    first_dirty: int = 0,
    *,
    now: int = NOW,
    high_watermark: int | None = None,
    limits: compaction.Limits | None = None,
) -> compaction.CompactionResult | None:
    """Compact as the broker does, step by step, but here."""
    job = begin(log, first_dirty, now=now, high_watermark=high_watermark, limits=limits)
    if job is None:
        return None
    done = None
    try:
        for step in clean(job.plan, log.directory):
            if isinstance(step, Done):
                done = step
            elif not put_in_place(log, job, step):
                break
    finally:
        result = compaction.finish(log, job, done)
    check_invariants(log)
    return result


def begin(
    log: PartitionLog,
    first_dirty: int = 0,
    *,
    now: int = NOW,
    high_watermark: int | None = None,
    limits: compaction.Limits | None = None,
) -> compaction.CompactionJob | None:
    """Plan a compaction of what is decided now, and make that durable."""
    decided = compaction.decide(log, log.log_end_offset if high_watermark is None else high_watermark)
    log.flush()
    return compaction.begin(log, first_dirty, Millis(now), decided, limits)


def put_in_place(log: PartitionLog, job: compaction.CompactionJob, cleaned: Cleaned) -> bool:
    """Put one new segment in place of the old ones; whether that could be done."""
    if not compaction.stage(log, job, cleaned):
        return False
    log.directory.sync()
    gone = compaction.put_in_place(log, job)
    if gone is None:
        return False
    log.directory.sync()
    compaction.complete(log, job)
    delete_files(log.directory, gone)
    return True
