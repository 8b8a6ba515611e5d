"""A wait that ends at once: `wake` runs the waiting task within the call, not in the event loop's next turn.

A connection's task waits like this for its next frame. The loop is spared a turn for each request, with its system call
for other events: about a sixth of the cost of a small request (decision 47).

The contract is that of asyncio's futures, as far as a task needs it (`asyncio.isfuture`): the task passes a callback,
which runs its next step. `wake` must be called from a callback of the loop, never from within a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class PromptWait:
    """The repeated wait of one task: `await wait`, until `wake` is called or the task is cancelled."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_is_cancelled", "_loop", "_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._is_cancelled = False
        self._step: Callable[[Any], object] | None = None
        self._context: Context | None = None

    @property
    def is_awaited(self) -> bool:
        """True while the task waits here, and was not cancelled."""
        return self._step is not None

    def wake(self) -> None:
        """Run the waiting task until it waits again. Does nothing if it does not wait here."""
        step, context = self._step, self._context
        if step is not None:
            self._step = None
            if context is None:
                step(self)
            else:
                context.run(step, self)

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    # --- the contract with asyncio's tasks ---------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the waiting task."""
        return self._loop

    def add_done_callback(self, step: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Keep the function that runs the task's next step."""
        self._step, self._context = step, context

    def cancel(self, msg: Any = None) -> bool:
        """End the wait, because the task is being cancelled, in the loop's next turn. Return whether there was one."""
        step = self._step
        if step is None:
            return False
        self._step, self._is_cancelled = None, True
        self._loop.call_soon(step, self, context=self._context)
        return True

    def result(self) -> None:
        """Return to the task, or raise CancelledError in it."""
        if self._is_cancelled:
            self._is_cancelled = False
            raise asyncio.CancelledError
