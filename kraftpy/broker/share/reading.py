"""Read batches from a log for a share partition, and pick those with records that it acquired."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from kraftpy.broker.replication.replica import AbortedTransaction, Replica
from kraftpy.protocol.record_batch import (
    BatchHeader,
    ControlType,
    CorruptBatch,
    read_markers,
    split_batches,
)
from kraftpy.share.effects import Acquired, Stretch
from kraftpy.types import Offset


class Piece(NamedTuple):
    """One batch of the log, and the stretch of offsets that a share partition sees in it."""

    stretch: Stretch
    batch: memoryview


def read_pieces(replica: Replica, offset: int, max_bytes: int, *, read_committed: bool) -> list[Piece]:
    """Read batches from an offset on, at least one if there is any. Markers and aborted batches count as empty.

    Only committed records are read; with `read_committed`, only those before the first open transaction. Raises
    KafkaError as `Replica.read` does.
    """
    read = replica.read(Offset(offset), max_bytes, read_committed=read_committed, min_one_batch=True)
    assert isinstance(read.records, bytes)
    waiting = sorted(read.aborted_transactions, key=lambda each: each.first_offset, reverse=True)
    aborted: set[int] = set()
    pieces = []
    for header, batch in split_batches(read.records):
        has_records = not header.is_control
        if read_committed:
            has_records = _has_committed(header, batch, waiting, aborted)
        last_offset = header.base_offset + header.last_offset_delta
        pieces.append(Piece(Stretch(header.base_offset, last_offset, has_records), batch))
    return pieces


def _has_committed(
    header: BatchHeader, batch: memoryview, waiting: list[AbortedTransaction], aborted: set[int]
) -> bool:
    """Return whether a batch holds committed records. Updates `aborted`, the producers whose transaction is aborted."""
    while waiting and waiting[-1].first_offset <= header.next_offset - 1:
        aborted.add(waiting.pop().producer_id)
    if not header.is_control:
        return not (header.is_transactional and header.producer_id in aborted)
    with suppress(CorruptBatch):  # a marker of an unknown type
        if any(marker.type == ControlType.ABORT for marker in read_markers(header, batch)):
            aborted.discard(header.producer_id)
    return False


def with_acquired(pieces: Sequence[Piece], acquired: Sequence[Acquired]) -> bytes:
    """Return the batches that have acquired records, concatenated."""
    needed: list[memoryview] = []
    place = 0
    for stretch, batch in pieces:
        while place < len(acquired) and acquired[place].last_offset < stretch.first_offset:
            place += 1
        if place < len(acquired) and acquired[place].first_offset <= stretch.last_offset:
            needed.append(batch)
    return b"".join(needed)
