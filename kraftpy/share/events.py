"""What can happen to a share coordinator, and what may follow from it: plain data, both ways.

A `Request` is answered by exactly one `Reply` with its `request_id`. An `Append` is answered by the shell with exactly
one `Appended` of the same token, in the order of the log. A request is about one share partition; how the APIs bundle
several, the shell knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.batches import StateBatch
from kraftpy.share.records import Record, ShareKey
from kraftpy.types import TopicId

NO_OFFSET = -1
"""Where a start offset is not known yet, or not said."""
NO_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """The group coordinator begins with a share partition, or begins anew in a higher state epoch."""

    key: ShareKey
    state_epoch: int
    start_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The leader of this epoch wants to know all; from then on leaders of lower epochs are fenced."""

    key: ShareKey
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The leader says what has changed."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """The group coordinator is done with a share partition."""

    key: ShareKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSummary:
    """Somebody wants to know how far a share partition is."""

    key: ShareKey


Command = Initialize | Read | Write | Delete | ReadSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Somebody asks."""

    request_id: int
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The append of that token is durable at this offset (NONE), or is known not to be in the log (any other code)."""

    token: int
    offset: int = NO_OFFSET
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics are gone, and with them the share partitions on them."""

    topic_ids: frozenset[TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed, at least to `next_deadline`."""


Event = Request | Appended | TopicsDeleted | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a request comes to; what was not asked for has its default."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer that request."""

    request_id: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write this record to this coordinator's partition, acks=all; then report `Appended(token)`."""

    record: Record
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """An unexpected error cost one request, or one thing that was due of one share partition, and nothing else.

    `kind` is what was tried, `name` the share partition.
    """

    kind: str
    name: str
    error: Exception


Effect = Reply | Append | Survived
