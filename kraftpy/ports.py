"""What the core is given of the world: files, directories and clocks. Nothing else.

The real ones are in `broker/runtime.py`; tests and the simulation hand in others (in memory, losing what was
not synced, with a clock that is moved by hand). Every method may raise `OSError`, as the disk does; nobody in the core
catches it, because a failing disk is the shell's decision. `failure_of` alone decides how such an error is classified.

Durability, stated once: `File.write` reaches the page cache; only `File.sync` makes it survive a power loss. A created,
renamed or deleted name survives one only after `Directory.sync`.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final, Protocol

from kraftpy.types import Millis

Buffer = bytes | bytearray | memoryview
"""Anything the wire or the disk hands us as bytes."""


_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_NO_RESOURCES: Final = (*_NO_DESCRIPTORS, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR)
_REFUSED_NAME: Final = (errno.ENAMETOOLONG, errno.EILSEQ)


class Failure(Enum):
    """The meaning of an `OSError` of a file, a directory, a thread or a process."""

    FULL = "the disk is full"
    """It costs the request, and passes when there is room."""
    RESOURCES = "out of descriptors, memory or threads"
    """Nothing is wrong with the disk: the operation is tried again, or costs the request."""
    NAME = "a name that the file system does not take"
    """It costs the request, and does not pass."""
    DISK = "the disk failed"
    """Nobody knows what is on the disk: it costs the log directory."""


def failure_of(error: OSError, *, is_sync: bool = False) -> Failure:
    """Classify an error. `is_sync`: it came out of a sync, or of an operation that ends with one.

    A sync that failed with almost any errno may have lost the data that it should have made durable. No sync answers
    EMFILE or ENFILE: with these, a file could not be opened, and nothing was synced or lost.
    """
    if error.errno in _NO_DESCRIPTORS or (error.errno in _NO_RESOURCES and not is_sync):
        return Failure.RESOURCES
    if error.errno in _DISK_FULL:
        return Failure.FULL
    return Failure.NAME if error.errno in _REFUSED_NAME else Failure.DISK


class File(Protocol):
    """An open file, addressed by byte position. Not a stream: it has no cursor."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def write(self, position: int, data: Buffer) -> None:
        """All of `data` at `position`, extending the file where needed."""
        ...

    def size(self) -> int:
        """Bytes in the file now."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, and give back what `reserve` asked for beyond."""
        ...

    def reserve(self, position: int, length: int) -> None:
        """A hint that these bytes are going to be written: space for them, while the size stays. Never raises."""
        ...

    def sync(self) -> None:
        """Make what was written survive a power loss. May block for long."""
        ...

    def close(self) -> None:
        """Release the file. A second call does nothing."""
        ...


class Directory(Protocol):
    """A directory whose names are plain (no separators)."""

    @property
    def path(self) -> str:
        """Where it is, for messages to people."""
        ...

    def names(self) -> list[str]:
        """Every file and directory in it, sorted."""
        ...

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name is there."""
        ...

    def open(self, name: str) -> File:
        """Open for reading and writing; created empty where missing."""
        ...

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        ...

    def replace(self, name: str, data: Buffer) -> None:
        """Make `name` hold exactly `data`, atomically and durably: temporary file, sync, rename, directory sync.

        Everything is opened before anything is changed: out of descriptors, nothing has happened.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename within this directory, replacing a file called `new`."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with all that is in it. Missing is fine."""
        ...

    def child(self, name: str) -> Directory:
        """The directory `name` within this one, created where missing."""
        ...

    def sync(self) -> None:
        """Make creations, renames and deletions survive a power loss."""
        ...


class Clock(Protocol):
    """Time, as an argument."""

    def now(self) -> Millis:
        """Wall-clock milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ms(self) -> Millis:
        """Milliseconds that never go back; only differences mean anything."""
        ...
