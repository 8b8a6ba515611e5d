"""From a group coordinator to a share coordinator: forget share partitions. KIP-932."""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct, uuid


@struct
class PartitionData:
    """One partition."""

    partition: Annotated[int, int32]


@struct
class DeleteStateData:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=86, versions="0-0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Share partitions of one group."""

    group_id: Annotated[str, string]
    topics: Annotated[list[DeleteStateData], array] = []


@struct
class PartitionResult:
    """How it went with one partition."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class DeleteStateResult:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=86, versions="0-0", flexible="0+")
class DeleteShareGroupStateResponse:
    """How it went, by partition."""

    results: Annotated[list[DeleteStateResult], array] = []
