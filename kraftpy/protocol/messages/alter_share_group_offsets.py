"""Sets the start offsets of a share group without members.

KIP-932.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct, uuid


@struct
class AlterShareGroupOffsetsRequestPartition:
    """A partition, and the group's new start offset in it."""

    partition_index: Annotated[int, int32]
    start_offset: Annotated[int, int64]


@struct
class AlterShareGroupOffsetsRequestTopic:
    """A topic."""

    topic_name: Annotated[str, string]
    partitions: Annotated[list[AlterShareGroupOffsetsRequestPartition], array] = []


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    """The new start offsets of one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[AlterShareGroupOffsetsRequestTopic], array] = []


@struct
class AlterShareGroupOffsetsResponsePartition:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class AlterShareGroupOffsetsResponseTopic:
    """The results for one topic."""

    topic_name: Annotated[str, string]
    topic_id: Annotated[bytes, uuid] = bytes(16)
    partitions: Annotated[list[AlterShareGroupOffsetsResponsePartition], array] = []


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    responses: Annotated[list[AlterShareGroupOffsetsResponseTopic], array] = []
