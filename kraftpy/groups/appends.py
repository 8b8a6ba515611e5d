"""What waits for the log: appends in their order, and what each is for.

Records change the durable state only when the log has them, in the order of the log, whatever order the shell reports
in: an append that is reported done early waits for those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kraftpy.groups.assignment import NOTHING, Assignment
from kraftpy.groups.events import Append, Deletion, GroupResponse, Initialization, Request
from kraftpy.groups.records import Record
from kraftpy.groups.share.operations import Operation
from kraftpy.groups.streams.group import Volatile
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeleteGroupsResponse
from kraftpy.protocol.messages.offset_commit import OffsetCommitResponse
from kraftpy.protocol.messages.offset_delete import OffsetDeleteResponse
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.groups.group import Group

Answers = Sequence[tuple[Request, GroupResponse]]
"""What is told when the records are durable, by request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAssignment:
    """The leader's assignment of that generation; once durable, the group is Stable."""

    group_id: str
    generation_id: int
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStaticMember:
    """A static member's next incarnation in a Stable group; `leader_id` is who led before it came."""

    group_id: str
    group_instance_id: str
    member_id: str
    leader_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEmpty:
    """The last member has gone. Nobody waits: should it fail, a reload finds the old members and expires them."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOffsets:
    """Committed offsets, and the answer that says so."""

    group_id: str
    request_id: int
    partitions: tuple[TopicPartition, ...]
    response: OffsetCommitResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTransactionalOffsets:
    """Offsets committed in a transaction of this producer, and the answer that says so."""

    group_id: str
    request_id: int
    partitions: tuple[TopicPartition, ...]
    response: TxnOffsetCommitResponse
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Tombstones of offsets somebody asked to delete, and the answer that says so."""

    group_id: str
    request_id: int
    response: OffsetDeleteResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """Tombstones of offsets nobody needs any more. Nobody waits."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupRecords:
    """Tombstones of whole groups. `request_id` is None where they went because nothing was left in them."""

    group_ids: tuple[str, ...]
    request_id: int | None = None
    response: DeleteGroupsResponse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConsumerGroup:
    """Changes that members of a consumer group made, and the answers to their requests.

    `looked_up` and `is_resolving` were found out meanwhile; the log does not hold them.
    """

    group_id: str
    changed: tuple[str, ...]
    answers: Answers
    looked_up: Mapping[str, int] = field(default_factory=dict)
    is_resolving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShareGroup:
    """What members of a share group changed, with their answers by request, or half of what an administrator asked.

    Afterwards the share coordinators are asked to initialize partitions in that epoch, or for the `change`.
    """

    group_id: str
    changed: tuple[str, ...] = ()
    answers: Answers = ()
    initialize: Assignment = NOTHING
    state_epoch: int = 0
    operation: Operation | None = None
    change: Initialization | Deletion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStreamsGroup:
    """What one or several members of a streams group changed, and the answers to their requests.

    `volatile` is what was found out meanwhile, which the log does not tell.
    """

    group_id: str
    changed: tuple[str, ...]
    answers: Answers
    volatile: Volatile


Purpose = (
    StoreAssignment
    | StoreStaticMember
    | StoreEmpty
    | StoreOffsets
    | StoreTransactionalOffsets
    | DeleteOffsets
    | ExpireOffsets
    | DeleteGroupRecords
    | StoreConsumerGroup
    | StoreShareGroup
    | StoreStreamsGroup
)


def group_ids(purpose: Purpose) -> tuple[str, ...]:
    """The groups whose records these are."""
    return purpose.group_ids if isinstance(purpose, DeleteGroupRecords) else (purpose.group_id,)


def request_ids(purpose: Purpose) -> list[int]:
    """The requests that are answered when these records are stored."""
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
        """What is in flight, oldest first."""
        return [each.purpose for each in self._queue]

    def stores(self, group_id: str, *kinds: type[Purpose]) -> bool:
        """Whether something of these kinds is on the way to the log, of that group."""
        return any(isinstance(each, kinds) and group_id in group_ids(each) for each in self.purposes())

    def share_error(self, group: Group | None) -> ErrorCode:
        """The error for a commit to a share group, or to one that is about to become one; NONE for others."""
        if group is None:
            return ErrorCode.NONE
        if group.share is not None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_becoming = group.is_changing and self.stores(group.group_id, StoreShareGroup)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_becoming else ErrorCode.NONE

    def add(self, records: tuple[Record, ...], purpose: Purpose) -> Append:
        """Put it last in the queue, and give the effect that has it written."""
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
        """The shell says how it went. An unknown token, or a second report, is the shell's mistake."""
        for each in self._queue:
            if each.token == token:
                assert each.error_code is None, f"append {token} was reported twice"
                each.error_code = error_code
                return
        raise AssertionError(f"append {token} was never asked for, or is done")

    def take_done(self) -> tuple[InFlight, ErrorCode] | None:
        """The oldest append, if it has been reported; None while the oldest is still under way."""
        if not self._queue or self._queue[0].error_code is None:
            return None
        done = self._queue.popleft()
        assert done.error_code is not None
        return done, done.error_code


def group_error(error_code: ErrorCode) -> ErrorCode:
    """What a client is told when the coordinator's own append failed: what makes it look for the coordinator again."""
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
    """The same for committed offsets: one that is too large to store is the client's doing."""
    match error_code:
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return group_error(error_code)
