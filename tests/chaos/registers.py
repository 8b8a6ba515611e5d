"""Histories of topics from a perfect register: right by construction, however many calls end without an answer.

Several clients create, delete, alter, reassign and describe the same topics for long. A call takes effect at one
instant between its invocation and its answer. One whose answer is lost ends as `info`; it takes effect never, before
the answer is given up, or late: at any time after that.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.checkers.metadata import EXISTS, UNKNOWN
from chaos.history import Op, Recorder, Type

MS = 1_000_000
CALLS = ("create-topic", "create-topic", "delete-topic", "alter-topic", "reassign", "describe-topic", "describe-topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The kind of a history: its size, its topics, and how often an outcome is unknown."""

    clients: int = 6
    topics: int = 4
    unknown: float = 0.1
    """The share of calls that lose their answers."""
    late: float = 0.3
    """The share of those that take effect after their client gave them up."""
    described: float = 0.5
    """The share of descriptions that say more than that the topic is there or not."""
    pause_ms: int = 20
    partitions: int | None = 3
    """The most partitions of a topic; without it each creation asks for a number of its own."""


@dataclass(slots=True)
class _Register:
    """Topics, and what each call does to them."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)

    def do(self, f: str, value: dict[str, Any]) -> str | None:
        name = value["topic"]
        topic = self.topics.get(name)
        if f == "create-topic":
            if topic is not None:
                return EXISTS
            self.topics[name] = {"partitions": value["partitions"], "config": {}}
        elif topic is None:
            return UNKNOWN
        elif f == "delete-topic":
            del self.topics[name]
        elif f == "alter-topic":
            topic["config"] = {**topic["config"], **value["config"]}
        else:
            topic["replicas"] = value["replicas"]
        return None

    def described(self, name: str, *, wholly: bool) -> dict[str, Any]:
        topic = self.topics.get(name)
        more = {"config": {"retention.ms": "default"}} if wholly and topic is not None else {}
        if topic is not None and wholly:
            more = {**topic, "config": {**more["config"], **topic["config"]}}
        return {"topic": name, "exists": topic is not None, **more}


class Clients:
    """Takes turns in virtual time."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.ops: list[Op] = []
        self._chance = random.Random(seed)
        self._kind = kind
        self._register = _Register()
        self._recorder = Recorder(self.ops.append)
        self._numbers = itertools.count(1)
        self._processes = itertools.count()
        self._now = 0
        self._due: list[tuple[int, int, Iterator[int]]] = []
        self._order = itertools.count()

    def run(self, lines: int) -> list[Op]:
        """Write at least this many lines."""
        for _ in range(self._kind.clients):
            self._begin(self._client(lines), 0)
        while self._due:
            self._now, _, task = heapq.heappop(self._due)
            if (pause := next(task, None)) is not None:
                self._begin(task, pause)
        return self.ops

    def _begin(self, task: Iterator[int], after: int) -> None:
        heapq.heappush(self._due, (self._now + after, next(self._order), task))

    def _pause(self, ms: float) -> int:
        return int(self._chance.expovariate(1 / ms) * MS)

    def _client(self, lines: int) -> Iterator[int]:
        process = next(self._processes)
        while len(self.ops) < lines:
            f, value = self._call()
            self._recorder.invoke(self._now, process, f, value)
            if self._chance.random() < self._kind.unknown:
                if self._chance.random() < self._kind.late:
                    self._begin(self._effect(f, value), 200 * MS + self._pause(3_000))
                elif self._chance.random() < 0.5:
                    self._begin(self._effect(f, value), self._pause(5))
                yield 200 * MS
                self._recorder.complete(self._now, process, Type.INFO, value)
                process = next(self._processes)
            else:
                yield self._pause(5)
                kind, value, extra = self._answer(f, value)
                yield self._pause(5)
                self._recorder.complete(self._now, process, kind, value, **extra)
            yield self._pause(self._kind.pause_ms)

    def _effect(self, f: str, value: dict[str, Any]) -> Iterator[int]:
        if f != "describe-topic":
            self._register.do(f, value)
        yield from ()

    def _answer(self, f: str, value: dict[str, Any]) -> tuple[Type, dict[str, Any], dict[str, str]]:
        if f == "describe-topic":
            wholly = self._chance.random() < self._kind.described
            return Type.OK, self._register.described(value["topic"], wholly=wholly), {}
        error = self._register.do(f, value)
        return (Type.OK, value, {}) if error is None else (Type.FAIL, value, {"error": error})

    def _call(self) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        f = chance.choice(CALLS)
        value: dict[str, Any] = {"topic": f"topic-{chance.randrange(self._kind.topics)}"}
        match f:
            case "create-topic":
                most = self._kind.partitions
                value["partitions"] = next(self._numbers) if most is None else chance.randint(1, most)
            case "alter-topic":
                value["config"] = {"retention.ms": str(next(self._numbers))}
            case "reassign":
                value["replicas"] = chance.sample((1, 2, 3), k=2)
        return f, value


def with_a_stale_read(ops: list[Op], seed: int) -> tuple[list[Op], Op]:
    """Return the history with a description of a topic as it was before it was deleted; and that description.

    Every creation in it is to have a number of partitions of its own: so nothing explains it.
    """
    invoked: dict[int, int] = {}
    open_: dict[Any, int] = {}
    for op in ops:
        if op.type is Type.INVOKE:
            open_[op.process] = op.index
        else:
            invoked[op.index] = open_.pop(op.process)
    done = [op for op in ops if op.type is Type.OK]
    chance = random.Random(seed)
    reads = [op for op in done if op.f == "describe-topic" and op.value.get("partitions")]
    for read in chance.sample(reads, k=len(reads)):
        of_it = [op for op in done if op.value["topic"] == read.value["topic"]]
        deletions = [op for op in of_it if op.f == "delete-topic" and op.index < invoked[read.index]]
        last = max((invoked[op.index] for op in deletions), default=-1)
        before = [op for op in of_it if op.f == "create-topic" and op.index < last]
        if before:
            stale = replace(read, value={**read.value, "partitions": before[-1].value["partitions"]})
            return [stale if op.index == read.index else op for op in ops], stale
    raise AssertionError("no read can be made stale")
