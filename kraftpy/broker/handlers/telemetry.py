"""GetTelemetrySubscriptions and PushTelemetry (71, 72), KIP-714.

Kafka advertises them only if a class that receives client metrics is configured; this broker always receives them.
Counters are asked for as growth since the last push ("delta temporality"), as Kafka does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kraftpy.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kraftpy.telemetry.instances import ACCEPTED

if TYPE_CHECKING:
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.telemetry import Telemetry

    class Broker(Protocol):
        """The part of a broker that these handlers need."""

        @property
        def telemetry(self) -> Telemetry:
            """The client instances that push metrics."""


async def get_telemetry_subscriptions(
    broker: Broker, request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    """Return what a client instance is to push."""
    try:
        instance_id, requested = broker.telemetry.ask(request.client_instance_id, context)
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=requested.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED],
        push_interval_ms=requested.interval_ms,
        telemetry_max_bytes=broker.telemetry.most_bytes,
        delta_temporality=True,
        requested_metrics=list(requested.metrics),
    )


async def push_telemetry(
    broker: Broker, request: PushTelemetryRequest, context: RequestContext
) -> PushTelemetryResponse:
    """Take the metrics of a client instance."""
    try:
        await broker.telemetry.push(
            request.client_instance_id,
            context,
            subscription_id=request.subscription_id,
            is_terminating=request.terminating,
            compression=request.compression_type,
            metrics=request.metrics,
        )
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()
