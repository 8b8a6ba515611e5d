"""A client's metrics, as OpenTelemetry's `MetricsData`.

KIP-714.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, boolean, bytestring, int8, int16, int32, message, uuid


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryRequest:
    """Metrics of a client instance, compressed; `terminating` says that they are its last."""

    client_instance_id: Annotated[bytes, uuid] = ZERO_UUID
    subscription_id: Annotated[int, int32] = 0
    terminating: Annotated[bool, boolean] = False
    compression_type: Annotated[int, int8] = 0
    metrics: Annotated[bytes, bytestring] = b""


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    """Success, or the error."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
