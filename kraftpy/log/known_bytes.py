"""The bytes of a file that need no check: those that this process has written or checked, and that are in memory still.

They are in memory if nothing was read from a disk since. `disk_reads` is `LazyFile.disk_reads`, taken after the
bytes in question were read (docs/decisions/0053).
"""

from __future__ import annotations

from kraftpy.log.files import LazyFile


class KnownBytes:
    """One range of a file, and how much had been read from disks when it became known."""

    __slots__ = ("_disk_reads", "_start", "_stop")

    def __init__(self) -> None:
        self._start = self._stop = 0
        self._disk_reads = -1

    def has(self, start: int, stop: int, disk_reads: int) -> bool:
        """Return whether these bytes, which were just read, are known."""
        return self._start <= start and stop <= self._stop and self._disk_reads == disk_reads

    def wrote(self, start: int, stop: int, file: LazyFile) -> None:
        """Note that these bytes were written, perhaps behind known ones, which stay as known as they were."""
        if start != self._stop or self._disk_reads < 0:
            disk_reads = file.disk_reads()
            if disk_reads is None:
                return
            self._start, self._disk_reads = start, disk_reads
        self._stop = stop

    def checked(self, start: int, stop: int, disk_reads: int) -> None:
        """Note that these bytes were checked after they were read."""
        if self._disk_reads == disk_reads and self._start <= stop and start <= self._stop:
            start, stop = min(start, self._start), max(stop, self._stop)
        self._start, self._stop, self._disk_reads = start, stop, disk_reads

    def forget(self) -> None:
        """Know nothing."""
        self._start, self._stop, self._disk_reads = 0, 0, -1
