"""Encoded answers that many clients ask for, such as Metadata for all topics: made once for each state of the cluster.

An answer is kept under a key that names everything it depends on (the image's version, the request's version, the
listener, ...). Clients that ask while it is being made wait for it, so a crowd costs one.

Invariant: at most `limit` bytes are kept, the oldest going first; an answer that is larger is never kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple


class Encoded(NamedTuple):
    """The answer of a handler that caches encoded answers: a response's body in the request's version."""

    body: bytes


class EncodedAnswers:
    """Bytes by key, of at most `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Hashable, bytes] = {}
        self._being_made: dict[Hashable, asyncio.Future[None]] = {}
        self.held = 0
        """Bytes that are kept."""

    async def get(self, key: Hashable, make: Callable[[], Awaitable[tuple[bytes, bool]]]) -> bytes:
        """The answer of that key, from `make` if nobody has made it: its bytes, and whether they may be kept.

        An answer that may not be kept (the cluster changed meanwhile) is told to the one who made it and nobody else.
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
