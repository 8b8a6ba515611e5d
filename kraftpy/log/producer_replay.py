"""Rebuilds a log's producer state from its snapshots and batches, at startup and after a truncation.

A snapshot is trusted if it is whole and the `.txnindex` files of the segments before it match its checksums
(`log.aborted_transactions`). Then the batches after it are applied by their headers; only markers have their record
read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import xxhash

from kraftpy.log import aborted_transactions as aborted
from kraftpy.log import layout
from kraftpy.log.aborted_transactions import AbortedTransactions, EndedTransaction
from kraftpy.log.layout import CorruptFile
from kraftpy.log.producer_states import ProducerStates
from kraftpy.log.segment import CorruptSegment, Segment
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    read_header,
    read_markers,
)
from kraftpy.types import Millis

_REPLAY_BYTES: Final = 1 << 16


def snapshot_offsets(directory: Directory) -> list[int]:
    """Return the offsets of the producer snapshots on disk, in order."""
    return sorted(
        offset for name in directory.names() if (offset := layout.offset_of(name, layout.SNAPSHOT)) is not None
    )


def delete_snapshots_before(directory: Directory, end_offset: int) -> None:
    """Delete the producer snapshots before an offset."""
    for offset in snapshot_offsets(directory):
        if offset < end_offset:
            directory.delete(layout.file_name(offset, layout.SNAPSHOT))


def newest_snapshot(
    directory: Directory, end_offset: int, first_base_offset: int, doubtful: Collection[int] = ()
) -> tuple[ProducerStates, int]:
    """Return the newest whole snapshot up to `end_offset` that is not among the `doubtful`, and its offset.

    Deletes snapshots that are damaged, or contradicted by the `.txnindex` files of segments from `first_base_offset`
    on. Returns no producers and offset -1 if no snapshot is left.
    """
    for offset in reversed(snapshot_offsets(directory)):
        if offset > end_offset or offset in doubtful:
            continue
        name = layout.file_name(offset, layout.SNAPSHOT)
        try:
            states, indexes = ProducerStates.decode(directory.read(name))
            _add_aborted(states, directory, offset, first_base_offset, indexes)
            return states, offset
        except CorruptFile:
            directory.delete(name)
    return ProducerStates(), -1


def _add_aborted(
    states: ProducerStates,
    directory: Directory,
    offset: int,
    first_base_offset: int,
    proofs: Mapping[int, bytes] | None,
) -> None:
    """Insert the aborted transactions of the segments before a snapshot before its own ones.

    `proofs` are the checksums of their files (`ProducerStates.decode`). Raises CorruptFile if a file does not match.
    """
    bases = (
        [layout.offset_of(name, layout.TRANSACTION_INDEX) for name in directory.names()] if proofs is None else proofs
    )
    found: list[EndedTransaction] = []
    for base in sorted(base for base in bases if base is not None and first_base_offset <= base < offset):
        name = layout.file_name(base, layout.TRANSACTION_INDEX)
        try:
            data = directory.read(name)
        except FileNotFoundError:
            raise CorruptFile(f"{name} is missing") from None
        if proofs is not None and xxhash.xxh64_digest(data) != proofs[base]:
            raise CorruptFile(f"{name} does not match the checksum in the snapshot")
        found += [ended for ended in aborted.decode(data) if ended.last_offset < offset]
    if found:
        states.aborted = AbortedTransactions([*found, *states.aborted])


def replay(
    states: ProducerStates,
    segments: list[Segment],
    from_offset: int,
    now: Millis,
    scanned: Mapping[Segment, list[tuple[int, bytes]]] | None = None,
) -> int:
    """Apply the batches from an offset on to `states`, by their headers (markers: by their record); return their count.

    For segments in `scanned`, the relevant headers are known already. The rest of a damaged segment is skipped.
    """
    replayed = 0
    first = max(0, bisect_right([segment.base_offset for segment in segments], from_offset) - 1)
    for segment in segments[first:]:
        known = None if scanned is None else scanned.get(segment)
        try:
            for position, header in _headers(segment, from_offset) if known is None else _decoded(known, from_offset):
                replayed += 1
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    apply_markers(states, header, segment.log.get().read(position, header.size_bytes), now)
                else:
                    states.appended(header, now)
        except CorruptSegment:
            continue
    return replayed


def _decoded(known: list[tuple[int, bytes]], from_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    for position, data in known:
        header = read_header(data)
        if header.last_offset >= from_offset:
            yield position, header


def apply_markers(states: ProducerStates, header: BatchHeader, batch: Buffer, now: Millis) -> None:
    """Apply the markers of a control batch. Control records of an unknown kind end no transaction."""
    try:
        for marker in read_markers(header, batch):
            states.ended(header, marker, now)
    except CorruptBatch:
        return


def _headers(segment: Segment, from_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch, starting with the one that holds the offset."""
    found = segment.find(from_offset)
    if found is None:
        return
    position = found.position
    file, end = segment.log.get(), segment.size
    window, start = b"", position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(window):
            window, start, at = file.read(position, min(_REPLAY_BYTES, end - position)), position, 0
        if len(window) < HEADER_BYTES:
            raise CorruptSegment(segment.log.name, position, "not a batch header")
        header = read_header(window, at)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES or position + header.size_bytes > end:
            raise CorruptSegment(segment.log.name, position, "not a batch header")
        yield position, header
        position += header.size_bytes
