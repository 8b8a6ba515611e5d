"""The metrics that a client is to push, and how: its client metrics subscription.

KIP-714.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, array, boolean, int8, int16, int32, message, string, uuid


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    """Asks for the subscription of a client instance; the zero id asks for a new id too."""

    client_instance_id: Annotated[bytes, uuid] = ZERO_UUID


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    """The subscription. Prefixes of metric names are requested: none for no metrics, "*" for all of them."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    client_instance_id: Annotated[bytes, uuid] = ZERO_UUID
    subscription_id: Annotated[int, int32] = 0
    accepted_compression_types: Annotated[list[int], array(int8)] = []
    push_interval_ms: Annotated[int, int32] = 0
    telemetry_max_bytes: Annotated[int, int32] = 0
    delta_temporality: Annotated[bool, boolean] = False
    requested_metrics: Annotated[list[str], array(string)] = []
