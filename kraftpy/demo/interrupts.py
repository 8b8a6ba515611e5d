"""End the demo cleanly on Ctrl-C and SIGTERM: both raise KeyboardInterrupt, after cancelling a running event loop.

An exception raised at an arbitrary point in an event loop would leave its tasks half done.
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
    """Make SIGTERM unwind like Ctrl-C, so that nodes and Spark are stopped; what it interrupts logs nothing more."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        logging.disable()
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop. A signal cancels it, and raises KeyboardInterrupt once it has ended."""
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
