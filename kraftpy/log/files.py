"""Open files, few of them: handles that open themselves when used and are closed when many others were used since.

A broker has thousands of partitions with three files per segment and perhaps 1024 descriptors. Each segment keeps a
`LazyFile`; one `FileCache` for the whole broker bounds how many are open. It is a clock: a handle used since the hand
last passed gets another round, which makes the use of an open file cost one attribute.

A transfer that outlives a call (sendfile) pins its file: eviction and deletion then wait for the unpin. Nothing here is
safe to use from two threads: the loop owns it. Threads are given plain files opened for them (`LazyFile.open_private`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kraftpy.ports import Directory, File

DEFAULT_CAPACITY: Final = 256


class FileCache:
    """At most `capacity` open files, pinned ones aside."""

    __slots__ = ("_open", "capacity")

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a file cache of capacity {capacity}")
        self.capacity = capacity
        self._open: deque[LazyFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, handle: LazyFile) -> None:
        """Count `handle`, just opened, and close what that makes too many."""
        chances = len(self._open)
        while len(self._open) >= self.capacity and chances:
            chances -= 1
            oldest = self._open.popleft()
            if oldest.is_spared():
                self._open.append(oldest)
            else:
                oldest.evict()
        while len(self._open) >= self.capacity and not self._open[0].pins:  # all were in use: the oldest goes anyway
            self._open.popleft().evict()
        self._open.append(handle)

    def forget(self, handle: LazyFile) -> None:
        """No longer count `handle`."""
        if handle in self._open:
            self._open.remove(handle)


class LazyFile:
    """One file of a partition, open only while it is used."""

    __slots__ = ("_cache", "_closing", "_directory", "_file", "_recent", "name", "pins")

    def __init__(self, directory: Directory, name: str, cache: FileCache) -> None:
        self._directory = directory
        self._cache = cache
        self._file: File | None = None
        self._recent = False
        self._closing = False
        self.name = name
        self.pins = 0

    def get(self) -> File:
        """The file, opened where it was not. Valid until the caller returns to the loop, or while pinned."""
        self._recent = True
        if self._file is None:
            self._file = self._directory.open(self.name)
            self._cache.admit(self)
        return self._file

    def open_private(self) -> File:
        """Another handle of the same file, for a thread. The caller closes it."""
        return self._directory.open(self.name)

    def pin(self) -> File:
        """The file, kept open until `unpin`."""
        file = self.get()
        self.pins += 1
        return file

    def unpin(self) -> None:
        """One user less; closes the file where `close` was waiting for that."""
        self.pins -= 1
        if not self.pins and self._closing:
            self._shut()

    def is_spared(self) -> bool:
        """Asked by the cache: pinned, or used since it last asked."""
        recent, self._recent = self._recent, False
        return recent or self.pins > 0

    def evict(self) -> None:
        """Closed by the cache, to be opened again at the next use."""
        self._shut()

    def move_to(self, cache: FileCache) -> None:
        """Close it; from the next use on it counts there."""
        self.close()
        self._cache = cache

    def close(self) -> None:
        """Close it, now or when the last pin goes. The name may be gone after this."""
        if self._file is not None:
            self._cache.forget(self)
            self._closing = True
            if not self.pins:
                self._shut()

    def _shut(self) -> None:
        file, self._file = self._file, None
        self._closing = False
        if file is not None:
            file.close()
