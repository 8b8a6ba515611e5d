"""Looks into clients' records without holding up other clients (`log.work`).

Short work is done at once. Long work takes turns: one is carried out at a time in the whole node, so that only one
batch is ever decompressed. Compression and decompression run in a thread, because the codecs release the interpreter's
lock; Python's own work runs on the loop, slice by slice, with other clients served in between. (In a thread it would
cost them more: they would wait for the lock at each of their system calls.)

A waiter holds its request and nothing more. Work that is abandoned, because its connection was lost, keeps its turn
until its thread is done. A second after the last long work, the C library is asked to return the memory that it keeps
of what was freed, if it can be asked.

Invariant: nothing that was read before `carry_out` may be trusted after it.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kraftpy.log.work import Work

T = TypeVar("T")

_IDLE_SECONDS: Final = 1.0


class Decoding:
    """Runs the long work of one node, one piece at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._trimming: asyncio.TimerHandle | None = None
        self.slices = 0
        """How often others were let in between two steps of some work."""

    async def carry_out(self, work: Work[T]) -> T:
        """Do the work and return its result. Raises what it raises."""
        try:
            step = next(work)
        except StopIteration as done:
            value: T = done.value
            return value
        await self._turn.acquire()
        running: asyncio.Future[Any] | None = None
        try:
            while True:
                self.slices += 1
                if step is None:
                    await asyncio.sleep(0)
                    step = work.send(None)
                    continue
                running = _in_thread(step)
                try:
                    result = await asyncio.shield(running)
                except Exception as error:
                    step = work.throw(error)
                else:
                    step = work.send(result)
                result = None
        except StopIteration as done:
            value = done.value
        finally:
            work.close()
            if running is None or running.done():
                self._finished()
            else:
                running.add_done_callback(self._abandoned)
        return value

    def _abandoned(self, running: asyncio.Future[Any]) -> None:
        if not running.cancelled():
            running.exception()  # no one waits for it any more
        self._finished()

    def _finished(self) -> None:
        self._turn.release()
        if self._trimming is not None:
            self._trimming.cancel()
        self._trimming = asyncio.get_running_loop().call_later(_IDLE_SECONDS, _in_thread, _trim)


def _in_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().run_in_executor(None, function)


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
