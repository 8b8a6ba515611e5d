"""Stores offsets of a group as part of a transaction: they take effect when it commits.

KIP-98, KIP-320 (leader epochs), KIP-447 (member and generation), KIP-890 (version 5 adds the group to the transaction
implicitly).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, int64, message, string, struct


@struct
class TxnOffsetCommitRequestPartition:
    """The next offset to read in one partition."""

    partition_index: Annotated[int, int32]
    committed_offset: Annotated[int, int64]
    committed_leader_epoch: Annotated[int, int32, "2+", ignorable] = -1
    committed_metadata: Annotated[str | None, string] = ""


@struct
class TxnOffsetCommitRequestTopic:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[TxnOffsetCommitRequestPartition], array] = []


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    """Offsets of a group, committed by a member (from version 3) or by any owner of the producer id."""

    transactional_id: Annotated[str, string]
    group_id: Annotated[str, string]
    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    generation_id: Annotated[int, int32, "3+"] = -1
    member_id: Annotated[str, string, "3+"] = ""
    group_instance_id: Annotated[str | None, string, "3+"] = None
    topics: Annotated[list[TxnOffsetCommitRequestTopic], array] = []


@struct
class TxnOffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class TxnOffsetCommitResponseTopic:
    """The results for one topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[TxnOffsetCommitResponsePartition], array] = []


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[TxnOffsetCommitResponseTopic], array] = []
