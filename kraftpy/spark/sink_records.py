"""Encode rows of Arrow arrays as records, and compute the partitions of keys: numpy and Arrow, no object per row.

A record is a few varints, its key, a varint, its value, and its headers. The varints of all rows are made as one matrix
of bytes, and Arrow itself concatenates the pieces of each row (`binary_join_element_wise`), so that the data buffer of
its result is what is sent to the broker. Keys are hashed four bytes of every row at a time.

Invariant: the output is, byte for byte, what `protocol.records.encode_records` makes of the same records.
Left out: timestamps of rows (Spark's sink has no such column); all records of a batch have the batch's time. Only rows
with headers cost a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kraftpy.protocol.records import encode_headers

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

FIXED_BYTES = 32
"""The most that a record needs besides key, value and headers: attributes, a time delta and five varints."""

_MURMUR_SEED = 0x9747B28C
_MIX = np.uint32(0x5BD1E995)
_NO_HEADERS = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows to write, by column: `binary` arrays of the same length; headers are already encoded."""

    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Rows:
        """Return rows `start` to `stop`, without copying."""
        return self._each(lambda array: array.slice(start, stop - start))

    def take(self, order: Int64s) -> Rows:
        """Return the rows in another order."""
        indices = pa.array(order)
        return self._each(lambda array: array.take(indices))

    def _each(self, change: Any) -> Rows:
        return Rows(
            keys=None if self.keys is None else change(self.keys),
            values=change(self.values),
            headers=None if self.headers is None else change(self.headers),
        )

    def size_bounds(self) -> Int64s:
        """Return an upper bound of each row's record size in bytes."""
        sizes = np.maximum(lengths(self.values), 0) + FIXED_BYTES
        if self.keys is not None:
            sizes += np.maximum(lengths(self.keys), 0)
        if self.headers is not None:
            sizes += lengths(self.headers)
        return sizes


def as_binary(column: pa.Array) -> pa.Array:
    """Convert a column of strings or bytes, with offsets of any width, to `binary`."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def lengths(column: pa.Array) -> Int64s:
    """Return the length of each row of a `binary` array; -1 for null, as on the wire."""
    counted = pc.binary_length(column)
    if column.null_count:
        counted = pc.fill_null(counted, -1)
    return counted.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def encoded_headers(column: pa.Array) -> pa.Array | None:
    """Encode a column of `list<struct<key, value>>` as records have it after the value; None if no row has headers.

    Raises ValueError for a header without a key.
    """
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(counts)
    if not len(rows):
        return None
    encoded = [_NO_HEADERS] * len(column)
    for row in rows.tolist():
        pairs = column[row].as_py()
        if any(pair is None or pair["key"] is None for pair in pairs):
            raise ValueError("a header's key is null")
        encoded[row] = encode_headers([(pair["key"], pair["value"]) for pair in pairs])
    return pa.array(encoded, pa.binary())


# --- records ----------------------------------------------------------------------------------------------------------


def encode_rows(rows: Rows, offset_deltas: Int64s) -> tuple[memoryview, Int64s]:
    """Return the encoded records of `rows`, concatenated, and where each begins, followed by the end of the last."""
    key_lengths = np.full(len(rows), -1, np.int64) if rows.keys is None else lengths(rows.keys)
    value_lengths = lengths(rows.values)
    header_lengths = 1 if rows.headers is None else lengths(rows.headers)
    offset_bytes, offset_widths = _varints(offset_deltas)
    key_bytes, key_widths = _varints(key_lengths)
    value_bytes, value_widths = _varints(value_lengths)
    # Attributes and the time delta are one zero byte each.
    sizes = 2 + offset_widths + key_widths + np.maximum(key_lengths, 0)
    sizes += value_widths + np.maximum(value_lengths, 0) + header_lengths
    size_bytes, size_widths = _varints(sizes)
    zeros = np.zeros((len(rows), 2), np.uint8)
    before_key = _pieces(
        np.concatenate((size_bytes, zeros, offset_bytes, key_bytes), axis=1),
        (size_widths, np.full(len(rows), 2), offset_widths, key_widths),
        (size_bytes.shape[1], 2, offset_bytes.shape[1], key_bytes.shape[1]),
    )
    before_value = _pieces(value_bytes, (value_widths,), (value_bytes.shape[1],))
    pieces = [before_key, rows.keys, before_value, rows.values]
    tail = pa.scalar(_NO_HEADERS, pa.binary()) if rows.headers is None else rows.headers
    given = [piece for piece in (*pieces, tail) if piece is not None]
    joined = pc.binary_join_element_wise(
        *given, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )
    _, offsets, data = joined.buffers()
    starts = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(rows) + 1].astype(np.int64)
    return memoryview(data), starts


def _varints(numbers: Int64s) -> tuple[Octets, Int64s]:
    """Encode numbers below 2^34 as zigzag varints: one row of bytes each, and how many of them are used."""
    rest = numbers << 1 ^ numbers >> 63
    widest = 1
    top = int(rest.max(initial=0))
    while top >> 7 * widest:
        widest += 1
    out = np.empty((len(numbers), widest), np.uint8)
    widths = np.ones(len(numbers), np.int64)
    for place in range(widest):
        more = rest > 127
        out[:, place] = (rest & 127) | more.astype(np.int64) << 7
        widths += more
        rest = rest >> 7
    return out, widths


def _pieces(matrix: Octets, widths: Sequence[Int64s], room: Sequence[int]) -> pa.Array:
    """Join the used bytes of each matrix row into one piece; fields have `room` columns each, `widths` of them used."""
    columns = [np.arange(columns) < width[:, None] for columns, width in zip(room, widths, strict=True)]
    used = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    offsets = np.zeros(len(matrix) + 1, np.int32)
    np.cumsum(used.sum(axis=1), out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix[used]))]
    )


# --- partitions of keys -----------------------------------------------------------------------------------------------


def murmur2_of(keys: pa.Array) -> Int64s:
    """Return `client.partitioner.murmur2` of each key; the result for null is undefined."""
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    octets = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    sizes = np.diff(offsets)
    starts = offsets[:-1]
    hashed = (np.uint32(_MURMUR_SEED) ^ sizes.astype(np.uint32)).astype(np.uint32)
    words = sizes >> 2
    rows = np.flatnonzero(words)
    place = 0
    while len(rows):
        word = _little_endian(octets, starts[rows] + 4 * place, 4) * _MIX
        word = (word ^ word >> np.uint32(24)) * _MIX
        hashed[rows] = hashed[rows] * _MIX ^ word
        place += 1
        rows = rows[words[rows] > place]
    for left in (1, 2, 3):
        rows = np.flatnonzero(sizes & 3 == left)
        if len(rows):
            last = _little_endian(octets, starts[rows] + (words[rows] << 2), left)
            hashed[rows] = (hashed[rows] ^ last) * _MIX
    hashed = (hashed ^ hashed >> np.uint32(13)) * _MIX
    return (hashed ^ hashed >> np.uint32(15)).astype(np.int64)


def _little_endian(octets: Octets, at: Int64s, count: int) -> npt.NDArray[np.uint32]:
    word = octets[at].astype(np.uint32)
    for place in range(1, count):
        word |= octets[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word
