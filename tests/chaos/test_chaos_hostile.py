"""The hostile client: none of its attacks, many times over, harms the other clients or stops a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from chaos import simulation
from chaos.drawing import draw
from chaos.workloads import hostile
from chaos.workloads.hostile import ATTACKS, Attack, HostileClient

SEED = 7
MINUTES = 0.2


@pytest.mark.parametrize("attack", dict.fromkeys(ATTACKS), ids=lambda attack: attack.__name__)
def test_an_attack_leaves_everybody_else_right(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()

    async def counted(client: HostileClient) -> None:
        made["begun"] += 1
        await attack(client)
        made["done"] += 1

    monkeypatch.setattr(hostile, "ATTACKS", (counted,))
    monkeypatch.setattr(hostile, "PAUSE_SECONDS", 0.05)
    drawn = replace(draw(SEED), brokers=3, controllers=0, drifts=(0.0,) * 3, workload="groups", with_hostile=True)
    outcome = simulation.run(SEED, MINUTES, drawn=drawn, faults=[], calm_seconds=5.0)
    assert outcome.problems == []
    assert [verdict.checker for verdict in outcome.verdicts if not verdict.valid] == []
    assert made["begun"] >= 5
    assert made["done"] >= 1, "no attack came to its end: its connections cannot even be made"


def test_about_a_third_of_the_seeds_have_a_hostile_client() -> None:
    having = sum("hostile" in draw(seed).workloads for seed in range(1, 201))
    assert 40 <= having <= 100
