"""Transactional ids have a bound in bytes: new ones are refused, and existing ones continue, and are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import MOST_AT_ONCE, TransactionCoordinator
from kraftpy.transactions.events import (
    AddPartitions,
    Append,
    Appended,
    Command,
    EndTransaction,
    Event,
    InitProducerId,
    MarkersWritten,
    Reply,
    Request,
    Result,
    Tick,
    WriteMarkers,
)
from kraftpy.transactions.memory import ID_BYTES, PARTITION_BYTES, Room
from kraftpy.transactions.records import Record, transaction_record
from kraftpy.transactions.transaction import State, TransactionValue
from kraftpy.types import Millis, TopicPartition

NOW = Millis(1_000)


class Machine:
    """A coordinator whose appends are durable, and whose markers are written, at once."""

    def __init__(self, max_bytes: int, log: Sequence[Record] = ()) -> None:
        self.refused: list[str] = []
        self.room = Room(max_bytes, self.refused.append)
        self.coordinator = TransactionCoordinator(TransactionConfig(), self.room)
        for key, value in log:
            self.coordinator.replay(key, value)
        self.coordinator.loaded(NOW, NOW)
        self.log: list[Record] = []
        self.now = NOW
        self._answer: Result | None = None
        self._fresh = 100

    def ask(self, command: Command) -> Result:
        self._answer, self._fresh = None, self._fresh + 1
        self._step(Request(request_id=0, command=command, fresh_producer_id=self._fresh))
        assert self._answer is not None
        self.coordinator.validate()
        return self._answer

    def _step(self, event: Event) -> None:
        for effect in self.coordinator.step(event, self.now, self.now):
            if isinstance(effect, Reply):
                self._answer = effect.result
            elif isinstance(effect, Append):
                self.log.append(effect.record)
                self._step(Appended(token=effect.token))
            elif isinstance(effect, WriteMarkers):
                self._step(
                    MarkersWritten(
                        transactional_id=effect.transactional_id,
                        producer_id=effect.producer_id,
                        producer_epoch=effect.producer_epoch,
                        partitions=effect.partitions,
                    )
                )

    def tick(self, now: Millis) -> None:
        self.now = now
        self._step(Tick())
        self.coordinator.validate()

    def init(self, name: str) -> Result:
        return self.ask(InitProducerId(transactional_id=name, timeout_ms=1_000))

    def add(self, name: str, owner: Result, partitions: int) -> Result:
        return self.ask(
            AddPartitions(
                transactional_id=name,
                producer_id=owner.producer_id,
                producer_epoch=owner.producer_epoch,
                partitions=frozenset(TopicPartition("t", number) for number in range(partitions)),
            )
        )

    def commit(self, name: str, owner: Result) -> Result:
        return self.ask(
            EndTransaction(
                transactional_id=name,
                producer_id=owner.producer_id,
                producer_epoch=owner.producer_epoch,
                is_commit=True,
            )
        )


def test_new_ids_are_refused_and_those_that_are_there_go_on() -> None:
    machine = Machine(10 * (ID_BYTES + 20))
    told = [machine.init(f"id-{number}") for number in range(30)]
    accepted = [result for result in told if result.error_code is ErrorCode.NONE]
    assert len(accepted) == len(machine.coordinator.transactions) == 10
    assert told[-1].error_code is ErrorCode.POLICY_VIOLATION
    assert f"kraftpy.transaction.coordinator.max.bytes={machine.room.max_bytes}" in machine.refused[-1]
    again = machine.init("id-3")
    assert again.error_code is ErrorCode.NONE
    assert machine.add("id-3", again, 3).error_code is ErrorCode.NONE
    assert machine.commit("id-3", again).error_code is ErrorCode.NONE


def test_partitions_of_a_transaction_have_a_bound_and_it_can_be_ended() -> None:
    machine = Machine(100 * PARTITION_BYTES)
    owner = machine.init("x")
    assert machine.add("x", owner, 50).error_code is ErrorCode.NONE
    assert machine.add("x", owner, 1_000).error_code is ErrorCode.POLICY_VIOLATION
    assert machine.commit("x", owner).error_code is ErrorCode.NONE
    assert machine.add("x", owner, 50).error_code is ErrorCode.NONE, "the room of the first transaction is free again"


def test_what_the_log_holds_is_loaded_though_it_is_above_the_bound() -> None:
    before = Machine(1 << 20)
    owners = {f"id-{number}": before.init(f"id-{number}") for number in range(50)}
    after = Machine(1_000, before.log)
    assert len(after.coordinator.transactions) == 50
    assert after.init("new").error_code is ErrorCode.POLICY_VIOLATION
    assert after.init("id-7").producer_id == owners["id-7"].producer_id
    after.coordinator.unload()
    assert after.room.used == 0


def test_ids_that_expire_together_are_forgotten_in_portions() -> None:
    machine = Machine(1 << 30)
    count = 2 * MOST_AT_ONCE + 10
    for number in range(count):
        machine.init(f"id-{number}")
    left = []
    now = Millis(NOW + machine.coordinator.config.transactional_id_expiration_ms + 1)
    while machine.coordinator.transactions:
        machine.tick(now)
        left.append(len(machine.coordinator.transactions))
        due = machine.coordinator.next_deadline()
        assert due is not None
        now = Millis(due)
    assert left == [count - MOST_AT_ONCE, count - 2 * MOST_AT_ONCE, 0]
    assert machine.room.used == 0


def test_transactions_that_were_interrupted_are_resumed_in_pieces() -> None:
    count = 2 * MOST_AT_ONCE + 10
    log = [
        transaction_record(
            f"id-{number}",
            TransactionValue(
                producer_id=number,
                producer_epoch=0,
                timeout_ms=1_000,
                state=State.PREPARE_COMMIT,
                partitions=frozenset((TopicPartition("t", 0),)),
            ),
        )
        for number in range(count)
    ]
    coordinator = TransactionCoordinator(TransactionConfig())
    for key, value in log:
        coordinator.replay(key, value)
    effects = coordinator.loaded(NOW, NOW)
    pieces = []
    asked = {}
    while effects:
        pieces.append(len(effects))
        asked.update({each.transactional_id: each for each in effects if isinstance(each, WriteMarkers)})
        due = coordinator.next_deadline()
        assert due is not None
        effects = coordinator.step(Tick(), due, due)
    assert pieces == [MOST_AT_ONCE, MOST_AT_ONCE, 10]
    assert len(asked) == count
    coordinator.validate()
