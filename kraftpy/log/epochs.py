"""The leader epochs of a log: the first offset of each, and from them the offset at which two logs diverge.

Two logs agree up to the end of the last epoch both know (KIP-101, KIP-279, KIP-320), so a follower truncates by epochs
and never by high watermark.

Invariants: epochs and start offsets grow strictly from entry to entry, but for an epoch that began and ended without a
record, whose entry is replaced by the next one's.

Durability: changes are in memory until the next flush of the log writes `leader-epoch-checkpoint` (`settled` says
whether it must). That is enough: an entry with records behind it is found again by the recovery scan, which begins at
the recovery point, and the recovery point moves only after this file was written; an entry without records behind it
would be dropped when the log is opened, here as in Kafka, and is never written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kraftpy.log.layout import CorruptFile, decode_entries, encode_entries


class EpochEnd(NamedTuple):
    """The end of an epoch in this log; both -1 where it is undefined."""

    leader_epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)


class LeaderEpochs:
    """The epochs of one partition's log."""

    __slots__ = ("_epochs", "_has_empty", "_starts", "version")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._has_empty = False  # nothing is known to have been written in the last epoch
        self.version = 0
        """How often it changed for the disk: what a flush compares, as `settled` gives it."""
        for epoch, start in entries:
            self.assign(epoch, start)
        self._has_empty, self.version = False, 0

    def entries(self) -> list[tuple[int, int]]:
        """(leader epoch, first offset) pairs in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if none is known."""
        return self._epochs[-1] if self._epochs else -1

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Let `leader_epoch` begin at `start_offset`; return whether that changed anything.

        Existing entries of the same or a later epoch, or that begin at or after the offset, are dropped: their history
        did not happen.
        """
        if leader_epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {leader_epoch} at offset {start_offset}")
        if leader_epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        keep = min(bisect_left(self._epochs, leader_epoch), bisect_left(self._starts, start_offset))
        self._drop(keep)
        if self._has_empty:  # the one before this ended with a record, or it would have been dropped
            self.version += 1
        self._epochs.append(leader_epoch)
        self._starts.append(start_offset)
        self._has_empty = True
        return True

    def settled(self, log_end_offset: int) -> int:
        """The version that the disk should have, for a log that ends there: an epoch without a record does not count.

        So thousands of partitions can change their leaders, or be made and never be used, and nothing is to be written.
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
        """The epochs that began before an offset, for a log that is durable up to there only."""
        return encode_entries([entry for entry in self.entries() if entry[1] < offset])

    def _drop(self, keep: int) -> None:
        """Keep so many entries."""
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
        """As `epoch_of`, and where that epoch ends: a bound for whoever asks for many offsets in a row."""
        found = bisect_right(self._starts, offset)
        end = self._starts[found] if found < len(self._starts) else 1 << 63
        return (self._epochs[found - 1] if found else -1), end

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest epoch not above the one asked for, and where it ends: what OffsetForLeaderEpoch answers.

        Undefined for an epoch newer than all known, and for -1. Where all known ones are newer, the asked epoch ends
        where the first of them begins.
        """
        if leader_epoch < 0 or not self._epochs or leader_epoch > self._epochs[-1]:
            return UNDEFINED
        if leader_epoch == self._epochs[-1]:
            return EpochEnd(leader_epoch, log_end_offset)
        above = bisect_right(self._epochs, leader_epoch)
        floor = self._epochs[above - 1] if above else leader_epoch
        return EpochEnd(floor, self._starts[above])

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends before `end_offset`: drop epochs that begin there or later."""
        self._drop(bisect_left(self._starts, end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: the epoch it lies in begins there, earlier ones are gone."""
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
        try:
            pairs = [(int(epoch), int(start)) for epoch, start in decode_entries(data, 2)]
        except CorruptFile:
            raise
        except ValueError as error:
            raise CorruptFile(str(error)) from error
        if any(epoch < 0 or start < 0 for epoch, start in pairs):
            raise CorruptFile("a negative epoch or offset")
        return cls(pairs)
