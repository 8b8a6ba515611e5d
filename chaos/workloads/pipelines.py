"""Producers that keep several batches in flight to one partition, as real ones do, also while some of them fail.

Every record is an operation of its own, by a process of its own, because the outcome of one says nothing about the
others. Only their order is promised: `PRODUCER` and `SENT` beside the operation's value name the
idempotent producer and the record's place among all that it sent. A client goes on with its producer after an error, as
applications do, and sometimes dies and comes back as another.

`refusals` has leaders refuse a batch now and then as they may at any time (NOT_ENOUGH_REPLICAS): those behind it arrive
before it is sent again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from chaos.checkers.versions import PRODUCER, SENT
from chaos.generator import Call
from chaos.history import Key, Op, Recorder, Type
from chaos.workloads.clients import SURELY_NOT, Client, Setting, partition_of
from chaos.worlds.loop import current
from chaos.worlds.replacing import replaced
from kraftpy.broker.replication.replica import Replica
from kraftpy.client.producer.delivery import Delivery
from kraftpy.log.results import AppendResult, Origin
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, BatchHeader, read_header
from kraftpy.types import Millis

FIRST_PROCESS: Final = 2_000_000
CLIENTS: Final = 2
KEYS: Final[tuple[Key, ...]] = ("t0-0", "t0-1")
_FIRST_VALUE: Final = 700_000_000
"""Higher than any value that other clients send."""
_BURST: Final = (4, 12)
"""Records that a client sends before it rests: more than may be in flight."""
_BETWEEN_SECONDS: Final = 0.0005
"""The mean time between two of them, so that they travel in several requests."""
_DIES: Final = 0.01
"""The chance of a producer's end after a burst."""
_REFUSED: Final = 0.06
"""The share of batches that leaders refuse."""


class _NoCalls:
    """Never asks for anything."""

    def call(self, process: int) -> Call | None:
        """Return nothing."""

    def observe(self, op: Op) -> None:
        """Do nothing."""


class PipeliningClient(Client):
    """One producer at a time, with as many records on their way to each partition as it likes."""

    def __init__(
        self, setting: Setting, recorder: Recorder, chance: Random, number: int, values: Iterator[int]
    ) -> None:
        """`values` are shared by all of these clients, and number their processes too."""
        super().__init__(setting, recorder, _NoCalls(), FIRST_PROCESS + number, CLIENTS)
        self._chance = chance
        self._values = values
        self._lives = (f"pipeline {number}.{life}" for life in itertools.count())
        self._life = next(self._lives)
        self._sent = itertools.count()
        self._on_their_way: set[asyncio.Task[None]] = set()

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Send burst after burst until `is_over`, then wait for every answer."""
        try:
            while not is_over():
                for _ in range(self._chance.randint(*_BURST)):
                    await self._send_one(self._chance.choice(KEYS))
                    await asyncio.sleep(self._chance.expovariate(1 / _BETWEEN_SECONDS))
                if self._chance.random() < _DIES:
                    await self._die()
                await asyncio.sleep(pause())
            await self._answered()
        finally:
            await self._throw_away()

    async def _send_one(self, key: Key) -> None:
        """Give one record to the producer; its answer is noted whenever it comes."""
        value = next(self._values)
        process = FIRST_PROCESS + value - _FIRST_VALUE
        extra = {PRODUCER: self._life, SENT: next(self._sent)}
        self._recorder.invoke(self._setting.now_ns(), process, "send", [["send", key, value]], **extra)
        topic, partition = partition_of(key)
        try:
            await self._have_topics([topic])
            producer = await self._have_producer()
            delivery = await producer.send(topic, str(value).encode(), partition=partition)
        except KafkaError as error:
            self._failed(process, key, value, error, extra)
            return
        answer = asyncio.get_running_loop().create_task(self._answer(process, key, value, delivery, extra))
        self._on_their_way.add(answer)
        answer.add_done_callback(self._on_their_way.discard)

    async def _answer(self, process: int, key: Key, value: int, delivery: Delivery, extra: dict[str, Any]) -> None:
        try:
            offset = (await delivery).offset
        except KafkaError as error:
            self._failed(process, key, value, error, extra)
        else:
            done = [["send", key, [None if offset < 0 else offset, value]]]  # a duplicate has no offset
            self._recorder.complete(self._setting.now_ns(), process, Type.OK, done, **extra)

    def _failed(self, process: int, key: Key, value: int, error: KafkaError, extra: dict[str, Any]) -> None:
        kind = Type.FAIL if error.code in SURELY_NOT else Type.INFO
        why = f"{error.code.name}: {error.message}"
        self._recorder.complete(self._setting.now_ns(), process, kind, [["send", key, value]], **extra, error=why)

    async def _die(self) -> None:
        """End as a process that dies, and come back as another producer."""
        await self._throw_away()
        await self._answered()
        self._life, self._sent = next(self._lives), itertools.count()

    async def _answered(self) -> None:
        while self._on_their_way:
            await asyncio.wait(self._on_their_way)


def values() -> Iterator[int]:
    """Never yield a value twice."""
    return itertools.count(_FIRST_VALUE)


@contextmanager
def refusals() -> Iterator[None]:
    """Have leaders refuse some batches of idempotent producers, if they are of no transaction."""
    append = Replica.append

    def refused(
        self: Replica,
        records: Buffer,
        origin: Origin,
        now: Millis,
        batch: Any = None,
        header: BatchHeader | None = None,
    ) -> AppendResult:
        process = current.get()
        assert process is not None
        if origin is Origin.CLIENT and len(records) >= HEADER_BYTES:
            found = header or read_header(records)
            is_of_producer = found.producer_id >= 0 and not found.is_transactional
            if is_of_producer and process.random.random() < _REFUSED:
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "refused by the workload")
        return append(self, records, origin, now, batch, header)

    with replaced(Replica, "append", refused):
        yield
