"""The leader epochs of a log, with the first offset of each: they show at which offset two logs diverge.

Two logs agree up to the end of the last epoch that both know (KIP-101, KIP-279, KIP-320), so a follower truncates by
epochs and never by high watermark.

Invariants: epochs and start offsets strictly grow from entry to entry. If an epoch ends without a record, the next
epoch's entry replaces its entry.

Durability: changes stay in memory until the next flush of the log writes `leader-epoch-checkpoint` (`version_to_store`
shows whether it has to). That is enough. If records follow an entry, the recovery scan finds it again: the scan begins
at the recovery point, which moves only after this file was written. If no records follow it, it would be dropped when
the log is opened, here as in Kafka, so it is never written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kraftpy.log.layout import decode_entries, decode_number, encode_entries


class EpochEnd(NamedTuple):
    """The end of an epoch in this log; both fields are -1 if it is undefined."""

    leader_epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)


class LeaderEpochs:
    """The epochs of one partition's log."""

    __slots__ = ("_epochs", "_has_empty", "_starts", "version")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._has_empty = False  # as far as is known, no record was written in the last epoch
        self.version = 0
        """Counts the changes that the file on disk must follow; a flush compares it (`version_to_store`)."""
        for epoch, start in entries:
            self.assign(epoch, start)
        self._has_empty, self.version = False, 0

    def entries(self) -> list[tuple[int, int]]:
        """Return (leader epoch, first offset) pairs in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if none is known."""
        return self._epochs[-1] if self._epochs else -1

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Let `leader_epoch` begin at `start_offset`; return whether that changed anything.

        Drops existing entries of the same or a later epoch, and entries that begin at or after the offset: their
        records have been truncated.
        """
        if leader_epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {leader_epoch} at offset {start_offset}")
        if leader_epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        keep = min(bisect_left(self._epochs, leader_epoch), bisect_left(self._starts, start_offset))
        self._drop(keep)
        if self._has_empty:  # the previous epoch has a record; otherwise it would have been dropped
            self.version += 1
        self._epochs.append(leader_epoch)
        self._starts.append(start_offset)
        self._has_empty = True
        return True

    def version_to_store(self, log_end_offset: int) -> int:
        """Return the version that the disk should have, given the log's end: an epoch without a record does not count.

        Thousands of partitions can therefore change leaders, or be created and never used, without a write.
        """
        if self._has_empty and self._starts[-1] < log_end_offset:
            self._has_empty = False
            self.version += 1
        return self.version

    def to_store(self, log_end_offset: int) -> bytes:
        """Return the contents for `leader-epoch-checkpoint`: all epochs except one without a record."""
        entries = self.entries()
        if entries and entries[-1][1] >= log_end_offset:
            self._has_empty = True
            entries.pop()
        return encode_entries(list(entries))

    def to_store_before(self, offset: int) -> bytes:
        """Return the file's contents for a log that is durable only up to `offset`: the epochs that began before it."""
        return encode_entries([entry for entry in self.entries() if entry[1] < offset])

    def _drop(self, keep: int) -> None:
        """Drop all but the first `keep` entries."""
        if keep < len(self._epochs):
            if keep < len(self._epochs) - self._has_empty:
                self.version += 1
            self._has_empty = False
            del self._epochs[keep:]
            del self._starts[keep:]

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which a record of the log was written; -1 if unknown."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else -1

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return what `epoch_of` returns, and the end offset of that epoch, up to which the answer stays the same."""
        found = bisect_right(self._starts, offset)
        end = self._starts[found] if found < len(self._starts) else 1 << 63
        return (self._epochs[found - 1] if found else -1), end

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the answer to OffsetForLeaderEpoch: the largest epoch up to the requested one, and its end offset.

        The end is UNDEFINED for -1 and for an epoch newer than all known ones. If all known epochs are newer, the
        requested epoch ends where the first of them begins.
        """
        if leader_epoch == UNDEFINED.leader_epoch or not self._epochs or leader_epoch > self._epochs[-1]:
            return UNDEFINED
        if leader_epoch == self._epochs[-1]:
            return EpochEnd(leader_epoch, log_end_offset)
        above = bisect_right(self._epochs, leader_epoch)
        floor = self._epochs[above - 1] if above else leader_epoch
        return EpochEnd(floor, self._starts[above])

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at `end_offset` or later, because the log now ends there."""
        self._drop(bisect_left(self._starts, end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at `start_offset` or earlier, and let the current one begin there.

        The log now begins at that offset.
        """
        found = bisect_right(self._starts, start_offset)
        if found and self._starts[found - 1] < start_offset:
            self._starts[found - 1] = start_offset
            self.version += 1
        if found > 1:
            del self._epochs[: found - 1]
            del self._starts[: found - 1]
            self.version += 1

    def clear(self) -> None:
        """Forget everything, because the log starts over."""
        self._drop(0)

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Decode the bytes of a checkpoint. Raises CorruptFile if they are damaged."""
        return cls([(decode_number(epoch), decode_number(start)) for epoch, start in decode_entries(data, 2)])
