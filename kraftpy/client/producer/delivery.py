"""The outcome of one sent record, as an awaitable.

Cheap on purpose: two slots, and no future until someone waits. Waiting twice or from several tasks is fine, and a
cancelled wait does not affect the others.
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
        """Return True if the outcome is known."""
        return self._batch.done

    def result(self) -> RecordMetadata:
        """Return the outcome. Raises its `KafkaError`, or `asyncio.InvalidStateError` before it is known."""
        batch = self._batch
        if not batch.done:
            raise asyncio.InvalidStateError("the record has not been delivered yet")
        batch.observed = True
        offset, timestamp_ms = batch.outcome(self._index)
        topic, partition = batch.partition
        return RecordMetadata(topic, partition, offset, timestamp_ms)

    def add_done_callback(self, callback: Callable[[Delivery], Any]) -> None:
        """Call `callback(self)` on the loop once the outcome is known, or at once if it is already."""
        self._batch.observed = True
        if self._batch.done:
            callback(self)
        else:
            self._batch.callbacks.append(lambda: callback(self))

    def tell(self, callback: Callable[[Delivery], Any]) -> None:
        """Like `add_done_callback`, without counting as having handled a failure (`Producer.flush`)."""
        if self._batch.done:
            callback(self)
        else:
            self._batch.callbacks.append(lambda: callback(self))

    def outcome(self) -> tuple[RecordMetadata, KafkaError | None]:
        """Return the record's place and its error, once `done`. Does not count as having handled a failure."""
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
