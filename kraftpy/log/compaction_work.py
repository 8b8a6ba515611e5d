"""The long part of a compaction: read the keys of the dirty segments, then rewrite each group of segments.

A `CleaningPlan` has all the input. The cleaning touches only the segments named there, which it only reads, and
`.log.cleaned` files of its own, so it may run in another process and may be killed at any point. Each new segment is
synced and yielded (`Cleaned`) before the next one is begun; `Done` comes last.

A cleaned segment keeps the following (rules 40 and 41):
* a record at or beyond the map's end; a record whose key the map does not know, or knows at no later offset;
* a record without a value, but only until its batch's delete horizon: the first cleaning writes now +
  `delete.retention.ms` into the batch, a later one removes the record (KIP-534), so that readers have that long to see
  the deletion;
* nothing from an aborted transaction; a transaction's marker as long as a batch of the transaction was there when the
  cleaning began, and from then on until a delete horizon of its own;
* the last batch of each new segment, so that there are no holes between segments, and for each producer the batch that
  proves its last sequence number, or the marker that proves its epoch. Such a batch stays without records if none of
  its records stay; a marker stays whole.
Records without a key are removed.

Speed: the keys of a dirty batch are read once. A search in the sorted offsets of the map then decides whether any of
its records stay, so most of a dirty log is dropped without being read in detail again. A batch that stays entirely is
copied unchanged.

Memory: the map (`KeyMap`), and two buffers. KIP-98, KIP-534.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kraftpy.log import layout
from kraftpy.log.compaction_batches import Codec, RawRecord, emptied, keys_of, raw_records, rewritten
from kraftpy.log.index import MAX_RELATIVE_OFFSET, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from kraftpy.log.key_map import KeyMap
from kraftpy.ports import Directory, File
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    ControlType,
    CorruptBatch,
    check_crc,
    read_header,
    read_markers,
)
from kraftpy.types import Millis

_SMALLEST_BUFFER_BYTES: Final = 4096
_LARGEST_SEGMENT_BYTES: Final = 2**31 - 1

Spend = Callable[[int], None]
"""Called with the number of bytes just read or written; it throttles the cleaning by taking its time to return."""


class Source(NamedTuple):
    """A segment to clean, as it was when the job was planned."""

    base_offset: int
    end_offset: int
    size: int

    @property
    def name(self) -> str:
        """The name of its `.log`."""
        return layout.file_name(self.base_offset, layout.LOG)


_LAST_HORIZON: Final = 1 << 62
"""The latest delete horizon. Record times are stored relative to the horizon, so it leaves them room beyond."""


class CleaningPlan(NamedTuple):
    """The complete input for cleaning one partition's log."""

    sources: tuple[Source, ...]
    """Adjacent whole segments, starting with the log's first."""
    first_dirty: int
    now: Millis
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    codec: Codec | None
    """The codec of rewritten batches; None to keep each batch's own."""
    aborted: Mapping[int, Sequence[tuple[int, int]]]
    """Producer id -> (first offset, offset of the marker) of each aborted transaction, in order."""
    proofs: Mapping[int, tuple[int, int]]
    """Producer id -> (epoch, last offset of its last batch, or -1) of each producer in the producer state."""
    buffer_bytes: int
    """The memory for the key map."""
    load_factor: float
    io_buffer_bytes: int


class Cleaned(NamedTuple):
    """A new segment that replaces `sources`, whole and synced in its `.log.cleaned` file."""

    sources: tuple[Source, ...]
    size: int
    offset_index: bytes
    time_index: bytes
    largest: tuple[int, int]
    """The largest timestamp, and the last offset of the batch that has it."""
    gone_markers: tuple[int, ...]
    """The offsets of transaction markers that were removed."""

    @property
    def base_offset(self) -> int:
        """The base offset of the new segment."""
        return self.sources[0].base_offset


class Done(NamedTuple):
    """The end of a cleaning: all new segments are written."""

    end_offset: int
    """Everything before this offset is clean."""
    read_bytes: int
    keys: int


def clean(plan: CleaningPlan, directory: Directory, spend: Spend = lambda count: None) -> Iterator[Cleaned | Done]:
    """Carry out a plan, one new segment per iteration; a group that would not change yields none. Blocks.

    Raises OSError if the disk fails, CorruptBatch if a segment is damaged.
    """
    yield from _Cleaning(plan, directory, spend).run()


class _Cleaning:
    def __init__(self, plan: CleaningPlan, directory: Directory, spend: Spend) -> None:
        self.plan = plan
        self.directory = directory
        self.spend = spend
        self.map = KeyMap(plan.buffer_bytes, plan.load_factor)
        self.end_offset = plan.first_dirty
        self.read_bytes = 0
        self.buffer_bytes = max(_SMALLEST_BUFFER_BYTES, plan.io_buffer_bytes // 2)
        self.gone_markers: list[int] = []  # removed from the segment being written
        self.with_data: set[int] = set()  # producers with a batch of their current transaction seen

    def run(self) -> Iterator[Cleaned | Done]:
        self._map_keys()
        self.map.freeze()
        for group in self._groups():
            cleaned = self._clean(group)
            if cleaned is not None:
                yield cleaned
        yield Done(self.end_offset, self.read_bytes, len(self.map))

    # --- the map ---

    def _map_keys(self) -> None:
        """Enter the keys of dirty records until the map is full; set `end_offset` accordingly."""
        first_dirty = self.plan.first_dirty
        for source in self.plan.sources:
            if source.end_offset <= first_dirty:
                continue
            for header, batch in self._batches(source):
                if header.is_control or self._is_aborted(header) or header.last_offset < first_dirty:
                    continue
                keys, offsets, _ = keys_of(header, batch)
                if header.base_offset < first_dirty:
                    passed = sum(offset < first_dirty for offset in offsets)
                    keys, offsets = keys[passed:], offsets[passed:]
                taken = self.map.put(keys, offsets)
                if taken < len(keys):
                    self.end_offset = offsets[taken]
                    return
                self.end_offset = header.next_offset
            self.end_offset = source.end_offset

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
        file = self.directory.open(source.name)
        try:
            for header, batch in _read_batches(file, source, self.buffer_bytes, self.spend):
                self.read_bytes += len(batch)
                yield header, batch
        finally:
            file.close()

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        ranges = self.plan.aborted.get(header.producer_id, ())
        number = bisect_right(ranges, header.base_offset, key=lambda each: each[0])
        return number > 0 and header.base_offset <= ranges[number - 1][1]

    def _groups(self) -> Iterator[tuple[Source, ...]]:
        """Yield groups of adjacent sources that fit into one segment, by bytes, index entries and relative offsets."""
        plan = self.plan
        interval = max(plan.index_interval_bytes, HEADER_BYTES)
        most_bytes = min(plan.segment_bytes, interval * (plan.segment_index_bytes // TIME_ENTRY_BYTES - 1))
        group: list[Source] = []
        size = 0
        for source in plan.sources:
            if source.base_offset >= self.end_offset:
                break
            if group and (
                size + source.size > most_bytes or source.end_offset - 1 - group[0].base_offset > MAX_RELATIVE_OFFSET
            ):
                yield tuple(group)
                group, size = [], 0
            group.append(source)
            size += source.size
        if group:
            yield tuple(group)

    # --- the new segments ---

    def _clean(self, group: tuple[Source, ...]) -> Cleaned | None:
        """Write one new segment from a group; return None if nothing would change."""
        base_offset = group[0].base_offset
        name = layout.file_name(base_offset, layout.LOG + layout.CLEANED)
        writer = _Writer(
            self.directory.open(name), base_offset, self.plan.index_interval_bytes, self.buffer_bytes, self.spend
        )
        is_changed = len(group) > 1
        try:
            for source in group:
                position = 0
                for header, batch in self._batches(source):
                    position += len(batch)
                    must_stay = (source is group[-1] and position == source.size) or self._proves(header)
                    kept = self._kept(header, batch, must_stay=must_stay)
                    is_changed |= kept is not batch
                    if kept is batch:
                        writer.write(header, batch)
                    elif kept is not None:
                        writer.write(read_header(kept), kept)
            if not is_changed:
                self.directory.delete(name)
                return None
            writer.finish()
        finally:
            writer.file.close()
        largest = (writer.max_timestamp, writer.offset_of_max_timestamp)
        gone, self.gone_markers = tuple(self.gone_markers), []
        return Cleaned(group, writer.size, writer.offsets.encode(), writer.times.encode(), largest, gone)

    def _proves(self, header: BatchHeader) -> bool:
        """Return whether a batch proves a known producer's last sequence number, or its epoch."""
        proof = self.plan.proofs.get(header.producer_id) if header.producer_id >= 0 else None
        if proof is None:
            return False
        producer_epoch, last_offset = proof
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == producer_epoch

    def _kept(self, header: BatchHeader, batch: bytes, *, must_stay: bool) -> bytes | None:
        """Return the batch to write: the same one, one with fewer records, or None."""
        if header.is_control:
            return self._kept_marker(header, batch, must_stay=must_stay)
        if header.is_transactional:
            self.with_data.add(header.producer_id)
        if header.base_offset >= self.end_offset:
            return batch
        if not header.records_count or self._is_aborted(header) or self._is_superseded(header):
            records: list[RawRecord] = []
        else:
            keys, offsets, has_tombstones = keys_of(header, batch)
            if not has_tombstones and None not in keys and self._stays_whole(header, keys, offsets):
                return batch
            records = self._kept_records(header, batch, keys, offsets)
        if not records:
            if not must_stay:
                return None
            return batch if not header.records_count else emptied(header, batch)
        horizon = None
        if not header.has_delete_horizon and any(
            record.is_tombstone and header.base_offset + record.offset_delta < self.end_offset for record in records
        ):
            horizon = self._new_horizon()
        if len(records) == header.records_count and horizon is None:
            return batch
        return rewritten(header, batch, records, horizon=horizon, codec=self.plan.codec)

    def _new_horizon(self) -> int:
        """Return when tombstones and markers written now may go, bounded to fit the field for any retention time."""
        return min(self.plan.now + self.plan.delete_retention_ms, _LAST_HORIZON)

    def _is_in_map(self, header: BatchHeader) -> bool:
        """Return whether all the batch's records are within the map's range."""
        return self.plan.first_dirty <= header.base_offset and header.next_offset <= self.end_offset

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Return whether the map alone shows that every record of the batch has a later one."""
        return self._is_in_map(header) and not self.map.count_kept(header.base_offset, header.next_offset)

    def _stays_whole(self, header: BatchHeader, keys: list[bytes | None], offsets: Sequence[int]) -> bool:
        """Return whether no record of the batch has a later one; all of them have keys and values."""
        if self._is_in_map(header):
            return self.map.count_kept(header.base_offset, header.next_offset) == len(offsets)
        return not self.map.knows_any(keys)

    def _kept_records(
        self, header: BatchHeader, batch: bytes, keys: list[bytes | None], offsets: Sequence[int]
    ) -> list[RawRecord]:
        if self._is_in_map(header):
            last = self.map.kept_offsets(header.base_offset, header.next_offset)
            numbers = {number for number, offset in enumerate(offsets) if offset in last}
        else:
            numbers = {
                number
                for number, (key, offset) in enumerate(zip(keys, offsets, strict=True))
                if offset >= self.end_offset or (key is not None and not self.map.is_superseded(key, offset))
            }
        horizon = header.delete_horizon_ms
        if horizon is None or self.plan.now < horizon:
            return list(raw_records(header, batch, numbers))
        return [
            record
            for record in raw_records(header, batch, numbers)
            if not record.is_tombstone or header.base_offset + record.offset_delta >= self.end_offset
        ]

    def _kept_marker(self, header: BatchHeader, batch: bytes, *, must_stay: bool) -> bytes | None:
        """Keep a marker until its transaction has no batch left and the horizon set at that time has passed."""
        if header.base_offset >= self.end_offset:
            return batch
        if header.records_count:
            try:
                marker = next(read_markers(header, batch))
            except CorruptBatch:
                return batch  # a marker of an unknown kind
            if marker.type not in (ControlType.ABORT, ControlType.COMMIT):
                return batch
            has_data = header.producer_id in self.with_data
            self.with_data.discard(header.producer_id)
            if has_data:
                return batch
        if must_stay:
            return batch
        horizon = header.delete_horizon_ms
        if horizon is not None or not header.records_count:
            if horizon is not None and self.plan.now < horizon:
                return batch
            self.gone_markers.append(header.last_offset)
            return None
        horizon = self._new_horizon()
        return rewritten(header, batch, list(raw_records(header, batch)), horizon=horizon)


class _Writer:
    """Writes a new segment and builds the index entries of its batches."""

    def __init__(self, file: File, base_offset: int, interval_bytes: int, buffer_bytes: int, spend: Spend) -> None:
        self.file = file
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.buffer_bytes = buffer_bytes
        self.spend = spend
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
        if self.size > _LARGEST_SEGMENT_BYTES:
            raise CorruptBatch(f"the segment at {self.base_offset} would grow beyond {_LARGEST_SEGMENT_BYTES} bytes")
        if self._pending_bytes >= self.buffer_bytes:
            self._flush()

    def _flush(self) -> None:
        self.file.write(self.size - self._pending_bytes, b"".join(self._pending))
        self.spend(self._pending_bytes)
        self._pending, self._pending_bytes = [], 0

    def finish(self) -> None:
        self._flush()
        self.file.sync()
        self.times.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)


def _read_batches(file: File, source: Source, buffer_bytes: int, spend: Spend) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield a segment's batches; verify form, CRC, and the base offset, which no checksum covers (`log.verifying`)."""
    window, start, position = b"", 0, 0
    expected = source.base_offset
    while position < source.size:
        at = position - start
        if at + HEADER_BYTES > len(window):
            window, start, at = file.read(position, min(buffer_bytes, source.size - position)), position, 0
            spend(len(window))
        header = read_header(window, at)
        size = header.size_bytes
        if (
            header.magic != MAGIC
            or size < HEADER_BYTES
            or position + size > source.size
            or header.last_offset_delta < 0
        ):
            raise CorruptBatch(f"{source.name} at byte {position}: not a batch header")
        if at + size > len(window):
            window, start, at = file.read(position, min(max(buffer_bytes, size), source.size - position)), position, 0
            spend(len(window))
            if len(window) < size:
                raise CorruptBatch(f"{source.name} at byte {position}: the file ends")
        batch = window[at : at + size]
        if not check_crc(batch):
            raise CorruptBatch(f"{source.name} at byte {position}, offset {header.base_offset}: the CRC does not match")
        if header.base_offset < expected or header.last_offset >= source.end_offset:
            raise CorruptBatch(
                f"{source.name} at byte {position}: offsets {header.base_offset} to {header.last_offset} "
                f"instead of {expected} to {source.end_offset - 1}"
            )
        yield header, batch
        expected, position = header.next_offset, position + size
