"""The committed offsets of groups: of a single group up to version 7, of several from version 8.

KIP-88 (null topics mean all), KIP-320 (leader epochs), KIP-447 (only stable offsets), KIP-709 (several groups), KIP-848
(member epochs, topic ids).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    ignorable,
    int16,
    int32,
    int64,
    message,
    nullable,
    string,
    struct,
    uuid,
)


@struct
class OffsetFetchRequestTopic:
    """A topic of the single group (up to version 7)."""

    name: Annotated[str, string]
    partition_indexes: Annotated[list[int], array(int32)] = []


@struct
class OffsetFetchRequestTopics:
    """A topic of a group (from version 8)."""

    name: Annotated[str, string, "8-9", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    partition_indexes: Annotated[list[int], array(int32)] = []


@struct
class OffsetFetchRequestGroup:
    """A group, and its topics, or null for all."""

    group_id: Annotated[str, string]
    member_id: Annotated[str | None, string, "9+", ignorable] = None
    member_epoch: Annotated[int, int32, "9+", ignorable] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, array] = []


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """The groups and topics to look up."""

    group_id: Annotated[str, string, "0-7"] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, array, "0-7", nullable("2-7")] = []
    groups: Annotated[list[OffsetFetchRequestGroup], array, "8+"] = []
    require_stable: Annotated[bool, boolean, "7+"] = False  # KIP-447


@struct
class OffsetFetchResponsePartition:
    """A committed offset, or -1 (up to version 7)."""

    partition_index: Annotated[int, int32]
    committed_offset: Annotated[int, int64] = -1
    committed_leader_epoch: Annotated[int, int32, "5-7", ignorable] = -1
    metadata: Annotated[str | None, string] = ""
    error_code: Annotated[int, int16] = 0


@struct
class OffsetFetchResponseTopic:
    """A topic of the single group (up to version 7)."""

    name: Annotated[str, string]
    partitions: Annotated[list[OffsetFetchResponsePartition], array] = []


@struct
class OffsetFetchResponsePartitions:
    """A committed offset, or -1 (from version 8)."""

    partition_index: Annotated[int, int32]
    committed_offset: Annotated[int, int64] = -1
    committed_leader_epoch: Annotated[int, int32] = -1
    metadata: Annotated[str | None, string] = ""
    error_code: Annotated[int, int16] = 0


@struct
class OffsetFetchResponseTopics:
    """A topic of a group (from version 8)."""

    name: Annotated[str, string, "8-9", ignorable] = ""
    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], array] = []


@struct
class OffsetFetchResponseGroup:
    """A group: an error, or its topics."""

    group_id: Annotated[str, string]
    topics: Annotated[list[OffsetFetchResponseTopics], array] = []
    error_code: Annotated[int, int16] = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The committed offsets: of a single group up to version 7, of several from version 8."""

    throttle_time_ms: Annotated[int, int32, "3+", ignorable] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], array, "0-7"] = []
    error_code: Annotated[int, int16, "2-7", ignorable] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], array, "8+"] = []
