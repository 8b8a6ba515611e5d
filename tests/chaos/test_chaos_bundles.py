"""The bundles workload: records to several partitions in one request, each an operation of its own."""

from __future__ import annotations

from dataclasses import replace

from chaos import simulation
from chaos.drawing import draw
from chaos.history import Op, Type
from chaos.nemesis import Fault, Kind
from chaos.workloads.bundles import CLIENTS, FIRST_PROCESS, KEYS

SEED = 3


def of_bundles(outcome: simulation.Outcome, kind: Type) -> list[Op]:
    return [op for op in outcome.ops if op.type is kind and isinstance(op.process, int) and op.process >= FIRST_PROCESS]


def bundled(faults: list[Fault]) -> simulation.Outcome:
    drawn = replace(draw(SEED), workload="log", with_bundles=True, with_compaction=False, with_topics=False, load=1.0)
    drawn = replace(drawn, with_pipelines=False)
    outcome = simulation.run(SEED, 0.25, drawn=drawn, faults=faults, calm_seconds=2.0)
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    return outcome


def sends(outcome: simulation.Outcome, kind: Type) -> list[Op]:
    return [op for op in of_bundles(outcome, kind) if op.f == "send"]


def test_each_record_of_a_bundle_is_an_operation_of_a_process_of_its_own() -> None:
    outcome = bundled([])
    asked = sends(outcome, Type.INVOKE)
    bundles: dict[int, list[Op]] = {}
    for op in asked:
        bundles.setdefault(op.value[0][2], []).append(op)
    assert len(bundles) > 20
    for ops in bundles.values():
        assert tuple(op.value[0][1] for op in ops) == KEYS
        assert [op.process for op in ops] == list(range(ops[0].process, ops[0].process + len(KEYS)))
        assert len({op.time for op in ops}) == 1
    assert len(sends(outcome, Type.OK)) == len(asked)
    assert {op.process for op in asked} == set(range(FIRST_PROCESS, FIRST_PROCESS + CLIENTS * len(KEYS)))


def test_who_does_not_know_what_became_of_a_record_goes_on_under_new_process_numbers() -> None:
    outcome = bundled([Fault(id=0, kind=Kind.PAUSE, target="all", at_ms=5_000, lasts_ms=12_000, settings={})])
    lost = {op.process for op in sends(outcome, Type.INFO)}
    assert lost
    after = {process + CLIENTS * len(KEYS) for process in lost}
    assert after & {op.process for op in sends(outcome, Type.OK)}
    for process in lost:
        last = max(op.index for op in of_bundles(outcome, Type.INVOKE) if op.process == process)
        (given_up,) = [op for op in sends(outcome, Type.INFO) if op.process == process]
        assert last < given_up.index, "nothing is asked for by a process that was given up"
