"""The cleaner's process in a simulation: the long part of a compaction (`kraftpy.log.compaction_work`), on the loop.

A step, which ends with a new segment that is synced, is work of a thread: at one instant, before or after its delay. A
node that dies leaves it half done. The process dies with its broker, as the real one does.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from kraftpy.log.compaction import CompactionJob
from kraftpy.log.compaction_work import Cleaned, Done, clean
from kraftpy.log.layout import CLEANED
from kraftpy.ports import Directory, File

_WORKER = "kraftpy.broker.upkeep.cleaner.CleaningProcess"


class _Sources:
    """A partition's directory as the worker sees it: a missing segment to read is an error."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> object:
        return getattr(self._directory, name)

    def open(self, name: str) -> File:
        """Open a segment to read, or a new one to write."""
        if not name.endswith(CLEANED) and not self._directory.exists(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._directory.open(name)


class CleaningOnTheLoop:
    """Stands for `kraftpy.broker.storage.cleaning_process.CleaningProcess`."""

    is_running = False

    def __init__(self, directory_of: Callable[[str], Directory], bytes_per_second: float) -> None:
        self._directory_of = directory_of

    async def clean(self, job: CompactionJob, path: str) -> AsyncGenerator[Cleaned | Done, None]:
        """Run the job; yield each new segment once it is written, and at last that all of them are."""
        steps = clean(job.plan, _Sources(self._directory_of(path)), lambda _: None)  # type: ignore[arg-type]
        while not job.is_abandoned:
            step = await asyncio.to_thread(next, steps, None)
            if step is None:
                return
            yield step

    async def end(self) -> None:
        """Do nothing: there is no process to end."""


@contextmanager
def cleaning_on_the_loop(directory_of: Callable[[str], Directory]) -> Iterator[None]:
    """Make brokers created meanwhile clean without another process; `directory_of` finds a path on the running node."""
    with mock.patch(_WORKER, functools.partial(CleaningOnTheLoop, directory_of)):
        yield
