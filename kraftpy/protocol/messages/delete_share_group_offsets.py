"""Deletes the start offsets that a share group without members has in some topics.

KIP-932.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct, uuid


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """A topic."""

    topic_name: Annotated[str, string]


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    """The topics whose start offsets are deleted, for one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[DeleteShareGroupOffsetsRequestTopic], array] = []


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """The result for one topic."""

    topic_name: Annotated[str, string]
    topic_id: Annotated[bytes, uuid] = bytes(16)
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    responses: Annotated[list[DeleteShareGroupOffsetsResponseTopic], array] = []
