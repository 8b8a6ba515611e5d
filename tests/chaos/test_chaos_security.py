"""Rights that change in a simulated cluster: nothing leaks, brokers agree in the end, mutants are caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from chaos import simulation
from chaos.drawing import draw
from chaos.history import Op, Type
from chaos.mutants import suite
from chaos.nemesis import Fault, Kind
from chaos.seeds import known_seeds
from chaos.workloads import security
from chaos.workloads.intrusions import INTRUSIONS, PROBES

SEED = 5
MUTANT_MINUTES = 0.3
FIRST_SEEDS = {"host-overlooked": 2}
KNOWN_BEFORE = 28
"""The known seeds that were found before any seed drew security."""


def faults() -> list[Fault]:
    return [
        Fault(id=0, kind=Kind.KILL, target="controller", at_ms=8_000, lasts_ms=3_000, settings={}),
        Fault(id=1, kind=Kind.PAUSE, target="one", at_ms=14_000, lasts_ms=6_000, settings={}),
    ]


def test_nobody_is_told_anything_and_the_rights_of_the_end_hold_on_every_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security, "ADMINISTRATOR_PAUSE_SECONDS", 0.3)
    monkeypatch.setattr(security, "INTRUDER_PAUSE_SECONDS", 0.06)
    drawn = replace(draw(SEED), brokers=3, controllers=0, drifts=(0.0,) * 3, workload="log", load=0.5)
    drawn = replace(drawn, with_security=True, with_hostile=False, with_transactions=False, with_queue=False)
    outcome = simulation.run(SEED, 0.5, drawn=drawn, faults=faults(), calm_seconds=10.0)
    assert outcome.problems == []
    wrong = [each.text for verdict in outcome.verdicts for each in verdict.anomalies if not each.allowed]
    assert wrong == []
    tried = [op for op in outcome.ops if op.f == "attempt" and op.type is Type.OK and not op.extra.get("final")]
    refused = Counter(_is_refused(op) for op in tried)
    assert refused[True] > 40
    assert refused[False] > 5
    assert {kind for op in tried for kind, _ in op.value["seen"]} >= {"topic", "record"}, "rights are of use"
    probes = [op for op in outcome.ops if op.f == "attempt" and op.extra.get("final") and op.type is Type.OK]
    assert len(probes) == 2 * 3 * 4 * len(PROBES), "two users, three brokers, four targets"
    logins = Counter(op.value["accepted"] for op in outcome.ops if op.f == "login" and op.type is Type.OK)
    assert logins[True] > 3
    assert logins[False] > 3


def _is_refused(op: Op) -> bool:
    return any(error.endswith("AUTHORIZATION_FAILED") for error in op.value["errors"])


@pytest.mark.parametrize(
    "name",
    [
        "guard-forgotten",
        "decisions-kept",
        "denial-overlooked",
        "host-overlooked",
        "expired-token-accepted",
        "quota-of-a-user-not-applied",
    ],
)
def test_a_mutant_is_caught_and_its_seed_is_clean_without_it(name: str) -> None:
    (seed,) = suite.seeds_for(name, FIRST_SEEDS.get(name, 1), 1)
    caught = suite.anomalies(suite.run_mutant(name, seed, MUTANT_MINUTES)) & suite.MUTANTS[name].shows
    assert caught
    assert suite.anomalies(suite.run_unbroken(name, seed, MUTANT_MINUTES)) == set()


def test_requests_can_be_told_apart_and_probes_need_one_right_each() -> None:
    titles = Counter(each.title for each in INTRUSIONS)
    assert [title for title, count in titles.items() if count > 1] == []
    assert all(len(probe.needs) == 1 for probe in PROBES)
    assert len({each.key for each in INTRUSIONS}) > 45


def test_some_seeds_have_security_and_none_that_was_known_before() -> None:
    having = sum("security" in draw(seed).workloads for seed in range(1, 401))
    assert 20 <= having <= 80
    assert not any(draw(each["seed"]).with_security for each in known_seeds()[:KNOWN_BEFORE])


def test_the_names_of_what_is_protected_do_not_contain_each_other() -> None:
    protected = security.Protected(
        ids={topic: bytes([number + 1]) * 16 for number, topic in enumerate(security._TOPICS)}
    )
    marks = [mark for _, _, mark in protected.secrets()]
    assert not any(one in other for one in marks for other in marks if one is not other)
    assert protected.seen(b"vault-topic", b".. vault-topic vault-group ..") == [["group", "vault-group"]]
