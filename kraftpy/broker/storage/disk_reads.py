"""Counts what this process reads from disks, so that a log knows when bytes in the page cache may be others.

A page that was dropped from the page cache comes back by a read, and the kernel accounts each to the process that
caused it, read-ahead included (`ru_inblock`, getrusage(2)). As long as the count stays the same, pages that this
process has written or checked are still those pages, unless another process has read them anew.

Only file systems of a kind are counted: local ones on a block device, whose reads the kernel accounts in the reading
process. Elsewhere the count is unknown, and where the kernel accounts no reads (CONFIG_TASK_IO_ACCOUNTING) and would
always say 0.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

_COUNTED: Final = frozenset({"ext2", "ext3", "ext4", "xfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ACCOUNT: Final = Path("/proc/self/io")
"""It is there if the kernel accounts reads."""


class DiskReads:
    """The count, for directories of partitions."""

    def __init__(self) -> None:
        self._is_counted: dict[str, bool] = {}
        """By log directory."""

    def count(self, path: str) -> int | None:
        """Return how much was read, for a directory in a log directory; None if that is unknown for its file system."""
        log_dir = path.rpartition("/")[0]
        is_counted = self._is_counted.get(log_dir)
        if is_counted is None:
            is_counted = _ACCOUNT.exists() and kind_of_file_system(path) in _COUNTED
            self._is_counted[log_dir] = is_counted
        return resource.getrusage(resource.RUSAGE_SELF).ru_inblock if is_counted else None


def kind_of_file_system(path: str) -> str:
    """Return the kind of the file system at a path, such as ext4; empty if it cannot be found out."""
    try:
        device = os.stat(path).st_dev
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {fields[fields.index("-") + 1] for line in mounts if (fields := line.split())[2] == number}
    return kinds.pop() if len(kinds) == 1 else ""
