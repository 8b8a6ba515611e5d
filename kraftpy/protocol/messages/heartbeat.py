"""Shows the coordinator that a member of a classic group is alive, and tells the member of a rebalance.

KIP-345 (static members).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ignorable, int16, int32, message, string


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Shows that a member is alive."""

    group_id: Annotated[str, string]
    generation_id: Annotated[int, int32]
    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "3+"] = None  # KIP-345


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Confirms the membership, or reports a rebalance."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    error_code: Annotated[int, int16] = 0
