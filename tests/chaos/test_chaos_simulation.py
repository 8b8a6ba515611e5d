"""The simulated world: a seed repeats itself, good seeds are good, and a product that is broken is caught."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import pytest

from chaos import simulation
from chaos.drawing import Drawn, draw
from chaos.nemesis import Fault, Kind
from kraftpy.broker.replication.replica import Replica
from kraftpy.protocol.errors import ErrorCode

SEEDS = (7, 11, 10)
"""Three, one and five brokers, controllers apart, logs and groups."""

PRINT_TRACE = """
import hashlib, logging
from chaos import simulation
from chaos.history import to_line
logging.disable()
outcome = simulation.run(7, 0.3)
print(hashlib.sha256("".join(map(to_line, outcome.ops)).encode()).hexdigest(), outcome.callbacks)
"""


def trace(hash_seed: int) -> str:
    """Return the outcome of a seed, from a process of its own, in which sets of strings have a different order."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, "-c", PRINT_TRACE], env=environment, capture_output=True, text=True, check=True, timeout=100
    ).stdout


def test_the_same_seed_gives_the_same_history_to_the_callback() -> None:
    first, second = trace(1), trace(2)
    assert first == second
    assert len(first.split()[0]) == hashlib.sha256().digest_size * 2


def test_a_run_that_is_watched_is_the_same_run_and_its_schedule_can_be_given_again() -> None:
    told: list[tuple[float, str, str]] = []
    watched = simulation.run(16, 0.4, trace=lambda *what: told.append(what))
    again = simulation.run(16, 0.4, faults=watched.faults)
    assert (again.ops, again.callbacks) == (watched.ops, watched.callbacks)
    assert watched.faults
    assert watched.faults == again.faults
    assert [seconds for seconds, _, _ in told] == sorted(seconds for seconds, _, _ in told)
    assert {"nemesis", "node1", "node2", "node3", "quorum"} <= {who for _, who, _ in told}
    calm = simulation.run(16, 0.4, faults=[])
    assert [op.f for op in calm.ops if op.process == "nemesis"] == []
    assert calm.problems == []


def test_every_checker_whose_subject_ran_has_something_to_judge() -> None:
    seed = next(seed for seed in itertools.count(1) if _has_everything(draw(seed)))
    outcome = simulation.run(seed, 0.3)
    assert outcome.problems == []
    examined = {verdict.checker: verdict.examined for verdict in outcome.verdicts}
    assert {name for name, count in examined.items() if not count} == {"queue", "rights", "tokens", "rates"}
    assert [op.f for op in outcome.ops if op.type == "info" and op.f == "decided"]


def _has_everything(drawn: Drawn) -> bool:
    all_there = {"groups", "topics", "compacted topic", "transactions"} <= {*drawn.workloads}
    return drawn.brokers == 3 and all_there


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_find_nothing(seed: int) -> None:
    outcome = simulation.run(seed, 0.4, calls_per_second=6.0)
    assert outcome.problems == []
    wrong = {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid}
    assert wrong == {}
    acknowledged = sum(op.type == "ok" and op.f == "send" for op in outcome.ops)
    assert acknowledged > 50, "a run without load proves nothing"


def test_acknowledging_before_the_high_watermark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "outcome", lambda *_: ErrorCode.NONE)
    fault = Fault(
        id=0,
        kind=Kind.PARTITION,
        target="leader of t0-0",
        at_ms=5_000,
        lasts_ms=10_000,
        settings={"shape": "target"},
    )
    names: set[str] = set()
    for seed in (2, 5, 6):  # three brokers, logs
        outcome = simulation.run(seed, 0.3, faults=[fault], calls_per_second=25)
        names |= {name for verdict in outcome.verdicts for name in verdict.counts}
        if "lost-write" in names:
            return
    pytest.fail(f"3 seeds, and nobody noticed: {names}")


def test_a_member_that_stalls_does_nothing_meanwhile_and_is_refused_what_it_says_after_its_session() -> None:
    drawn = Drawn(workload="groups", clients=5, load=2.0, stalls=0.06, drifts=(0.0,) * 3)
    outcome = simulation.run(3, 0.6, drawn=drawn, faults=[], calm_seconds=6.0)
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    noted = [op for op in outcome.ops if op.f == "stall"]
    assert noted
    members = [op for op in outcome.ops if op.f in ("poll", "commit")]
    for note in noted:
        number = int(str(note.process).removeprefix("client"))
        over = note.time + note.value["seconds"] * 1e9 - 1e6
        own = [op for op in members if op.process % drawn.clients == number]
        assert [op for op in own if note.time < op.time < over] == []
    refused = {op.extra["error"].split(":")[0] for op in outcome.ops if op.f == "commit" and "error" in op.extra}
    assert refused & {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"}
