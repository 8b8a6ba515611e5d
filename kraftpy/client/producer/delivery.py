"""The outcome of one sent record, as something to await.

Cheap on purpose: two slots, no future until somebody waits. Waiting twice, or from several tasks, is fine, and a
cancelled wait disturbs nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from kraftpy.client.model import RecordMetadata
from kraftpy.client.producer.accumulator import Batch
from kraftpy.protocol.errors import KafkaError


class Delivery:
    """`await delivery` gives the record's `RecordMetadata` or raises its `KafkaError`."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done

    def result(self) -> RecordMetadata:
        """The outcome. Raises its `KafkaError`, or `asyncio.InvalidStateError` before it is known."""
        batch = self._batch
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not delivered yet")
        batch.observed = True
        offset, timestamp_ms = batch.outcome(self._index)
        topic, partition = batch.partition
        return RecordMetadata(topic, partition, offset, timestamp_ms)

    def add_done_callback(self, callback: Callable[[Delivery], Any]) -> None:
        """Call `callback(self)` on the loop once the outcome is known; at once where it is."""
        self._batch.observed = True
        if self._batch.done:
            callback(self)
        else:
            self._batch.callbacks.append(lambda: callback(self))

    def tell(self, callback: Callable[[Delivery], Any]) -> None:
        """As `add_done_callback`, without counting as somebody who sees to failures (`Producer.flush`)."""
        if self._batch.done:
            callback(self)
        else:
            self._batch.callbacks.append(lambda: callback(self))

    def outcome(self) -> tuple[RecordMetadata, KafkaError | None]:
        """Where the record ended up and what it failed with, once `done`. Looking does not count as seeing to it."""
        topic, partition = self._batch.partition
        try:
            offset, timestamp_ms = self._batch.outcome(self._index)
        except KafkaError as failed:
            return RecordMetadata(topic, partition, -1, -1), failed
        return RecordMetadata(topic, partition, offset, timestamp_ms), None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        batch.observed = True
        if not batch.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.callbacks.append(lambda: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()

    def __repr__(self) -> str:
        return f"<Delivery to {self._batch.partition}, {'done' if self._batch.done else 'under way'}>"
