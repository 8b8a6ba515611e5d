"""The aborted transactions of a log: what readers of committed records are told, and the `.txnindex` files.

All of a log's are held in the order of their markers, so that a read finds those that matter to it by a search and not
by a look at the log. On the disk each segment has those whose marker it holds, in Kafka's form: 34 bytes for each, and
no file where there is none. The file of a sealed segment is written by the flush that stores its other indexes, that of
the last segment when the log is closed.

Kafka's form has no checksum. Ours is in the producer snapshots (`log.producers`): each names the files of the segments
before it and what they hold, and one whose files say something else is not believed.

KIP-98.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
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


def _marker_of(ended: EndedTransaction) -> int:
    return ended.last_offset


class AbortedTransactions:
    """Those of one log, by the offsets of their markers."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Iterable[EndedTransaction] = ()) -> None:
        self._ended = list(ended)

    def __len__(self) -> int:
        return len(self._ended)

    def __iter__(self) -> Iterator[EndedTransaction]:
        return iter(self._ended)

    def add(self, ended: EndedTransaction) -> None:
        """One more, whose marker comes after all others."""
        self._ended.append(ended)

    def between(self, start_offset: int, end_offset: int) -> list[EndedTransaction]:
        """Those with records in [start, end)."""
        found: list[EndedTransaction] = []
        for number in range(self._from(start_offset), len(self._ended)):
            ended = self._ended[number]
            if ended.first_offset < end_offset:
                found.append(ended)
            if ended.last_stable_offset >= end_offset:
                break  # whatever ended later began behind the range
        return found

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Producer id -> (first offset, offset of the marker) of each, in order."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for ended in self._ended:
            ranges.setdefault(ended.producer_id, []).append((ended.first_offset, ended.last_offset))
        return ranges

    def truncate(self, end_offset: int) -> None:
        """Markers from an offset on are gone: their transactions are no longer aborted."""
        del self._ended[self._from(end_offset) :]

    def forget_before(self, offset: int) -> None:
        """The segments before an offset are gone."""
        del self._ended[: self._from(offset)]

    def forget(self, markers: Collection[int]) -> None:
        """Compaction has removed these markers, and before them all that their transactions wrote.

        Readers must not be told of such a transaction: they would wait for its marker, and take the producer's next
        one for aborted.
        """
        self._ended = [ended for ended in self._ended if ended.last_offset not in markers]

    def encode(self, base_offset: int, end_offset: int) -> bytes:
        """The `.txnindex` of the segment with those offsets; empty where there is to be none."""
        found = self._ended[self._from(base_offset) : self._from(end_offset)]
        return b"".join(_ENTRY.pack(_VERSION, *ended) for ended in found)

    def _from(self, offset: int) -> int:
        return bisect_left(self._ended, offset, key=_marker_of)


def decode(data: bytes) -> list[EndedTransaction]:
    """What a `.txnindex` says. CorruptFile where that cannot be."""
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
