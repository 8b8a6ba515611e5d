"""The queue workload: a run of it in a simulated cluster, judged."""

from __future__ import annotations

from dataclasses import replace

from chaos import simulation
from chaos.drawing import SHARE_GROUPS, draw
from chaos.history import Type
from chaos.nemesis import Fault, Kind
from chaos.workloads.sharing import FIRST_PROCESS, Limits, calls, limits

SEED = 2


def test_a_share_group_reads_everything_and_nothing_is_wrong() -> None:
    drawn = draw(SEED)
    settings = {**drawn.settings, **SHARE_GROUPS}
    drawn = replace(drawn, with_queue=True, with_transactions=False, settings=settings, load=0.5)
    fault = Fault(id=0, kind=Kind.KILL, target="leader of q0-0", at_ms=9_000, lasts_ms=4_000, settings={})
    outcome = simulation.run(SEED, 0.4, drawn=drawn, faults=[fault])
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    assert next(op for op in outcome.ops if op.f == "fault").value["nodes"]
    acquired = [op for op in outcome.ops if op.f == "acquire" and op.type is Type.OK and op.value["records"]]
    assert len({op.process for op in acquired}) >= 2, "both members got something"
    assert all(0 < op.extra["lock_ms"] <= 5_000 for op in acquired[:3])
    assert any(op.f == "acknowledge" and op.type is Type.OK for op in outcome.ops)
    (drained,) = [op for op in outcome.ops if op.f == "drained"]
    assert drained.value["keys"]
    (judged,) = [verdict for verdict in outcome.verdicts if verdict.checker == "queue"]
    assert judged.examined > 40


def test_limits_are_those_of_the_brokers() -> None:
    assert limits(SHARE_GROUPS) == Limits(lock_ms=5_000, deliveries=5)
    assert limits({}) == Limits(lock_ms=30_000, deliveries=5)


def test_its_topics_are_its_own() -> None:
    assert {key[0] for key in calls(1).keys} == {"q"}
    assert FIRST_PROCESS % 2 == 0, "even processes send"
