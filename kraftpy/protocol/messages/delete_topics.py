"""Deletes topics, by name or, from version 6, by id.

KIP-4, KIP-516 (topic ids), KIP-599 (quotas, error messages).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, array, ignorable, int16, int32, message, nullable, string, struct, uuid


@struct
class DeleteTopicState:
    """A topic, named or identified by id."""

    name: Annotated[str | None, string] = None
    topic_id: Annotated[bytes, uuid]


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """The topics to delete."""

    topics: Annotated[list[DeleteTopicState], array, "6+"] = []
    topic_names: Annotated[list[str], array(string), "0-5", ignorable] = []
    timeout_ms: Annotated[int, int32] = 60000


@struct
class DeletableTopicResult:
    """The result for one topic."""

    name: Annotated[str | None, string, nullable("6+")] = None
    topic_id: Annotated[bytes, uuid, "6+", ignorable] = ZERO_UUID
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string, "5+", ignorable] = None


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    responses: Annotated[list[DeletableTopicResult], array] = []
