"""A share group (KIP-932), with `kraftpy.client`, in every world: records are acquired, and accepted or released.

Two clients send to the group's topics; the other two acquire what comes and acknowledge each record of it, explicitly.
When the load is over, the group reads until nothing comes any more; then the history has the note `drained`.

The group begins at each partition's first record (`share.auto.offset.reset`), which is set before any member
subscribes.

`lock_ms` beside an acquisition is the part of the records' lock that certainly remains when it is requested. The
client may have held them since its previous request, so that time is subtracted.

An acknowledgement of which any part was refused or not answered is `info`, and a new client continues in its place:
its records are handed out again when their locks expire.

Left out: renewing, rejecting, implicit acknowledgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.generator import Call, QueueCalls
from chaos.history import Key, Recorder, Type, value_of
from chaos.workloads.clients import Client, Outcome, Setting, key_of, partition_of
from kraftpy.client import Admin, ShareConsumer
from kraftpy.client.model import AcknowledgeType, ResourceType, ShareRecord
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

FIRST_PROCESS: Final = 200_000
CLIENTS: Final = 4
"""Those with an even number send."""
GROUP: Final = "q"
_HURRY_SECONDS: Final = 0.01
_POLL_MS: Final = 200
_ACKNOWLEDGE_MS: Final = 8_000
_KINDS: Final = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a group's records, as its settings have them."""

    lock_ms: int
    deliveries: int


def limits(settings: Mapping[str, str]) -> Limits:
    """Read the limits from the brokers' settings."""
    lock_ms = int(settings.get("group.share.record.lock.duration.ms", "30000"))
    return Limits(lock_ms=lock_ms, deliveries=int(settings.get("group.share.delivery.count.limit", "5")))


def calls(seed: int) -> QueueCalls:
    """Return the workload's calls."""
    return QueueCalls(seed, group=GROUP, topics="q", crash_chance=0.003)


class ShareClient(Client):
    """Acts as one process of a history at a time: a sender, or a member of the share group."""

    def __init__(self, setting: Setting, recorder: Recorder, calls: QueueCalls, process: int, limits: Limits) -> None:
        super().__init__(setting, recorder, calls, process, CLIENTS)
        self._queue = calls
        self._limits = limits
        self._sharing: ShareConsumer | None = None
        self._held: dict[tuple[Key, int], ShareRecord] = {}
        self._asked_ns = 0

    def rest(self, chance: Random, calls_per_second: float) -> float:
        """Return the seconds until its next call; close to none while it drains the rest."""
        return _HURRY_SECONDS if self._queue.hurries(self.process) else chance.expovariate(calls_per_second)

    async def _outcome(self, call: Call, extra: dict[str, Any]) -> Outcome:
        try:
            match call.f:
                case "acquire":
                    return await self._acquire(call, extra)
                case "acknowledge":
                    return await self._acknowledge(call, extra)
        except KafkaError as error:
            extra["error"] = f"{error.code.name}: {error.message}"
            return Type.INFO, call.value
        return await super()._outcome(call, extra)

    async def _acquire(self, call: Call, extra: dict[str, Any]) -> Outcome:
        now_ns = self._setting.now_ns()
        consumer = await self._have_sharing()
        found = await consumer.getmany(timeout_ms=_POLL_MS)
        self._held = {(key_of(TopicPartition(each.topic, each.partition)), each.offset): each for each in found}
        since_ms = (now_ns - self._asked_ns) // 1_000_000 if self._asked_ns else 0
        self._asked_ns = now_ns
        extra["lock_ms"] = max(0, self._limits.lock_ms - since_ms)
        extra["delivery_limit"] = self._limits.deliveries
        records = [
            [key, offset, value_of(each.value), each.delivery_count] for (key, offset), each in self._held.items()
        ]
        return Type.OK, {**call.value, "records": records}

    async def _acknowledge(self, call: Call, extra: dict[str, Any]) -> Outcome:
        consumer = await self._have_sharing()
        for key, offset, kind in call.value["records"]:
            consumer.acknowledge(self._held[key, offset], _KINDS[kind])
        outcome = await consumer.commit_sync(timeout_ms=_ACKNOWLEDGE_MS)
        refused = {key_of(partition): str(error) for partition, error in outcome.items() if error is not None}
        if refused:
            extra["error"] = refused
            return Type.INFO, call.value
        return Type.OK, call.value

    async def _have_sharing(self) -> ShareConsumer:
        if self._sharing is None:
            topics = sorted({partition_of(key).topic for key in self._queue.keys})
            await self._have_topics(topics)
            async with Admin(**self._options()) as admin:
                group = (ResourceType.GROUP, GROUP)
                await admin.alter_configs({group: {"share.auto.offset.reset": "earliest"}})
            consumer = ShareConsumer(
                *topics, **self._options(), group_id=GROUP, share_acknowledgement_mode="explicit", max_poll_records=50
            )
            self._sharing = await consumer.start()
            self._asked_ns = self._setting.now_ns()
        return self._sharing

    async def _throw_away(self) -> None:
        await super()._throw_away()
        sharing, self._sharing = self._sharing, None
        self._held = {}
        self._asked_ns = 0
        if sharing is not None:
            await sharing.close(timeout_ms=0)
