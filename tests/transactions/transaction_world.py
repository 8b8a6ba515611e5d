"""A transaction coordinator with a log, driven by hand: what scripts and random histories share.

Checks after every step: the coordinator's own invariants, every request answered once or still waiting
for the log, no transition that the table does not have, epochs of a producer id that never fall, an outcome that is
never another one once it is in the log, and a log that, replayed afresh, gives the same durable state.
"""

from __future__ import annotations

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.transactions.events import (
    Append,
    Appended,
    Command,
    Effect,
    Event,
    MarkersWritten,
    Note,
    Reply,
    Request,
    Result,
    Tick,
    WriteMarkers,
)
from kraftpy.transactions.records import Record, read_key, read_value
from kraftpy.transactions.transaction import FOLLOWS, PREPARED, State, TransactionValue
from kraftpy.types import Millis, TopicPartition


class World:
    """One coordinator, its log, the requests to it, the markers it wants, and the time."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.now = Millis(0)
        self.flushed: list[Record] = []  # the log of earlier loads
        self.added: dict[int, Record] = {}  # records that this coordinator's appends added to it, by token
        self.hold = False
        self.held: list[Append] = []
        self.requests: dict[int, Command] = {}
        self.answers: dict[int, Result] = {}
        self.wanted: dict[str, WriteMarkers] = {}
        self.last_producer_id = 0
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now, self.now))

    def _fresh(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(self.config)
        for key, value in self.log:
            coordinator.replay(key, value)
        return coordinator

    @property
    def log(self) -> list[Record]:
        return self.flushed + [record for _, record in sorted(self.added.items())]

    # ---- driving

    def request(self, command: Command) -> int:
        request_id = len(self.requests) + 1
        self.requests[request_id] = command
        fresh = -1
        if self.coordinator.needs_producer_id(command):
            self.last_producer_id += 1
            fresh = self.last_producer_id
        self.step(Request(request_id=request_id, command=command, fresh_producer_id=fresh))
        return request_id

    def step(self, event: Event) -> list[Effect]:
        effects = self.coordinator.step(event, self.now, self.now)
        self.take(effects)
        while self.held and not self.hold:
            self.appended(self.held[0].token)
        return effects

    def appended(self, token: int, error_code: ErrorCode = ErrorCode.NONE) -> None:
        append = next(each for each in self.held if each.token == token)
        self.held.remove(append)
        if error_code is ErrorCode.NONE:
            self.check_transition(append.record)
            self.added[token] = append.record
        self.step(Appended(token=token, error_code=error_code))

    def written(self, transactional_id: str, partitions: frozenset[TopicPartition] | None = None) -> None:
        wanted = self.wanted[transactional_id]
        self.step(
            MarkersWritten(
                transactional_id=transactional_id,
                producer_id=wanted.producer_id,
                producer_epoch=wanted.producer_epoch,
                partitions=wanted.partitions if partitions is None else partitions,
            )
        )

    def tick(self, now: int) -> None:
        self.now = Millis(now)
        self.step(Tick())

    def reload(self, *, lose_held: bool = True) -> None:
        """The coordinator's broker dies; the next one finds what is in the log."""
        self.take(self.coordinator.unload())
        if not lose_held:
            for each in self.held:
                self.check_transition(each.record)
                self.added[each.token] = each.record
        self.held.clear()
        self.wanted.clear()
        self.flushed, self.added = self.log, {}
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now, self.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request_id not in self.answers, effect
                    self.answers[effect.request_id] = effect.result
                case Append():
                    self.held.append(effect)
                case WriteMarkers():
                    self.wanted[effect.transactional_id] = effect
                case Note():
                    pass
        self.told(effects)

    def told(self, effects: list[Effect]) -> None:
        """A hook for subclasses."""

    # ---- checks

    def stored(self) -> dict[str, TransactionValue]:
        found: dict[str, TransactionValue] = {}
        for key, value in self.log:
            name = read_key(key)
            assert name is not None
            if value is None:
                found.pop(name, None)
            else:
                found[name] = read_value(value)
        return found

    def check_transition(self, record: Record) -> None:
        name = read_key(record[0])
        assert name is not None
        before = self.stored().get(name)
        if record[1] is None:
            assert before is not None
            assert State.DEAD in FOLLOWS[before.state]
            return
        after = read_value(record[1])
        if before is None:
            assert after.state is State.EMPTY
            return
        is_direct = after.state in FOLLOWS[before.state]
        is_fence = before.state is State.ONGOING and after.state is State.PREPARE_ABORT
        assert is_direct or is_fence, (before, after)
        if before.producer_id == after.producer_id:
            assert after.producer_epoch >= before.producer_epoch, (before, after)
        else:
            assert after.producer_epoch == 0
            assert after.producer_id > before.producer_id
        if before.state in PREPARED:
            name_before = before.state.value.removeprefix("Prepare")
            assert after.state.value == f"Complete{name_before}", (before, after)

    def check(self) -> None:
        self.coordinator.validate()
        assert self._fresh().durable() == self.coordinator.durable() == self.stored()
        waiting = self.requests.keys() - self.answers.keys()
        assert len(waiting) <= len(self.held)
