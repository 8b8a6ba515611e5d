"""Events that a group coordinator handles and effects that it produces: plain data, both ways.

A `Request` is answered by exactly one `Reply` with its `request_id`, at once or later. The shell answers an `Append`
with exactly one `Appended` of the same token, in log order; until then, nothing that depends on the records is revealed
to anyone. A `ChangeState` is answered by exactly one `StateChanged` of its token, and a `Compute` by one `Computed`, at
any time.

A request about several groups (DescribeGroups, DeleteGroups, OffsetFetch from v8) reaches several coordinators:
`routing.py` splits it and joins the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from kraftpy.frozen import frozen
from kraftpy.groups.assignment import Assignment, TopicIdPartition
from kraftpy.groups.records import Record
from kraftpy.groups.streams.topology import InternalTopic
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kraftpy.types import TopicId

GroupRequest = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
    | ConsumerGroupHeartbeatRequest
    | ConsumerGroupDescribeRequest
    | ShareGroupHeartbeatRequest
    | ShareGroupDescribeRequest
    | AlterShareGroupOffsetsRequest
    | DeleteShareGroupOffsetsRequest
    | StreamsGroupHeartbeatRequest
    | StreamsGroupDescribeRequest
)
GroupResponse = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | TxnOffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
    | ConsumerGroupHeartbeatResponse
    | ConsumerGroupDescribeResponse
    | ShareGroupHeartbeatResponse
    | ShareGroupDescribeResponse
    | AlterShareGroupOffsetsResponse
    | DeleteShareGroupOffsetsResponse
    | StreamsGroupHeartbeatResponse
    | StreamsGroupDescribeResponse
)


class TopicRights(Protocol):
    """A member's rights to topics, now and at any later time; equal for members with the same principal and host."""

    def visible(self) -> Callable[[str], bool]:
        """Return a function that tells of a topic whether the member may describe it now, also in another thread."""

    def may_create(self, topic: str) -> bool:
        """Return whether the member may create the topic."""


@frozen
class Request:
    """A client's request about this partition's groups. `request_id` is chosen by the shell and unique."""

    request_id: int
    api_version: int
    message: GroupRequest
    client_id: str = ""
    client_host: str = ""
    among: Sequence[str] | None = None
    """For ListGroups: list only these groups, if they exist."""
    rights: TopicRights | None = None
    """The sender's rights to topics; None if they are unlimited."""


@frozen
class Appended:
    """The append with this token is durable (NONE), or known not to be in the log (any other code)."""

    token: int
    error_code: ErrorCode = ErrorCode.NONE


@frozen
class TopicsDeleted:
    """These topics were deleted from the cluster. Offsets committed for them, and share state, must go too."""

    topics: tuple[str, ...]
    topic_ids: tuple[TopicId, ...] = ()


@frozen
class TransactionEnded:
    """The marker of this producer's transaction is durable in the partition, after everything it committed there."""

    producer_id: int
    is_commit: bool


@frozen
class StateChanged:
    """The share coordinators have processed the `ChangeState` with this token. `failed` lists what was not done."""

    token: int
    failed: Mapping[TopicIdPartition, ErrorCode] = field(default_factory=dict)


@frozen
class Computed:
    """The function of the `Compute` with this token has returned `result`, or raised `error`."""

    group_id: str
    token: int
    result: Any = None
    error: Exception | None = None


@frozen
class Tick:
    """Time has passed, at least up to `next_deadline`."""


Event = Request | Appended | TopicsDeleted | TransactionEnded | StateChanged | Computed | Tick


@frozen
class Reply:
    """Send the response to a request."""

    request_id: int
    response: GroupResponse


@frozen
class Append:
    """Write these records to this coordinator's partition as one batch, acks=all; then report `Appended(token)`.

    With a producer id, the batch is part of that producer's transaction.
    """

    records: tuple[Record, ...]
    token: int
    producer_id: int = -1
    producer_epoch: int = -1


@frozen
class Note:
    """A line for operators in the broker's log."""

    group_id: str
    text: str


@frozen
class Survived:
    """An unexpected error cost one request or one timer, and nothing else.

    `kind` is the type of the request or timer; `group_id` is empty if several groups were involved.
    """

    kind: str
    group_id: str
    error: Exception


@frozen
class Initialization:
    """Ask share coordinators to initialize these partitions; a start offset of -1 is determined on first read."""

    state_epoch: int
    start_offsets: Mapping[TopicIdPartition, int]


@frozen
class Deletion:
    """Ask share coordinators to delete the state of these partitions."""

    partitions: Assignment


@frozen
class ChangeState:
    """Ask the share coordinators of a share group's partitions, then report `StateChanged(token)`."""

    group_id: str
    token: int
    change: Initialization | Deletion


@frozen
class CreateInternalTopics:
    """Create these internal topics of a streams group. Repeated until they exist."""

    group_id: str
    topics: tuple[InternalTopic, ...]


@frozen
class Compute:
    """Call the function in a thread, then report `Computed(token)`. The group waits for it."""

    group_id: str
    token: int
    function: Callable[[], Any]


Effect = Reply | Append | Note | Survived | ChangeState | CreateInternalTopics | Compute
