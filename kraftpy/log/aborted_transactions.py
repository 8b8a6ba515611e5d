"""The aborted transactions of a log, as reported to readers of committed records, and the `.txnindex` files.

All of a log's are held in the order of their markers, so that a read finds those that matter to it by a search and not
by a look at the log. On the disk each segment has those whose marker it holds, in Kafka's form: 34 bytes for each, and
no file where there is none. The file of a sealed segment is written by the flush that stores its other indexes, that of
the last segment when the log is closed.

Each costs 32 bytes of memory for as long as the segment with its marker is there. That is less than a quarter of what
an aborted batch and its marker take in the log, so retention bounds the one with the other.

Kafka's form has no checksum. Ours is in the producer snapshots (`log.producer_states`): each names the files of the
segments before it and what they hold, and one whose files say something else is not believed.

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
    """The partition's when it ended: nothing before it can still be undecided."""


class AbortedTransactions:
    """Those of one log, by the offsets of their markers: 32 bytes for each, and an array's room to grow."""

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

    def __iter__(self) -> Iterator[EndedTransaction]:
        return map(EndedTransaction._make, zip(*self._columns, strict=True))

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """As the fields of `EndedTransaction`."""
        return self._producer_ids, self._first_offsets, self._last_offsets, self._last_stable_offsets

    def add(self, ended: EndedTransaction) -> None:
        """Add a transaction, whose marker comes after all others."""
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
                break  # whatever ended later began behind the range
        return found

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Producer id -> (first offset, offset of the marker) of each, in order."""
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
        """Compaction has removed these markers, and before them all that their transactions wrote.

        Readers must not be told of such a transaction: they would wait for its marker, and take the producer's next
        one for aborted.
        """
        stay = [last_offset not in markers for last_offset in self._last_offsets]
        for column in self._columns:
            column[:] = array("q", compress(column, stay))

    def encode(self, base_offset: int, end_offset: int) -> bytes:
        """The `.txnindex` of the segment with those offsets; empty where there is to be none."""
        some = slice(self._from(base_offset), self._from(end_offset))
        found = zip(*(column[some] for column in self._columns), strict=True)
        return b"".join(_ENTRY.pack(_VERSION, *ended) for ended in found)

    def _from(self, offset: int) -> int:
        return bisect_left(self._last_offsets, offset)


def decode(data: bytes) -> list[EndedTransaction]:
    """Decode a `.txnindex`. Raises CorruptFile if its contents are impossible."""
    if len(data) % _ENTRY.size:
        raise CorruptFile(f"{len(data)} bytes are not whole entries of {_ENTRY.size}")
    found: list[EndedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        ended = EndedTransaction(*fields)
        if version != _VERSION:
            raise CorruptFile(f"an entry of version {version}")
        if (
            not 0 <= ended.first_offset < ended.last_offset
            or not 0 <= ended.last_stable_offset <= ended.last_offset + 1
        ):
            raise CorruptFile(f"an entry that contradicts itself: {ended}")
        found.append(ended)
    if any(one.last_offset >= other.last_offset for one, other in pairwise(found)):
        raise CorruptFile("entries that are out of order")
    return found
