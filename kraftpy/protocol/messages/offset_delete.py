"""Deletes committed offsets of a group, for topics that it is not subscribed to.

KIP-496.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct


@struct
class OffsetDeleteRequestPartition:
    """A partition whose offset is deleted."""

    partition_index: Annotated[int, int32]


@struct
class OffsetDeleteRequestTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[OffsetDeleteRequestPartition], array] = []


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteRequest:
    """The offsets to delete, for one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[OffsetDeleteRequestTopic], array] = []


@struct
class OffsetDeleteResponsePartition:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class OffsetDeleteResponseTopic:
    """The results for one topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[OffsetDeleteResponsePartition], array] = []


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteResponse:
    """The results, by topic."""

    error_code: Annotated[int, int16] = 0
    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[OffsetDeleteResponseTopic], array] = []
