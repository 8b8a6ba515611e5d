"""Lets requests wait for changes of partitions, without polling and without tasks of their own.

A `Watch` is put on any number of partitions and woken by any change of one of them (committed records, a new leader, a
deletion). It carries no data: a waiter that wakes looks again, because nothing read before an `await` is trusted after
it.

`ChangedKeys` does the same for a follower that fetches many partitions: it stays on them between the follower's
requests and knows which of them changed, so that neither an idle request nor one append costs a look at all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

_WOKEN_AT_ONCE: Final = 200
"""How many waiters of one thing are woken in one iteration of the event loop, where there may be thousands."""


class Watchable(Protocol):
    """The interface of things that can be waited on."""

    @property
    def watches(self) -> dict[Watch, None]:
        """The requests waiting now, in order of arrival."""
        ...


class Waiter:
    """A flag that one task can wait for, again and again.

    Its timer outlives a wait: the next one, which usually ends later, does not need another. If it goes off early, it
    is set again.
    """

    __slots__ = ("_deadline", "_future", "_timer", "_woken")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._woken = False

    def wake(self) -> None:
        """Report a change."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def hasten(self, seconds: float) -> None:
        """Let the present wait end in so many seconds at the latest, as if that had been its deadline."""
        future = self._future
        if future is not None and not future.done():
            loop = future.get_loop()
            deadline = loop.time() + seconds
            if deadline < self._deadline:
                self._deadline = deadline
                self._set_timer(loop)

    def clear(self) -> None:
        """Forget changes reported so far: the waiter knows of them."""
        self._woken = False

    def end(self) -> None:
        """Stop the timer: this is not waited for again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait_until(self, deadline: float) -> bool:
        """Wait for a change until `deadline` (the event loop's time); return whether there was one."""
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            self._deadline = deadline
            self._set_timer(loop)
            try:
                await self._future
            finally:
                self._future = None
        woken, self._woken = self._woken, False
        return woken

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the timer goes off at the deadline, or before."""
        timer = self._timer
        if timer is not None:
            if timer.when() <= self._deadline:
                return
            timer.cancel()
        self._timer = loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        timer, self._timer = self._timer, None
        future = self._future
        if timer is None or future is None or future.done():
            return
        if timer.when() < self._deadline:
            self._set_timer(future.get_loop())
        else:
            future.set_result(None)


class Watch(Waiter):
    """One waiting request; a context manager, so that it never outlives the request."""

    __slots__ = ("_on",)

    def __init__(self, on: Iterable[Watchable]) -> None:
        super().__init__()
        self._on = list(on)

    def __enter__(self) -> Watch:
        for watched in self._on:
            watched.watches[self] = None
        return self

    def add(self, watched: Watchable) -> None:
        """Wait for changes of this one too."""
        self._on.append(watched)
        watched.watches[self] = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for watched in self._on:
            watched.watches.pop(self, None)


class ChangedKeys(Waiter, Generic[K]):
    """The keys that changed since they were last taken, oldest first. Reporters of changes keep it until `is_over`."""

    __slots__ = ("_changed", "is_over")

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[K, None] = {}
        self.is_over = False
        """Its reader is gone: the keys are never taken again."""

    def __len__(self) -> int:
        return len(self._changed)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __contains__(self, key: K) -> bool:
        return key in self._changed

    def add(self, key: K) -> None:
        """Report that a key changed."""
        self._changed[key] = None
        self.wake()

    def add_for_later(self, key: K, seconds: float) -> None:
        """Report that a key changed, which the reader should know of in so many seconds at the latest."""
        self._changed[key] = None
        self.hasten(seconds)

    def put_back(self, key: K) -> None:
        """Return a key that was taken but not processed, for the next `take`. Wakes no one."""
        self._changed[key] = None

    def take(self) -> list[K]:
        """Return and clear the changed keys."""
        taken, self._changed = list(self._changed), {}
        self._woken = False
        return taken


def wake_all(watches: Iterable[Watch]) -> None:
    """Wake every waiter."""
    for watch in watches:
        watch.wake()


def wake_in_slices(watches: Sequence[Watch]) -> None:
    """Wake every waiter, so many in one iteration of the event loop that others are served in between."""
    wake_all(watches[:_WOKEN_AT_ONCE])
    if len(watches) > _WOKEN_AT_ONCE:
        asyncio.get_running_loop().call_soon(wake_in_slices, watches[_WOKEN_AT_ONCE:])
