"""Deletes groups that have no members, with their offsets.

KIP-229, KIP-1331 (messages).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, message, string, struct


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    """The ids of the groups to delete."""

    groups_names: Annotated[list[str], array(string)]


@struct
class DeletableGroupResult:
    """The result for one group."""

    group_id: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string, "3+", ignorable] = None  # KIP-1331


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    """The results, by group."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[DeletableGroupResult], array] = []
