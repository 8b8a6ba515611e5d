"""Deletes the state of share partitions: sent by a group coordinator to a share coordinator. KIP-932."""

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
    """The share partitions of one group to delete."""

    group_id: Annotated[str, string]
    topics: Annotated[list[DeleteStateData], array] = []


@struct
class PartitionResult:
    """The result for one partition."""

    partition: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@struct
class DeleteStateResult:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionResult], array] = []


@message(api_key=86, versions="0-0", flexible="0+")
class DeleteShareGroupStateResponse:
    """The results, by partition."""

    results: Annotated[list[DeleteStateResult], array] = []
