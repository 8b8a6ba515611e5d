"""Acknowledges records acquired by a ShareFetch.

From version 2 a request may renew the locks of records (`is_renew_ack`, KIP-1222), and the response contains their
duration.

KIP-932, KIP-951 (the new leader in the response).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.messages.share_fetch import AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint
from kraftpy.protocol.schema import array, boolean, ignorable, int16, int32, message, nested, string, struct, uuid


@struct
class AcknowledgePartition:
    """A partition, and the acknowledgements for it."""

    partition_index: Annotated[int, int32]
    acknowledgement_batches: Annotated[list[AcknowledgementBatch], array] = []


@struct
class AcknowledgeTopic:
    """Partitions of one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[AcknowledgePartition], array] = []


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """The acknowledgements of a member of a share group."""

    group_id: Annotated[str | None, string] = None
    member_id: Annotated[str | None, string] = ""
    share_session_epoch: Annotated[int, int32] = 0  # 0 opens a session, -1 closes it, otherwise one more each time
    is_renew_ack: Annotated[bool, boolean, "2+"] = False  # KIP-1222
    topics: Annotated[list[AcknowledgeTopic], array] = []


@struct
class PartitionData:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    current_leader: Annotated[LeaderIdAndEpoch, nested] = LeaderIdAndEpoch()


@struct
class ShareAcknowledgeTopicResponse:
    """The results for one topic."""

    topic_id: Annotated[bytes, uuid]
    partitions: Annotated[list[PartitionData], array] = []


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """The results, by partition."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    acquisition_lock_timeout_ms: Annotated[int, int32, "2+", ignorable] = 0  # KIP-1222
    responses: Annotated[list[ShareAcknowledgeTopicResponse], array] = []
    node_endpoints: Annotated[list[NodeEndpoint], array] = []
