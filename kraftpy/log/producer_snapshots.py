"""The files from which a log's producer state is rebuilt: which of them are due, and which a truncation outdates.

They are the producer snapshots, one per sealed segment and one of a clean stop, and the `.txnindex` files of the
segments that have aborted transactions. The next flush writes those that are due (`flushing.Durability`), and
`producer_replay` reads them.

Invariant: the state at the log's end is that of the newest snapshot, written or due, with the batches after it applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kraftpy.log import layout
from kraftpy.log.flushing import Durability
from kraftpy.log.producer_replay import newest_snapshot, replay, snapshot_offsets
from kraftpy.log.producer_states import ProducerStates
from kraftpy.log.segments import Segments
from kraftpy.ports import Directory
from kraftpy.types import Millis


class ProducerSnapshots:
    """The snapshots and `.txnindex` files of one log."""

    __slots__ = ("_complete_at", "_directory", "_durability")

    def __init__(self, directory: Directory, durability: Durability) -> None:
        self._directory = directory
        self._durability = durability
        self._complete_at = -1

    # --- writing ---

    def take(self, producers: ProducerStates, end_offset: int, bases: Sequence[int]) -> None:
        """Have the next flush write a snapshot of the state at `end_offset`, for segments with these base offsets."""
        self._durability.snapshots[end_offset] = producers.encode(bases)

    def note_complete(self, end_offset: int) -> None:
        """Note that a clean stop at this end of the log need not take another snapshot."""
        self._complete_at = end_offset

    def is_complete(self, end_offset: int) -> bool:
        """Return whether a clean stop at this end of the log need not take another snapshot."""
        return self._complete_at == end_offset

    def outdate(self) -> None:
        """Note that the state has changed without the log's end: a clean stop must take another snapshot."""
        self._complete_at = -1

    def keep_aborted(self, producers: ProducerStates, base_offset: int, end_offset: int) -> None:
        """Have the next flush write the aborted transactions of a segment, if it has any."""
        data = producers.aborted.encode(base_offset, end_offset)
        if data:
            self._durability.transactions[base_offset] = data

    def has_due_before(self, end_offset: int) -> bool:
        """Return whether a snapshot before an offset is still unwritten or being written."""
        return any(offset < end_offset for offset in self._durability.snapshots)

    # --- truncation ---

    def reload(self, segments: Segments, end_offset: int, now: Millis, *, previous: ProducerStates) -> ProducerStates:
        """Return the state at the end of a truncated log, and drop the snapshots of what was truncated.

        `previous` is the state before the truncation: it knows every aborted transaction of the log.
        """
        due = self._durability.snapshots
        for offset in [offset for offset in due if offset > end_offset]:
            del due[offset]
        for offset in snapshot_offsets(self._directory):
            if offset > end_offset:
                self._directory.delete(layout.file_name(offset, layout.SNAPSHOT))
        doubtful = self._durability.doubtful_snapshots()
        states, from_offset = newest_snapshot(self._directory, end_offset, segments.bases[0], doubtful)
        newest = max(due, default=-1)
        if newest > from_offset:
            (states, _), from_offset = ProducerStates.decode(due[newest]), newest
        replay(states, list(segments), from_offset, now)
        states.aborted = previous.aborted
        states.aborted.truncate(end_offset)
        return states

    def delete_written(self) -> None:
        """Delete all snapshots on disk, before the records that they cover."""
        for offset in snapshot_offsets(self._directory):
            self._directory.delete(layout.file_name(offset, layout.SNAPSHOT))

    def forget_due(self) -> None:
        """Write none of the files that are due: the log has started over."""
        self._durability.snapshots.clear()
        self._durability.transactions.clear()

    # --- deletion ---

    def rename_to_deleted(self, offsets: Iterable[int]) -> list[str]:
        """Rename the snapshots at these offsets, so that a start ignores them; return their new names."""
        gone: list[str] = []
        for offset in offsets:
            name = layout.file_name(offset, layout.SNAPSHOT)
            if self._directory.exists(name):
                self._directory.rename(name, name + layout.DELETED)
                gone.append(name + layout.DELETED)
        return gone
