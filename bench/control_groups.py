"""Linux's control groups: the processor time of a group's processes, of those that have ended too, and a bound on it.

Time is counted by version 2 of control groups; the bound is version 2's or version 1's, whichever has the processor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PERIOD_US = 100_000


class Bound(NamedTuple):
    """The file that bounds a group, and what to write into it."""

    file: Path
    held: str
    free: str


class Group:
    """A control group of its own, for processes that are put into it and those that they start."""

    def __init__(self, name: str) -> None:
        """Create it, without a bound, and with the priority of one process such as this one."""
        self._counting = _mounted("cgroup2") / name
        self._bounding = _bounding() / name
        for each in {self._counting, self._bounding}:
            each.mkdir()
        share = 1.25 ** -os.nice(0)
        if (one := self._bounding / "cpu.shares").exists():
            one.write_text(str(round(1024 * share)))
        else:
            (self._bounding / "cpu.weight").write_text(str(max(1, round(100 * share))))

    @property
    def directory(self) -> Path:
        """The directory in which `cpu.stat` is."""
        return self._counting

    def take(self, pids: Iterable[int]) -> None:
        """Put processes into the group."""
        for pid in pids:
            for each in {self._counting, self._bounding}:
                with contextlib.suppress(ProcessLookupError):
                    (each / "cgroup.procs").write_text(str(pid))

    def bound(self, cores: float) -> Bound:
        """Return how to hold the group to a part of a core."""
        quota = round(cores * _PERIOD_US)
        if (one := self._bounding / "cpu.cfs_quota_us").exists():
            return Bound(one, str(quota), "-1")
        return Bound(self._bounding / "cpu.max", f"{quota} {_PERIOD_US}", f"max {_PERIOD_US}")

    def remove(self) -> None:
        """Remove it; its processes have been ended."""
        for each in {self._counting, self._bounding}:
            _remove(each)


@contextlib.contextmanager
def groups(prefix: str, names: Iterable[str]) -> Iterator[dict[str, Group]]:
    """Have a group for each name, removed at the end."""
    made: dict[str, Group] = {}
    try:
        for name in names:
            made[name] = Group(f"{prefix}-{name}")
        yield made
    finally:
        for group in made.values():
            group.remove()


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            directory.rmdir()
        except OSError:  # the kernel has not finished with its processes
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _bounding() -> Path:
    two = _mounted("cgroup2")
    if "cpu" in (two / "cgroup.controllers").read_text().split():
        (two / "cgroup.subtree_control").write_text("+cpu")
        return two
    return _mounted("cgroup", "cpu")


def _mounted(kind: str, option: str = "") -> Path:
    """Return where control groups are. Raises RuntimeError if they are not."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, found, options, *_ = line.split()
        if found == kind and (not option or option in options.split(",")):
            return Path(where)
    raise RuntimeError(f"no control groups ({kind} {option}) are mounted")
