"""Requests that wait for partitions to change, without polling and without a task of their own.

A `Watch` is put on any number of partitions and woken by whatever changes one of them (an append, a new leader, a
deletion). It carries no data: who wakes looks again, because nothing read before an `await` is trusted after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol


class Watched(Protocol):
    """What can be waited on."""

    @property
    def watches(self) -> set[Watch]:
        """Who is waiting now."""
        ...


class Watch:
    """One waiting request; a context manager, so that it never outlives the request."""

    __slots__ = ("_future", "_on", "_woken")

    def __init__(self, on: Iterable[Watched]) -> None:
        self._on = list(on)
        self._future: asyncio.Future[None] | None = None
        self._woken = False

    def __enter__(self) -> Watch:
        for watched in self._on:
            watched.watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watched in self._on:
            watched.watches.discard(self)

    def wake(self) -> None:
        """Something changed."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait_until(self, deadline: float) -> bool:
        """Wait for a change until `deadline` (the event loop's time); whether there was one."""
        loop = asyncio.get_running_loop()
        if not self._woken:
            self._future = loop.create_future()
            timer = loop.call_at(deadline, _expire, self._future)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        woken, self._woken = self._woken, False
        return woken


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wake_all(watches: set[Watch]) -> None:
    """Wake everybody who waits here."""
    for watch in watches:  # the order is no part of the outcome: each one only looks again
        watch.wake()
