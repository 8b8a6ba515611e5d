"""The aborted transactions of a log, as reported to readers of committed records, and the `.txnindex` files.

A log's aborted transactions are held in memory in the order of their markers, so that a read finds the relevant ones
by binary search instead of reading the log. On disk, each segment has a file of the transactions whose markers it
holds, in Kafka's format: 34 bytes per transaction, and no file if there are none. The flush that stores a sealed
segment's other indexes writes this file too; that of the active segment is written when the log is closed.

A transaction takes 32 bytes of memory for as long as the segment with its marker exists. That is less than a quarter of
the space that an aborted batch and its marker take in the log, so retention bounds both.

Kafka's format has no checksum. The checksums are in the producer snapshots (`log.producer_states`) instead: a snapshot
names the files of the segments before it and their checksums, and is not trusted if a file's contents differ.

KIP-98.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import compress, pairwise
from typing import Final, NamedTuple

from kraftpy.log.layout import CorruptFile

_ENTRY: Final = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
_VERSION: Final = 0


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's own offset."""
    last_stable_offset: int
    """The partition's last stable offset when the transaction ended: everything before it is decided."""


class AbortedTransactions:
    """The aborted transactions of one log, ordered by the offsets of their markers, in four arrays of int64."""

    __slots__ = ("_first_offsets", "_last_offsets", "_last_stable_offsets", "_producer_ids")

    def __init__(self, ended: Iterable[EndedTransaction] = ()) -> None:
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._last_stable_offsets = array("q")
        for each in ended:
            self.add(each)

    def __len__(self) -> int:
        return len(self._last_offsets)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[EndedTransaction]:
        return map(EndedTransaction._make, zip(*self._columns, strict=True))

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """The arrays in the order of the fields of `EndedTransaction`."""
        return self._producer_ids, self._first_offsets, self._last_offsets, self._last_stable_offsets

    def add(self, ended: EndedTransaction) -> None:
        """Add a transaction whose marker comes after all others."""
        for column, value in zip(self._columns, ended, strict=True):
            column.append(value)

    def between(self, start_offset: int, end_offset: int) -> list[EndedTransaction]:
        """Return the aborted transactions with records in [start, end)."""
        found: list[EndedTransaction] = []
        first_offsets, last_stable_offsets = self._first_offsets, self._last_stable_offsets
        for number in range(self._from(start_offset), len(first_offsets)):
            if first_offsets[number] < end_offset:
                found.append(EndedTransaction._make(column[number] for column in self._columns))
            if last_stable_offsets[number] >= end_offset:
                break  # transactions that ended later began after the range
        return found

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Return producer id -> (first offset, offset of the marker) of each of its transactions, in order."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in zip(
            self._producer_ids, self._first_offsets, self._last_offsets, strict=True
        ):
            ranges.setdefault(producer_id, []).append((first_offset, last_offset))
        return ranges

    def truncate(self, end_offset: int) -> None:
        """Forget the transactions whose markers were at `end_offset` or beyond, after a truncation."""
        number = self._from(end_offset)
        for column in self._columns:
            del column[number:]

    def forget_before(self, offset: int) -> None:
        """Forget the transactions whose markers were before an offset, because those segments are gone."""
        number = self._from(offset)
        for column in self._columns:
            del column[:number]

    def forget(self, markers: Collection[int]) -> None:
        """Forget the transactions whose markers, at these offsets, compaction has removed with all of their records.

        If a reader were given such a transaction, it would wait for its marker and treat the producer's next
        transaction as aborted.
        """
        stay = [last_offset not in markers for last_offset in self._last_offsets]
        for column in self._columns:
            column[:] = array("q", compress(column, stay))

    def encode(self, base_offset: int, end_offset: int) -> bytes:
        """Return the `.txnindex` of the segment with the offsets [base, end); empty if it needs no file."""
        some = slice(self._from(base_offset), self._from(end_offset))
        found = zip(*(column[some] for column in self._columns), strict=True)
        return b"".join(_ENTRY.pack(_VERSION, *ended) for ended in found)

    def _from(self, offset: int) -> int:
        return bisect_left(self._last_offsets, offset)


def decode(data: bytes) -> list[EndedTransaction]:
    """Decode a `.txnindex`. Raises CorruptFile if its contents are impossible."""
    if len(data) % _ENTRY.size:
        raise CorruptFile(f"{len(data)} bytes are not a multiple of {_ENTRY.size}")
    found: list[EndedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        ended = EndedTransaction(*fields)
        if version != _VERSION:
            raise CorruptFile(f"an entry of unknown version {version}")
        if (
            not 0 <= ended.first_offset < ended.last_offset
            or not 0 <= ended.last_stable_offset <= ended.last_offset + 1
        ):
            raise CorruptFile(f"an entry with impossible offsets: {ended}")
        found.append(ended)
    if any(one.last_offset >= other.last_offset for one, other in pairwise(found)):
        raise CorruptFile("entries out of order")
    return found
