"""Clients that create, change, look for and delete topics: each call is one request to one node, never retried.

An error that the cluster gave is `fail`, with its name, and so is a connection that was refused. A lost answer, or one
that says that the outcome is unknown, is `info`. So no client makes its own topic "exist" by a retry.

`describe-topic` is a creation with validate-only: the one question about a topic that the controller answers.
It tells whether the topic exists, and nothing else.

Left out: `image`, since no request returns the metadata offset of a node's image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from chaos.generator import Call, Calls, TopicCalls
from chaos.history import Op, Recorder, Type
from chaos.nemesis import NodeId
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

Ask = Callable[[NodeId, ApiKey, int, object], Awaitable[Any]]
"""Sends one request to one node; raises OSError if no answer comes."""

_TOPIC: Final = 2
_SET: Final = 0
_TIMEOUT_MS: Final = 5_000
_UNKNOWN_OUTCOME: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR})


class OnlyTopics:
    """`TopicCalls` without looks at images."""

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls

    def call(self, process: int) -> Call | None:
        """Return the next call that this workload carries out."""
        while (call := self._calls.call(process)) is not None and call.f in ("image", "controller"):
            pass
        return call

    def observe(self, op: Op) -> None:
        """Pass the completion on."""
        self._calls.observe(op)


class TopicClient:
    """Acts as one process of a history at a time."""

    def __init__(
        self,
        ask: Ask,
        nodes: tuple[NodeId, ...],
        now_ns: Callable[[], int],
        recorder: Recorder,
        calls: Calls,
        process: int,
        count: int,
        chance: Random,
    ) -> None:
        self.process = process
        self._ask = ask
        self._nodes = nodes
        self._now_ns = now_ns
        self._recorder = recorder
        self._calls = calls
        self._count = count
        self._chance = chance

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Carry out calls until `is_over`."""
        while not is_over():
            call = self._calls.call(self.process)
            if call is None:
                return
            node = self._chance.choice(self._nodes)
            self._recorder.invoke(self._now_ns(), self.process, call.f, call.value, node=node)
            kind, value, error = await self._outcome(node, call)
            extra = {"node": node} if error is None else {"node": node, "error": error}
            self._calls.observe(self._recorder.complete(self._now_ns(), self.process, kind, value, **extra))
            if kind is Type.INFO:
                self.process += self._count
            await asyncio.sleep(pause())

    async def _outcome(self, node: NodeId, call: Call) -> tuple[Type, Any, str | None]:
        try:
            error = await self._error(node, call)
        except ConnectionRefusedError as refused:
            return Type.FAIL, call.value, f"ConnectionRefusedError: {refused}"
        except OSError as lost:
            return Type.INFO, call.value, f"{type(lost).__name__}: {lost}"
        if call.f == "describe-topic":
            return described(call.value, error)
        if error is ErrorCode.NONE:
            return Type.OK, call.value, None
        return (Type.INFO if error in _UNKNOWN_OUTCOME else Type.FAIL), call.value, error.name

    async def _error(self, node: NodeId, call: Call) -> ErrorCode:
        value = call.value
        topic = value["topic"]
        match call.f:
            case "create-topic" | "describe-topic":
                new = CreatableTopic(name=topic, num_partitions=value.get("partitions", 1))
                creation = CreateTopicsRequest(
                    topics=[new], timeout_ms=_TIMEOUT_MS, validate_only=call.f == "describe-topic"
                )
                answer = await self._ask(node, ApiKey.CREATE_TOPICS, 5, creation)
                return ErrorCode.of(answer.topics[0].error_code)
            case "delete-topic":
                deletion = DeleteTopicsRequest(topic_names=[topic], timeout_ms=_TIMEOUT_MS)
                answer = await self._ask(node, ApiKey.DELETE_TOPICS, 5, deletion)
                return ErrorCode.of(answer.responses[0].error_code)
            case "alter-topic":
                changes = [
                    AlterableConfig(name=name, config_operation=_SET, value=of) for name, of in value["config"].items()
                ]
                resource = AlterConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=changes)
                answer = await self._ask(
                    node, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource])
                )
                return ErrorCode.of(answer.responses[0].error_code)
            case "reassign":
                moves = ReassignableTopic(
                    name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=value["replicas"])]
                )
                request = AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=[moves])
                answer = await self._ask(node, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
                whole = ErrorCode.of(answer.error_code)
                return (
                    whole if whole is not ErrorCode.NONE else ErrorCode.of(answer.responses[0].partitions[0].error_code)
                )
            case _:
                raise ValueError(f"no client can carry out {call.f!r}")


def described(value: dict[str, Any], error: ErrorCode) -> tuple[Type, Any, str | None]:
    """Read the existence of a topic from the answer to a validate-only creation."""
    if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        return Type.OK, {**value, "exists": error is ErrorCode.TOPIC_ALREADY_EXISTS}, None
    return Type.FAIL, value, error.name
