"""Interceptors: code that an application puts between itself and a client, to count, trace, change or drop records.

An interceptor is any object with some of the methods of `ProducerInterceptor` or `ConsumerInterceptor`; one object may
serve both. They are called in the order given, each with the result of the one before, on the client's event loop: they
must be quick and must not block. KIP-42.

Invariant: an exception in an interceptor is logged and changes nothing; that interceptor is skipped.
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
        """Called before a record is sent, perhaps before its partition is chosen. Returns the record to send instead.

        None: send it unchanged.
        """
        return None

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Called once a record is delivered or has failed.

        A failed one has offset -1, and partition -1 if none was chosen.
        """

    def close(self) -> None:
        """Called when the producer is closed."""


class ConsumerInterceptor:
    """Sees every record on its way in. Override what matters."""

    def on_consume(self, records: Records) -> Records | None:
        """Called before records are handed out. Returns the records to hand out instead; None: hand them out unchanged.

        `async for` and `getone` hand out one record at a time. Records left out count as read.
        """
        return None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called after a commit, by the application or automatic; not after one in a transaction."""

    def close(self) -> None:
        """Called when the consumer is closed."""


class Interceptors:
    """The interceptors of one client. Raises TypeError if one of them has none of the `known` methods."""

    def __init__(self, interceptors: Iterable[object], known: tuple[str, ...]) -> None:
        self._interceptors = tuple(interceptors)
        for interceptor in self._interceptors:
            if not any(callable(getattr(interceptor, name, None)) for name in known):
                raise TypeError(f"interceptors: {interceptor!r} has none of the methods {', '.join(known)}")

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send."""
        return self._pass_through("on_send", record)

    def on_consume(self, records: Records) -> Records:
        """Return the records to hand out."""
        return self._pass_through("on_consume", records)

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Notify the interceptors of a delivery or failure."""
        self._notify("on_acknowledgement", metadata, error)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Notify the interceptors of committed offsets."""
        self._notify("on_commit", offsets)

    def close(self) -> None:
        """Notify the interceptors of the client's end."""
        self._notify("close")

    def _pass_through(self, name: str, value: T) -> T:
        for method in self._methods(name):
            try:
                changed = method(value)
            except Exception:
                logger.exception("an interceptor's %s failed", name)
            else:
                value = value if changed is None else changed
        return value

    def _notify(self, name: str, *args: Any) -> None:
        for method in self._methods(name):
            try:
                method(*args)
            except Exception:
                logger.exception("an interceptor's %s failed", name)

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        found = (getattr(interceptor, name, None) for interceptor in self._interceptors)
        return [method for method in found if callable(method)]
