"""A fetch response's records as columns of numbers: the position of each key and value in one buffer.

No object is made per record. Only the chain of record lengths has to be followed record by record; a list comprehension
over a table of hops does that. Everything else (timestamps, offsets, lengths) is read with numpy for all records of all
batches at once, and so are the checks: every record begins where the one before it ended and ends where it said, or the
response is `CorruptBatch`.

Invariants: all starts and ends lie within `data` and never fall from row to row, so Arrow can take them unchanged; an
uncompressed response is not copied (`data` is the response).

Left out: the inside of headers, which is checked only when they are asked for; a batch cut short at the end, which is
left for the next fetch. In the client only this module needs numpy, and only its `*_array` functions need pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from kraftpy.client.visibility import Visibility
from kraftpy.ports import Buffer
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    check_crc,
    record_payload,
    split_batches,
)
from kraftpy.protocol.records import decode_headers, read_unsigned

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

MAX_RECORDS: Final = 1 << 20
"""No batch is begun once there are this many records: columns take up to 300 bytes a record, however small it is."""
MAX_RECORDS_OF_A_BATCH: Final = 1 << 21
"""A batch with more records is refused, because a batch is decoded as a whole."""
_MAX_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Records in offset order; the value of row i is `data[value_starts[i]:value_ends[i]]`. Positions count bytes.

    A null key or value has its `*_nulls` set, and its start and end are equal. `next_offset` is where to fetch next: it
    may lie beyond the last row, past markers and what compaction removed.
    """

    data: bytes | memoryview
    offsets: Int64s
    timestamps: Int64s  # ms since the epoch, -1 for none
    timestamp_types: npt.NDArray[np.int32]  # TimestampType's numbers
    key_starts: Int64s
    key_ends: Int64s
    key_nulls: Bools
    value_starts: Int64s
    value_ends: Int64s
    value_nulls: Bools
    header_starts: Int64s
    header_ends: Int64s
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows `start` to `stop`, sharing all buffers."""
        rows = slice(start, stop)
        parts: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        parts = {name: part[rows] if isinstance(part, np.ndarray) else part for name, part in parts.items()}
        return Columns(**parts)

    def key(self, row: int) -> bytes | None:
        """Return one row's key."""
        return None if self.key_nulls[row] else bytes(self.data[self.key_starts[row] : self.key_ends[row]])

    def value(self, row: int) -> bytes | None:
        """Return one row's value."""
        return None if self.value_nulls[row] else bytes(self.data[self.value_starts[row] : self.value_ends[row]])

    def headers(self, row: int) -> tuple[tuple[str, bytes | None], ...]:
        """Decode and return one row's headers. Raises CorruptBatch if they are malformed or too many."""
        try:
            return decode_headers(self.data[self.header_starts[row] : self.header_ends[row]])
        except CorruptBatch as error:
            text = f"the headers of the record at offset {self.offsets[row]} cannot be read: {error.message}"
            raise CorruptBatch(text, error.code) from error


def decode_columns(
    records: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    aborted: Iterable[tuple[int, int]] | None = None,
    check_crcs: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Columns:
    """Decode the records of one partition's fetch response with offsets in [start_offset, end_offset).

    `aborted` is as in `Visibility`. A batch may expand to `max_bytes`, and none is begun once all together have
    expanded to that or there are `MAX_RECORDS`: the caller continues at `next_offset`. Raises CorruptBatch if anything
    is malformed.
    """
    view = memoryview(records).cast("B")
    selected = _Selection(next_offset=start_offset)
    visibility = Visibility(aborted)
    position = 0
    for header, batch in split_batches(view, allow_partial=True):
        if end_offset is not None and header.base_offset >= end_offset:
            break
        if not 0 <= header.base_offset <= header.last_offset < _MAX_OFFSET:
            raise CorruptBatch(f"offsets {header.base_offset} to {header.last_offset}")
        if check_crcs and not check_crc(batch):
            raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset} does not match")
        if visibility.shows(header, batch) and header.last_offset >= start_offset:
            if selected.expanded_bytes >= max_bytes or selected.records_count >= MAX_RECORDS:
                break
            selected.add(header, position + HEADER_BYTES, _payload(header, batch, max_bytes))
        selected.next_offset = max(selected.next_offset, header.next_offset)
        position += len(batch)
    return _trim(_decode(selected, view), start_offset, end_offset)


def _payload(header: BatchHeader, batch: memoryview, max_bytes: int) -> Buffer:
    try:
        if header.records_count > MAX_RECORDS_OF_A_BATCH:
            raise CorruptBatch(f"{header.records_count} records")
        return record_payload(header, batch, max_bytes)
    except CorruptBatch as error:
        text = f"the batch at offset {header.base_offset} cannot be read: {error.message}"
        raise CorruptBatch(text, error.code) from error


@dataclass(slots=True)
class _Selection:
    """The batches to decode, and where each one's payload lies."""

    next_offset: int
    headers: list[BatchHeader] = field(default_factory=list)
    payloads: list[Buffer] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    records_count: int = 0
    expanded_bytes: int = 0
    is_compressed: bool = False

    def add(self, header: BatchHeader, start: int, payload: Buffer) -> None:
        if not header.records_count:
            if len(payload):
                raise CorruptBatch(f"{len(payload)} bytes in a batch of no records")
            return
        self.headers.append(header)
        self.payloads.append(payload)
        self.starts.append(start)
        self.records_count += header.records_count
        if header.attributes & 7:
            self.is_compressed = True
            self.expanded_bytes += len(payload)

    def gather(self, response: memoryview) -> bytes | memoryview:
        """Return one buffer with all payloads: the response itself unless one was compressed. Updates `starts`."""
        if not self.is_compressed:
            return response
        self.starts = list(accumulate((len(payload) for payload in self.payloads[:-1]), initial=0))
        first = self.payloads[0]
        return first if len(self.payloads) == 1 and isinstance(first, bytes) else b"".join(self.payloads)


# The distance from a record's length to the next record, by its first two bytes; 0 if the length takes a third.
_HOPS: Final = [[1 + (low >> 1)] * 256 for low in range(128)] + [
    [2 + (low - 128 + (high << 7) >> 1) for high in range(128)] + [0] * 128 for low in range(128, 256)
]


def _walk(data: bytes | memoryview, position: int, end: int, count: int) -> list[int]:
    """Return where each of `count` records ends, from their lengths alone: a guess that `_decode` verifies."""
    hops = _HOPS
    start = position
    try:
        ends = [position := position + hops[data[position]][data[position + 1]] for _ in range(count)]
        if position != end:  # damage, or a record of 8 KiB or more
            position = start
            ends = [position := _hop(data, position) for _ in range(count)]
    except IndexError:
        position = -1
    if position != end:
        raise CorruptBatch(f"{count} records do not fill {end - start} bytes")
    return ends


def _hop(data: bytes | memoryview, position: int) -> int:
    length, position = read_unsigned(data, position)
    return position + (length >> 1)


def _decode(selected: _Selection, response: memoryview) -> Columns:
    """Decode all records of the selected batches."""
    data = selected.gather(response)
    ends_list: list[int] = []
    for header, start, payload in zip(selected.headers, selected.starts, selected.payloads, strict=True):
        ends_list += _walk(data, start, start + len(payload), header.records_count)
    ends = np.array(ends_list, np.int64)
    per_batch = _PerBatch(selected)
    begins = np.empty_like(ends)
    begins[1:] = ends[:-1]
    begins[per_batch.first_rows] = selected.starts

    octets = np.frombuffer(data, np.uint8)
    lengths, position = _varints(octets, begins)
    _require(lengths & 1 == 0, "a negative record length")
    _require(position + (lengths >> 1) == ends, "a record does not end where it said")
    raw, position = _varints(octets, position + 1)  # past the attributes
    timestamps = per_batch.timestamps(raw >> 1 & _MAX_OFFSET ^ -(raw & 1))
    raw, position = _varints(octets, position)
    offsets = per_batch.offsets(raw)
    key_starts, key_ends, key_nulls = _blobs(octets, position)
    value_starts, value_ends, value_nulls = _blobs(octets, key_ends)
    no_headers = octets.take(value_ends, mode="clip") == 0 if len(ends) else value_nulls
    _require(np.where(no_headers, value_ends + 1 == ends, value_ends + 1 < ends), "a record's fields do not fill it")
    return Columns(
        data=data,
        offsets=offsets,
        timestamps=timestamps,
        timestamp_types=per_batch.timestamp_types,
        key_starts=key_starts,
        key_ends=key_ends,
        key_nulls=key_nulls,
        value_starts=value_starts,
        value_ends=value_ends,
        value_nulls=value_nulls,
        header_starts=value_ends,
        header_ends=ends,
        next_offset=selected.next_offset,
    )


class _PerBatch:
    """The values of the batch headers, repeated for each of their records."""

    def __init__(self, selected: _Selection) -> None:
        headers = selected.headers
        self.counts: Int64s = np.array([header.records_count for header in headers], np.int64)
        self.first_rows: Int64s = np.cumsum(self.counts) - self.counts
        self.headers = headers
        types = np.array([header.attributes >> 3 & 1 for header in headers], np.int32)
        self.timestamp_types: npt.NDArray[np.int32] = np.repeat(types, self.counts)

    def _spread(self, values: list[int]) -> Int64s:
        return np.repeat(np.array(values, np.int64), self.counts)

    def timestamps(self, deltas: Int64s) -> Int64s:
        timestamps = deltas + self._spread([header.base_timestamp for header in self.headers])
        if self.timestamp_types.any():
            append_times = self._spread([header.max_timestamp for header in self.headers])
            timestamps = np.where(self.timestamp_types == TimestampType.LOG_APPEND_TIME, append_times, timestamps)
        return timestamps

    def offsets(self, raw: Int64s) -> Int64s:
        """Return offsets from the raw varints of their deltas. They must rise, within a batch and across batches."""
        deltas = raw >> 1
        last_deltas = self._spread([header.last_offset_delta for header in self.headers])
        _require((raw >= 0) & (raw & 1 == 0) & (deltas <= last_deltas), "an offset outside its batch")
        offsets = deltas + self._spread([header.base_offset for header in self.headers])
        _require(offsets[1:] > offsets[:-1], "offsets do not rise")
        return offsets


def _require(holds: Bools, otherwise: str) -> None:
    if not holds.all():
        raise CorruptBatch(otherwise)


def _blobs(octets: Bytes, positions: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return starts, ends and nulls of the length-prefixed values at `positions`. The record's end is not checked."""
    raw, starts = _varints(octets, positions)
    nulls = raw & 1 == 1
    sizes = raw >> 1
    _require((raw >= 0) & (sizes <= len(octets)) & (~nulls | (raw == 1)), "an impossible length")
    return starts, starts + sizes, nulls


def _varints(octets: Bytes, positions: Int64s) -> tuple[Int64s, Int64s]:
    """Return the varints at `positions`, not zigzag decoded, and the positions after them. Negative if bit 63 is set.

    Beyond the end of the data the last byte repeats: harmless, because a value read there ends beyond its record.
    """
    if not len(positions):
        return positions, positions
    values = octets.take(positions, mode="clip").astype(np.int64)
    wide = values > 127
    if not wide.any():
        return values, positions + 1
    second = octets.take(positions + 1, mode="clip").astype(np.int64)
    values += wide * ((second << 7) - 128)
    after = positions + 1 + wide
    rows = np.flatnonzero(wide & (second > 127))
    shift = 14
    while len(rows):
        third = octets.take(after[rows], mode="clip").astype(np.int64)
        if shift == 63 and (third > 1).any():
            raise CorruptBatch("a varint of more than 64 bits")
        values[rows] += third - 1 << shift  # less 1: the continuation bit was added as a digit
        after[rows] += 1
        rows = rows[third > 127]
        shift += 7
    return values, after


def _trim(columns: Columns, start_offset: int, end_offset: int | None) -> Columns:
    """Return only the rows with offsets in [start_offset, end_offset)."""
    offsets = columns.offsets
    start = int(np.searchsorted(offsets, start_offset))
    stop = len(offsets) if end_offset is None else int(np.searchsorted(offsets, end_offset))
    return columns if start == 0 and stop == len(offsets) else columns.slice(start, max(start, stop))


# --- Arrow ------------------------------------------------------------------------------------------------------------


def key_array(columns: Columns) -> pa.Array:
    """Return the keys as Arrow `binary`."""
    return binary_array(columns.data, columns.key_starts, columns.key_ends, columns.key_nulls)


def value_array(columns: Columns) -> pa.Array:
    """Return the values as Arrow `binary`."""
    return binary_array(columns.data, columns.value_starts, columns.value_ends, columns.value_nulls)


def timestamp_array(columns: Columns) -> pa.Array:
    """Return the timestamps as Arrow `timestamp[us, tz=UTC]`."""
    import pyarrow as pa

    return pa.array(columns.timestamps * 1000).view(pa.timestamp("us", tz="UTC"))


def binary_array(data: Buffer, starts: Int64s, ends: Int64s, nulls: Bools) -> pa.Array:
    """Return `data[starts[i]:ends[i]]` for every i as Arrow `binary`, null where `nulls`.

    Starts and ends must not fall and must lie within `data`, of less than 2 GiB (else ValueError). The bytes between
    the pieces become pieces too, so that the offsets are one ascending array over the untouched buffer, and Arrow takes
    every other one: no bytes object is made.
    """
    import pyarrow as pa

    count = len(starts)
    if len(data) > np.iinfo(np.int32).max:
        raise ValueError(f"{len(data)} bytes are too many for 32-bit offsets")
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(1, 2 * count, 2), mask=nulls if nulls.any() else None))


def headers_array(columns: Columns, arrow_type: pa.DataType | None = None, *, empty_is_null: bool = False) -> pa.Array:
    """Return the headers as Arrow `list<struct<key: string, value: binary>>`, or another type of that shape.

    Decodes only rows that have headers. Raises CorruptBatch if they are malformed.
    """
    import pyarrow as pa

    if arrow_type is None:
        arrow_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows: list[list[dict[str, Any]] | None] = [None if empty_is_null else []] * len(columns)
    for row in np.flatnonzero(columns.header_ends - columns.header_starts > 1).tolist():
        rows[row] = [{"key": key, "value": value} for key, value in columns.headers(row)]
    return pa.array(rows, arrow_type)
