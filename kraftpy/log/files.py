"""Open files, few of them: handles that open themselves when used and are closed when many others were used since.

A broker has thousands of partitions with three files per segment and perhaps 1024 descriptors. Each segment keeps a
`LazyFile`; one `FileCache` for the whole broker bounds how many are open. It is a clock: a handle used since the hand
last passed gets another round, which makes the use of an open file cost one attribute.

A transfer that outlives a call (sendfile) pins its file: eviction and deletion then wait for the unpin. Only so many
may be pinned at once (`LazyFile.may_pin`); beyond that, what would be transferred is to be copied. Where no file
can be opened for want of descriptors, the cache closes some of its own and tries once more.

Nothing here is safe to use from two threads: the loop owns it. Threads are given plain files opened for them
(`LazyFile.open_private`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kraftpy.log import layout
from kraftpy.ports import Directory, Failure, File, failure_of

DEFAULT_CAPACITY: Final = 256
_GIVEN_BACK: Final = 8


class FileCache:
    """At most `capacity` open files; those that were deleted or moved while they were pinned come on top."""

    __slots__ = ("_open", "capacity", "max_pinned", "pinned")

    def __init__(self, capacity: int = DEFAULT_CAPACITY, max_pinned: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a file cache of capacity {capacity}")
        self.capacity = capacity
        self.max_pinned = max_pinned
        """None for no limit."""
        self.pinned = 0
        """The number of files that are pinned now, including deleted ones."""
        self._open: OrderedDict[LazyFile, None] = OrderedDict()  # as the hand passes them

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, handle: LazyFile) -> None:
        """Count `handle`, just opened, and close what that makes too many."""
        chances = len(self._open)
        while len(self._open) >= self.capacity and chances:
            chances -= 1
            oldest = next(iter(self._open))
            if oldest.is_spared():
                self._open.move_to_end(oldest)
            else:
                del self._open[oldest]
                oldest.evict()
        if len(self._open) >= self.capacity:  # all were in use: the oldest go anyway, but for pinned ones
            unpinned = [each for each in self._open if not each.pins]
            for oldest in unpinned[: len(self._open) - self.capacity + 1]:
                del self._open[oldest]
                oldest.evict()
        self._open[handle] = None

    def open(self, directory: Directory, name: str) -> File:
        """Open a file; where descriptors are lacking, once more after some others were closed. Raises OSError."""
        try:
            return directory.open(name)
        except OSError as error:
            if failure_of(error) is not Failure.RESOURCES or not self._give_back():
                raise
        return directory.open(name)

    def _give_back(self) -> bool:
        """Close a few files that are not pinned; whether there were any."""
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
        """No longer count `handle`."""
        self._open.pop(handle, None)


class LazyFile:
    """One file of a partition, open only while it is used."""

    __slots__ = ("_cache", "_directory", "_file", "_left", "_recent", "name", "pins")

    def __init__(self, directory: Directory, name: str, cache: FileCache) -> None:
        self._directory = directory
        self._cache = cache
        self._file: File | None = None
        # Closed for everybody but those who had pinned it: how many, and whose cache counts it.
        self._left: dict[File, tuple[int, FileCache]] | None = None
        self._recent = False
        self.name = name
        self.pins = 0

    def get(self) -> File:
        """The file, opened where it was not. Valid until the caller returns to the loop, or while pinned."""
        self._recent = True
        if self._file is None:
            self._file = self._cache.open(self._directory, self.name)
            self._cache.admit(self)
        return self._file

    def open_private(self) -> File:
        """Another handle of the same file, for a thread. The caller closes it."""
        return self._cache.open(self._directory, self.name)

    def open_temporary(self) -> File:
        """A file to be renamed to this one's name, for a thread. The caller closes it."""
        return self._cache.open(self._directory, self.name + layout.TEMPORARY)

    @property
    def may_pin(self) -> bool:
        """Whether there is room for one more pinned file."""
        limit = self._cache.max_pinned
        return limit is None or self.pins > 0 or self._cache.pinned < limit

    def pin(self) -> File:
        """The file, kept open until `unpin`, whatever becomes of its name and of this object."""
        file = self.get()
        if not self.pins:
            self._cache.pinned += 1
        self.pins += 1
        return file

    def unpin(self, file: File) -> None:
        """One user less of what `pin` gave; closes it where `close` was waiting for that."""
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
        """Asked by the cache: pinned, or used since it last asked."""
        recent, self._recent = self._recent, False
        return recent or self.pins > 0

    def evict(self) -> None:
        """Closed by the cache, to be opened again at the next use."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def move_to(self, cache: FileCache) -> None:
        """Close it; from the next use on it counts there, and is another file than those who pinned it have."""
        self.close()
        self._cache = cache

    def close(self) -> None:
        """Close it, now or when the last pin goes. The name may be gone after this."""
        file, self._file = self._file, None
        if file is None:
            return
        self._cache.forget(self)
        if self.pins:
            self._left = {**(self._left or {}), file: (self.pins, self._cache)}
            self.pins = 0
        else:
            file.close()
