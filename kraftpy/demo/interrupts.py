"""Ctrl-C and SIGTERM end the demo in order: they are `KeyboardInterrupt`, and on an event loop a cancellation first.

An exception that is raised wherever an event loop happens to be would leave its tasks in the middle of things.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C does, so that nodes and Spark are ended; what is cut off logs nothing more."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        logging.disable()
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own. A signal cancels it; once it has ended, that is a KeyboardInterrupt."""
    is_interrupted = False

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"

        def interrupt(_signal: int, _frame: FrameType | None) -> None:
            nonlocal is_interrupted
            is_interrupted = True
            logging.disable()
            loop.call_soon_threadsafe(task.cancel)

        with _handled_by(interrupt):
            return await coroutine

    try:
        return asyncio.run(cancellable())
    except BaseException:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
