"""The tasks of one client: named, in one TaskGroup, ended together.

A `TaskGroup` must be left by the task that entered it, but a client may be started in one task and closed in another.
So one keeper task owns the group, and the client's other tasks are created in it. A task that fails takes the others
with it and sets `failure`; the owner raises that in its waiting calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class ClientTasks:
    """A client's task group. Create it with the client, `start` it inside a running loop, `close` it once."""

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._on_failure = on_failure
        self._group: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: BaseException | None = None

    async def start(self) -> None:
        """Open the group. A second call does nothing."""
        if self._keeper is None:
            opened = asyncio.Event()
            self._keeper = asyncio.get_running_loop().create_task(self._keep(opened), name=f"{self._name} keeper")
            await opened.wait()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `coroutine` in the group. Raises RuntimeError if the group is not open.

        One of the group's own tasks may ask for another between `close` and its own cancellation. It is cancelled at
        that point.
        """
        if self._group is None or self._closing.is_set():
            coroutine.close()
            if asyncio.current_task() in self._tasks:
                raise asyncio.CancelledError
            raise RuntimeError(f"{self._name} is not running")
        task = self._group.create_task(coroutine, name=f"{self._name} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel the tasks that still run and wait for them. A second call does nothing."""
        self._closing.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])

    async def _keep(self, opened: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                opened.set()
                await self._closing.wait()
                for task in list(self._tasks):
                    task.cancel()
        except BaseExceptionGroup as failures:
            self.failure = _first(failures)
            if self._on_failure is not None:
                self._on_failure(self.failure)
        finally:
            self._group = None


def _first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
