"""Producer ids for this broker's clients, out of blocks that the metadata log hands out (KIP-730).

The next block is asked for when the last is used up; what is left of a block when the broker stops is never used.

Who asks while there is none waits a second at most, and is then told COORDINATOR_LOAD_IN_PROGRESS, upon which clients
try again, also with another broker: this one may be cut off from the metadata for long. Kafka's does not wait at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kraftpy.broker.containment import Tasks
from kraftpy.metadata.decision import ProducerIdBlock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import ProducerId

PATIENCE_SECONDS = 1.0


class ProducerIds:
    """Hands out ids; `allocate` gets the next block, in a task of `tasks`."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]], tasks: Tasks) -> None:
        self._allocate = allocate
        self._tasks = tasks
        self._next = 0
        self._end = 0
        self._allocation: asyncio.Task[KafkaError | None] | None = None

    async def next(self) -> ProducerId:
        """An id that no other producer of the cluster has, had or will have. Raises KafkaError where there is none."""
        while self._next == self._end:
            if self._allocation is None:
                self._allocation = self._tasks.create_task(self._take_block(), name="allocate producer ids")
            done, _ = await asyncio.wait([self._allocation], timeout=PATIENCE_SECONDS)
            if not done:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the metadata gives no producer ids yet")
            for allocation in done:
                if (error := allocation.result()) is not None:
                    raise error
        producer_id = ProducerId(self._next)
        self._next += 1
        return producer_id

    async def _take_block(self) -> KafkaError | None:
        """Get the next block, or say why there is none: those who wait for it are told."""
        try:
            block = await self._allocate()
        except KafkaError as error:
            return error
        except Exception as error:  # not tried again at once
            self._tasks.survive("allocating producer ids", error)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no producer ids: an unexpected error")
        finally:
            self._allocation = None
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.count
        return None
