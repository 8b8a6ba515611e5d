"""Clients that carry out calls with `kraftpy.client` and record them: the same in every world.

A client is one producer (idempotent, acks=all) and one consumer. It works through calls one at a time. A call that
certainly had no effect is `fail`; one that may have had is `info`, after which the client is discarded as if it had
died, and a new one continues under a new process number (`process + count`). Keys are partitions, `orders-3`; missing
topics are created.

Left out: transactions (`transactions`), share groups (`sharing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.generator import Call, Calls
from chaos.history import Key, Recorder, Type, value_of
from kraftpy.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from kraftpy.client.consumer.rebalance_listener import RebalanceListener
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.errors import ErrorCode, KafkaError

Outcome = tuple[Type, Any]

_FIRST_ATTEMPT_MS: Final = 50
"""The time in which no call can have been retried: the client waits at least 80 ms before it retries."""

_POLL_MS: Final = 200
_SESSION_MS: Final = 6_000
"""The timeout of a member. With the consumer protocol the broker sets it."""
SURELY_NOT: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors of a send which prove that nothing was or will be written."""
_REBALANCING: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


async def goes_on() -> None:
    """The default: a client that never stalls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Shared parameters of a workload's clients."""

    bootstrap_servers: str
    runtime: Runtime
    now_ns: Callable[[], int]
    """Return nanoseconds since the run began."""
    partitions: int = 2
    replication_factor: int = 3
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    isolation_level: str = "read_uncommitted"
    """For consumers."""
    group_protocol: str = "classic"
    """The consumers' protocol: classic, or consumer (KIP-848)."""
    fetch_max_wait_ms: int = 500
    delivery_timeout_ms: int = 10_000
    request_timeout_ms: int = 3_000
    stall: Callable[[], Awaitable[None]] = goes_on
    """Awaited between a member's read and its commit, and between a transaction's work and its end: the process may
    stop there, as on a machine that swaps, for longer than its session."""


def partition_of(key: Key) -> TopicPartition:
    """Return the partition that a key names."""
    topic, _, number = key.rpartition("-")
    return TopicPartition(topic, int(number))


def key_of(partition: TopicPartition) -> Key:
    """Return the key of a partition."""
    return f"{partition.topic}-{partition.partition}"


class _Listener(RebalanceListener):
    """Notes what a rebalance moved, and the member's assignment after it."""

    def __init__(self, note: Callable[[Iterable[TopicPartition]], None], assigned: Callable[[], None]) -> None:
        self._note = note
        self._assigned = assigned

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Note assigned partitions."""
        self._note(partitions)
        self._assigned()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Note revoked partitions."""
        self._note(partitions)


class Client:
    """Acts as one process of a history at a time."""

    def __init__(self, setting: Setting, recorder: Recorder, calls: Calls, process: int, count: int) -> None:
        self.process = process
        self._setting = setting
        self._recorder = recorder
        self._calls = calls
        self._count = count
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._group: str | None = None
        self._topics: set[str] = set()
        self._rebalanced: list[dict[str, Any]] = []

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Carry out calls until there are none or `is_over`."""
        try:
            while not is_over():
                call = self._calls.call(self.process)
                if call is None:
                    return
                if call.f == "commit":
                    await self._setting.stall()
                await self._carry_out(call)
                await asyncio.sleep(pause())
        finally:
            await self._throw_away()

    async def _carry_out(self, call: Call) -> None:
        now_ns = self._setting.now_ns
        self._recorder.invoke(now_ns(), self.process, call.f, call.value, **call.extra)
        extra: dict[str, Any] = dict(call.extra)
        asked_ns = now_ns()
        kind, value = await self._outcome(call, extra)
        if call.f == "commit" and kind is Type.FAIL and now_ns() - asked_ns > _FIRST_ATTEMPT_MS * 1_000_000:
            kind = Type.INFO  # the refused send may be a retry whose unanswered first attempt was accepted
        if self._rebalanced:
            extra["rebalance_log"], self._rebalanced = self._rebalanced, []
        op = self._recorder.complete(now_ns(), self.process, kind, value, **extra)
        self._calls.observe(op)
        if kind is Type.INFO:
            self.process += self._count
            await self._throw_away()

    async def _outcome(self, call: Call, extra: dict[str, Any]) -> Outcome:
        try:
            match call.f:
                case "send":
                    return await self._send(call.value)
                case "put":
                    return await self._put(call.value)
                case "poll":
                    return await self._poll()
                case "assign":
                    return await self._assign(call)
                case "subscribe":
                    return await self._subscribe(call)
                case "commit":
                    return await self._commit(call)
                case "committed":
                    return await self._committed(call)
                case "crash":
                    return Type.INFO, None
                case _:
                    raise ValueError(f"no client can carry out {call.f!r}")
        except KafkaError as error:
            extra["error"] = f"{error.code.name}: {error.message}"
            if call.f in ("send", "put"):
                return (Type.FAIL if error.code in SURELY_NOT else Type.INFO), call.value
            if call.f == "commit":
                return (Type.FAIL if error.code in _REBALANCING else Type.INFO), call.value
            return Type.FAIL, call.value  # changes nothing

    # --- logs ---

    async def _send(self, micro: list[list[Any]]) -> Outcome:
        producer = await self._have_producer()
        done: list[Any] = []
        for _, key, value in micro:
            partition = partition_of(key)
            await self._have_topics([partition.topic])
            sent = await producer.send(partition.topic, str(value).encode(), partition=partition.partition)
            metadata = await sent
            done.append(["send", key, [metadata.offset, value]])
        return Type.OK, done

    async def _put(self, asked: Mapping[str, Any]) -> Outcome:
        producer = await self._have_producer()
        partition = partition_of(asked["key"])
        await self._have_topics([partition.topic])
        value = None if asked["value"] is None else str(asked["value"]).encode()
        key = asked["record_key"].encode()
        sent = await producer.send_and_wait(partition.topic, value, key, partition=partition.partition)
        return Type.OK, {**asked, "offset": sent.offset}

    async def _poll(self) -> Outcome:
        consumer = await self._have_consumer()
        found = await consumer.getmany(timeout_ms=_POLL_MS)
        records: dict[Key, list[list[Any]]] = {}
        for partition, batch in found.items():
            records[key_of(partition)] = [[record.offset, value_of(record.value)] for record in batch]
        return Type.OK, [["poll", records]]

    async def _assign(self, call: Call) -> Outcome:
        partitions = [partition_of(key) for key in call.value]
        await self._have_topics(partition.topic for partition in partitions)
        consumer = await self._have_consumer()
        known = consumer.assignment()
        consumer.assign(partitions)
        fresh = [each for each in partitions if each not in known or call.extra.get("seek_to_beginning")]
        for partition in fresh:
            consumer.seek(partition, 0)
        return Type.OK, call.value

    async def _subscribe(self, call: Call) -> Outcome:
        self._group = call.extra.get("group", "group")
        topics = sorted({partition_of(key).topic for key in call.value})
        await self._have_topics(topics)
        consumer = await self._have_consumer()
        consumer.subscribe(topics, listener=_Listener(self._note_rebalance, lambda: self._note_assigned(consumer)))
        return Type.OK, call.value

    # --- groups ---

    def _note_rebalance(self, partitions: Iterable[TopicPartition]) -> None:
        keys = sorted(key_of(partition) for partition in partitions)
        if keys:
            self._rebalanced.append({"keys": keys})

    def _note_assigned(self, consumer: Consumer) -> None:
        """Note the member's assignment in its generation, or epoch, both read from its state machine at one moment."""
        member = consumer._member
        if member is None or not member.is_stable:
            return  # the next generation has begun
        value = {
            "group": self._group,
            "generation": member.generation_id,
            "member": member.member_id,
            "partitions": sorted(key_of(partition) for partition in member._machine.held),
        }
        self._recorder.note(self._setting.now_ns(), f"process {self.process}", "assigned", value)

    async def _commit(self, call: Call) -> Outcome:
        consumer = await self._have_consumer()
        offsets = {partition_of(key): offset for key, offset in call.value["offsets"].items()}
        await consumer.commit(offsets)
        return Type.OK, call.value

    async def _committed(self, call: Call) -> Outcome:
        self._group = call.value["group"]
        consumer = await self._have_consumer()
        found = await consumer.committed([partition_of(key) for key in call.value["keys"]])
        offsets = {key_of(partition): None if at is None else at.offset for partition, at in found.items()}
        return Type.OK, {**call.value, "offsets": offsets}

    # --- what it works with ---

    def _options(self) -> Mapping[str, Any]:
        return {
            "bootstrap_servers": self._setting.bootstrap_servers,
            "client_id": f"process-{self.process}",
            "request_timeout_ms": self._setting.request_timeout_ms,
            "runtime": self._setting.runtime,
        }

    def _producer_options(self) -> Mapping[str, Any]:
        timeout_ms = self._setting.delivery_timeout_ms
        return {**self._options(), "acks": "all", "delivery_timeout_ms": timeout_ms, "linger_ms": 0}

    async def _have_producer(self) -> Producer:
        if self._producer is None:
            self._producer = await Producer(**self._producer_options()).start()
        return self._producer

    async def _have_consumer(self) -> Consumer:
        if self._consumer is None:
            group: dict[str, Any] = {}
            if self._group is not None:
                group = {"group_id": self._group, "enable_auto_commit": False}
                group["group_protocol"] = self._setting.group_protocol
                if self._setting.group_protocol == "classic":
                    group["session_timeout_ms"] = _SESSION_MS
            consumer = Consumer(
                **self._options(),
                **group,
                auto_offset_reset="earliest",
                isolation_level=self._setting.isolation_level,
                fetch_max_wait_ms=self._setting.fetch_max_wait_ms,
            )
            self._consumer = await consumer.start()
        return self._consumer

    async def _have_topics(self, topics: Iterable[str]) -> None:
        missing = sorted(set(topics) - self._topics)
        if not missing:
            return
        setting = self._setting
        async with Admin(**self._options()) as admin:
            for topic in missing:
                new = NewTopic(
                    name=topic,
                    num_partitions=setting.partitions,
                    replication_factor=setting.replication_factor,
                    config=dict(setting.topic_settings),
                )
                try:
                    await admin.create_topics([new])
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                self._topics.add(topic)

    async def _throw_away(self) -> None:
        """Close as a process that dies: nothing is flushed, and no one is notified."""
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        self._group = None
        self._rebalanced = []
        if producer is not None:
            await producer.close(timeout_ms=0)
        if consumer is not None:
            await consumer.close(timeout_ms=0)
