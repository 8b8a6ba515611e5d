"""Requests that wait for partitions to change, without polling and without a task of their own.

A `Watch` is put on any number of partitions and woken by whatever changes one of them (records that are committed, a
new leader, a deletion). It carries no data: who wakes looks again, because nothing read before an `await` is trusted
after it.

`News` is the same for a follower that fetches many partitions: it stays on them between its requests and knows which of
them changed, so that neither an idle request nor one append costs a look at all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Watched(Protocol):
    """What can be waited on."""

    @property
    def watches(self) -> dict[Watch, None]:
        """Who is waiting now, in the order they came."""
        ...


class Waiter:
    """A flag that one task can wait for."""

    __slots__ = ("_future", "_woken")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._woken = False

    def wake(self) -> None:
        """Something changed."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """It is known that something changed."""
        self._woken = False

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


class Watch(Waiter):
    """One waiting request; a context manager, so that it never outlives the request."""

    __slots__ = ("_on",)

    def __init__(self, on: Iterable[Watched]) -> None:
        super().__init__()
        self._on = list(on)

    def __enter__(self) -> Watch:
        for watched in self._on:
            watched.watches[self] = None
        return self

    def add(self, watched: Watched) -> None:
        """Wait for changes of this one too, from now on."""
        self._on.append(watched)
        watched.watches[self] = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watched in self._on:
            watched.watches.pop(self, None)


class News(Waiter, Generic[K]):
    """What changed since it was last taken, by key, oldest first. Whoever changes things keeps it until `is_over`."""

    __slots__ = ("_changed", "is_over")

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[K, None] = {}
        self.is_over = False
        """Nobody will take it any more."""

    def __len__(self) -> int:
        return len(self._changed)

    def add(self, key: K) -> None:
        """That one changed."""
        self._changed[key] = None
        self.wake()

    def put_back(self, key: K) -> None:
        """It was taken and not looked at: the next who takes shall. Wakes nobody."""
        self._changed[key] = None

    def take(self) -> list[K]:
        """What changed, once."""
        taken, self._changed = list(self._changed), {}
        self._woken = False
        return taken


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wake_all(watches: Iterable[Watch]) -> None:
    """Wake everybody who waits here."""
    for watch in watches:
        watch.wake()
