"""The coordinator of the transactional ids that belong to one partition of `__transaction_state`.

    coordinator = TransactionCoordinator(config)
    for each record of the partition, in order: coordinator.replay(key, value)
    effects = coordinator.loaded(now, timestamp)
    effects = coordinator.step(event, now, timestamp)     # see `events`; a Tick is due at next_deadline()
    effects = coordinator.unload()                        # another broker leads the partition; then drop the object

`now` is a monotonic clock and schedules the periodic checks. `timestamp` is the wall clock: it goes into records, and
transactions and ids are timed by it, so that a failover does not restart their timeouts.

Invariants: durable state changes only with its record, replayed or known to be in the log; at most one record per
transactional id is in flight, and until it is durable every other request for the id gets CONCURRENT_TRANSACTIONS; each
request is answered exactly once, after its record is durable; a durable Prepare state is never taken back: after every
load its markers are requested again, until all partitions have one.

A failed append must not be in the log. If the shell cannot know, it unloads the coordinator and loads it again.

Left out: two-phase commit (KIP-939).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, assert_never

from kraftpy.frozen import frozen
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions import decisions
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.decisions import Decision
from kraftpy.transactions.events import (
    AddPartitions,
    Append,
    Appended,
    Command,
    Effect,
    EndTransaction,
    Event,
    InitProducerId,
    MarkersWritten,
    Note,
    Reply,
    Request,
    Result,
    Survived,
    Tick,
    VerifyPartitions,
    WriteMarkers,
)
from kraftpy.transactions.memory import MAX_BYTES_SETTING, Room, weight
from kraftpy.transactions.records import read_key, read_value
from kraftpy.transactions.transaction import AT_REST, PREPARED, State, Transaction, TransactionValue, follow
from kraftpy.types import Millis

MOST_AT_ONCE: Final = 500
"""How many due ids are handled before other requests are served."""
LOOKED_AT_ONCE: Final = 10_000
"""How many ids are looked at before other requests are served."""
_SOON_MS: Final = 10


@frozen
class _InFlight:
    """A record on its way to the log, and the reply to send once it is durable. A value of None deletes the id."""

    transactional_id: str
    value: TransactionValue | None
    last_producer_epoch: int
    request_id: int | None
    result: Result


class TransactionCoordinator:
    """All transactional ids of one partition of `__transaction_state`."""

    def __init__(self, config: TransactionConfig, room: Room | None = None) -> None:
        """All coordinators of a broker share one `room`."""
        self.config = config
        self.room = room or Room(config.kraftpy_transaction_coordinator_max_bytes)
        self._used = 0
        self.transactions: dict[str, Transaction] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._next_token = 1
        self._is_loaded = False
        self._look_for_open_at = Millis(0)
        self._look_for_unused_at = Millis(0)
        self._open_left: list[str] = []
        """The ids that remain to be looked at for transactions past their timeout."""
        self._unused_left: list[str] = []
        """The ids that remain to be looked at for those that are unused."""
        self._prepared_left: deque[str] = deque()
        """The ids whose transactions were interrupted by the move of this partition, and are not resumed yet."""
        self._resume_at = Millis(0)

    # ---- loading and unloading

    def replay(self, key: Buffer | None, value: Buffer | None, parsed: TransactionValue | None = None) -> None:
        """Apply one record of the partition, `parsed` before if that takes long. Raises ProtocolError if it is not in
        Kafka's format."""
        transactional_id = None if key is None else read_key(key)
        if transactional_id is None:
            return
        stored = parsed
        if stored is None and value is not None:
            stored = read_value(value)
        self._apply(transactional_id, stored)

    def _apply(self, transactional_id: str, stored: TransactionValue | None) -> None:
        known = self.transactions.get(transactional_id)
        self._count(weight(transactional_id, None if known is None else known.value), stored, transactional_id)
        if stored is None or stored.state is State.DEAD:
            self.transactions.pop(transactional_id, None)
            return
        transaction = self.transactions.setdefault(transactional_id, Transaction(transactional_id=transactional_id))
        transaction.value = stored
        transaction.unmarked = set(stored.partitions) if stored.state in PREPARED else set()

    def _count(self, before: int, stored: TransactionValue | None, transactional_id: str) -> None:
        is_gone = stored is None or stored.state is State.DEAD
        growth = (0 if is_gone else weight(transactional_id, stored)) - before
        self._used += growth
        self.room.used += growth

    def loaded(self, now: Millis, timestamp: Millis) -> list[Effect]:
        """Start work once the whole partition has been replayed: resume what was decided but interrupted."""
        step = _Step(now, timestamp)
        self._is_loaded = True
        self._look_for_open_at = Millis(now + self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._look_for_unused_at = Millis(now + self.config.transaction_remove_expired_transaction_cleanup_interval_ms)
        prepared = [key for key, each in self.transactions.items() if each.state in PREPARED]
        self._prepared_left.extend(sorted(prepared) if len(prepared) <= LOOKED_AT_ONCE else prepared)
        self._resume(step)
        return step.effects

    def _resume(self, step: _Step) -> None:
        """Have the markers of some interrupted transactions written."""
        self._resume_at = Millis(step.now + _SOON_MS)
        for _ in range(min(MOST_AT_ONCE, len(self._prepared_left))):
            transaction = self.transactions.get(self._prepared_left.popleft())
            if transaction is not None and not transaction.is_pending:
                self._advance(transaction, step)

    def unload(self) -> list[Effect]:
        """Tell waiting clients to look for the new coordinator. Drop the object afterwards."""
        self.room.used -= self._used
        self._used = 0
        moved = Result(error_code=ErrorCode.NOT_COORDINATOR)
        waiting = [each.request_id for each in self._in_flight.values() if each.request_id is not None]
        return [Reply(request_id=request_id, result=moved) for request_id in waiting]

    # ---- the machine

    @property
    def is_loaded(self) -> bool:
        """True if the whole partition has been replayed."""
        return self._is_loaded

    def next_deadline(self) -> Millis | None:
        """Return when the next Tick is due, on the clock of `now`; None before `loaded`."""
        if not self._is_loaded:
            return None
        soonest = min(self._look_for_open_at, self._look_for_unused_at)
        return min(soonest, self._resume_at) if self._prepared_left else soonest

    def needs_producer_id(self, command: Command) -> bool:
        """Return whether the request should come with a fresh producer id."""
        transaction = self.transactions.get(command.transactional_id)
        match command:
            case InitProducerId():
                return self._is_loaded and decisions.needs_producer_id_to_init(command, transaction)
            case EndTransaction():
                return self._is_loaded and decisions.needs_producer_id_to_end(command, transaction)
        return False

    def step(self, event: Event, now: Millis, timestamp: Millis) -> list[Effect]:
        """Handle an event and return its effects, in order."""
        step = _Step(now, timestamp)
        match event:
            case Request():
                self._attempt(event, step)
            case Appended():
                self._appended(self._in_flight.pop(event.token), event.error_code, step)
            case MarkersWritten():
                self._markers_written(event, step)
            case Tick():
                pass
            case _:
                assert_never(event)
        if self._prepared_left and now >= self._resume_at:
            self._resume(step)
        if self._is_loaded and now >= self._look_for_open_at:
            self._look_for_open(step)
        if self._is_loaded and now >= self._look_for_unused_at:
            self._look_for_unused(step)
        return step.effects

    # ---- requests

    def _attempt(self, event: Request, step: _Step) -> None:
        """Handle a request. An unexpected error fails only this request: nothing changes before the decision."""
        transactional_id = event.command.transactional_id
        try:
            self._request(event, step)
        except Exception as error:
            transaction = self.transactions.get(transactional_id)
            if transaction is not None and transaction.value is None and not transaction.is_pending:
                del self.transactions[transactional_id]
            step.survived(type(event.command).__name__, transactional_id, error)
            step.reply(event.request_id, Result(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))

    def _request(self, event: Request, step: _Step) -> None:
        command = event.command
        if not self._is_loaded:
            step.reply(event.request_id, Result(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if not command.transactional_id:
            step.reply(event.request_id, Result(error_code=ErrorCode.INVALID_REQUEST))
            return
        transaction = self.transactions.get(command.transactional_id)
        if isinstance(command, VerifyPartitions):
            value = None if transaction is None else transaction.value
            step.reply(event.request_id, decisions.verify(command, value))
            return
        decision = self._decide(command, transaction, event.fresh_producer_id, step.timestamp)
        if decision.value is None:
            step.reply(event.request_id, decision.result)
            return
        if not isinstance(command, EndTransaction) and not self._has_room(command, transaction, decision.value):
            step.reply(event.request_id, Result(error_code=ErrorCode.POLICY_VIOLATION))
            return
        if transaction is None:
            transaction = Transaction(transactional_id=command.transactional_id)
            self.transactions[command.transactional_id] = transaction
        self._append(transaction, decision, step, event.request_id)

    def _has_room(self, command: Command, transaction: Transaction | None, after: TransactionValue) -> bool:
        key = command.transactional_id
        growth = weight(key, after) - weight(key, None if transaction is None else transaction.value)
        if self.room.has(growth, is_new=transaction is None):
            return True
        what = "a new transactional id" if transaction is None else "partitions of a transaction"
        self.room.refused(f"{what} ({MAX_BYTES_SETTING}={self.room.max_bytes})")
        return False

    def _decide(
        self,
        command: InitProducerId | AddPartitions | EndTransaction,
        transaction: Transaction | None,
        fresh_producer_id: int,
        timestamp: Millis,
    ) -> Decision:
        if isinstance(command, InitProducerId) and not (
            0 < command.timeout_ms <= self.config.transaction_max_timeout_ms
        ):
            return decisions.refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if transaction is not None and transaction.is_pending:
            return decisions.refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        value = None if transaction is None else transaction.value
        last_epoch = -1 if transaction is None else transaction.last_producer_epoch
        match command:
            case InitProducerId():
                return decisions.init(command, value, last_epoch, fresh_producer_id, timestamp)
            case AddPartitions():
                return decisions.add(command, value, last_epoch, timestamp)
            case EndTransaction():
                return decisions.end(command, value, last_epoch, fresh_producer_id, timestamp)
            case _:
                assert_never(command)

    # ---- appending

    def _append(self, transaction: Transaction, decision: Decision, step: _Step, request_id: int | None = None) -> None:
        assert not transaction.is_pending, transaction
        assert decision.value is not None, decision
        is_dead = decision.value.state is State.DEAD
        value = None if is_dead else decision.value
        token, self._next_token = self._next_token, self._next_token + 1
        transaction.is_pending = True
        self._in_flight[token] = _InFlight(
            transactional_id=transaction.transactional_id,
            value=value,
            last_producer_epoch=decision.last_producer_epoch,
            request_id=request_id,
            result=decision.result,
        )
        step.effects.append(Append(transactional_id=transaction.transactional_id, value=value, token=token))

    def _appended(self, done: _InFlight, error_code: ErrorCode, step: _Step) -> None:
        transaction = self.transactions[done.transactional_id]
        transaction.is_pending = False
        if error_code is not ErrorCode.NONE:
            if transaction.value is None:
                del self.transactions[done.transactional_id]
            if done.request_id is not None:
                step.reply(done.request_id, Result(error_code=_client_error(error_code)))
            return
        self._apply(done.transactional_id, done.value)  # as if it were replayed, but not parsed again
        transaction.last_producer_epoch = done.last_producer_epoch
        if done.request_id is not None:
            step.reply(done.request_id, done.result)
        if done.value is not None:
            self._advance(transaction, step)

    def _advance(self, transaction: Transaction, step: _Step) -> None:
        """Carry out a durable decision: have markers written or, once all are, complete the transaction.

        After an unexpected error, the next look for open transactions tries again.
        """
        try:
            self._do_advance(transaction, step)
        except Exception as error:
            step.survived("completion", transaction.transactional_id, error)

    def _do_advance(self, transaction: Transaction, step: _Step) -> None:
        value = transaction.value
        if value is None or value.state not in PREPARED:
            return
        if transaction.unmarked:
            step.effects.append(
                WriteMarkers(
                    transactional_id=transaction.transactional_id,
                    producer_id=value.producer_id,
                    producer_epoch=value.producer_epoch,
                    is_commit=value.state is State.PREPARE_COMMIT,
                    partitions=frozenset(transaction.unmarked),
                    client_version=value.client_version,
                )
            )
        else:
            self._complete(transaction, value, step)

    def _complete(self, transaction: Transaction, value: TransactionValue, step: _Step) -> None:
        decision = Decision(
            result=Result(),
            value=decisions.complete(value, step.timestamp),
            last_producer_epoch=transaction.last_producer_epoch,
        )
        self._append(transaction, decision, step)

    def _markers_written(self, event: MarkersWritten, step: _Step) -> None:
        transaction = self.transactions.get(event.transactional_id)
        value = None if transaction is None else transaction.value
        if transaction is None or value is None or value.state not in PREPARED:
            return
        if (value.producer_id, value.producer_epoch) != (event.producer_id, event.producer_epoch):
            return  # that transaction is over
        transaction.unmarked -= event.partitions
        if not transaction.unmarked and not transaction.is_pending:
            self._advance(transaction, step)

    # ---- timeouts and expiry

    def _look_for_open(self, step: _Step) -> None:
        """Abort transactions past their timeout (rule 33), and retry completions that could not be stored."""
        interval_ms = self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._look_for_open_at = Millis(step.now + interval_ms)
        if not self._open_left:
            self._open_left = list(self.transactions)
        due = self._due(
            self._open_left,
            lambda each, value: value.is_overdue(step.timestamp) or (value.state in PREPARED and not each.unmarked),
        )
        if self._open_left:
            self._look_for_open_at = Millis(step.now + _SOON_MS)
        for transaction in due:
            value = transaction.value
            assert value is not None
            if value.state in PREPARED and not transaction.unmarked:
                self._advance(transaction, step)
            elif value.is_overdue(step.timestamp):
                self._abort(transaction, value, step)

    def _abort(self, transaction: Transaction, value: TransactionValue, step: _Step) -> None:
        try:
            fenced = decisions.fence(value, step.timestamp)
            step.note(transaction, f"aborted: open for {step.timestamp - value.started_at} ms")
            self._append(transaction, Decision(result=Result(), value=fenced), step)
        except Exception as error:
            step.survived("abort", transaction.transactional_id, error)

    def _look_for_unused(self, step: _Step) -> None:
        """Expire ids that have been unused for too long (rule 33)."""
        interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._look_for_unused_at = Millis(step.now + interval_ms)
        unused_since = step.timestamp - self.config.transactional_id_expiration_ms
        if not self._unused_left:
            self._unused_left = list(self.transactions)
        due = self._due(self._unused_left, lambda _, value: value.state in AT_REST and value.updated_at <= unused_since)
        if self._unused_left:
            self._look_for_unused_at = Millis(step.now + _SOON_MS)
        for transaction in due:
            assert transaction.value is not None
            self._expire(transaction, transaction.value, step)

    def _expire(self, transaction: Transaction, value: TransactionValue, step: _Step) -> None:
        try:
            dead = follow(value, State.DEAD)
            step.note(transaction, "expired")
            self._append(transaction, Decision(result=Result(), value=dead), step)
        except Exception as error:
            step.survived("expiry", transaction.transactional_id, error)

    def _due(self, left: list[str], is_due: Callable[[Transaction, TransactionValue], bool]) -> list[Transaction]:
        """Return transactions that match and have no record in flight, sorted by id.

        Takes ids off the list until enough were found or looked at.
        """
        found: dict[str, Transaction] = {}
        looked_at = 0
        while left and looked_at < LOOKED_AT_ONCE and len(found) < MOST_AT_ONCE:
            looked_at += 1
            each = self.transactions.get(key := left.pop())
            if each is not None and each.value is not None and not each.is_pending and is_due(each, each.value):
                found[key] = each
        return [found[key] for key in sorted(found)]

    # ---- for tests and simulations

    def durable(self) -> dict[str, TransactionValue]:
        """Return the value in the log for every id. A fresh coordinator that replayed the log returns the same."""
        return {key: each.value for key, each in sorted(self.transactions.items()) if each.value is not None}

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations, between steps."""
        on_the_way = [each.transactional_id for each in self._in_flight.values()]
        assert len(set(on_the_way)) == len(on_the_way), on_the_way
        for transactional_id, transaction in self.transactions.items():
            transaction.validate()
            assert transaction.is_pending == (transactional_id in on_the_way), transaction
        assert self._used == sum(weight(key, each.value) for key, each in self.transactions.items())


class _Step:
    """Collects the effects of one call of `step`, and holds the time of the call."""

    __slots__ = ("effects", "now", "timestamp")

    def __init__(self, now: Millis, timestamp: Millis) -> None:
        self.now = now
        self.timestamp = timestamp
        self.effects: list[Effect] = []

    def reply(self, request_id: int, result: Result) -> None:
        """Answer a request; its record, if there is one, is durable."""
        self.effects.append(Reply(request_id=request_id, result=result))

    def survived(self, kind: str, transactional_id: str, error: Exception) -> None:
        """Report an unexpected error that cost one thing of this kind, and nothing else of the transactional id."""
        self.effects.append(Survived(kind=kind, name=transactional_id, error=error))

    def note(self, transaction: Transaction, text: str) -> None:
        """Write a line to the broker's log."""
        self.effects.append(Note(transactional_id=transaction.transactional_id, text=text))


def _client_error(error_code: ErrorCode) -> ErrorCode:
    """Translate the error of the coordinator's own append into one that makes clients look for the coordinator."""
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
    return ErrorCode.UNKNOWN_SERVER_ERROR
