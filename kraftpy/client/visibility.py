"""Decides which batches of a fetch response hold records for the application: no markers, no aborted transactions.

A read_committed fetch comes with the transactions aborted within its range, each as (producer id, first offset). A
producer's transactional batches are hidden from that offset on, until its abort marker passes.

Invariant: batches are asked about in log order, all of one response, starting with its first. Left out: the last stable
offset; the broker already ends a read_committed response there. KIP-98.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kraftpy.ports import Buffer
from kraftpy.protocol.record_batch import (
    BatchHeader,
    ControlType,
    CorruptBatch,
    read_markers,
)


class Visibility:
    """The reader's view of one fetch response of one partition. `aborted` is None when reading uncommitted."""

    __slots__ = ("_aborting", "_ahead")

    def __init__(self, aborted: Iterable[tuple[int, int]] | None = None) -> None:
        self._ahead = deque(sorted((first_offset, producer_id) for producer_id, first_offset in aborted or ()))
        self._aborting: set[int] = set()

    def shows(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether the batch's records are for the application. Raises CorruptBatch for an unreadable marker."""
        while self._ahead and self._ahead[0][0] <= header.last_offset:
            self._aborting.add(self._ahead.popleft()[1])
        if header.is_control:
            if header.producer_id in self._aborting and _is_abort(header, batch):
                self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def _is_abort(header: BatchHeader, batch: Buffer) -> bool:
    marker = next(read_markers(header, batch), None)
    if marker is None:
        raise CorruptBatch("a control batch without a record")
    return marker.type == ControlType.ABORT
