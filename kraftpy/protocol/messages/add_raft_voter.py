"""Adds a voter to the metadata quorum.

KIP-853, KIP-1186 (a response before the change is committed).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, array, boolean, int16, int32, message, string, struct, uint16, uuid


@struct
class Listener:
    """An address of the new voter."""

    name: Annotated[str, string]
    host: Annotated[str, string]
    port: Annotated[int, uint16]


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    """The voter to add."""

    cluster_id: Annotated[str | None, string] = None
    timeout_ms: Annotated[int, int32] = 0
    voter_id: Annotated[int, int32]
    voter_directory_id: Annotated[bytes, uuid] = ZERO_UUID
    listeners: Annotated[list[Listener], array] = []
    ack_when_committed: Annotated[bool, boolean, "1+"] = True


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    """Success, or the reason for a refusal."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
