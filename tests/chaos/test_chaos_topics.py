"""The clients that change topics: what each answer, and each lack of one, is in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import checkers
from chaos.checkers.verdict import Options
from chaos.generator import Call, TopicCalls
from chaos.history import History, Op, Recorder, Type
from chaos.workloads.topics import OnlyTopics, TopicClient
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode


class Topics:
    """A node that has topics, and that can lose its answers after it has carried out the requests."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.failures: list[OSError] = []
        self.keys: list[ApiKey] = []

    async def ask(self, node: int, key: ApiKey, version: int, request: Any) -> Any:
        self.keys.append(key)
        error = self._do(key, request)
        if self.failures:
            raise self.failures.pop(0)
        part = SimpleNamespace(error_code=int(error), partitions=[SimpleNamespace(error_code=int(error))])
        return SimpleNamespace(topics=[part], responses=[part], error_code=0)

    def _do(self, key: ApiKey, request: Any) -> ErrorCode:
        if key is ApiKey.CREATE_TOPICS:
            name = request.topics[0].name
            if name in self.topics:
                return ErrorCode.TOPIC_ALREADY_EXISTS
            if not request.validate_only:
                self.topics.add(name)
            return ErrorCode.NONE
        if key is ApiKey.DELETE_TOPICS:
            (name,) = request.topic_names
        elif key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
            name = request.resources[0].resource_name
        else:
            name = request.topics[0].name
        if name not in self.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if key is ApiKey.DELETE_TOPICS:
            self.topics.discard(name)
        return ErrorCode.NONE


class These:
    """A generator of these calls, in order."""

    def __init__(self, *calls: Call) -> None:
        self._calls: Iterator[Call] = iter(calls)

    def call(self, process: int) -> Call | None:
        return next(self._calls, None)

    def observe(self, op: Op) -> None:
        pass


def _history(node: Topics, calls: Any, processes: int = 1, ends_after: int | None = None) -> list[Op]:
    ops: list[Op] = []
    recorder = Recorder(ops.append)
    time = iter(range(1 << 30))

    async def run() -> None:
        clients = [
            TopicClient(node.ask, (1, 2), lambda: next(time), recorder, calls, number, processes, Random(number))
            for number in range(processes)
        ]
        over = (lambda: False) if ends_after is None else (lambda: len(ops) > ends_after)
        await asyncio.gather(*(client.work(over, lambda: 0.0) for client in clients))

    asyncio.run(run())
    return ops


def _call(f: str, **more: Any) -> Call:
    return Call(f=f, value={"topic": "a", **more})


def test_each_answer_is_told_as_what_it_is() -> None:
    calls = (
        _call("describe-topic"),
        _call("create-topic", partitions=2),
        _call("create-topic", partitions=2),
        _call("describe-topic"),
        _call("alter-topic", config={"retention.ms": "7"}),
        _call("reassign", replicas=[1, 2]),
        _call("delete-topic"),
        _call("reassign", replicas=[1, 2]),
    )
    done = [op for op in _history(Topics(), These(*calls)) if op.type is not Type.INVOKE]
    assert [(str(op.type), op.extra.get("error")) for op in done] == [
        ("ok", None),
        ("ok", None),
        ("fail", "TOPIC_ALREADY_EXISTS"),
        ("ok", None),
        ("ok", None),
        ("ok", None),
        ("ok", None),
        ("fail", "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    assert [op.value["exists"] for op in done if op.f == "describe-topic"] == [False, True]


@pytest.mark.parametrize(
    ("failure", "kind"), [(TimeoutError("late"), Type.INFO), (ConnectionRefusedError("no"), Type.FAIL)]
)
def test_a_lost_answer_is_an_open_question_and_is_asked_once(failure: OSError, kind: Type) -> None:
    node = Topics()
    node.failures = [failure]
    first, second = [
        op for op in _history(node, These(_call("delete-topic"), _call("delete-topic"))) if op.type is not Type.INVOKE
    ]
    assert first.type is kind
    assert node.keys == [ApiKey.DELETE_TOPICS] * 2
    assert (second.process == first.process) is (kind is Type.FAIL), "after an info a process is gone"


def test_the_checker_judges_what_these_clients_write() -> None:
    calls = OnlyTopics(TopicCalls(5))
    ops = _history(Topics(), calls, processes=2, ends_after=400)
    assert {op.f for op in ops} == {"create-topic", "delete-topic", "alter-topic", "reassign", "describe-topic"}
    (metadata,) = [verdict for verdict in checkers.check(History(ops), Options()) if verdict.checker == "metadata"]
    assert metadata.valid
    assert metadata.examined > 150
    forgetful = Topics()
    forgetful.topics = _Forgetful()
    ops = _history(forgetful, OnlyTopics(TopicCalls(5)), processes=2, ends_after=400)
    (metadata,) = [verdict for verdict in checkers.check(History(ops), Options()) if verdict.checker == "metadata"]
    assert not metadata.valid


class _Forgetful(set[str]):
    """Takes everything and has nothing."""

    def __contains__(self, name: object) -> bool:
        return False
