"""The pipelines workload: several batches in flight to a partition, some refused, and the order that is promised."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest import mock

from chaos import simulation
from chaos.checkers.versions import PRODUCER, SENT
from chaos.drawing import draw
from chaos.history import Op, Type
from chaos.nemesis import Fault, Kind
from chaos.workloads.pipelines import KEYS
from kraftpy.client.connection import Connection
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode

SEED = 3


def of_pipelines(outcome: simulation.Outcome, kind: Type) -> list[Op]:
    return [op for op in outcome.ops if op.type is kind and PRODUCER in op.extra]


def piped(faults: list[Fault]) -> simulation.Outcome:
    drawn = replace(draw(SEED), workload="log", with_pipelines=True, with_compaction=False, with_topics=False, load=1.0)
    outcome = simulation.run(SEED, 0.5, drawn=drawn, faults=faults, calm_seconds=2.0)
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    return outcome


def test_batches_overtake_nothing_although_some_are_refused_in_the_middle() -> None:
    """Gaps do arrive at the leader: without them the order would be no one's merit."""
    gaps = 0
    known = Connection.send

    def send(self: Connection, key: ApiKey, *request: Any, **how: Any) -> asyncio.Future[Any]:
        answer = known(self, key, *request, **how)
        if key is ApiKey.PRODUCE:
            answer.add_done_callback(count)
        return answer

    def count(answer: asyncio.Future[Any]) -> None:
        nonlocal gaps
        if not answer.cancelled() and answer.exception() is None:
            for topic in answer.result().responses:
                codes = [partition.error_code for partition in topic.partition_responses]
                gaps += codes.count(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    with mock.patch.object(Connection, "send", send):
        outcome = piped([])
    assert gaps > 0
    asked = of_pipelines(outcome, Type.INVOKE)
    assert len(asked) > 100
    assert {op.value[0][1] for op in asked} == set(KEYS)
    assert len({op.process for op in asked}) == len(asked)
    open_at_once = most = 0
    for op in outcome.ops:
        if PRODUCER in op.extra:
            open_at_once += 1 if op.type is Type.INVOKE else -1
            most = max(most, open_at_once)
    assert most > 5
    assert open_at_once == 0


def test_each_record_says_who_sent_it_and_when_among_its_others() -> None:
    outcome = piped([Fault(id=0, kind=Kind.KILL, target="leader of t0-0", at_ms=5_000, lasts_ms=3_000, settings={})])
    by_producer: dict[str, list[int]] = {}
    for op in of_pipelines(outcome, Type.INVOKE):
        by_producer.setdefault(op.extra[PRODUCER], []).append(op.extra[SENT])
    assert len(by_producer) >= 2
    for sent in by_producer.values():
        assert sent == list(range(len(sent)))
