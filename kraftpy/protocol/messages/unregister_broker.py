"""Removes a broker that will not return from the cluster.

KIP-631.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import int16, int32, message, string


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """The broker to unregister."""

    broker_id: Annotated[int, int32]


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Success, or the reason for a refusal."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
