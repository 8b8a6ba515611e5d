"""Transactions of two sorts, with `kraftpy.client`, in every world.

    logs       sends to several partitions and polls of others in one transaction, some of which are aborted on purpose.
               Two of the three clients have one transactional id: a new producer of either takes it from the other
    pipeline   two clients send to inputs; two read them as members of one group, and in one transaction send a
               descendant of each record to the output and commit the offsets: each input must appear once,
               though some of these too are aborted on purpose

`roles` are the clients of both. When they are done, a client of `last_roles` takes over each transactional id and
commits a record to every partition: by then every open transaction has ended, and those records follow all others, so
that a reader that reaches them has seen everything.

All clients read with read_committed. A new producer's `init` is an operation of its own: {transactional_id,
producer_id, epoch}. `commit_asked` beside a value is when the commit was requested. A transaction that failed before
certainly never happened, and is `fail`; any outcome of the commit but success is `info`. A client that fails with
polled records continues as a new process, as if it had died: it reads from the beginning, or from what its group has
committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from chaos.checkers.versions import descendant
from chaos.generator import Call, Calls, LastTransactions, LogCalls, LogOptions, PipelineCalls
from chaos.history import Key, Op, Recorder, Type
from chaos.workloads.clients import Client, Outcome, Setting, partition_of
from kraftpy.client import Producer
from kraftpy.client.model import ConsumerGroupMetadata
from kraftpy.client.producer.delivery import Delivery
from kraftpy.client.producer.transaction_events import TransactionAbortable
from kraftpy.protocol.errors import KafkaError

LOGS_FIRST: Final = 300_000
LOGS_CLIENTS: Final = 3
PIPELINE_FIRST: Final = 400_000
PIPELINE_CLIENTS: Final = 4
"""Those with an even number send."""
_GROUP: Final = "pipeline"
_ABORTS: Final = 0.1
_KEYS: Final = 4
_BLOCK_MS: Final = 12_000
_TIMEOUT_MS: Final = 10_000
"""The timeout of a transaction that is never ended."""


class AbortingCalls:
    """Marks some calls (of these `kinds`) of another source to be aborted at the end."""

    def __init__(self, calls: Calls, kinds: tuple[str, ...], seed: int) -> None:
        self._calls = calls
        self._kinds = kinds
        self._chance = Random(f"aborts {seed}")

    def call(self, process: int) -> Call | None:
        """Return the other's call, perhaps with `abort` beside it."""
        call = self._calls.call(process)
        if call is None or call.f not in self._kinds or self._chance.random() >= _ABORTS:
            return call
        return Call(f=call.f, value=call.value, extra={**call.extra, "abort": True})

    def observe(self, op: Op) -> None:
        """Pass the completion to the other source."""
        self._calls.observe(op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A client to create."""

    process: int
    count: int
    calls: Calls


def roles(seed: int) -> list[Role]:
    """Return the roles of both workloads."""
    options = LogOptions(transactions=True, keys=_KEYS, crash_chance=0.005, topics="x")
    logs = AbortingCalls(LogCalls(seed, options), ("send", "txn"), seed)
    pipeline = AbortingCalls(PipelineCalls(seed, group=_GROUP, inputs=2), ("process",), seed)
    return [
        *(Role(process=LOGS_FIRST + n, count=LOGS_CLIENTS, calls=logs) for n in range(LOGS_CLIENTS)),
        *(Role(process=PIPELINE_FIRST + n, count=PIPELINE_CLIENTS, calls=pipeline) for n in range(PIPELINE_CLIENTS)),
    ]


def last_roles(clients: Iterable[TransactionClient], sent: Iterable[Key]) -> list[Role]:
    """Return one role for each transactional id in use: two would keep taking it from each other.

    `sent` are all keys that anybody sent to.
    """
    by_id = {transactional_id(client.process): client for client in clients}
    old = [(client.process, client.count) for name, client in by_id.items() if name is not None]
    keys = sorted(key for key in sent if key.startswith(("x", "out-")))
    calls = LastTransactions(keys, (process for process, _ in old))
    return [Role(process=process, count=count, calls=calls) for process, count in old]


def transactional_id(process: int) -> str | None:
    """The transactional id does not depend on the process number under which a client continues."""
    if process >= PIPELINE_FIRST:
        number = (process - PIPELINE_FIRST) % PIPELINE_CLIENTS
        return f"pipeline-{number}" if number % 2 else None
    return f"logs-{(process - LOGS_FIRST) % LOGS_CLIENTS // 2}"


class TransactionClient(Client):
    """Acts as one process of a history at a time, with transactions."""

    def __init__(self, setting: Setting, recorder: Recorder, role: Role) -> None:
        super().__init__(
            replace(setting, isolation_level="read_committed"), recorder, role.calls, role.process, role.count
        )
        self.count = role.count
        self._attempts = 0

    async def _carry_out(self, call: Call) -> None:
        if call.f in ("send", "txn", "process") and self._id is not None and not await self._is_initialized():
            return
        process = self.process
        await super()._carry_out(call)
        if self.process == process and self._must_begin_anew:
            self.process += self.count
            await self._throw_away()
        self._must_begin_anew = False

    _must_begin_anew = False

    @property
    def _id(self) -> str | None:
        return transactional_id(self.process)

    def _producer_options(self) -> Mapping[str, Any]:
        if self._id is None:
            return super()._producer_options()
        more: dict[str, Any] = {
            "transactional_id": self._id,
            "transaction_timeout_ms": _TIMEOUT_MS,
            "max_block_ms": _BLOCK_MS,
        }
        return {**super()._producer_options(), **more}

    async def _is_initialized(self) -> bool:
        """Make sure of a producer with this id; a new one is recorded as an operation of its own."""
        if self._producer is not None:
            return True
        now_ns = self._setting.now_ns
        self._recorder.invoke(now_ns(), self.process, "init", {"transactional_id": self._id})
        producer = await self._have_producer()
        try:
            await producer.init_transactions()
        except KafkaError as error:
            asked = {"transactional_id": self._id}
            self._recorder.complete(now_ns(), self.process, Type.INFO, asked, error=str(error))
            self.process += self.count
            await self._throw_away()
            return False
        producer_id, epoch = _identity(producer)
        value = {"transactional_id": self._id, "producer_id": producer_id, "epoch": epoch}
        self._recorder.complete(now_ns(), self.process, Type.OK, value)
        return True

    async def _outcome(self, call: Call, extra: dict[str, Any]) -> Outcome:
        if self._id is None or call.f not in ("send", "txn", "process"):
            return await super()._outcome(call, extra)
        extra["transactional_id"] = self._id
        steps: list[Any] = [list(micro) for micro in call.value]
        kind = await self._transact(call, steps, extra)
        self._must_begin_anew = kind is Type.FAIL and ("error" in extra or call.f != "send")
        return kind, steps

    async def _transact(self, call: Call, steps: list[Any], extra: dict[str, Any]) -> Type:
        """Carry the transaction out; `steps` are filled in as far as it gets."""
        producer = await self._have_producer()
        is_committing = False
        try:
            member = None
            if call.f == "process":
                member = await self._take_inputs(call, steps)
                if member is None:
                    return Type.OK
            producer.begin_transaction()
            await self._work_through(producer, steps)
            if member is not None:
                await self._setting.stall()
                await self._send_offsets(producer, steps, member, extra)
            await self._setting.stall()
            if call.extra.get("abort"):
                await producer.abort_transaction()
                return Type.FAIL
            is_committing = True
            extra["commit_asked"] = self._setting.now_ns()
            await producer.commit_transaction()
        except TransactionAbortable as error:  # its work is not committed
            extra["error"] = str(error)
            await self._abort(producer)
            return Type.FAIL
        except KafkaError as error:
            extra["error"] = f"{error.code.name}: {error.message}"
            if is_committing:
                return Type.INFO
            await self._abort(producer)
            return Type.FAIL
        return Type.OK

    async def _abort(self, producer: Producer) -> None:
        with contextlib.suppress(KafkaError, RuntimeError):  # it is fenced, or nothing was begun
            await producer.abort_transaction()

    async def _take_inputs(self, call: Call, steps: list[Any]) -> ConsumerGroupMetadata | None:
        """Poll, and send a descendant of each record; return the member, or None if nothing came."""
        _, micro = await self._poll()
        member = (await self._have_consumer()).group_metadata()  # as of this poll: a rebalance may happen at any time
        self._attempts += 1
        attempt = f"{self.process}.{self._attempts}"
        records = micro[0][1]
        steps[:] = micro
        steps += [["send", call.extra["output"], descendant(key, offset, attempt)]
                  for key, pairs in records.items() for offset, _ in pairs]  # fmt: skip
        return member if len(steps) > 1 else None

    async def _work_through(self, producer: Producer, steps: list[Any]) -> None:
        """Send records together up to the next poll; fill in the offsets that are known."""
        under_way: list[tuple[int, Delivery]] = []
        try:
            for place, micro in enumerate(steps):
                if micro[0] == "send":
                    partition = partition_of(micro[1])
                    await self._have_topics([partition.topic])
                    sent = await producer.send(partition.topic, str(micro[2]).encode(), partition=partition.partition)
                    under_way.append((place, sent))
                elif len(micro) == 1:
                    _, found = await self._poll()
                    steps[place] = found[0]
            await producer.flush()
        finally:
            for place, sent in under_way:
                with contextlib.suppress(KafkaError, asyncio.InvalidStateError):
                    _, key, value = steps[place]
                    steps[place] = ["send", key, [sent.result().offset, value]]

    async def _send_offsets(
        self, producer: Producer, steps: list[Any], member: ConsumerGroupMetadata, extra: dict[str, Any]
    ) -> None:
        ((_, records),) = [micro for micro in steps if micro[0] == "poll"]
        offsets = {key: pairs[-1][0] + 1 for key, pairs in records.items()}
        extra["committed_offsets"] = offsets
        positions = {partition_of(key): offset for key, offset in offsets.items()}
        await producer.send_offsets_to_transaction(positions, member)


def _identity(producer: Producer) -> tuple[int, int]:
    """Return producer id and epoch, which a client does not expose, for the zombie checks."""
    transactions = producer._transactions
    assert transactions is not None
    return transactions._machine.producer_id, transactions._machine.producer_epoch
