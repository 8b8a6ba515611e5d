"""Stores the committed offsets of a group.

KIP-211 (no retention time per request any longer), KIP-320 (leader epochs), KIP-345 (static members), KIP-848 (member
epochs, topic ids).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import ZERO_UUID, array, ignorable, int16, int32, int64, message, string, struct, uuid


@struct
class OffsetCommitRequestPartition:
    """The next offset to read in one partition."""

    partition_index: Annotated[int, int32]
    committed_offset: Annotated[int, int64]
    committed_leader_epoch: Annotated[int, int32, "6+", ignorable] = -1
    committed_metadata: Annotated[str | None, string] = ""


@struct
class OffsetCommitRequestTopic:
    """A topic: by name up to version 9, by id from 10."""

    name: Annotated[str, string, "0-9", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    partitions: Annotated[list[OffsetCommitRequestPartition], array] = []


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """The offsets of a group, committed by one of its members or by a client outside it."""

    group_id: Annotated[str, string]
    generation_id_or_member_epoch: Annotated[int, int32] = -1  # -1 outside of a group
    member_id: Annotated[str, string]
    group_instance_id: Annotated[str | None, string, "7+"] = None
    retention_time_ms: Annotated[int, int64, "2-4", ignorable] = -1  # KIP-211
    topics: Annotated[list[OffsetCommitRequestTopic], array] = []


@struct
class OffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class OffsetCommitResponseTopic:
    """The results for one topic, identified as in the request."""

    name: Annotated[str, string, "0-9", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    partitions: Annotated[list[OffsetCommitResponsePartition], array] = []


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32, "3+", ignorable] = 0
    topics: Annotated[list[OffsetCommitResponseTopic], array] = []
