"""The transactions workload: a run of it in a simulated cluster, judged; what its last calls wait for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from chaos import simulation
from chaos.drawing import draw
from chaos.generator import LastTransactions
from chaos.history import Op, Type
from chaos.nemesis import Fault, Kind
from chaos.workloads.transactions import LOGS_FIRST, PIPELINE_FIRST, last_roles, roles, transactional_id

SEED = 2


def done(outcome: simulation.Outcome, f: str, kind: Type = Type.OK) -> list[Op]:
    return [op for op in outcome.ops if op.f == f and op.type is kind]


def test_a_run_with_transactions_is_judged_and_nothing_is_wrong() -> None:
    drawn = replace(draw(SEED), with_transactions=True, load=1.0)
    fault = Fault(id=0, kind=Kind.KILL, target="coordinator of logs-0", at_ms=9_000, lasts_ms=5_000, settings={})
    outcome = simulation.run(SEED, 0.5, drawn=drawn, faults=[fault])
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    assert next(op for op in outcome.ops if op.f == "fault").value["nodes"], "there was a coordinator to kill"
    (judged,) = [verdict for verdict in outcome.verdicts if verdict.checker == "transactions"]
    assert judged.examined > 100
    assert {op.value["transactional_id"] for op in done(outcome, "init")} == {
        "logs-0",
        "logs-1",
        "pipeline-1",
        "pipeline-3",
    }
    assert any(op.extra.get("abort") for op in [*done(outcome, "txn", Type.FAIL), *done(outcome, "send", Type.FAIL)])
    processed = [op for op in done(outcome, "process") if len(op.value) > 1]
    assert processed
    assert all(op.extra["committed_offsets"] for op in processed)
    said = {what for op in done(outcome, "replica") for *_, what in op.value.get("transactional", ())}
    assert said == {"records", "commit", "abort"}
    final = [op for op in done(outcome, "poll") if op.extra.get("final")]
    assert any("out-0" in micro[1] for op in final for micro in op.value), "somebody read the pipeline's output"


def test_two_clients_have_one_transactional_id_and_keep_it_under_new_process_numbers() -> None:
    clients = [role for role in roles(1) if role.process < PIPELINE_FIRST]
    ids = [transactional_id(role.process) for role in clients]
    assert sorted(map(str, ids)) == ["logs-0", "logs-0", "logs-1"]
    assert [transactional_id(role.process + 7 * role.count) for role in clients] == ids
    assert transactional_id(LOGS_FIRST) == "logs-0"
    senders = [role.process for role in roles(1) if transactional_id(role.process) is None]
    assert len(senders) == 2


def test_one_client_only_takes_a_transactional_id_in_the_end() -> None:
    """Two clients that each start again whenever the other has done so may never finish."""
    clients: list[Any] = [SimpleNamespace(process=role.process, count=role.count) for role in roles(1)]
    last = [transactional_id(role.process) for role in last_roles(clients, ["x0-0"])]
    assert sorted(map(str, last)) == ["logs-0", "logs-1", "pipeline-1", "pipeline-3"]


def test_the_last_transactions_go_on_until_one_of_each_is_acknowledged() -> None:
    calls = LastTransactions(["x0-0", "out-0"], [3])
    crash = calls.call(3)
    assert crash is not None
    assert crash.f == "crash"
    first, second = calls.call(6), calls.call(6)
    assert first is not None
    assert second is not None
    assert [micro[:2] for micro in first.value] == [["send", "x0-0"], ["send", "out-0"]]
    assert first.value != second.value, "no value is sent twice"
    calls.observe(Op(index=0, time=0, process=6, type=Type.INFO, f="send", value=first.value))
    assert calls.call(9) is not None
    calls.observe(Op(index=1, time=0, process=9, type=Type.OK, f="send", value=first.value))
    assert calls.call(9) is None
