"""A transaction coordinator and a share coordinator in any order of events, with epochs, ids and offsets at their ends.

Four bytes are an event: its kind, its id or key, and two variants. Afterwards everything in flight succeeds, and time
passes: then every request has had one answer, and no transaction stays between prepared and ended. No exception leaves
a machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share import events as share
from kraftpy.share.batches import TELLABLE, StateBatch
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.share.records import ShareKey
from kraftpy.transactions import events as transactions
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.types import Millis, TopicPartition

ALLOWED: tuple[type[Exception], ...] = ()
MORE_BYTES = 4 << 20
MOST_EVENTS = 300
_NUMBERS = (0, 1, 2, 100, -1, 2**15 - 1, 2**31 - 1, 2**62, 2**63 - 1, -(2**63))
_EPOCHS = (0, 1, -1, 2, 32766, 32767, -2)
_HOUR_MS = 3_600_000


class _Run:
    """A machine, and its requests, appends and markers in flight."""

    def __init__(self, machine: Any, appended: Any) -> None:
        self.machine = machine
        self.appended = appended
        self.now = 0
        self.appends: deque[int] = deque()
        self.markers: deque[transactions.WriteMarkers] = deque()
        self.waiting: set[int] = set()
        self.learned = (7, 0)
        machine.loaded(Millis(0), Millis(0))

    def ask(self, request: Any) -> None:
        self.waiting.add(request.request_id)
        self.step(request)

    def step(self, event: Any) -> None:
        for effect in self.machine.step(event, Millis(self.now), Millis(self.now)):
            match effect:
                case transactions.Reply() | share.Reply():
                    assert effect.request_id in self.waiting, "answered twice"
                    self.waiting.remove(effect.request_id)
                    if isinstance(effect.result, transactions.Result) and effect.result.producer_id >= 0:
                        self.learned = (effect.result.producer_id, effect.result.producer_epoch)
                case transactions.Append() | share.Append():
                    self.appends.append(effect.token)
                case transactions.WriteMarkers():
                    self.markers.append(effect)
                case _:
                    error = getattr(effect, "error", None)
                    if isinstance(error, Exception):
                        raise error

    def settle(self) -> None:
        """Let all appends and markers succeed, until nothing is in flight."""
        for _ in range(10_000):
            if self.appends:
                self.step(self.appended(token=self.appends.popleft()))
            elif self.markers:
                self.marked(self.markers.popleft())
            else:
                return
        raise AssertionError("it never comes to rest")

    def marked(self, asked: transactions.WriteMarkers) -> None:
        self.step(
            transactions.MarkersWritten(
                transactional_id=asked.transactional_id,
                producer_id=asked.producer_id,
                producer_epoch=asked.producer_epoch,
                partitions=asked.partitions,
            )
        )


def one(data: bytes) -> None:
    """A byte of which machine, and four bytes an event."""
    if not data:
        return
    is_share = bool(data[0] & 1)
    run = (
        _Run(ShareCoordinator(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=3)), share.Appended)
        if is_share
        else _Run(TransactionCoordinator(TransactionConfig()), transactions.Appended)
    )
    events = range(1, min(len(data) - 3, 4 * MOST_EVENTS), 4)
    for number, at in enumerate(events):
        run.now += 1
        (_of_share if is_share else _of_transaction)(run, number, *data[at : at + 4])
    for _ in range(30):
        run.settle()
        run.now += _HOUR_MS
        run.step(share.Tick() if is_share else transactions.Tick())
    run.settle()
    assert not run.waiting, "never answered"
    run.machine.validate()
    run.machine.durable()


def _of_transaction(run: _Run, number: int, kind: int, which: int, variant: int, other: int) -> None:
    name = ("t0", "t1", "x" * 32_000, "")[which % 4]
    producer_id, epoch = run.learned
    if other % 4 == 0:
        producer_id = _NUMBERS[other // 4 % len(_NUMBERS)]
    if variant % 4 == 0:
        epoch = _EPOCHS[variant // 4 % len(_EPOCHS)]
    partitions = frozenset(TopicPartition("odd", place) for place in range(variant // 28 % 4))
    command: Any
    match kind % 10:
        case 0 | 1:
            if run.appends:
                code = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)[variant % 3]
                run.step(transactions.Appended(token=run.appends.popleft(), error_code=code))
            return
        case 2:
            if run.markers:
                run.marked(run.markers.popleft())
            return
        case 3:
            run.now += (1, 1000, 60_000, _HOUR_MS)[variant % 4]
            run.step(transactions.Tick())
            return
        case 4 | 5:
            timeout_ms = (1000, 60_000, 0, -1, 2**31 - 1)[other % 5]
            known = run.learned if other % 3 == 0 else (-1, -1)
            command = transactions.InitProducerId(
                transactional_id=name, timeout_ms=timeout_ms, producer_id=known[0], producer_epoch=known[1]
            )
        case 6 | 7:
            command = transactions.AddPartitions(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=partitions,
                client_version=other % 3,
            )
        case 8:
            command = transactions.VerifyPartitions(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, partitions=partitions
            )
        case _:
            command = transactions.EndTransaction(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                is_commit=bool(other & 1),
                client_version=other % 3,
            )
    run.ask(transactions.Request(request_id=number, command=command, fresh_producer_id=1000 + number))


def _of_share(run: _Run, number: int, kind: int, which: int, variant: int, other: int) -> None:
    key = ShareKey(("g", "h")[which % 2], b"t" * 16, which // 2 % 2)  # type: ignore[arg-type]
    first, epoch = _NUMBERS[variant % len(_NUMBERS)], (0, 1, 2, -1, 2**31 - 1)[other % 5]
    command: Any
    match kind % 8:
        case 0 | 1:
            if run.appends:
                code = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)[variant % 3]
                run.step(share.Appended(token=run.appends.popleft(), offset=number, error_code=code))
            return
        case 2:
            run.now += (1, 1000, 60_000, _HOUR_MS)[variant % 4]
            run.step(share.Tick())
            return
        case 3:
            command = share.Initialize(key=key, state_epoch=epoch, start_offset=first)
        case 4:
            command = share.Read(key=key, leader_epoch=epoch)
        case 5 | 6:
            last = _NUMBERS[variant // 10 % len(_NUMBERS)]
            said = (
                StateBatch(first, last, TELLABLE[which % len(TELLABLE)], other % 7),
                StateBatch(max(last, 0), 2**63 - 1, TELLABLE[other % len(TELLABLE)], 1),
            )[: other % 3]
            batches = tuple(each for each in said if 0 <= each.first_offset <= each.last_offset)  # others are refused
            command = share.Write(
                key=key,
                state_epoch=epoch,
                leader_epoch=other // 5 % 3,
                start_offset=max(first, -1) if which & 4 else -1,
                delivery_complete_count=other % 9 - 1,
                batches=batches,
            )
        case _:
            command = share.Delete(key=key) if variant & 1 else share.ReadSummary(key=key)
    run.ask(share.Request(request_id=number, command=command))


def seeds() -> Iterator[tuple[str, bytes]]:
    """A transaction from its beginning to its end, a share state, and random ones."""
    commit = (4, 0, 1, 1, 0, 0, 0, 0, 6, 0, 57, 1, 0, 0, 0, 0, 9, 0, 1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    yield "transaction", bytes((0, *commit))
    yield "share-state", bytes((1, 3, 0, 0, 1, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0, 0, 5, 0, 1, 1, 0, 0, 0, 0, 7, 0, 0, 0))
    for number in range(24):
        chance = Random(number)
        yield f"random-{number}", bytes((number % 2, *(chance.randrange(256) for _ in range(240))))
