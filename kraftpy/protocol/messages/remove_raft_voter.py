"""Removes a voter from the metadata quorum.

KIP-853.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, int16, int32, message, string, uuid


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    """The voter to remove."""

    cluster_id: Annotated[str | None, string] = None
    voter_id: Annotated[int, int32]
    voter_directory_id: Annotated[bytes, uuid] = ZERO_UUID


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    """Success, or the reason for a refusal."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
