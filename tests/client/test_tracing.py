"""OpenTelemetry traces of records: spans, their links, the context in headers, and other clients' instrumentations."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.instrumentation.kafka import KafkaInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from kraftpy.client import (
    Admin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
    ResourceType,
    ShareConsumer,
)
from kraftpy.client.tracing import MOST_HEADER_BYTES, MOST_LINKS, Tracing

if TYPE_CHECKING:
    from kraftpy.testing.cluster import EmbeddedBroker

READING = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())


class Traced:
    """A tracer provider, and the spans that it was given."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans that have ended, with this name."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.provider.shutdown()


@pytest.fixture
def bootstrap(kraftpy_server: EmbeddedBroker) -> str:
    return kraftpy_server.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"traced-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=1)])
    return name


def ids(span: ReadableSpan) -> tuple[str, str]:
    """The ids of a span and of its trace, as in headers."""
    found = span.get_span_context()
    assert found is not None
    return format_trace_id(found.trace_id), format_span_id(found.span_id)


def linked(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(format_trace_id(link.context.trace_id), format_span_id(link.context.span_id)) for link in span.links]


def header(record: ConsumerRecord, name: str = "traceparent") -> list[str]:
    return [value.decode() for key, value in record.headers if key == name and value is not None]


async def read_one(bootstrap: str, topic: str, **options: Any) -> ConsumerRecord:
    async with Consumer(topic, bootstrap_servers=bootstrap, **READING, **options) as consumer, asyncio.timeout(30):
        return await anext(consumer)


# --- spans ------------------------------------------------------------------------------------------------------------


async def test_a_record_is_traced_from_its_producer_to_its_consumer(bootstrap: str, topic: str, traced: Traced) -> None:
    tracer = traced.provider.get_tracer("test")
    async with Producer(bootstrap_servers=bootstrap, client_id="p", tracing=traced.tracing) as producer:
        with tracer.start_as_current_span("order") as order:
            delivery = await producer.send(topic, b"one", key=b"k", headers=[("mine", b"1")])
        assert traced.spans("send") == [], "it is under way"
        await delivery
    sent = traced.only("send")
    assert sent.name == f"send {topic}"
    assert sent.kind is SpanKind.PRODUCER
    assert sent.status.status_code is StatusCode.UNSET
    assert sent.parent is not None
    assert sent.parent.span_id == order.get_span_context().span_id
    host, _, port = bootstrap.partition(":")
    assert dict(sent.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "p",
        "messaging.kafka.offset": 0,
        "server.address": host,
        "server.port": int(port),
    }
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.name == "kraftpy"
    assert sent.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"

    began = time.time_ns()
    record = await read_one(bootstrap, topic, group_id=f"g-{topic}", client_id="c", tracing=traced.tracing)
    (parent,) = header(record)
    assert (tuple(parent.split("-")[1:3]), int(parent[-2:], 16) & 1) == (ids(sent), 1)
    assert record.headers[0] == ("mine", b"1")
    polled = traced.only("poll")
    assert (polled.name, polled.kind) == (f"poll {topic}", SpanKind.CLIENT)
    assert linked(polled) == [ids(sent)]
    assert dict(polled.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "poll",
        "messaging.operation.type": "receive",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": f"g-{topic}",
        "messaging.client.id": "c",
        "messaging.kafka.offset": 0,
    }
    assert began <= (polled.start_time or 0) < (polled.end_time or 0)

    with traced.tracing.process(record, group_id="g") as span:
        assert trace.get_current_span() is span
    processed = traced.only("process")
    assert (processed.name, processed.kind) == (f"process {topic}", SpanKind.CONSUMER)
    assert ids(processed)[0] == ids(sent)[0], "it continues the trace"
    assert processed.parent is not None
    assert format_span_id(processed.parent.span_id) == ids(sent)[1]
    assert linked(processed) == [ids(sent)]
    with tracer.start_as_current_span("request") as request, traced.tracing.process(record):
        pass
    within = traced.spans("process")[1]
    assert within.parent is not None
    assert within.parent.span_id == request.get_span_context().span_id
    assert linked(within) == [ids(sent)]

    committed = traced.spans("commit")
    assert [span.name for span in committed] == [f"commit {topic}"]
    assert (committed[0].attributes or {})["messaging.operation.type"] == "settle"
    assert (committed[0].attributes or {})["messaging.consumer.group.name"] == f"g-{topic}"


async def test_a_batch_is_one_poll_with_a_link_to_each_record(bootstrap: str, topic: str, traced: Traced) -> None:
    count = MOST_LINKS + 10
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        await asyncio.gather(*[await producer.send(topic, b"%d" % number) for number in range(count)])
    async with Consumer(topic, bootstrap_servers=bootstrap, tracing=traced.tracing, **READING) as consumer:
        assert await consumer.getmany(timeout_ms=0) == {}
        found: list[ConsumerRecord] = []
        async with asyncio.timeout(30):
            while len(found) < count:
                found += [each for some in (await consumer.getmany(timeout_ms=1_000)).values() for each in some]
    polls = traced.spans("poll")
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in polls) == count  # type: ignore[misc]
    assert all("messaging.kafka.offset" not in (span.attributes or {}) for span in polls)
    assert (
        [link for span in polls for link in linked(span)][:MOST_LINKS]
        == [
            ids(span)
            for span in sorted(traced.spans("send"), key=lambda each: (each.attributes or {})["messaging.kafka.offset"])  # type: ignore[arg-type,return-value]
        ][:MOST_LINKS]
    )
    assert all(len(span.links) <= MOST_LINKS for span in polls)


async def test_failures_end_their_spans(bootstrap: str, topic: str, traced: Traced) -> None:
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        with pytest.raises(KafkaError):
            await producer.send(topic, bytes(2_000_000))
        with pytest.raises(KafkaError):
            await producer.send(topic, b"one", partition=7)
        with pytest.raises(TypeError):
            await producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(LookupError):
            producer.send_nowait("new", b"one")
        gone = await producer.send(topic, None)
        gone.add_done_callback(lambda _: None)  # it is looked at
        producer._accumulator.fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone"))
        with pytest.raises(KafkaError):
            await gone
    errors = [(span.attributes or {}).get("error.type") for span in traced.spans("send")]
    assert errors == [
        "MESSAGE_TOO_LARGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "TypeError",
        "LookupError",
        "NETWORK_EXCEPTION",
    ]
    assert {span.status.status_code for span in traced.spans("send")} == {StatusCode.ERROR}
    assert (traced.spans("send")[4].attributes or {})["messaging.kafka.message.tombstone"] is True
    record = ConsumerRecord("t", 0, 0, 0, None, None)
    with pytest.raises(ZeroDivisionError), traced.tracing.process(record):
        _ = 1 / 0
    assert (traced.only("process").attributes or {})["error.type"] == "ZeroDivisionError"


async def test_a_context_that_a_record_has_already_is_kept(bootstrap: str, topic: str, traced: Traced) -> None:
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        await producer.send_and_wait(topic, b"one", headers=[CONTEXT])
    record = await read_one(bootstrap, topic)
    assert record.headers == (CONTEXT,) or list(record.headers) == [CONTEXT]
    assert linked(traced.only("send")) == [(TRACE, SPAN)]


async def test_tracestate_and_baggage_travel_too(bootstrap: str, topic: str, traced: Traced) -> None:
    incoming = propagate.extract({"traceparent": CONTEXT[1].decode(), "tracestate": "vendor=1"})
    token = context.attach(baggage.set_baggage("tenant", "a", incoming))
    try:
        async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
            await producer.send_and_wait(topic, b"one")
    finally:
        context.detach(token)
    record = await read_one(bootstrap, topic)
    assert header(record, "tracestate") == ["vendor=1"]
    assert header(record)[0].startswith(f"00-{TRACE}-")
    found = traced.tracing.context_of(record)
    assert baggage.get_baggage("tenant", found) == "a"


async def test_traces_that_are_not_sampled_are_passed_on_as_such(bootstrap: str, topic: str) -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        await producer.send_and_wait(topic, b"one")
    record = await read_one(bootstrap, topic)
    assert int(header(record)[0][-2:], 16) & 1 == 0
    assert traced.spans() == []


def test_blocking_clients_are_traced_within_the_caller_s_span(bootstrap: str, topic: str, traced: Traced) -> None:
    tracer = traced.provider.get_tracer("test")
    with (
        BlockingProducer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer,
        tracer.start_as_current_span("order") as order,
    ):
        producer.send(topic, b"one")
    sent = traced.only("send")
    assert sent.parent is not None
    assert sent.parent.span_id == order.get_span_context().span_id
    with BlockingConsumer(topic, bootstrap_servers=bootstrap, tracing=traced.tracing, **READING) as consumer:
        assert sum(map(len, consumer.getmany(timeout_ms=30_000).values())) == 1
    assert linked(traced.only("poll")) == [ids(sent)]


async def test_records_of_a_share_group_are_linked(bootstrap: str, topic: str, traced: Traced) -> None:
    group = f"share-{topic}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.alter_configs({(ResourceType.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        await producer.send_and_wait(topic, b"one")
    async with (
        ShareConsumer(topic, bootstrap_servers=bootstrap, group_id=group, tracing=traced.tracing) as consumer,
        asyncio.timeout(60),
    ):
        record = await anext(consumer)
    polled, sent = traced.only("poll"), traced.only("send")
    assert linked(polled) == [ids(sent)]
    assert (polled.attributes or {})["messaging.kafka.offset"] == 0
    assert (polled.attributes or {})["messaging.consumer.group.name"] == group
    with traced.tracing.process(record):
        pass
    assert ids(traced.only("process"))[0] == ids(sent)[0]


# --- what strangers put into headers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", b"nonsense")],
        [("traceparent", None)],
        [("traceparent", b"\xff\xfe")],
        [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [("traceparent", b"0" * 5_000_000)],
        [CONTEXT, ("traceparent", b"nonsense")],
        [("tracestate", b"a=b," * 1_000_000), ("baggage", b"a=b," * 1_000_000)],
        [(f"x{number}", b"") for number in range(10_000)],
    ],
)
def test_context_that_cannot_be_read_is_none(headers: list[tuple[str, bytes | None]], traced: Traced) -> None:
    record = ConsumerRecord("t", 0, 0, 0, None, b"v", tuple(headers))
    with traced.tracing.process(record):
        pass
    assert traced.only("process").links == ()
    assert traced.only("process").parent is None


def test_a_longer_header_than_allowed_is_not_taken(traced: Traced) -> None:
    long = ("tracestate", b"a=" + b"b" * MOST_HEADER_BYTES)
    record = ConsumerRecord("t", 0, 0, 0, None, b"v", (CONTEXT, long))
    found = trace.get_current_span(traced.tracing.context_of(record)).get_span_context()
    assert format_trace_id(found.trace_id) == TRACE
    assert len(found.trace_state) == 0


class _Broken:
    """A propagator that fails."""

    fields: set[str] = set()  # noqa: RUF012 - as in the API

    def inject(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    extract = inject


async def test_a_failure_of_tracing_changes_nothing(bootstrap: str, topic: str, traced: Traced) -> None:
    broken = Tracing(traced.provider, _Broken())  # type: ignore[arg-type]
    async with Producer(bootstrap_servers=bootstrap, tracing=broken) as producer:
        await producer.send_and_wait(topic, b"one", headers=[("a", b"1")])
    record = await read_one(bootstrap, topic, tracing=broken)
    assert (record.value, list(record.headers)) == (b"one", [("a", b"1")])
    with broken.process(record):
        pass


def test_no_module_is_loaded_without_a_tracer() -> None:
    script = (
        "import sys\n"
        "from kraftpy.client import Producer, Consumer\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_what_is_not_installed_is_named() -> None:
    script = "import sys; sys.modules['opentelemetry'] = None; import kraftpy.client.tracing"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "opentelemetry is not installed: pip install 'kraftpy[tracing]'" in run.stderr


# --- other clients ----------------------------------------------------------------------------------------------------


def confluent_producer(bootstrap: str, provider: TracerProvider) -> Any:
    return ConfluentKafkaInstrumentor.instrument_producer(
        confluent_kafka.Producer({"bootstrap.servers": bootstrap}), tracer_provider=provider
    )


async def test_a_record_of_confluent_s_producer_is_linked_here(bootstrap: str, topic: str, traced: Traced) -> None:
    def produce() -> None:
        producer = confluent_producer(bootstrap, traced.provider)
        producer.produce(topic, b"one")
        assert producer.flush(30) == 0

    await asyncio.to_thread(produce)
    sent = traced.only(f"{topic} send")
    record = await read_one(bootstrap, topic, tracing=traced.tracing)
    assert linked(traced.only("poll")) == [ids(sent)]
    with traced.tracing.process(record):
        pass
    assert ids(traced.only("process"))[0] == ids(sent)[0]


async def test_a_record_of_ours_is_linked_by_confluent_s_consumer(bootstrap: str, topic: str, traced: Traced) -> None:
    async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
        await producer.send_and_wait(topic, b"one")

    def consume() -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": f"c-{topic}", "auto.offset.reset": "earliest"}
        consumer = ConfluentKafkaInstrumentor.instrument_consumer(
            confluent_kafka.Consumer(settings), tracer_provider=traced.provider
        )
        consumer.subscribe([topic])
        deadline = time.monotonic() + 60
        while (message := consumer.poll(1.0)) is None or message.error() is not None:
            assert time.monotonic() < deadline
        consumer.poll(0.1)  # ends the span of the record
        consumer.close()

    await asyncio.to_thread(consume)
    assert ids(traced.only("send")) in [each for span in traced.spans(f"{topic} process") for each in linked(span)]


async def test_kafka_python_s_records_and_ours_are_in_one_trace(bootstrap: str, topic: str, traced: Traced) -> None:
    instrumentor = KafkaInstrumentor()
    instrumentor.instrument(tracer_provider=traced.provider, skip_dep_check=True)
    try:

        def produce() -> None:
            producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
            producer.send(topic, b"theirs").get(30)
            producer.close()

        def consume() -> list[bytes]:
            consumer = kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
            found = [next(consumer).value for _ in range(2)]
            consumer.close()
            return found

        await asyncio.to_thread(produce)
        theirs = traced.only(f"{topic} send")
        record = await read_one(bootstrap, topic, tracing=traced.tracing)
        assert linked(traced.only("poll")) == [ids(theirs)]
        with traced.tracing.process(record):
            async with Producer(bootstrap_servers=bootstrap, tracing=traced.tracing) as producer:
                await producer.send_and_wait(topic, b"ours")
        ours = traced.only("send")
        assert await asyncio.to_thread(consume) == [b"theirs", b"ours"]
        received = traced.spans(f"{topic} receive")
        assert [ids(span)[0] for span in received] == [ids(theirs)[0]] * 2, "one trace, through both clients"
        assert received[1].parent is not None
        assert format_span_id(received[1].parent.span_id) == ids(ours)[1]
    finally:
        instrumentor.uninstrument()
