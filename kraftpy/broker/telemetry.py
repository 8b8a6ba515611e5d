"""The metrics of clients on this broker (KIP-714): subscriptions out of the metadata, and what becomes of a push.

A push is decompressed and read in a thread, one at a time for the whole node, because it may be long. Its values are
kept for the metrics endpoint (`collect`), and sent to `kraftpy.telemetry.otlp.endpoint`, if there is one. A push that
cannot be decompressed or read costs its client an INVALID_RECORD and the log one line.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.broker.containment import Complaints
from kraftpy.broker.request import RequestContext
from kraftpy.config import BrokerConfig
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import ConfigChanged, Record
from kraftpy.ports import Clock
from kraftpy.protocol.compression import Compression, decompress
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.telemetry.instances import Instance, Instances, expiry_ms, shown
from kraftpy.telemetry.otlp import MAX_TEXT, Malformed, read, with_resource
from kraftpy.telemetry.store import ClientValues
from kraftpy.telemetry.subscriptions import Client, Requested

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import Metric

    from kraftpy.broker.connection import Connection
    from kraftpy.telemetry.forwarding import Forwarder

logger = logging.getLogger(__name__)

_EXPIRY_CHECK_SECONDS: Final = 10.0
_SUBSCRIPTIONS_AT_ONCE: Final = 5


class Telemetry:
    """The subscriptions, client instances and values of one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, image: Callable[[], Image], complaints: Complaints) -> None:
        self._clock = clock
        self._image = image
        self._complaints = complaints
        self._instances = Instances(lambda: uuid.uuid4().bytes)
        self._reading = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.values = ClientValues(config.kraftpy_telemetry_max_bytes)
        """The last values of each client instance."""
        self.most_bytes = config.telemetry_max_bytes
        self.forwarder: Forwarder | None = None
        """Sends what is pushed to a collector; None if there is none."""
        if config.kraftpy_telemetry_otlp_endpoint is not None:
            from kraftpy.telemetry.forwarding import Forwarder  # with an HTTP client, which other nodes do without

            self.forwarder = Forwarder(config.kraftpy_telemetry_otlp_endpoint, self._report_loss)

    async def follow(self, records: Sequence[Record] | None) -> None:
        """Take over subscriptions that these records change; None stands for everything in the metadata."""
        kind = ConfigResourceType.CLIENT_METRICS
        if records is None:
            names = dict.fromkeys((*self._instances.subscription_names, *self._image().configured(kind)))
        else:
            changed = (each for each in records if isinstance(each, ConfigChanged) and each.resource_type is kind)
            names = dict.fromkeys(each.resource_name for each in changed)
        for number, name in enumerate(names):
            if number and number % _SUBSCRIPTIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            settings = self._image().configs(kind, name)
            subscription = self._instances.subscribe(name, settings)
            if subscription is None and settings:
                self._complaints.own(logger, "subscriptions", "client metrics %s: too many subscriptions", name)
            elif subscription is not None and subscription.unusable is not None:
                self._complaints.own(
                    logger, "patterns", "client metrics %s: no client matches: %s", name, subscription.unusable
                )

    async def run(self) -> None:
        """Forget silent instances, until cancelled."""
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_SECONDS)
            now = self._clock.monotonic_ms()
            self._instances.expire(now)
            async with self._reading:  # a thread may be keeping values
                self.values.expire(now)

    def stop(self) -> None:
        """Stop sending to the collector."""
        if self.forwarder is not None:
            self.forwarder.stop()

    def ask(self, instance_id: bytes, context: RequestContext) -> tuple[bytes, Requested]:
        """Return a client instance's id, a new one for the zero id, and what it is asked for. Raises KafkaError."""
        client, now = _client(instance_id, context), self._clock.monotonic_ms()
        return self._instances.ask(instance_id, client, context.connection, now)

    async def push(
        self,
        instance_id: bytes,
        context: RequestContext,
        *,
        subscription_id: int,
        is_terminating: bool,
        compression: int,
        metrics: bytes,
    ) -> None:
        """Take the metrics of a client instance. Raises KafkaError."""
        instance = self._instances.push(
            instance_id,
            _client(instance_id, context),
            context.connection,
            self._clock.monotonic_ms(),
            subscription_id=subscription_id,
            is_terminating=is_terminating,
            compression=compression,
            size=len(metrics),
            most_bytes=self.most_bytes,
        )
        try:
            if metrics:
                self._loop = asyncio.get_running_loop()
                async with self._reading:
                    await asyncio.to_thread(self._take, instance_id, instance, Compression(compression), metrics)
        except (KafkaError, Malformed) as error:
            self._instances.pushed(instance, was_readable=False)
            self._complaints.write(
                logger,
                logging.WARNING,
                "client metrics",
                context.client_host,
                "client metrics of %s: %s",
                context.client_host,
                str(error),
            )
            raise KafkaError(ErrorCode.INVALID_RECORD) from error
        self._instances.pushed(instance, was_readable=True)

    def disconnected(self, connection: Connection) -> None:
        """Forget the instance whose connection has ended; its last values stay until they expire."""
        self._instances.disconnected(connection)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of clients and those about them; from any thread. Needs prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counts, name = self._instances.counts, "kraftpy_client_metrics"
        yield GaugeMetricFamily(f"{name}_instances", "Client instances that push metrics.", len(self._instances))
        yield GaugeMetricFamily(f"{name}_held_bytes", "Memory of their last values.", self.values.held_bytes)
        yield CounterMetricFamily(f"{name}_pushes", "Pushes of clients.", counts.pushes)
        yield CounterMetricFamily(f"{name}_throttled", "Requests of clients that came too early.", counts.throttled)
        yield CounterMetricFamily(
            f"{name}_unknown_subscriptions", "Pushes for a subscription that has changed.", counts.unknown_subscriptions
        )
        yield CounterMetricFamily(f"{name}_unreadable", "Pushes that could not be read.", counts.unreadable)
        if self.forwarder is not None:
            yield CounterMetricFamily(f"{name}_forwarded", "Pushes that the collector took.", self.forwarder.sent)
            yield CounterMetricFamily(f"{name}_lost", "Pushes that the collector did not take.", self.forwarder.lost)
        yield from self.values.collect()
        yield GaugeMetricFamily(f"{name}_left_out", "Values too many to be shown.", self.values.left_out)

    def _take(self, instance_id: bytes, instance: Instance, codec: Compression, metrics: bytes) -> None:
        """Decompress, read and keep metrics; in a thread."""
        data = decompress(codec, metrics, self.most_bytes)
        found = read(data)
        labels = {name: text for name, text in instance.client._asdict().items() if text and name in _LABELS}
        labels["client_instance_id"] = shown(instance_id)
        expiry = expiry_ms(instance.requested.interval_ms)
        self.values.keep(instance_id, labels, found.points, self._clock.monotonic_ms(), expiry)
        if self.forwarder is not None:
            self.forwarder.put(with_resource(data, labels))

    def _report_loss(self, line: str) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._complaints.own, logger, "client metrics are lost", "%s", line)


_LABELS: Final = frozenset({"client_id", "client_software_name", "client_software_version"})


def _client(instance_id: bytes, context: RequestContext) -> Client:
    connection = context.connection
    software, version = ("unknown", "unknown") if connection is None else connection.software
    return Client(
        client_instance_id=shown(instance_id),
        client_id=_not_long(context.client_id),
        client_software_name=_not_long(software),
        client_software_version=_not_long(version),
        client_source_address=context.client_host.removeprefix("/"),
        client_source_port=None if connection is None else str(connection.client_port),
    )


def _not_long(text: str) -> str | None:
    return text if len(text) <= MAX_TEXT else None
