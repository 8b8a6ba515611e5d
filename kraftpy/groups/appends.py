"""The queue of appends that wait for the log, in order, each with its purpose.

Records change durable state only once the log has them, and in the log's order, regardless of the order in which the
shell reports: an append reported early waits for those ahead of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kraftpy.frozen import frozen
from kraftpy.groups.assignment import NOTHING, Assignment
from kraftpy.groups.events import Append, Deletion, GroupResponse, Initialization, Request
from kraftpy.groups.records import Record
from kraftpy.groups.share.group import ShareDraft, ShareGroup
from kraftpy.groups.share.operations import Operation
from kraftpy.groups.streams.group import Volatile
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeleteGroupsResponse
from kraftpy.protocol.messages.offset_commit import OffsetCommitResponse
from kraftpy.protocol.messages.offset_delete import OffsetDeleteResponse
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.groups.classic.group import ClassicGroup
    from kraftpy.groups.group import Group

Answers = Sequence[tuple[Request, GroupResponse]]
"""The responses to send when the records are durable, by request."""


@frozen
class StoreAssignment:
    """The leader's assignment for this generation. Once it is durable, the group is Stable."""

    group_id: str
    generation_id: int
    assignments: dict[str, bytes]


@frozen
class StoreStaticMember:
    """A static member that returned under a new id in a Stable group; `leader_id` is the leader before that."""

    group_id: str
    group_instance_id: str
    member_id: str
    leader_id: str


@frozen
class StoreEmpty:
    """The last member left. No request waits for this: if it fails, a reload finds the old members and expires them."""

    group_id: str


@frozen
class StoreOffsets:
    """Committed offsets, and the response that acknowledges them."""

    group_id: str
    request_id: int
    partitions: tuple[TopicPartition, ...]
    response: OffsetCommitResponse


@frozen
class StoreTransactionalOffsets:
    """Offsets committed in a transaction of this producer, and the response that acknowledges them."""

    group_id: str
    request_id: int
    partitions: tuple[TopicPartition, ...]
    response: TxnOffsetCommitResponse
    producer_id: int
    producer_epoch: int


@frozen
class DeleteOffsets:
    """Tombstones of offsets that a client deleted, and the response that acknowledges it."""

    group_id: str
    request_id: int
    response: OffsetDeleteResponse


@frozen
class ExpireOffsets:
    """Tombstones of expired offsets. No request waits for them."""

    group_id: str


@frozen
class DeleteDoomedOffsets:
    """Tombstones of some offsets of a group that is being deleted, as `first_group_id` and perhaps others are."""

    group_id: str
    first_group_id: str


@frozen
class DeleteGroupRecords:
    """Tombstones of whole groups. `request_id` is None if they were removed because nothing was left in them."""

    group_ids: tuple[str, ...]
    request_id: int | None = None
    response: DeleteGroupsResponse | None = None


@frozen
class StoreConsumerGroup:
    """Changes that members made to a consumer group, and the responses to their requests.

    `looked_up` and `is_resolving` were determined along the way; the log does not hold them. `replaces` is the classic
    group that turns into this one, whose waiting members have to join again.
    """

    group_id: str
    changed: tuple[str, ...]
    answers: Answers
    looked_up: Mapping[str, int] = field(default_factory=dict)
    is_resolving: bool = False
    replaces: ClassicGroup | None = None


@frozen
class StoreShareGroup:
    """Changes that members made to a share group, with their responses, or one half of an administrator's request.

    Afterwards the share coordinators are asked to initialize partitions in that epoch, or to make the `change`.
    """

    group_id: str
    changed: tuple[str, ...] = ()
    answers: Answers = ()
    initialize: Assignment = NOTHING
    state_epoch: int = 0
    operation: Operation | None = None
    change: Initialization | Deletion | None = None


@frozen
class StoreStreamsGroup:
    """Changes that members made to a streams group, and the responses to their requests.

    `volatile` is state determined along the way, which the log does not hold. `replaces` is the classic group that
    turns into this one, whose waiting members have to join again.
    """

    group_id: str
    changed: tuple[str, ...]
    answers: Answers
    volatile: Volatile
    replaces: ClassicGroup | None = None


Purpose = (
    StoreAssignment
    | StoreStaticMember
    | StoreEmpty
    | StoreOffsets
    | StoreTransactionalOffsets
    | DeleteOffsets
    | ExpireOffsets
    | DeleteDoomedOffsets
    | DeleteGroupRecords
    | StoreConsumerGroup
    | StoreShareGroup
    | StoreStreamsGroup
)


def group_ids(purpose: Purpose) -> tuple[str, ...]:
    """Return the groups these records belong to."""
    return purpose.group_ids if isinstance(purpose, DeleteGroupRecords) else (purpose.group_id,)


def request_ids(purpose: Purpose) -> list[int]:
    """Return the requests that are answered when these records are stored."""
    match purpose:
        case StoreConsumerGroup() | StoreStreamsGroup() | StoreShareGroup():
            found = [request.request_id for request, _ in purpose.answers]
            if isinstance(purpose, StoreShareGroup) and purpose.operation is not None:
                found.append(purpose.operation.event.request_id)
            return found
        case StoreOffsets() | StoreTransactionalOffsets() | DeleteOffsets() | DeleteGroupRecords():
            return [] if purpose.request_id is None else [purpose.request_id]
    return []


@dataclass(slots=True, kw_only=True)
class InFlight:
    """One append; `error_code` is None until the shell has reported."""

    token: int
    records: tuple[Record, ...]
    purpose: Purpose
    error_code: ErrorCode | None = None


class Appends:
    """The appends in flight, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[InFlight] = deque()
        self._next_token = 1

    def __len__(self) -> int:
        return len(self._queue)

    def purposes(self) -> list[Purpose]:
        """The purposes of the appends in flight, oldest first."""
        return [each.purpose for each in self._queue]

    def stores(self, group_id: str, *kinds: type[Purpose]) -> bool:
        """Return True if an append of one of these kinds is in flight for the group."""
        return any(isinstance(each, kinds) and group_id in group_ids(each) for each in self.purposes())

    def share_error(self, group: Group | None) -> ErrorCode:
        """Return the error for a commit to a share group, or to a group about to become one; NONE for others."""
        if group is None:
            return ErrorCode.NONE
        if isinstance(group.kind, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_deciding = group.decision is not None and isinstance(group.decision.draft, ShareDraft)
        is_becoming = is_deciding or (group.is_changing and self.stores(group.group_id, StoreShareGroup))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_becoming else ErrorCode.NONE

    def add(self, records: tuple[Record, ...], purpose: Purpose) -> Append:
        """Add an append to the end of the queue and return the effect that writes it."""
        assert records, purpose
        token = self._next_token
        self._next_token += 1
        self._queue.append(InFlight(token=token, records=records, purpose=purpose))
        if isinstance(purpose, StoreTransactionalOffsets):
            return Append(
                records=records,
                token=token,
                producer_id=purpose.producer_id,
                producer_epoch=purpose.producer_epoch,
            )
        return Append(records=records, token=token)

    def reported(self, token: int, error_code: ErrorCode) -> None:
        """Record the outcome the shell reports. An unknown token or a second report is a bug in the shell."""
        for each in self._queue:
            if each.token == token:
                assert each.error_code is None, f"append {token} was reported twice"
                each.error_code = error_code
                return
        raise AssertionError(f"append {token} was never requested, or is already done")

    def take_done(self) -> tuple[InFlight, ErrorCode] | None:
        """Take the oldest append if it has been reported; None while it is still in flight."""
        if not self._queue or self._queue[0].error_code is None:
            return None
        done = self._queue.popleft()
        assert done.error_code is not None
        return done, done.error_code


def group_error(error_code: ErrorCode) -> ErrorCode:
    """Map the error of the coordinator's own append to one that makes clients look for the coordinator again."""
    match error_code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
    return error_code


def offset_error(error_code: ErrorCode) -> ErrorCode:
    """Map the error of an append of offsets. A record that is too large is the client's mistake."""
    match error_code:
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return group_error(error_code)
