"""The events and effects of a share coordinator, as plain data.

Each `Request` is answered by exactly one `Reply` with its `request_id`. The shell answers each `Append` with exactly
one `Appended` of the same token, in log order. A request is about one share partition; the shell takes apart the APIs'
requests about several.
"""

from __future__ import annotations

from kraftpy.frozen import frozen
from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.batches import StateBatch
from kraftpy.share.records import Record, ShareKey
from kraftpy.types import TopicId

NO_OFFSET = -1
"""A start offset that is unknown, or unchanged."""
NO_EPOCH = -1


@frozen
class Initialize:
    """The group coordinator initializes a share partition, or starts over in a higher state epoch."""

    key: ShareKey
    state_epoch: int
    start_offset: int = NO_OFFSET


@frozen
class Read:
    """The leader of this epoch reads the full state; from then on leaders of lower epochs are fenced."""

    key: ShareKey
    leader_epoch: int


@frozen
class Write:
    """The leader reports what has changed."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()


@frozen
class Delete:
    """The group coordinator deletes the state of a share partition."""

    key: ShareKey


@frozen
class ReadSummary:
    """Read only how far a share partition has come."""

    key: ShareKey


Command = Initialize | Read | Write | Delete | ReadSummary


@frozen
class Request:
    """A command to decide, with the id to answer under."""

    request_id: int
    command: Command


@frozen
class Appended:
    """The append with that token is durable at this offset (NONE), or certainly not in the log (any other code)."""

    token: int
    offset: int = NO_OFFSET
    error_code: ErrorCode = ErrorCode.NONE


@frozen
class TopicsDeleted:
    """These topics were deleted, and with them their share partitions."""

    topic_ids: frozenset[TopicId]


@frozen
class Tick:
    """Time has passed, at least up to `next_deadline`."""


Event = Request | Appended | TopicsDeleted | Tick


@frozen
class Result:
    """The result of a request; fields it did not ask about keep their defaults."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()


@frozen
class Reply:
    """Answer this request."""

    request_id: int
    result: Result


@frozen
class Append:
    """Write this record to the coordinator's partition with acks=all, then report `Appended(token)`."""

    record: Record
    token: int


@frozen
class Survived:
    """An unexpected error cost one request, or one piece of due work for one share partition, and nothing else.

    `kind` says what was attempted; `name` is the id of the share group.
    """

    kind: str
    name: str
    error: Exception


Effect = Reply | Append | Survived
