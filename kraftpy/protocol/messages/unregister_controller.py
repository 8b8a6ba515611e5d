"""Removes the registration of a controller that will not return from the cluster.

Controllers register since KIP-919; unregistering one came with Kafka 4.4.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import int16, int32, message, string


@message(api_key=94, versions="0", flexible="0+")
class UnregisterControllerRequest:
    """The controller to unregister."""

    controller_id: Annotated[int, int32]


@message(api_key=94, versions="0", flexible="0+")
class UnregisterControllerResponse:
    """Success, or the reason for a refusal."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string]
