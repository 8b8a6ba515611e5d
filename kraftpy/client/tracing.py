"""OpenTelemetry traces of what a producer sends and a consumer reads. The extra `tracing` installs what they need.

    tracing = Tracing()                                   # of the global tracer provider and propagator
    producer = Producer(tracing=tracing)
    consumer = Consumer("orders", tracing=tracing)

    async for record in consumer:
        with tracing.process(record):                     # spans in here belong to the record's trace
            ...

Names, kinds, attributes and links are those of OpenTelemetry's semantic conventions for messaging and Kafka (`SCHEMA`):

    send TOPIC      PRODUCER  a record, from `send` to its acknowledgement; its context goes into the record's headers
    poll TOPIC      CLIENT    records handed out, from the call on; links to the contexts in their headers
    process TOPIC   CONSUMER  what the application does with a record (`process`); links to the context in its headers
    commit TOPIC    CLIENT    offsets committed, by the application or automatically

A record whose headers have a context already keeps it, and its `send` span links to that. `process` continues the
record's trace unless it is called within another span, as the conventions advise. Polls that bring nothing are not
traced, and neither are keys, which may be secret and have no text. Context is read from any record, so it is bounded:
what cannot be read counts as absent.

Invariant: a failure in here is logged and changes nothing for the application.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kraftpy import __version__
from kraftpy.client.model import ConsumerRecord, Node, ProducerRecord, RecordMetadata, ShareRecord
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("opentelemetry is not installed: pip install 'kraftpy[tracing]'") from missing

logger = logging.getLogger(__name__)

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
MOST_LINKS: Final = 128
"""The most links of one span, which is also the SDK's own limit; the records behind them are not linked."""
MOST_HEADER_BYTES: Final = 8192
"""The longest header that is taken for context."""

Headers = Sequence[tuple[str, bytes | None]]
ReadRecord = ConsumerRecord | ShareRecord
Attributes = dict[str, str | int | bool]


class _HeaderGetter(Getter[Headers]):
    """Reads context from the headers of a record."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = [
            value.decode("utf-8", "replace")
            for name, value in carrier
            if name == key and value is not None and len(value) <= MOST_HEADER_BYTES
        ]
        return found[-1:] or None  # the last one counts, as in Java's `lastHeader`

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _HeaderSetter(Setter[list[tuple[str, bytes | None]]]):
    """Puts context into the headers of a record."""

    def set(self, carrier: list[tuple[str, bytes | None]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_GETTER, _SETTER = _HeaderGetter(), _HeaderSetter()


class SendSpan:
    """The span of one record on its way."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, metadata: RecordMetadata | None, node: Node | None, error: BaseException | None) -> None:
        """End the span, with the place of the record, its leader, or why it has none."""
        try:
            span = self._span
            if span.is_recording():
                if metadata is not None and metadata.partition >= 0:
                    span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
                if metadata is not None and metadata.offset >= 0:
                    span.set_attribute("messaging.kafka.offset", metadata.offset)
                if node is not None:
                    span.set_attribute("server.address", node.host)
                    span.set_attribute("server.port", node.port)
                if error is not None:
                    _fail(span, error)
            span.end()
        except Exception:
            logger.exception("tracing a record failed")


class Tracing:
    """Makes the spans of clients. One object may serve several."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        """The defaults are the global ones: W3C's traceparent, tracestate and baggage, unless that is set otherwise."""
        self._tracer = trace.get_tracer("kraftpy", __version__, tracer_provider, SCHEMA)
        self._propagator = propagator or propagate.get_global_textmap()

    # --- producers ------------------------------------------------------------------------------------------------

    def sending(self, record: ProducerRecord, client_id: str) -> tuple[ProducerRecord, SendSpan | None]:
        """Begin the span of a record; return it with the record to send, which carries the context."""
        try:
            given = self._creation_context(record.headers)
            attributes = _attributes("send", "send", client_id, record.topic)
            if record.partition is not None:
                attributes["messaging.destination.partition.id"] = str(record.partition)
            if record.value is None:
                attributes["messaging.kafka.message.tombstone"] = True
            links = () if given is None else (Link(given),)
            name = f"send {record.topic}"
            span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes, links=links)
            if given is None:
                headers = list(record.headers)
                self._propagator.inject(headers, trace.set_span_in_context(span), _SETTER)
                record = record._replace(headers=headers)
            return record, SendSpan(span)
        except Exception:
            logger.exception("tracing a record failed")
            return record, None

    # --- consumers ------------------------------------------------------------------------------------------------

    @staticmethod
    def now_ns() -> int:
        """Return the time as spans count it."""
        return time.time_ns()

    def polled(
        self,
        records: Mapping[TopicPartition, Sequence[ReadRecord]],
        began_ns: int,
        client_id: str,
        group_id: str | None,
        *,
        is_batch: bool,
    ) -> None:
        """Make the span of records that are handed out now to a call that `began_ns`."""
        try:
            partitions = [name for name, some in records.items() if some]
            if not partitions:
                return
            attributes = _attributes("poll", "receive", client_id, _only(name.topic for name in partitions), group_id)
            if len(partitions) == 1:
                attributes["messaging.destination.partition.id"] = str(partitions[0].partition)
            if is_batch:
                attributes["messaging.batch.message_count"] = sum(map(len, records.values()))
            else:
                attributes["messaging.kafka.offset"] = records[partitions[0]][0].offset
            links = self._links(record for some in records.values() for record in some)
            span = self._tracer.start_span(
                _name("poll", attributes),
                kind=SpanKind.CLIENT,
                attributes=attributes,
                links=links,
                start_time=began_ns,
            )
            span.end()
        except Exception:
            logger.exception("tracing a poll failed")

    @contextmanager
    def process(
        self, record: ReadRecord, *, client_id: str | None = None, group_id: str | None = None
    ) -> Iterator[Span]:
        """Trace what the application does with a record. An exception of the block is recorded and passes on."""
        creation = self._creation_context(record.headers)
        is_within = trace.get_current_span().get_span_context().is_valid
        attributes = _attributes("process", "process", client_id, record.topic, group_id)
        attributes["messaging.destination.partition.id"] = str(record.partition)
        attributes["messaging.kafka.offset"] = record.offset
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=None if is_within or creation is None else self.context_of(record),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=() if creation is None else (Link(creation),),
            record_exception=True,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                _fail(span, error)
                raise

    def context_of(self, record: ReadRecord) -> Context:
        """Return the context that a record's headers carry, with baggage; an empty one if there is none."""
        try:
            return self._propagator.extract(record.headers, Context(), _GETTER)
        except Exception:
            logger.debug("the context in a record's headers cannot be read", exc_info=True)
            return Context()

    @contextmanager
    def committing(self, topics: Iterable[str], client_id: str, group_id: str) -> Iterator[None]:
        """Trace a commit of offsets of these topics. An exception of the block is recorded and passes on."""
        attributes = _attributes("commit", "settle", client_id, _only(topics), group_id)
        span = self._tracer.start_span(_name("commit", attributes), kind=SpanKind.CLIENT, attributes=attributes)
        try:
            yield
        except Exception as error:
            _fail(span, error)
            raise
        finally:
            span.end()

    # --- context --------------------------------------------------------------------------------------------------

    def _creation_context(self, headers: Headers) -> trace.SpanContext | None:
        if not headers:
            return None
        try:
            context = self._propagator.extract(headers, Context(), _GETTER)
        except Exception:
            logger.debug("the context in a record's headers cannot be read", exc_info=True)
            return None
        found = trace.get_current_span(context).get_span_context()
        return found if found.is_valid else None

    def _links(self, records: Iterable[ReadRecord]) -> list[Link]:
        links: list[Link] = []
        for record in records:
            if record.headers and (context := self._creation_context(record.headers)) is not None:
                links.append(Link(context))
                if len(links) == MOST_LINKS:
                    break
        return links


def _attributes(
    operation: str, kind: str, client_id: str | None, topic: str | None, group_id: str | None = None
) -> Attributes:
    attributes: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
        "messaging.consumer.group.name": group_id,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _name(operation: str, attributes: Attributes) -> str:
    topic = attributes.get("messaging.destination.name")
    return operation if topic is None else f"{operation} {topic}"


def _only(topics: Iterable[str]) -> str | None:
    """Return the topic if it is only one."""
    found = set(topics)
    return found.pop() if len(found) == 1 else None


def _fail(span: Span, error: BaseException) -> None:
    """Note an error: Kafka's name for it, or else its class."""
    kind = error.code.name if isinstance(error, KafkaError) else type(error).__qualname__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, str(error)))
