"""The core's only access to the outside world: files, directories and clocks.

The real ones are in `broker/runtime.py`; tests and the simulation hand in others (in memory, losing what was
not synced, with a clock that is moved by hand). Every method may raise `OSError`, as the disk does; the core does not
catch it, because a failing disk is the shell's decision. `failure_of` alone decides how such an error is classified.

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
    """The request fails; a later one succeeds once there is room."""
    RESOURCES = "out of descriptors, memory or threads"
    """Nothing is wrong with the disk: the operation is retried, or the request fails."""
    NAME = "a name that the file system does not take"
    """The request fails, and so will every retry."""
    DISK = "the disk failed"
    """The contents of the disk are unknown: the log directory goes offline."""


def failure_of(error: OSError, *, is_sync: bool = False) -> Failure:
    """Classify an error. `is_sync` says that it came from a sync, or from an operation that ends with one.

    A sync that fails, with almost any errno, may have lost the data that it should have made durable. No sync returns
    EMFILE or ENFILE: they mean that a file could not be opened, so nothing was synced or lost.
    """
    if error.errno in _NO_DESCRIPTORS or (error.errno in _NO_RESOURCES and not is_sync):
        return Failure.RESOURCES
    if error.errno in _DISK_FULL:
        return Failure.FULL
    return Failure.NAME if error.errno in _REFUSED_NAME else Failure.DISK


class File(Protocol):
    """An open file, addressed by byte position. Not a stream: it has no cursor."""

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`, extending the file if needed."""
        ...

    def size(self) -> int:
        """Return the file's current size in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, and release any space reserved beyond that."""
        ...

    def reserve(self, position: int, length: int) -> None:
        """Hint that these bytes will be written: allocate space for them without changing the size. Never raises."""
        ...

    def sync(self) -> None:
        """Make everything written so far survive a power loss. May block for a long time."""
        ...

    def close(self) -> None:
        """Release the file. A second call does nothing."""
        ...


class Directory(Protocol):
    """A directory whose names are plain (no separators)."""

    @property
    def path(self) -> str:
        """The directory's location, for messages to people."""
        ...

    def names(self) -> list[str]:
        """Return the names of every file and directory in it, sorted."""
        ...

    def exists(self, name: str) -> bool:
        """Return True if a file or directory of that name exists."""
        ...

    def open(self, name: str) -> File:
        """Open a file for reading and writing; create it empty if it does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """Return the contents of the whole file. Raises FileNotFoundError."""
        ...

    def replace(self, name: str, data: Buffer) -> None:
        """Make `name` hold exactly `data`, atomically and durably: temporary file, sync, rename, directory sync.

        Everything is opened before anything is changed: if descriptors run out, nothing has happened.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename within this directory, replacing a file called `new`."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, or a directory and everything in it. Does nothing if it does not exist."""
        ...

    def child(self, name: str) -> Directory:
        """Return the directory `name` within this one; create it if it does not exist."""
        ...

    def sync(self) -> None:
        """Make creations, renames and deletions survive a power loss."""
        ...


class Clock(Protocol):
    """Time, as an argument."""

    def now(self) -> Millis:
        """Return wall-clock milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ms(self) -> Millis:
        """Return milliseconds that never go back; only differences mean anything."""
        ...
