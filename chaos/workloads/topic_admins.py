"""Administrators (`kraftpy.client.Admin`) who create, delete, alter, reassign and look at topics.

Each call is one request, never repeated by the client: the effect of a request whose answer was lost is unknown, and
recorded as such. The existence of a topic is checked through the quorum, by a request for fewer partitions than it can
have, which is refused either way. A broker's image of a topic may lag, and is only read at the end (`final_looks`).

Left out: looks at brokers' images and controllers, which the world reads itself (`worlds.readings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from chaos.checkers.metadata import EXISTS, UNKNOWN
from chaos.generator import Call, TopicCalls
from chaos.history import Recorder, Type
from chaos.workloads.clients import Setting
from chaos.workloads.single_requests import SingleRequests
from kraftpy.client import Admin, NewTopic, ResourceType, TopicPartition
from kraftpy.protocol.errors import ErrorCode, KafkaError

FIRST_PROCESS: Final = 500_000
_SAID: Final = {ErrorCode.TOPIC_ALREADY_EXISTS: EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN}
_REFUSED: Final = frozenset(
    {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.POLICY_VIOLATION}
)
_BY_WORLD: Final = ("image", "controller")


class TopicAdmin:
    """Acts as one process of a history at a time."""

    def __init__(self, setting: Setting, recorder: Recorder, calls: TopicCalls, process: int, count: int) -> None:
        self.process = process
        self._setting = setting
        self._recorder = recorder
        self._calls = calls
        self._count = count
        self._requests = SingleRequests(setting)

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Carry out calls until `is_over`."""
        try:
            while not is_over():
                call = self._calls.call(self.process)
                if call is not None and call.f not in _BY_WORLD:
                    await self._carry_out(call)
                    await asyncio.sleep(pause())
        finally:
            await self._requests.close()

    async def _carry_out(self, call: Call) -> None:
        self._recorder.invoke(self._setting.now_ns(), self.process, call.f, call.value)
        extra: dict[str, Any] = {}
        kind, value = Type.OK, call.value
        try:
            value = await self._done(await self._requests.admin(self.process), call)
        except KafkaError as error:
            extra["error"] = _SAID.get(error.code, error.code.name)
            kind = Type.FAIL if error.code in _SAID or error.code in _REFUSED else Type.INFO
        self._recorder.complete(self._setting.now_ns(), self.process, kind, value, **extra)
        if kind is Type.INFO:
            self.process += self._count
            await self._requests.close()

    async def _done(self, admin: Admin, call: Call) -> dict[str, Any]:
        topic, value = call.value["topic"], call.value
        match call.f:
            case "create-topic":
                copies = min(2, self._setting.replication_factor)
                new = NewTopic(name=topic, num_partitions=value["partitions"], replication_factor=copies)
                await admin.create_topics([new])
            case "delete-topic":
                await admin.delete_topics([topic])
            case "alter-topic":
                await admin.alter_configs({(ResourceType.TOPIC, topic): value["config"]})
            case "reassign":
                await admin.alter_partition_reassignments({TopicPartition(topic, 0): value["replicas"]})
            case "describe-topic":
                return {**value, "exists": await self._exists(admin, topic)}
            case _:
                raise ValueError(f"no client can carry out {call.f!r}")
        return dict(value)

    async def _exists(self, admin: Admin, topic: str) -> bool:
        try:
            await admin.create_partitions({topic: 1})
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_PARTITIONS:
                return True
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            raise
        raise AssertionError(f"{topic} was given the one partition that it must have had")


async def final_looks(setting: Setting, recorder: Recorder, process: int, topics: Iterable[str]) -> None:
    """Read every topic once all brokers agree."""
    async with Admin(bootstrap_servers=setting.bootstrap_servers, runtime=setting.runtime) as admin:
        for topic in topics:
            recorder.invoke(setting.now_ns(), process, "describe-topic", {"topic": topic}, final=True)
            seen: dict[str, Any] = {"topic": topic, "exists": topic in await admin.list_topics()}
            if seen["exists"]:
                (info,) = await admin.describe_topics([topic])
                resource = (ResourceType.TOPIC, topic)
                entries = (await admin.describe_configs([resource], names=["retention.ms"]))[resource]
                seen["partitions"] = len(info.partitions)
                seen["replicas"] = list(info.partitions[0].replicas)
                seen["config"] = {name: entry.value for name, entry in entries.items()}
            recorder.complete(setting.now_ns(), process, Type.OK, seen, final=True)
