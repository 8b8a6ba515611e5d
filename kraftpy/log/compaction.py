"""Compaction by key: of all records with a key, a compacted log keeps the last one, at the offset it always had.

Three parts, as with a flush: `begin` (on the loop, quick) picks sealed segments and opens handles of its own; `run`
(in a thread, long) reads the keys of what is dirty into a map, then writes each group of segments anew as
`.log.cleaned` and syncs it; `finish` (on the loop) renames all of them to `.log.swap`, syncs the directory, and puts
them in place of the old ones. A crash before the sync leaves the old log, after it the new one (`recovery`).

What stays, in a segment that is cleaned:
* a record behind the map's end; a record whose key the map does not know, or knows at no later offset;
* a record without a value only until its batch's delete horizon: the first cleaning writes now + `delete.retention.ms`
  into the batch, a later one removes the record (KIP-534), so that readers have that long to see the deletion;
* transaction markers; of an aborted transaction nothing else;
* the last batch of each new segment, so that segments go on without holes, and of each producer the one that proves
  its last sequence number; without records where none stay.
Records without a key go. Nothing at or behind the last stable offset, and never the segment being written, is touched.

The map is bounded: when it is full the job ends there, and the next one goes on from its `end_offset`.

Invariants: offsets never change; the first and last offset of a group stay; what was not rewritten keeps its bytes.
Left out: removing markers whose transaction has no records left; a job holds a descriptor per segment while it runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from kraftpy.config.topic import TopicConfig
from kraftpy.log import layout
from kraftpy.log.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kraftpy.log.segment import Segment, walk
from kraftpy.ports import Directory, File
from kraftpy.protocol.compression import compress
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    check_crc,
    read_header,
    record_payload,
)
from kraftpy.protocol.records import encode_varint, read_unsigned, zigzag
from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.log.partition_log import PartitionLog

MAP_BYTES: Final = 32 << 20
_ENTRY_BYTES: Final = 150  # what a key costs in the map besides itself
_WRITE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_DELETE_HORIZON: Final = 0x40


class Source(NamedTuple):
    """A segment to be cleaned, as it was when the job was planned, and a handle for the thread."""

    segment: Segment
    size: int
    end_offset: int
    file: File


class Cleaned(NamedTuple):
    """A new segment, whole and synced in its `.log.cleaned`, and what it replaces."""

    base_offset: int
    size: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    largest: tuple[int, int]
    """The largest timestamp, and the last offset of the batch that brought it."""
    sources: list[Source]


class CompactionResult(NamedTuple):
    """What a compaction did."""

    end_offset: int
    """All before it is clean: where the next one begins. To be kept in the cleaner's checkpoint."""
    bytes_before: int
    bytes_after: int
    files: list[str]
    """Renamed files, to be deleted as `delete_old_segments` says."""


class CompactionAbandoned(Exception):
    """The job was told to stop; nothing is changed."""


class _RawRecord(NamedTuple):
    """A record and its bytes, cut where a new delete horizon changes them."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    is_tombstone: bool
    raw: bytes
    """Without its length."""
    rest: int
    """Where `raw` goes on behind the timestamp delta."""


class CompactionJob:
    """What one compaction has to do."""

    __slots__ = (
        "aborted",
        "cleaned",
        "config",
        "directory",
        "end_offset",
        "first_dirty",
        "is_abandoned",
        "is_done",
        "last_offsets",
        "map_bytes",
        "now",
        "sources",
    )

    def __init__(
        self, directory: Directory, config: TopicConfig, first_dirty: int, now: Millis, map_bytes: int
    ) -> None:
        self.directory = directory
        self.config = config
        self.first_dirty = first_dirty
        self.now = now
        self.map_bytes = map_bytes
        self.sources: list[Source] = []
        self.aborted: Mapping[int, Sequence[tuple[int, int]]] = {}  # producer id -> (first, last) offsets
        self.last_offsets: frozenset[int] = frozenset()  # of batches that prove a producer's last sequence number
        self.end_offset = first_dirty
        self.cleaned: list[Cleaned] = []
        self.is_abandoned = False
        """Set by the loop to make `run` end soon: the log is to be closed or deleted."""
        self.is_done = False

    def run(self) -> None:
        """Write the new segments. Long, for a thread.

        Raises OSError, CorruptBatch where a segment is damaged, CompactionAbandoned.
        """
        try:
            latest = self._map_keys()
            for group in self._groups():
                cleaned = self._clean(group, latest)
                if cleaned is not None:
                    self.cleaned.append(cleaned)
            self.is_done = True
        finally:
            self.close()

    def close(self) -> None:
        """Close the handles."""
        for source in self.sources:
            source.file.close()

    # --- the map ---

    def _map_keys(self) -> dict[bytes, int]:
        """The last offset of each key from the first dirty offset to where the map is full; sets `end_offset`."""
        latest: dict[bytes, int] = {}
        room = self.map_bytes
        for source in self.sources:
            if source.end_offset <= self.first_dirty:
                continue
            for header, batch in self._batches(source):
                if header.is_control or self._is_aborted(header) or header.last_offset < self.first_dirty:
                    continue
                for record in _raw_records(header, batch):
                    offset = header.base_offset + record.offset_delta
                    if record.key is not None and offset >= self.first_dirty:
                        if record.key not in latest:
                            room -= len(record.key) + _ENTRY_BYTES
                        latest[record.key] = offset
                self.end_offset = header.next_offset
                if room < 0:
                    return latest
            self.end_offset = source.end_offset
        return latest

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
        for batch in _batches(source):
            if self.is_abandoned:
                raise CompactionAbandoned
            yield batch

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            first <= header.base_offset <= last for first, last in self.aborted.get(header.producer_id, ())
        )

    def _groups(self) -> Iterator[list[Source]]:
        """Neighbours that fit into one segment together."""
        group: list[Source] = []
        for source in self.sources:
            if source.segment.base_offset >= self.end_offset:
                break
            if group and (
                sum(each.size for each in group) + source.size > self.config.segment_bytes
                or source.end_offset - group[0].segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                yield group
                group = []
            group.append(source)
        if group:
            yield group

    # --- the new segments ---

    def _clean(self, group: list[Source], latest: Mapping[bytes, int]) -> Cleaned | None:
        """One new segment out of a group; None where it would be what it was."""
        base_offset = group[0].segment.base_offset
        name = layout.file_name(base_offset, layout.LOG + layout.CLEANED)
        writer = _Writer(self.directory.open(name), base_offset, self.config.index_interval_bytes)
        is_changed = len(group) > 1
        try:
            for source in group:
                position = 0
                for header, batch in self._batches(source):
                    position += len(batch)
                    must_stay = header.last_offset in self.last_offsets or (
                        source is group[-1] and position == source.size
                    )
                    kept = self._kept(header, batch, latest, must_stay)
                    is_changed |= kept is not batch
                    if kept is not None:
                        writer.write(read_header(kept), kept)
            if not is_changed:
                self.directory.delete(name)
                return None
            writer.finish()
        finally:
            writer.file.close()
        largest = (writer.max_timestamp, writer.offset_of_max_timestamp)
        return Cleaned(base_offset, writer.size, writer.offsets, writer.times, largest, group)

    def _kept(self, header: BatchHeader, batch: bytes, latest: Mapping[bytes, int], must_stay: bool) -> bytes | None:
        """A batch as it is to be written: itself, one with fewer records, or None."""
        if header.is_control:
            return batch
        if header.base_offset >= self.end_offset:
            return batch
        kept: list[_RawRecord] = []
        has_tombstones = False
        if not self._is_aborted(header):
            horizon = header.delete_horizon_ms
            for record in _raw_records(header, batch):
                offset = header.base_offset + record.offset_delta
                if offset < self.end_offset:
                    if record.key is None or offset < latest.get(record.key, -1):
                        continue
                    if record.is_tombstone:
                        if horizon is not None and self.now >= horizon:
                            continue
                        has_tombstones = True
                kept.append(record)
        if not kept:
            return _rewritten(header, batch, []) if must_stay else None
        horizon = None
        if has_tombstones and not header.has_delete_horizon:
            horizon = self.now + self.config.delete_retention_ms
        if len(kept) == header.records_count and horizon is None:
            return batch
        return _rewritten(header, batch, kept, horizon)


class _Writer:
    """A segment being written anew, with the index entries its batches bring."""

    def __init__(self, file: File, base_offset: int, interval_bytes: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.size = 0
        self.offsets, self.times = OffsetIndex(), TimeIndex()
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, base_offset
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        file.truncate(0)

    def write(self, header: BatchHeader, batch: bytes) -> None:
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        if self.size - self.offsets.last_position() > self.interval_bytes:
            self.offsets.append(header.last_offset - self.base_offset, self.size)
            self.times.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
        self._pending.append(batch)
        self._pending_bytes += len(batch)
        self.size += len(batch)
        if self._pending_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.file.write(self.size - self._pending_bytes, b"".join(self._pending))
        self._pending, self._pending_bytes = [], 0

    def finish(self) -> None:
        self._flush()
        self.file.sync()
        self.times.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)


# --- on the loop ------------------------------------------------------------------------------------------------------


def begin(
    log: PartitionLog, first_dirty: int, now: Millis, *, high_watermark: int, map_bytes: int = MAP_BYTES
) -> CompactionJob | None:
    """A job that compacts what is dirty from an offset on (of the cleaner's checkpoint), where that is due; else None.

    Quick. Run it in a thread, then call `finish`, whatever became of it. One job at a time.
    """
    if "compact" not in log.config.cleanup_policy or log.is_compacting:
        return None
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    segments = cleanable(log, stable_offset=log.last_stable_offset(high_watermark), now=now)
    if not is_due(segments, log.config, first_dirty, now):
        return None
    job = CompactionJob(log.directory, log.config, first_dirty, now, map_bytes)
    try:
        for segment, end_offset in segments:
            job.sources.append(Source(segment, segment.size, end_offset, segment.log.open_private()))
    except OSError:
        job.close()
        raise
    job.aborted = log.producers.aborted_ranges()
    job.last_offsets = frozenset(offset for _, offset in log.producers.last_sequences().values())
    log.is_compacting = True
    return job


def finish(log: PartitionLog, job: CompactionJob) -> CompactionResult | None:
    """The job's thread is done, in whatever way: put its segments in place of the old ones. Blocks for one sync.

    None where it failed, or where a segment was truncated or deleted meanwhile: then nothing is changed, and the next
    job begins where this one did.
    """
    log.is_compacting = False
    sealed = log.segments[:-1]
    is_current = all(
        source.segment in sealed and source.segment.size == source.size
        for cleaned in job.cleaned
        for source in cleaned.sources
    )
    if not job.is_done or not is_current:
        for name in log.directory.names():
            if name.endswith(layout.CLEANED):
                log.directory.delete(name)
        return None
    for cleaned in job.cleaned:
        name = layout.file_name(cleaned.base_offset, layout.LOG)
        log.directory.rename(name + layout.CLEANED, name + layout.SWAP)
    if job.cleaned:
        log.directory.sync()
    files: list[str] = []
    for cleaned in reversed(job.cleaned):
        old = [source.segment for source in cleaned.sources]
        new = Segment(log.directory, cleaned.base_offset, log.files, created_at=old[-1].created_at)
        new.adopt(cleaned.size, cleaned.offset_index, cleaned.time_index, *cleaned.largest)
        new.offsets = cleaned.sources[-1].end_offset - cleaned.base_offset
        files += log.replace(old, new)
    return CompactionResult(
        job.end_offset,
        sum(source.size for cleaned in job.cleaned for source in cleaned.sources),
        sum(cleaned.size for cleaned in job.cleaned),
        files,
    )


def dirty_bytes(segments: Iterable[tuple[Segment, int]], first_dirty: int) -> int:
    """Bytes of the segments, each with its end offset, that are not clean."""
    return sum(segment.size for segment, end_offset in segments if end_offset > first_dirty)


def cleanable(log: PartitionLog, *, stable_offset: int, now: Millis) -> list[tuple[Segment, int]]:
    """The segments that may be cleaned, with their end offsets: sealed, decided, and old enough."""
    segments, lag_ms = log.segments, log.config.min_compaction_lag_ms
    found: list[tuple[Segment, int]] = []
    for segment, following in pairwise(segments):
        if following.base_offset > stable_offset:
            break
        if lag_ms > 0 and segment.max_timestamp()[0] > now - lag_ms:
            break
        found.append((segment, following.base_offset))
    return found


def is_due(segments: Sequence[tuple[Segment, int]], config: TopicConfig, first_dirty: int, now: Millis) -> bool:
    """Whether enough of what may be cleaned is dirty, or something has been dirty for too long (KIP-354)."""
    total = sum(segment.size for segment, _ in segments)
    dirty = dirty_bytes(segments, first_dirty)
    if not dirty:
        return False
    if dirty >= config.min_cleanable_dirty_ratio * total:
        return True
    oldest = min(
        (segment.first_timestamp() or 0 for segment, end_offset in segments if end_offset > first_dirty), default=now
    )
    return now - oldest > config.max_compaction_lag_ms


# --- batches ----------------------------------------------------------------------------------------------------------


def _batches(source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
    for placed in walk(source.file, source.segment.log.name, 0, source.size, _READ_BYTES):
        batch = source.file.read(placed.position, placed.size)
        if not check_crc(batch):
            raise CorruptBatch(f"{source.segment.log.name} at byte {placed.position}: the CRC does not match")
        yield read_header(batch), batch


def _raw_records(header: BatchHeader, batch: bytes) -> Iterator[_RawRecord]:
    """The records with their bytes. CorruptBatch where they are malformed."""
    data = bytes(record_payload(header, batch))
    position = 0
    try:
        for _ in range(header.records_count):
            size, start = read_unsigned(data, position)
            end = start + zigzag(size)
            timestamp_delta, rest = read_unsigned(data, start + 1)
            offset_delta, at = read_unsigned(data, rest)
            key_size, at = read_unsigned(data, at)
            key_bytes = zigzag(key_size)
            key = None if key_bytes < 0 else data[at : at + key_bytes]
            value_size, at = read_unsigned(data, at + max(key_bytes, 0))
            if at > end or end > len(data):
                raise CorruptBatch(f"a record of {end - start} bytes in {len(data) - start}")
            yield _RawRecord(
                zigzag(offset_delta),
                zigzag(timestamp_delta),
                key,
                zigzag(value_size) < 0,
                data[start:end],
                rest - start,
            )
            position = end
    except IndexError as error:
        raise CorruptBatch("a record is cut short") from error


def _rewritten(header: BatchHeader, batch: bytes, records: list[_RawRecord], horizon: int | None = None) -> bytes:
    """The batch with these of its records; with a delete horizon, to which the records' times become relative."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon is not None:
        attributes |= _DELETE_HORIZON
        shift, base_timestamp = base_timestamp - horizon, horizon
        raws = [
            record.raw[:1] + encode_varint(record.timestamp_delta + shift) + record.raw[record.rest :]
            for record in records
        ]
    else:
        raws = [record.raw for record in records]
    if not records:
        attributes &= ~_DELETE_HORIZON
        base_timestamp = max_timestamp = NO_TIMESTAMP
    elif header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = max(header.base_timestamp + record.timestamp_delta for record in records)
    payload = b"".join(piece for raw in raws for piece in (encode_varint(len(raw)), raw))
    if records and header.compression:
        payload = compress(header.compression, payload)
    out = bytearray(batch[:HEADER_BYTES]) + payload
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">h", out, 21, attributes)
    struct.pack_into(">qq", out, 27, base_timestamp, max_timestamp)
    struct.pack_into(">i", out, 57, len(records))
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)
