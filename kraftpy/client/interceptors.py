"""What an application may put between itself and a client: to count, to trace, to change or to drop records (KIP-42).

An interceptor is any object with some of the methods of `ProducerInterceptor` or `ConsumerInterceptor`; one object may
serve both. They are called in the order given, each with what the one before returned, on the client's event loop: they
must be quick and must not wait.

Invariant: what an interceptor raises is logged and changes nothing; its turn is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kraftpy.client.model import ConsumerRecord, OffsetAndMetadata, ProducerRecord, RecordMetadata
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

T = TypeVar("T")
logger = logging.getLogger(__name__)

Records = dict[TopicPartition, list[ConsumerRecord]]


class ProducerInterceptor:
    """Sees every record on its way out. Override what matters."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """A record is about to be sent, its partition perhaps not chosen yet; what is returned is sent in its place.

        None: as it is.
        """
        return None

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """A record was delivered, or failed: then its offset is -1, and so is its partition where none was chosen."""

    def close(self) -> None:
        """The producer was closed."""


class ConsumerInterceptor:
    """Sees every record on its way in. Override what matters."""

    def on_consume(self, records: Records) -> Records | None:
        """These are about to be handed out; what is returned is handed out in their place. None: as they are.

        `async for` and `getone` hand out one record at a time. What is left out counts as read.
        """
        return None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These were committed, by the application or automatically; not those committed in transactions."""

    def close(self) -> None:
        """The consumer was closed."""


class Interceptors:
    """Those of one client. `known` are the methods of which each has at least one, else TypeError."""

    def __init__(self, interceptors: Iterable[object], known: tuple[str, ...]) -> None:
        self._interceptors = tuple(interceptors)
        for interceptor in self._interceptors:
            if not any(callable(getattr(interceptor, name, None)) for name in known):
                raise TypeError(f"interceptors: {interceptor!r} has none of the methods {', '.join(known)}")

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send."""
        return self._passed_through("on_send", record)

    def on_consume(self, records: Records) -> Records:
        """The records to hand out."""
        return self._passed_through("on_consume", records)

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Tell of an outcome."""
        self._tell("on_acknowledgement", metadata, error)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Tell of committed offsets."""
        self._tell("on_commit", offsets)

    def close(self) -> None:
        """Tell of the end."""
        self._tell("close")

    def _passed_through(self, name: str, value: T) -> T:
        for method in self._methods(name):
            try:
                changed = method(value)
            except Exception:
                logger.exception("an interceptor's %s failed", name)
            else:
                value = value if changed is None else changed
        return value

    def _tell(self, name: str, *args: Any) -> None:
        for method in self._methods(name):
            try:
                method(*args)
            except Exception:
                logger.exception("an interceptor's %s failed", name)

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        found = (getattr(interceptor, name, None) for interceptor in self._interceptors)
        return [method for method in found if callable(method)]
