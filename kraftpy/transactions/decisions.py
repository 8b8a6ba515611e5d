"""Decide what happens to one transactional id: plain functions from its durable state to its next state.

`Decision.value` is the next record, if there is one. `Decision.result` is the answer, which must wait until that record
is durable. No function here changes any state.

The two versions of transactions differ only in `end`. Up to version 1 the epoch stays the same, and a retry is
recognized by the state. From version 2 on (KIP-890) every end raises the epoch, so a retry is recognized by its epoch,
and a late marker can never end the next transaction. When a producer's epochs are used up, its next producer id is
stored with the outcome and returned immediately; it takes effect when the transaction is complete.

A producer that loses its transaction, to a new producer or to the timeout, is fenced by an epoch that no producer is
ever given; the abort markers carry it.

Read: rules 26 to 30 and 33; KIP-98, KIP-360, KIP-588, KIP-890.
"""

from __future__ import annotations

from kraftpy.frozen import frozen
from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.events import AddPartitions, EndTransaction, InitProducerId, Result, VerifyPartitions
from kraftpy.transactions.transaction import (
    AT_REST,
    EPOCH_BUMPS,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    State,
    Transaction,
    TransactionValue,
    follow,
)
from kraftpy.types import Millis


@frozen
class Decision:
    """The next record, if any, and the answer to give once it is durable."""

    result: Result
    value: TransactionValue | None = None
    last_producer_epoch: int = NO_EPOCH
    """The value that `Transaction.last_producer_epoch` takes with the record."""


def refused(error_code: ErrorCode) -> Decision:
    """Answer with an error and change nothing."""
    return Decision(result=Result(error_code=error_code))


# ---- InitProducerId


def needs_producer_id_to_init(command: InitProducerId, transaction: Transaction | None) -> bool:
    """Return whether `init` may have to hand out a new producer id."""
    value = None if transaction is None else transaction.value
    return value is None or (value.is_exhausted and value.state in AT_REST)


def init(
    command: InitProducerId, value: TransactionValue | None, last_epoch: int, fresh_producer_id: int, timestamp: Millis
) -> Decision:
    """Give the id to this producer, with an epoch above every earlier one (rule 28)."""
    if value is None:
        if fresh_producer_id < 0:
            return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        first = TransactionValue(
            producer_id=fresh_producer_id, producer_epoch=0, timeout_ms=command.timeout_ms, updated_at=timestamp
        )
        return _given(first, NO_EPOCH)
    names_one = command.producer_id != NO_PRODUCER_ID
    # A producer that never heard that its epochs were used up still names its previous producer id.
    is_of_previous = command.producer_id == value.previous_producer_id and command.producer_epoch >= LAST_EPOCH
    is_of_next = command.producer_id == value.next_producer_id
    if names_one and command.producer_id != value.producer_id and not is_of_previous and not is_of_next:
        return refused(ErrorCode.PRODUCER_FENCED)
    if value.state in PREPARED:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_owner = command.producer_id == value.producer_id and command.producer_epoch == value.producer_epoch
    # The producer already has its epoch and asks again because the answer was lost. If another producer had
    # taken over in between, `last_epoch` would be gone.
    is_retry = names_one and last_epoch != NO_EPOCH and command.producer_epoch == last_epoch
    if names_one and not is_owner and (not is_retry or value.state is State.ONGOING):
        return refused(ErrorCode.PRODUCER_FENCED)
    remembered = command.producer_epoch if names_one else NO_EPOCH
    if value.state is State.ONGOING:
        # The producer has to ask again once the abort is complete; then it gets an epoch.
        again = Result(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        return Decision(result=again, value=fence(value, timestamp), last_producer_epoch=remembered)
    if value.is_exhausted:
        if fresh_producer_id < 0:
            return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        return _given(_emptied(value, command, fresh_producer_id, 0, timestamp), remembered)
    producer_epoch = value.producer_epoch if is_retry else value.producer_epoch + 1
    return _given(_emptied(value, command, value.producer_id, producer_epoch, timestamp), remembered)


def _emptied(
    value: TransactionValue, command: InitProducerId, producer_id: int, producer_epoch: int, timestamp: Millis
) -> TransactionValue:
    return follow(
        value,
        State.EMPTY,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=command.timeout_ms,
        partitions=frozenset(),
        updated_at=timestamp,
        started_at=-1,
    )


def _given(value: TransactionValue, last_epoch: int) -> Decision:
    result = Result(producer_id=value.producer_id, producer_epoch=value.producer_epoch)
    return Decision(result=result, value=value, last_producer_epoch=last_epoch)


def fence(value: TransactionValue, timestamp: Millis) -> TransactionValue:
    """Abort the ongoing transaction under an epoch that no producer was given."""
    fenced = follow(value, State.PREPARE_EPOCH_FENCE, producer_epoch=value.producer_epoch + 1)
    return follow(fenced, State.PREPARE_ABORT, updated_at=timestamp)


# ---- partitions


def check_producer(value: TransactionValue | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return NONE if this is the producer that owns the transactional id, else the error."""
    if value is not None and producer_id == value.next_producer_id != NO_PRODUCER_ID:
        return ErrorCode.CONCURRENT_TRANSACTIONS  # it already knows its new id, which takes effect in a moment
    if value is None or value.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if value.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def add(command: AddPartitions, value: TransactionValue | None, last_epoch: int, timestamp: Millis) -> Decision:
    """Add partitions to the transaction; the first ones begin it."""
    error = check_producer(value, command.producer_id, command.producer_epoch)
    if error is not ErrorCode.NONE or value is None:
        return refused(error)
    if value.state in PREPARED:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_ongoing = value.state is State.ONGOING
    if is_ongoing and command.partitions <= value.partitions:
        return Decision(result=Result())
    after = follow(
        value,
        State.ONGOING,
        partitions=(value.partitions | command.partitions) if is_ongoing else command.partitions,
        updated_at=timestamp,
        started_at=value.started_at if is_ongoing else timestamp,
        client_version=max(command.client_version, value.client_version) if is_ongoing else command.client_version,
    )
    return Decision(result=Result(), value=after, last_producer_epoch=last_epoch)


def verify(command: VerifyPartitions, value: TransactionValue | None) -> Result:
    """Find the partitions that are not part of an ongoing transaction of that producer (rule 30)."""
    error = check_producer(value, command.producer_id, command.producer_epoch)
    if error is not ErrorCode.NONE or value is None:
        return Result(error_code=error)
    if value.state in PREPARED:
        return Result(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    inside = value.partitions if value.state is State.ONGOING else frozenset()
    return Result(missing=command.partitions - inside)


# ---- EndTxn


def needs_producer_id_to_end(command: EndTransaction, transaction: Transaction | None) -> bool:
    """Return whether `end` may have to hand out a new producer id."""
    value = None if transaction is None else transaction.value
    return value is not None and command.client_version >= EPOCH_BUMPS and value.is_exhausted


def end(
    command: EndTransaction,
    value: TransactionValue | None,
    last_epoch: int,
    fresh_producer_id: int,
    timestamp: Millis,
) -> Decision:
    """Decide how the transaction ends (rules 27 and 29)."""
    if value is None:
        return refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if command.client_version >= EPOCH_BUMPS:
        return _end_with_bump(command, value, fresh_producer_id, timestamp)
    error = check_producer(value, command.producer_id, command.producer_epoch)
    if error is not ErrorCode.NONE:
        return refused(error)
    match value.state:
        case State.ONGOING:
            after = follow(value, _prepared(command), updated_at=timestamp, client_version=command.client_version)
            return Decision(result=_ended(after), value=after, last_producer_epoch=last_epoch)
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT if _is_outcome(value, command):
            return Decision(result=_ended(value))  # a retry: the answer was lost
        case State.PREPARE_COMMIT | State.PREPARE_ABORT if _is_outcome(value, command):
            return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    return refused(ErrorCode.INVALID_TXN_STATE)


def _end_with_bump(
    command: EndTransaction, value: TransactionValue, fresh_producer_id: int, timestamp: Millis
) -> Decision:
    if value.next_producer_id != NO_PRODUCER_ID and command.producer_id == value.next_producer_id:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_retry = value.producer_id == command.producer_id and value.producer_epoch == command.producer_epoch + 1
    is_retry_with_old_id = (
        value.previous_producer_id == command.producer_id
        and value.producer_id != command.producer_id
        and command.producer_epoch == LAST_EPOCH
        and value.producer_epoch == 0
        and value.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    )
    if value.producer_id != command.producer_id and not is_retry_with_old_id:
        return refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_current = value.producer_id == command.producer_id and value.producer_epoch == command.producer_epoch
    match value.state:
        case State.PREPARE_COMMIT | State.PREPARE_ABORT if is_retry:
            in_vain = ErrorCode.CONCURRENT_TRANSACTIONS
            return refused(in_vain if _is_outcome(value, command) else ErrorCode.INVALID_TXN_STATE)
        case State.PREPARE_COMMIT | State.PREPARE_ABORT if is_current:
            # The producer got this epoch from this very end, and now aborts its next transaction, which has reached
            # no partition yet. Kafka treats it as fenced, which it is not.
            return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT if is_retry or is_retry_with_old_id:
            if _is_outcome(value, command):
                return Decision(result=_ended(value))
            return refused(ErrorCode.INVALID_TXN_STATE)
        case State.ONGOING if is_current:
            return _bumped(command, value, fresh_producer_id, timestamp)
        case State.EMPTY | State.COMPLETE_COMMIT | State.COMPLETE_ABORT if is_current:
            if command.is_commit:
                return refused(ErrorCode.INVALID_TXN_STATE)
            return _bumped(command, value, fresh_producer_id, timestamp)  # no partition was added, yet an epoch ends
    return refused(ErrorCode.PRODUCER_FENCED)


def _bumped(command: EndTransaction, value: TransactionValue, fresh_producer_id: int, timestamp: Millis) -> Decision:
    if value.is_exhausted and fresh_producer_id < 0:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    after = follow(
        value,
        _prepared(command),
        producer_epoch=value.producer_epoch + 1,
        next_producer_id=fresh_producer_id if value.is_exhausted else NO_PRODUCER_ID,
        updated_at=timestamp,
        started_at=value.started_at if value.state is State.ONGOING else timestamp,
        client_version=command.client_version,
    )
    return Decision(result=_ended(after), value=after, last_producer_epoch=value.producer_epoch)


def _ended(value: TransactionValue) -> Result:
    """Return the producer id and epoch that the producer continues with."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return Result(producer_id=value.next_producer_id, producer_epoch=0)
    return Result(producer_id=value.producer_id, producer_epoch=value.producer_epoch)


def _prepared(command: EndTransaction) -> State:
    return State.PREPARE_COMMIT if command.is_commit else State.PREPARE_ABORT


def _is_outcome(value: TransactionValue, command: EndTransaction) -> bool:
    is_commit = value.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    return is_commit == command.is_commit


def complete(value: TransactionValue, timestamp: Millis) -> TransactionValue:
    """Complete the transaction: every partition has its marker."""
    state = State.COMPLETE_COMMIT if value.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    is_used_up = value.next_producer_id != NO_PRODUCER_ID
    return follow(
        value,
        state,
        producer_id=value.next_producer_id if is_used_up else value.producer_id,
        producer_epoch=0 if is_used_up else value.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        updated_at=timestamp,
    )
