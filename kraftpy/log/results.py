"""What goes into a log and what comes out of it, as data."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kraftpy.log.files import LazyFile
from kraftpy.ports import File


class Origin(Enum):
    """Who wrote the batches that are to be appended."""

    CLIENT = "client"  # one batch; offsets assigned, producer rules enforced
    COORDINATOR = "coordinator"  # the broker itself: one batch, control batches allowed
    REPLICA = "replica"  # copies of the leader's batches, offsets as they are


class AppendResult(NamedTuple):
    """What became of an append. Offsets of a duplicate are those of its first copy."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """Milliseconds where the topic stamps LogAppendTime, else -1."""
    log_start_offset: int
    log_end_offset: int
    """After the append. Readers waiting for more are to be woken unless `is_duplicate`."""
    is_duplicate: bool
    rolled: bool
    """A segment was sealed: have a flush run soon, to store its index and free its memory."""
    flush_due: bool
    """`flush.messages` is reached, or the topic syncs before it acknowledges: flush up to `last_offset` first."""


class ReadResult(NamedTuple):
    """Whole batches. The first may begin before the offset asked for."""

    records: bytes
    next_offset: int
    """Where to go on; the offset asked for where nothing was read."""


class LogSlice:
    """Whole batches as a stretch of a file, for a transfer that bypasses memory. `release` it when done: until then the
    file stays open, whatever becomes of its name. One that nobody holds any more is released too.
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

    def read(self) -> bytes:
        """The batches, copied."""
        return self.file.read(self.position, self.length)

    def release(self) -> None:
        """It is no longer needed, and the file may be closed. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin(self.file)

    __del__ = release


class TimestampAndOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int
