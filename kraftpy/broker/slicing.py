"""Long work in slices: bounds how long one request may occupy the event loop at a time, however much it asks for.

Work is counted in units of a few microseconds each (a partition described, an element made or encoded), never in time,
so that a simulation does the same each time. A handler whose loop depends on a client's numbers, or on the size of the
cluster, announces each piece of work beforehand: `await slices.breathe(units)`. In one iteration of the event loop, at
most `UNITS_PER_ITERATION` are done for all requests together; the rest waits for a later iteration, in order of
arrival. In between, the loop serves everyone else.

Work that cannot be cut into pieces (decoding or encoding one large message) goes to a thread, one at a time for the
whole node (`apart`): the interpreter switches between that thread and the loop every few milliseconds.

Small requests never call any of this, or pay no more than an addition and a comparison.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

UNITS_PER_ITERATION = 2_000
"""The units of work in one iteration of the event loop: about 10 ms."""
PIECE = 250
"""Units of work that a loop does between two calls of `breathe`."""


class Slices:
    """The long work of one node."""

    def __init__(self) -> None:
        self._spent = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_counting = False
        self._apart: asyncio.Lock | None = None

    async def breathe(self, units: int) -> None:
        """Return once `units` of work may be done, immediately if this iteration of the loop has room for them."""
        if not self._waiting and (not self._spent or self._spent + units <= UNITS_PER_ITERATION):
            self._spend(units)
            return
        has_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((has_room, units))
        await has_room

    async def pieces(self, items: Sequence[T], units: int = 1) -> AsyncIterator[Sequence[T]]:
        """Yield `items` in pieces worth about `PIECE` units, at `units` per item; breathe before each piece.

        A sequence that fits into one piece is yielded without a pause.
        """
        size = max(1, PIECE // units)
        if len(items) <= size:
            yield items
            return
        for start in range(0, len(items), size):
            await self.breathe(PIECE)
            yield items[start : start + size]

    async def apart(self, function: Callable[..., R], *arguments: object) -> R:
        """Call a function in a thread, one at a time. It must not touch anything that the loop may change meanwhile."""
        if self._apart is None:
            self._apart = asyncio.Lock()
        async with self._apart:
            return await asyncio.to_thread(function, *arguments)

    def _spend(self, units: int) -> None:
        self._spent += units
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._is_counting = False
        self._spent = 0
        while self._waiting:
            has_room, units = self._waiting[0]
            if self._spent and self._spent + units > UNITS_PER_ITERATION:
                break
            self._waiting.popleft()
            if not has_room.done():
                self._spend(units)
                has_room.set_result(None)


def cut(items: Sequence[T], size: int = PIECE) -> Iterator[Sequence[T]]:
    """Cut a sequence into pieces of at most that size. A sequence that fits into one piece is that piece, even if it
    is empty."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def in_slices(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yield `items`, `size` at a time, and let the event loop serve others in between. For the node's own rounds.

    An item's state may change during a pause: read it again afterwards.
    """
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
