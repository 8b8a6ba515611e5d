"""Producer ids for this broker's clients, out of blocks that the metadata log hands out (KIP-730).

The next block is asked for when the last is used up; what is left of a block when the broker stops is never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kraftpy.metadata.decision import ProducerIdBlock
from kraftpy.types import ProducerId


class ProducerIds:
    """Hands out ids; `allocate` gets the next block."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._allocating = asyncio.Lock()

    async def next(self) -> ProducerId:
        """An id that no other producer of the cluster has, had or will have."""
        async with self._allocating:
            if self._next == self._end:
                block = await self._allocate()
                self._next = block.first_producer_id
                self._end = block.first_producer_id + block.count
            producer_id = ProducerId(self._next)
            self._next += 1
            return producer_id
