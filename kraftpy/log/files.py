"""A bounded cache of open files: handles that open on use and are closed once many others have been used since.

A broker has thousands of partitions with three files per segment and perhaps 1024 descriptors. Each segment keeps a
`LazyFile`; one `FileCache` for the whole broker bounds how many are open. It is a clock: a handle used since the hand
last passed gets another round, which makes the use of an open file cost one attribute.

A transfer that outlives a call (sendfile) pins its file: eviction and deletion then wait for the unpin. The number of
pinned files is limited (`LazyFile.may_pin`); beyond the limit, data must be copied instead. If a file cannot be opened
for lack of descriptors, the cache closes some of its own and tries once more.

Nothing here is safe to use from two threads: the loop owns it. Threads get plain files opened for them
(`LazyFile.open_private`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kraftpy.log import layout
from kraftpy.ports import Directory, Failure, File, failure_of

DEFAULT_CAPACITY: Final = 256
_GIVEN_BACK: Final = 8


def _unknown(path: str) -> int | None:
    return None


class FileCache:
    """At most `capacity` open files, not counting those that were deleted or moved while they were pinned."""

    __slots__ = ("_open", "capacity", "disk_reads", "max_pinned", "pinned")

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        max_pinned: int | None = None,
        disk_reads: Callable[[str], int | None] = _unknown,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a file cache of capacity {capacity}")
        self.capacity = capacity
        self.max_pinned = max_pinned
        """None for no limit."""
        self.disk_reads = disk_reads
        """Returns how much this process has read from disks, for a directory's path; None if that is unknown there."""
        self.pinned = 0
        """The number of files that are pinned now, including deleted ones."""
        self._open: OrderedDict[LazyFile, None] = OrderedDict()  # as the hand passes them

    def __len__(self) -> int:
        return len(self._open)

    def __bool__(self) -> bool:
        return len(self) > 0

    def admit(self, handle: LazyFile) -> None:
        """Count `handle`, just opened, and close other files if that exceeds the capacity."""
        chances = len(self._open)
        while len(self._open) >= self.capacity and chances:
            chances -= 1
            oldest = next(iter(self._open))
            if oldest.is_spared():
                self._open.move_to_end(oldest)
            else:
                del self._open[oldest]
                oldest.evict()
        if len(self._open) >= self.capacity:  # all were in use: close the oldest anyway, except pinned ones
            unpinned = [each for each in self._open if not each.pins]
            for oldest in unpinned[: len(self._open) - self.capacity + 1]:
                del self._open[oldest]
                oldest.evict()
        self._open[handle] = None

    def open(self, directory: Directory, name: str) -> File:
        """Open a file; if descriptors run out, close some others and try once more. Raises OSError."""
        try:
            return directory.open(name)
        except OSError as error:
            if failure_of(error) is not Failure.RESOURCES or not self._give_back():
                raise
        return directory.open(name)

    def _give_back(self) -> bool:
        """Close a few files that are not pinned; return whether there were any."""
        unpinned = [each for each in self._open if not each.pins][:_GIVEN_BACK]
        for each in unpinned:
            del self._open[each]
            each.evict()
        return bool(unpinned)

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Close every file if the body fails: their owners may not exist any more."""
        try:
            yield
        except BaseException:
            for each in [*self._open]:
                each.close()
            raise

    def forget(self, handle: LazyFile) -> None:
        """Stop counting `handle`."""
        self._open.pop(handle, None)


class LazyFile:
    """One file of a partition, open only while it is used."""

    __slots__ = ("_cache", "_directory", "_file", "_left", "_recent", "name", "pins")

    def __init__(self, directory: Directory, name: str, cache: FileCache) -> None:
        self._directory = directory
        self._cache = cache
        self._file: File | None = None
        # Files that stay open only for those who pinned them: the number of pins, and the cache that counts the file.
        self._left: dict[File, tuple[int, FileCache]] | None = None
        self._recent = False
        self.name = name
        self.pins = 0

    def get(self) -> File:
        """Return the file, opening it if necessary. Valid until the caller returns to the loop, or while pinned."""
        self._recent = True
        if self._file is None:
            self._file = self._cache.open(self._directory, self.name)
            self._cache.admit(self)
        return self._file

    def open_private(self) -> File:
        """Open another handle of the same file, for a thread. The caller closes it."""
        return self._cache.open(self._directory, self.name)

    def open_temporary(self) -> File:
        """Open a temporary file that will be renamed to this one, for a thread. The caller closes it."""
        return self._cache.open(self._directory, self.name + layout.TEMPORARY)

    def disk_reads(self) -> int | None:
        """Return a number that grows whenever this process reads from a disk; None if that is unknown.

        As long as it stays the same, no page of the file was read from the disk again, unless by another process.
        """
        return self._cache.disk_reads(self._directory.path)

    @property
    def may_pin(self) -> bool:
        """True if there is room for one more pinned file."""
        limit = self._cache.max_pinned
        return limit is None or self.pins > 0 or self._cache.pinned < limit

    def pin(self) -> File:
        """Return the file and keep it open until `unpin`, even if it is renamed, deleted or closed meanwhile."""
        file = self.get()
        if not self.pins:
            self._cache.pinned += 1
        self.pins += 1
        return file

    def unpin(self, file: File) -> None:
        """Give back a file from `pin`; close it if `close` was called and this was the last pin."""
        if file is self._file:
            self.pins -= 1
            if not self.pins:
                self._cache.pinned -= 1
            return
        assert self._left is not None, "a file that nobody pinned"
        pins, cache = self._left[file]
        if pins > 1:
            self._left[file] = (pins - 1, cache)
            return
        del self._left[file]
        cache.pinned -= 1
        file.close()

    def is_spared(self) -> bool:
        """Return, to the cache, whether the file is pinned or was used since the last call."""
        recent, self._recent = self._recent, False
        return recent or self.pins > 0

    def evict(self) -> None:
        """Close the file on behalf of the cache; it reopens on the next use."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def move_to(self, cache: FileCache) -> None:
        """Close the file and join another cache; from the next use on it is a different file than earlier pins hold."""
        self.close()
        self._cache = cache

    def close(self) -> None:
        """Close the file, now or with the last unpin. The name may disappear after this."""
        file, self._file = self._file, None
        if file is None:
            return
        self._cache.forget(self)
        if self.pins:
            self._left = {**(self._left or {}), file: (self.pins, self._cache)}
            self.pins = 0
        else:
            file.close()
