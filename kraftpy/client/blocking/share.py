"""The share consumer without an event loop: `ShareConsumer` in a background thread, as in `facade`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from kraftpy.client.blocking.background import BackgroundLoop
from kraftpy.client.model import AcknowledgeType, ShareRecord
from kraftpy.client.share.consumer import ShareConsumer
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition


class BlockingShareConsumer:
    """A `ShareConsumer` for programs without an event loop. Takes the same arguments; iterating over it never ends."""

    def __init__(self, *topics: str, **options: Any) -> None:
        self._consumer = ShareConsumer(*topics, **options)
        self._loop = BackgroundLoop("kraftpy share consumer")
        self._loop.run(self._consumer.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            self._loop.run(self._consumer.__aexit__(kind, error, trace))
        finally:
            self._loop.close()

    def __iter__(self) -> Iterator[ShareRecord]:
        while True:
            yield from self.getmany(timeout_ms=1_000, max_records=1)

    def getmany(self, *, timeout_ms: float = 0, max_records: int | None = None) -> list[ShareRecord]:
        """Return up to `max_records` records, waiting up to `timeout_ms` for the first."""
        return self._loop.run(self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records))

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics, replacing the previous subscription."""
        self._loop.call(lambda: self._consumer.subscribe(topics))

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Acknowledge a record: accept, release, reject or renew it."""
        self._loop.call(lambda: self._consumer.acknowledge(record, kind))

    def commit_async(self) -> None:
        """Send the pending acknowledgements."""
        self._loop.call(self._consumer.commit_async)

    def commit_sync(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Send the pending acknowledgements and wait. Returns the outcome by partition."""
        return self._loop.run(self._consumer.commit_sync(timeout_ms=timeout_ms))

    def close(self) -> None:
        """Accept what was handed out (in implicit mode), release the rest, and leave the group."""
        try:
            self._loop.run(self._consumer.close())
        finally:
            self._loop.close()
