"""A worker process (`cleaning_worker`), controlled from the event loop: started on demand, killed to abandon a job.

It costs nothing until the first log is cleaned, and `end` releases its resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pickle
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from kraftpy.broker.storage.cleaning_messages import LENGTH_BYTES, Failure, Order, encode
from kraftpy.log.compaction import CompactionJob
from kraftpy.log.compaction_work import Cleaned, Done
from kraftpy.protocol.records import CorruptBatch

logger = logging.getLogger(__name__)

_WORKER: Final = "kraftpy.broker.storage.cleaning_worker"


class CleanerGone(Exception):
    """The process died or was killed by someone else."""


class CleanerFailed(Exception):
    """The process met an unexpected error, and would again."""


class SegmentsGone(Exception):
    """A segment was deleted before it was read: the plan is out of date."""


class CleaningProcess:
    """One worker process, which does one job at a time."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._process: Process | None = None

    async def clean(self, job: CompactionJob, path: str) -> AsyncGenerator[Cleaned | Done, None]:
        """Clean a log: yield each new segment once it is written, and `Done` at the end.

        The process is killed if the caller stops iterating early, abandons the job or calls `end`. Raises OSError,
        CorruptBatch, SegmentsGone, CleanerGone, CleanerFailed.
        """
        process = await self._started()
        job.on_abandon = _killer(process)
        if job.is_abandoned:
            job.on_abandon()
        is_idle = False
        try:
            async with aclosing(_answers(process, Order(path, job.plan, self._bytes_per_second))) as answers:
                async for message in answers:
                    if isinstance(message, Failure):
                        is_idle = True
                        raise _failure(message)
                    is_idle = isinstance(message, Done)
                    yield message
        except CleanerGone:
            if not job.is_abandoned and self._process is process:
                raise
        finally:
            job.on_abandon = None
            if not is_idle:
                await self.end()

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            # Not `python -m`, which finds no code in a compiled module.
            command = (sys.executable, "-c", f"from {_WORKER} import main; main()")
            pipe = asyncio.subprocess.PIPE
            try:
                self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            except OSError as error:
                raise CleanerGone(f"its process cannot be started: {error}") from error
        return self._process

    @property
    def is_running(self) -> bool:
        """True if there is a process."""
        return self._process is not None

    async def end(self) -> None:
        """Kill the process and with it any job; another is started when needed."""
        process, self._process = self._process, None
        if process is not None:
            _killer(process)()
            await process.wait()


async def _answers(process: Process, order: Order) -> AsyncGenerator[Cleaned | Done | Failure, None]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(encode(order))
        await process.stdin.drain()
        while True:
            head = await process.stdout.readexactly(LENGTH_BYTES)
            message = pickle.loads(await process.stdout.readexactly(int.from_bytes(head, "big")))
            yield message
            if not isinstance(message, Cleaned):
                return
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise CleanerGone("its process is gone") from error


def _killer(process: Process) -> Callable[[], None]:
    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    return kill


def _failure(failure: Failure) -> Exception:
    if failure.is_unexpected:
        return CleanerFailed(failure.reason)
    if failure.errno is None:
        return CorruptBatch(failure.reason)
    if failure.errno == errno.ENOENT:
        return SegmentsGone(f"{failure.filename} is gone")
    return OSError(failure.errno, failure.reason, failure.filename)
