"""Delete positions of a group, for topics that it is not subscribed to.

KIP-496.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct


@struct
class OffsetDeleteRequestPartition:
    """A partition whose position is to go."""

    partition_index: Annotated[int, int32]


@struct
class OffsetDeleteRequestTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[OffsetDeleteRequestPartition], array] = []


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteRequest:
    """Delete positions of one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[OffsetDeleteRequestTopic], array] = []


@struct
class OffsetDeleteResponsePartition:
    """One partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class OffsetDeleteResponseTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[OffsetDeleteResponsePartition], array] = []


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteResponse:
    """What came of it."""

    error_code: Annotated[int, int16] = 0
    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[OffsetDeleteResponseTopic], array] = []
