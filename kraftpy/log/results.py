"""The data types of appends and reads."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kraftpy.log.files import LazyFile
from kraftpy.ports import File


class Origin(Enum):
    """The origin of batches to append."""

    CLIENT = "client"  # one batch; offsets assigned, producer rules enforced
    COORDINATOR = "coordinator"  # the broker itself: one batch, control batches allowed
    REPLICA = "replica"  # copies of the leader's batches, offsets as they are


class AppendResult:
    """The outcome of an append. Offsets of a duplicate are those of its first copy."""

    __slots__ = (
        "base_offset", "flush_due", "is_duplicate", "last_offset", "log_append_time", "log_end_offset",
        "log_start_offset", "rolled",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        last_offset: int,
        log_append_time: int,
        log_start_offset: int,
        log_end_offset: int,
        is_duplicate: bool,
        rolled: bool,
        flush_due: bool,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time = log_append_time
        """Milliseconds if the topic stamps LogAppendTime, else -1."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        """The log's end after the append. Unless `is_duplicate`, wake readers that wait for more."""
        self.is_duplicate = is_duplicate
        self.rolled = rolled
        """A segment was sealed: flush soon, to store its index and free its memory."""
        self.flush_due = flush_due
        """`flush.messages` is reached, or the topic syncs before it acknowledges: flush up to `last_offset` first."""


class ReadResult(NamedTuple):
    """Whole batches. The first may begin before the offset asked for."""

    records: bytes
    next_offset: int
    """The offset to read next; the requested offset if nothing was read."""


class LogSlice:
    """Whole batches as a range of a file, for a transfer that bypasses memory.

    `release` it when done: until then the file stays open, even if it is renamed or deleted. A slice that is garbage
    collected is released too.
    """

    __slots__ = ("_handle", "file", "length", "next_offset", "position")

    def __init__(self, handle: LazyFile, position: int, length: int, next_offset: int) -> None:
        self._handle: LazyFile | None = None
        self.file: File = handle.pin()
        self._handle = handle
        self.position = position
        self.length = length
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return len(self) > 0

    def read(self) -> bytes:
        """Return a copy of the batches."""
        return self.file.read(self.position, self.length)

    def release(self) -> None:
        """Release the slice, so that the file may be closed. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin(self.file)

    def __del__(self) -> None:
        self.release()


class TimestampAndOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int
