"""The events and effects of a producer's transactions: the vocabulary of `transaction_state`.

An effect that begins with `Send` is answered by `Answered`; at most one of them is unanswered at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kraftpy.client.model import ConsumerGroupMetadata, CoordinatorType, OffsetAndMetadata
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition


class TransactionError(KafkaError):
    """A transaction failed. Its subclasses say what an application can do about it (KIP-1050)."""


class TransactionAbortable(TransactionError):
    """This transaction can only be aborted; then the producer may begin another."""


class TransactionAborted(TransactionError):
    """The record was not sent because its transaction was aborted first."""


class ApplicationRecoverable(TransactionError):
    """This producer is unusable; a new one can continue from the last committed offsets."""


class ProducerFenced(ApplicationRecoverable):
    """Another producer with the same transactional id took over, or the transaction timed out at the coordinator."""


class TransactionFatal(TransactionError):
    """This producer is unusable, and a new one would fail as well until the cause is removed."""


class Operation(Enum):
    """The call that an application is waiting for."""

    INIT = "init_transactions"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


# --- what can happen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """The application wants to start, and to fence any other producer with its transactional id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction begins. The coordinator learns of it only when there is something in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A record is about to be sent to this partition."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Records were sent to a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveOffsets:
    """The application wants to commit these positions of a group with the transaction."""

    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The application wants to commit once all records are delivered, which `Drained` reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The application wants to abort once no request of the transaction is outstanding, which `Drained` reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Every record of the transaction has been delivered or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """Records of the transaction were given up."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFound:
    """The finalized level of the feature transaction.version; from 2 on, transactions are of version 2 (KIP-890)."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to the outstanding request; id and epoch are those of InitProducerId and EndTxn."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


Event = (
    Initialize
    | Begin
    | Use
    | Sent
    | GiveOffsets
    | Commit
    | Abort
    | Drained
    | BatchFailed
    | VersionFound
    | Answered
    | Tick
)


# --- what may follow --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendInitProducerId:
    """Ask for an id and epoch, or for the next epoch of those held now (KIP-360)."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAddPartitions:
    """Version 1: add partitions to the transaction."""

    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAddOffsets:
    """Version 1: add a group's offsets to the transaction."""

    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCommitOffsets:
    """Commit offsets with the transaction, at the group's coordinator."""

    producer_id: int
    producer_epoch: int
    version: int
    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEndTransaction:
    """Commit or abort the transaction."""

    producer_id: int
    producer_epoch: int
    version: int
    is_commit: bool


Request = SendInitProducerId | SendAddPartitions | SendAddOffsets | SendCommitOffsets | SendEndTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCoordinator:
    """Look up the transaction's or a group's coordinator again."""

    kind: CoordinatorType
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Number records under this id and epoch from now on."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Fail the records that were never sent."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Fail every record: none can be sent any more."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An operation is complete."""

    operation: Operation
    error: KafkaError | None = None


Effect = Request | ForgetCoordinator | Adopt | Discard | Stop | Done
