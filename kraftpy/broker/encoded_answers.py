"""Encoded responses that many clients ask for, such as Metadata for all topics: encoded once per cluster state.

A response is cached under a key that names everything it depends on (the image's version, the request's version, the
listener, ...). Clients that ask while it is being made wait for it, so a crowd costs no more than one.

Invariant: at most `limit` bytes are kept, the oldest being evicted first; a response larger than that is never kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple


class Encoded(NamedTuple):
    """The answer of a handler that caches encoded answers: a response's body in the request's version."""

    body: bytes


class EncodedAnswers:
    """Bytes by key, at most `limit` bytes in total."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Hashable, bytes] = {}
        self._being_made: dict[Hashable, asyncio.Future[None]] = {}
        self.held = 0
        """Bytes kept now."""

    async def get(self, key: Hashable, make: Callable[[], Awaitable[tuple[bytes, bool]]]) -> bytes:
        """Return the response for a key. If missing, call `make`, which returns it and whether it may be kept.

        A response that may not be kept (because the cluster changed meanwhile) goes only to the caller that made it.
        """
        while True:
            found = self._kept.get(key)
            if found is not None:
                return found
            others = self._being_made.get(key)
            if others is None:
                break
            await asyncio.wait([others])
        done = self._being_made[key] = asyncio.get_running_loop().create_future()
        try:
            made, may_keep = await make()
            if may_keep and key not in self._kept and len(made) <= self._limit:
                self._keep(key, made)
            return made
        finally:
            del self._being_made[key]
            done.set_result(None)

    def _keep(self, key: Hashable, made: bytes) -> None:
        self._kept[key] = made
        self.held += len(made)
        while self.held > self._limit:
            self.held -= len(self._kept.pop(next(iter(self._kept))))
