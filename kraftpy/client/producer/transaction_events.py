"""What can happen to a producer's transactions, and what may follow: the words of `transaction_state`.

An effect that begins with `Send` is answered by `Answered`; there is never more than one of them unanswered.
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
    """The record was not sent, since its transaction was aborted before."""


class ApplicationRecoverable(TransactionError):
    """This producer is of no further use; a new one, from the last committed offsets, can go on."""


class ProducerFenced(ApplicationRecoverable):
    """Another producer with the same transactional id took over, or the transaction timed out at the coordinator."""


class TransactionFatal(TransactionError):
    """This producer is of no further use, and a new one would fare no better before the cause is removed."""


class Operation(Enum):
    """What an application waits for."""

    INIT = "init_transactions"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


# --- what can happen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """The application wants to begin, and nobody else with this transactional id to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction begins. Nobody is told before there is something in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A record is about to be sent to this partition."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Records went to a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveOffsets:
    """These positions of a group shall be committed with the transaction."""

    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The transaction shall be committed when all its records are delivered, which `Drained` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The transaction shall be aborted when nothing of it is under way, which `Drained` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Every record of the transaction has been delivered or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """Records of the transaction were given up."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFound:
    """The finalized level of the feature transaction.version: from 2 on transactions are of version 2 (KIP-890)."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of the request that is under way; the id and epoch are those of InitProducerId and EndTxn."""

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
    """Ask for an id and epoch; with those held now for the next epoch (KIP-360)."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAddPartitions:
    """Version 1: make partitions part of the transaction."""

    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAddOffsets:
    """Version 1: make a group's offsets part of the transaction."""

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
    """Decide the outcome."""

    producer_id: int
    producer_epoch: int
    version: int
    is_commit: bool


Request = SendInitProducerId | SendAddPartitions | SendAddOffsets | SendCommitOffsets | SendEndTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCoordinator:
    """Look it up again: the transaction's, or a group's."""

    kind: CoordinatorType
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Records are numbered under this id and epoch from now on."""

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
    """An operation is over."""

    operation: Operation
    error: KafkaError | None = None


Effect = Request | ForgetCoordinator | Adopt | Discard | Stop | Done
