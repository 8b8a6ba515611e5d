"""A producer's transactions as a state machine, without I/O and without a clock.

```
UNINITIALIZED -Initialize-> INITIALIZING -> READY -Begin-> IN_TRANSACTION -Commit, Drained-> COMMITTING -> READY
        ^                            |     |                            |
        |                            |     +-- Abort --+   +-- refused -+
        |                   a record |                 v   v
        +--- next epoch ---  failed  +--> ABORTABLE_ERROR -Abort, Drained-> ABORTING -> READY
             anything ---- fenced, refused ----> FATAL_ERROR
```

Version 1 (KIP-98) tells the coordinator of every partition before the first record goes there, and of every group
before its offsets. Version 2 (KIP-890) leaves that to the brokers, and every end gives the producer its next epoch. A
transaction keeps the version it began with.

The next request follows from the state alone, so after a transient failure the machine repeats it, after a back-off
and, if the coordinator may have moved, once that was looked up again. A lost answer is recovered the same way: the
coordinator recognizes a repeated request.

In version 1, if records were given up whose numbers may or may not be used up, the abort is followed by InitProducerId
with the current epoch, to get the next one (KIP-360).

Invariants: at most one request is outstanding; nothing is sent after a fatal error; no EndTxn goes out before
`Drained`; a transaction in which a record failed is never committed.

Left out: two-phase commit (KIP-939), brokers that cannot give the next epoch (InitProducerId below version 3): there a
failed record is fatal. KIP-98, KIP-360, KIP-447 (offsets with generation and member), KIP-588, KIP-890, KIP-1050
(classes of errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from kraftpy.client.model import ConsumerGroupMetadata, CoordinatorType, OffsetAndMetadata
from kraftpy.client.producer.transaction_events import (
    Abort,
    Adopt,
    Answered,
    ApplicationRecoverable,
    BatchFailed,
    Begin,
    Commit,
    Discard,
    Done,
    Drained,
    Effect,
    Event,
    ForgetCoordinator,
    GiveOffsets,
    Initialize,
    Operation,
    ProducerFenced,
    Request,
    SendAddOffsets,
    SendAddPartitions,
    SendCommitOffsets,
    SendEndTransaction,
    SendInitProducerId,
    Sent,
    Stop,
    Tick,
    TransactionAbortable,
    TransactionAborted,
    TransactionError,
    TransactionFatal,
    Use,
    VersionFound,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

EPOCH_BUMPS = 2
"""From this version on EndTxn gives the next epoch, and brokers add partitions themselves."""


CONCURRENT_BACKOFF_MS = 20.0
"""The wait for the markers of the previous transaction, which are due any moment."""


class State(Enum):
    """The state of a producer's transactions."""

    UNINITIALIZED = "uninitialized"  # it has no producer id
    INITIALIZING = "initializing"  # it asks for one, or for the next epoch
    READY = "ready"  # a transaction may begin
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTABLE_ERROR = "abortable error"  # something failed: the transaction can only be aborted
    ABORTING = "aborting"
    FATAL_ERROR = "fatal error"


FOLLOWS = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING, State.FATAL_ERROR}),
    State.INITIALIZING: frozenset({State.READY, State.FATAL_ERROR}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FATAL_ERROR}),
    State.IN_TRANSACTION: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.COMMITTING: frozenset({State.READY, State.INITIALIZING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING, State.FATAL_ERROR}),
    State.ABORTING: frozenset({State.READY, State.INITIALIZING, State.FATAL_ERROR}),
    State.FATAL_ERROR: frozenset[State](),
}

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_WITHOUT_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        # The group has moved on without the consumer whose offsets these are.
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
)
_FATAL_FOR_BATCHES = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


@dataclass(slots=True)
class TransactionMachine:
    """The state machine. Everything a test wants to see is an attribute."""

    transactional_id: str
    retry_backoff_ms: float = 100
    state: State = State.UNINITIALIZED
    version: int = 1  # of the transaction that is open, or of the next
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)  # records may be sent to these
    operation: Operation | None = None  # the application is waiting for it
    error: TransactionError | None = None  # why the transaction, or the producer, failed
    retry_at_ms: float | None = None
    may_be_open: bool = False  # the coordinator may know of a transaction
    _level: int = 1  # the version that the cluster uses now
    _to_add: dict[TopicPartition, None] = field(default_factory=dict)
    _groups: set[str] = field(default_factory=set)  # groups whose offsets may be committed (version 1)
    _offsets: tuple[ConsumerGroupMetadata, Mapping[TopicPartition, OffsetAndMetadata]] | None = None
    _under_way: Request | None = None
    _drained: bool = False
    _is_open: bool = False  # the coordinator knows of a transaction
    _epoch_wanted: bool = False

    # --- entry ----------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and return the effects to carry out.

        Raises RuntimeError if the state does not allow what the application asks for, or the `TransactionError` that
        the transaction, or the producer, failed with.
        """
        match event:
            case Initialize() | Begin() | GiveOffsets() | Commit() | Abort():
                effects = self._called(event)
            case Use():
                effects = self._use(event.partition)
            case Sent():
                self.may_be_open = True
                effects = []
            case Drained():
                if self.state in (State.COMMITTING, State.ABORTING):
                    self._drained = True
                effects = []
            case BatchFailed():
                effects = self._batch_failed(event.error)
            case VersionFound():
                effects = self._version_found(event.level)
            case Answered():
                effects = self._answered(event, now)
            case Tick():
                effects = []
            case _:
                assert_never(event)
        return effects + self._next(now)

    @property
    def deadline_ms(self) -> float | None:
        """The time at which the next `Tick` is needed."""
        return self.retry_at_ms if self._under_way is None and self._due() is not None else None

    def may_send(self, partition: TopicPartition) -> bool:
        """Return whether records may be sent to the partition now."""
        return partition in self.partitions

    def raise_failure(self) -> None:
        """Raise the error that the transaction, or the producer, failed with, if it did."""
        if self.error is not None and self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            raise type(self.error)(self.error.code, self.error.message)

    # --- what the application wants -------------------------------------------------------------------------------

    def _called(self, event: Initialize | Begin | GiveOffsets | Commit | Abort) -> list[Effect]:
        if self.state is State.FATAL_ERROR:
            self.raise_failure()
        match event:
            case Initialize():
                return self._initialize()
            case Begin():
                self._require(State.READY, "begin_transaction")
                self.version = self._level
                self._become(State.IN_TRANSACTION)
                return []
            case GiveOffsets():
                self._require_healthy("send_offsets_to_transaction")
                self._start(Operation.SEND_OFFSETS)
                self._offsets = (event.group, event.offsets)
                return []
            case Commit():
                if self.operation is Operation.COMMIT:
                    return []  # the application waits again
                self._require_healthy("commit_transaction")
                self._start(Operation.COMMIT)
                self._drained = False
                self._become(State.COMMITTING)
                return []
            case Abort():
                return self._abort()
            case _:
                assert_never(event)

    def _initialize(self) -> list[Effect]:
        if self.operation is Operation.INIT:
            return []
        self._require(State.UNINITIALIZED, "init_transactions")
        self._start(Operation.INIT)
        self.version = self._level
        self._become(State.INITIALIZING)
        return []

    def _abort(self) -> list[Effect]:
        if self.operation is Operation.ABORT:
            return []
        if self.state is not State.ABORTABLE_ERROR:
            self._require(State.IN_TRANSACTION, "abort_transaction")
        if self.operation is Operation.SEND_OFFSETS:  # the caller that waited for it gave up
            self.operation = self._offsets = None
        self._start(Operation.ABORT)
        self._drained = False
        self._to_add.clear()
        self._become(State.ABORTING)
        text = "the transaction was aborted before the record was sent"
        return [Discard(error=TransactionAborted(ErrorCode.TRANSACTION_ABORTABLE, text))]

    def _require(self, state: State, what: str) -> None:
        if self.state is not state:
            raise RuntimeError(f"{what}: the producer's state is {self.state.value}, not {state.value}")

    def _require_healthy(self, what: str) -> None:
        if self.state is State.ABORTABLE_ERROR:
            self.raise_failure()
        self._require(State.IN_TRANSACTION, what)

    def _start(self, operation: Operation) -> None:
        if self.operation is not None:
            raise RuntimeError(f"{operation.value}: {self.operation.value} is in progress")
        self.operation = operation

    def _use(self, partition: TopicPartition) -> list[Effect]:
        if self.state is not State.IN_TRANSACTION:
            self.raise_failure()
            self._require(State.IN_TRANSACTION, "send")
        if partition not in self.partitions:
            if self.version >= EPOCH_BUMPS:
                self.partitions.add(partition)
            else:
                self._to_add[partition] = None
        return []

    # --- what is asked --------------------------------------------------------------------------------------------

    def _next(self, now: float) -> list[Effect]:
        if self._under_way is not None or (self.retry_at_ms is not None and now < self.retry_at_ms):
            return []
        request = self._due()
        effects: list[Effect] = []
        if isinstance(request, SendEndTransaction) and not self.may_be_open:
            effects = self._ended()  # the transaction was empty
            request = self._due()
        if request is None:
            return effects
        self.retry_at_ms = None
        self._under_way = request
        if not isinstance(request, SendInitProducerId):
            self.may_be_open = True
        return [*effects, request]

    def _due(self) -> Request | None:
        producer_id, producer_epoch = self.producer_id, self.producer_epoch
        if self.state is State.INITIALIZING:
            return SendInitProducerId(producer_id=producer_id, producer_epoch=producer_epoch)
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self._to_add:
                return SendAddPartitions(
                    producer_id=producer_id, producer_epoch=producer_epoch, partitions=tuple(self._to_add)
                )
            if self._offsets is not None:
                group, offsets = self._offsets
                if self.version < EPOCH_BUMPS and group.group_id not in self._groups:
                    return SendAddOffsets(
                        producer_id=producer_id, producer_epoch=producer_epoch, group_id=group.group_id
                    )
                return SendCommitOffsets(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    version=self.version,
                    group=group,
                    offsets=offsets,
                )
        if self.state in (State.COMMITTING, State.ABORTING) and self._drained:
            return SendEndTransaction(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                version=self.version,
                is_commit=self.state is State.COMMITTING,
            )
        return None

    # --- what is answered -----------------------------------------------------------------------------------------

    def _answered(self, event: Answered, now: float) -> list[Effect]:
        request, self._under_way = self._under_way, None
        if request is None or self.state is State.FATAL_ERROR:
            return []
        if event.error is not ErrorCode.NONE:
            return self._refused(request, event.error, now)
        match request:
            case SendInitProducerId():
                return self._adopt(event) + self._ready()
            case SendAddPartitions():
                self._is_open = True
                for partition in request.partitions:
                    self._to_add.pop(partition, None)
                self.partitions.update(request.partitions)
                return []
            case SendAddOffsets():
                self._is_open = True
                self._groups.add(request.group_id)
                return []
            case SendCommitOffsets():
                self._is_open = True
                if self.operation is not Operation.SEND_OFFSETS:
                    return []  # the transaction failed, or is being aborted
                self._offsets = None
                return self._done()
            case SendEndTransaction():
                adopted = self._adopt(event) if request.version >= EPOCH_BUMPS and event.producer_id >= 0 else []
                if adopted:
                    self._epoch_wanted = False
                return adopted + self._ended()
            case _:
                assert_never(request)

    def _adopt(self, event: Answered) -> list[Effect]:
        self.producer_id, self.producer_epoch = event.producer_id, event.producer_epoch
        return [Adopt(producer_id=event.producer_id, producer_epoch=event.producer_epoch)]

    def _ended(self) -> list[Effect]:
        """Finish the transaction; the next epoch may still have to be requested."""
        self.partitions.clear()
        self._to_add.clear()
        self._groups.clear()
        self._offsets = self.error = None
        self._drained = self.may_be_open = self._is_open = False
        if self._epoch_wanted or (self._level >= EPOCH_BUMPS > self.version):
            self._become(State.INITIALIZING)
            self.version = self._level
            return []
        return self._ready()

    def _ready(self) -> list[Effect]:
        self._epoch_wanted = False
        self._become(State.READY)
        return self._done()

    def _done(self, error: KafkaError | None = None) -> list[Effect]:
        operation, self.operation = self.operation, None
        return [] if operation is None else [Done(operation=operation, error=error)]

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _refused(self, request: Request, code: ErrorCode, now: float) -> list[Effect]:
        text = f"transactional id {self.transactional_id!r}: {_NAMES[type(request)]}: {code.meaning}"
        if code in _FENCED:
            return self._fail(ProducerFenced(ErrorCode.PRODUCER_FENCED, text))
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return self._fail(ApplicationRecoverable(code, text))
        if code.retriable:
            self.retry_at_ms = now + self._backoff_ms(request, code)
            return self._forget(request) if code in _WITHOUT_COORDINATOR else []
        is_abort = isinstance(request, SendEndTransaction) and not request.is_commit
        if is_abort and code is ErrorCode.INVALID_TXN_STATE and not self._is_open and self.version < EPOCH_BUMPS:
            return self._ended()  # the request that would have opened it did not arrive
        if code is ErrorCode.INVALID_TXN_STATE and self.version >= EPOCH_BUMPS and self.state is State.COMMITTING:
            # The transaction timed out, and the coordinator aborted it. The coordinator takes an abort for a repetition
            # of its own and returns the next epoch, unless a new producer has taken over in between.
            return self._abortable(TransactionAbortable(code, f"{text} The transaction timed out and was aborted."))
        if code in _ABORTABLE and not is_abort and not isinstance(request, SendInitProducerId):
            return self._abortable(TransactionAbortable(code, text))
        return self._fail(TransactionFatal(code, text))

    def _backoff_ms(self, request: Request, code: ErrorCode) -> float:
        if code is ErrorCode.CONCURRENT_TRANSACTIONS and isinstance(request, SendAddPartitions | SendAddOffsets):
            return min(self.retry_backoff_ms, CONCURRENT_BACKOFF_MS)
        return self.retry_backoff_ms

    def _forget(self, request: Request) -> list[Effect]:
        if isinstance(request, SendCommitOffsets):
            return [ForgetCoordinator(kind=CoordinatorType.GROUP, key=request.group.group_id)]
        return [ForgetCoordinator(kind=CoordinatorType.TRANSACTION, key=self.transactional_id)]

    def _batch_failed(self, error: KafkaError) -> list[Effect]:
        text = f"transactional id {self.transactional_id!r}: {error.message}"
        if self.state is State.FATAL_ERROR or isinstance(error, TransactionError):
            return []  # caused by our own abort
        if error.code in _FATAL_FOR_BATCHES:
            if error.code is ErrorCode.PRODUCER_FENCED:
                return self._fail(ProducerFenced(error.code, text))
            if error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                return self._fail(ApplicationRecoverable(error.code, text))
            return self._fail(TransactionFatal(error.code, text))
        # The numbers of the records given up may or may not be used up: the next epoch starts again from 0 (KIP-360).
        if self.version < EPOCH_BUMPS:
            self._epoch_wanted = True
        return self._abortable(TransactionAbortable(error.code, text))

    def _abortable(self, error: TransactionAbortable) -> list[Effect]:
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return []  # it is being aborted already
        self.error = error
        self._to_add.clear()
        self._offsets = None
        self._become(State.ABORTABLE_ERROR)
        return [Discard(error=error), *self._done(error)]

    def _fail(self, error: TransactionError) -> list[Effect]:
        self.error = error
        self._become(State.FATAL_ERROR)
        return [Stop(error=error), *self._done(error)]

    def _version_found(self, level: int) -> list[Effect]:
        self._level = EPOCH_BUMPS if level >= EPOCH_BUMPS else 1
        if self.state is State.INITIALIZING:
            self.version = self._level
        return []

    def _become(self, state: State) -> None:
        assert state in FOLLOWS[self.state], f"{self.state} -> {state}"
        self.state = state


_NAMES: dict[type[Request], str] = {
    SendInitProducerId: "InitProducerId",
    SendAddPartitions: "AddPartitionsToTxn",
    SendAddOffsets: "AddOffsetsToTxn",
    SendCommitOffsets: "TxnOffsetCommit",
    SendEndTransaction: "EndTxn",
}
