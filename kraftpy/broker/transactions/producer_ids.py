"""Producer ids for this broker's clients, taken from blocks that the metadata log allocates (KIP-730).

The next block is requested when the current one is used up. Ids left in a block when the broker stops are never used.

A request that finds no id waits up to a second and then fails with COORDINATOR_LOAD_IN_PROGRESS, which clients retry,
possibly on another broker: this one may be cut off from the metadata quorum for long. Kafka's broker does not wait. The
quorum's own errors are between it and this broker, so they become that error too.
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
    """Hands out producer ids; runs `allocate` in a task of `tasks` to get the next block."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]], tasks: Tasks) -> None:
        self._allocate = allocate
        self._tasks = tasks
        self._next = 0
        self._end = 0
        self._allocation: asyncio.Task[KafkaError | None] | None = None

    async def next(self) -> ProducerId:
        """Return an id that no other producer of the cluster ever has. Raises KafkaError if none is available."""
        while self._next == self._end:
            if self._allocation is None:
                self._allocation = self._tasks.create_task(self._take_block(), name="allocate producer ids")
            done, _ = await asyncio.wait([self._allocation], timeout=PATIENCE_SECONDS)
            if not done:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no block of producer ids was allocated yet")
            for allocation in done:
                if (error := allocation.result()) is not None:
                    raise error
        producer_id = ProducerId(self._next)
        self._next += 1
        return producer_id

    async def _take_block(self) -> KafkaError | None:
        """Get the next block. Return the error if that fails; every request that waits for the block then gets it."""
        try:
            block = await self._allocate()
        except KafkaError as error:
            problem = f"no block of producer ids was allocated: {error}"
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, problem)
        except Exception as error:  # a later request tries again
            self._tasks.survive("allocating producer ids", error)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "cannot allocate producer ids: unexpected error")
        finally:
            self._allocation = None
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.count
        return None
