"""The checker of quotas: the smallest history with each anomaly, and histories that look alike and are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from chaos import simulation
from chaos.checkers import rates
from chaos.checkers.verdict import Options
from chaos.drawing import draw
from chaos.history import History, Op, Type

SECOND = 1_000_000_000
RATE = 1_000.0
Send = tuple[float, str, int, int, int, bool]


def sends(
    *, user: str = "greedy", every: float, count: int, size: int, waits: bool = True, session: int = 1,
    final: bool = True, first: float = 0.0,
) -> list[Send]:  # fmt: skip
    """Requests of one connection; `waits` if the broker tells the user to."""
    return [(first + number * every, user, size, int(waits), session, final) for number in range(count)]


def history(requests: list[Send]) -> History:
    ops = [
        Op(index=0, time=0, process="administrator", type=Type.INFO, f="rates", value={"greedy": RATE, "polite": RATE})
    ]
    for at, user, size, throttle_ms, session, final in requests:
        value: dict[str, Any] = {"user": user, "node": "node1", "session": session, "bytes": size}
        extra = {"final": True} if final else {}
        common: dict[str, Any] = {"time": int(at * SECOND), "process": 1, "f": "rated-send", "extra": extra}
        ops.append(Op(index=len(ops), type=Type.INVOKE, value=value, **common))
        ops.append(Op(index=len(ops), type=Type.OK, value={**value, "throttle_ms": throttle_ms}, **common))
    return History(ops)


WRONG: dict[str, tuple[str, list[Send]]] = {
    "twice as much as is allowed": ("over-quota", sends(every=0.25, count=200, size=500)),
    "a burst that is too large": ("over-quota", sends(every=0.01, count=40, size=500)),
    "a broker that has told somebody to wait": ("over-quota", sends(every=0.25, count=200, size=500, final=False)),
    "a polite user waits": (
        "kept-waiting",
        [
            *sends(user="polite", every=1, count=9, size=100, waits=False),
            *sends(user="polite", every=1, count=1, size=100, first=9),
        ],
    ),
}
RIGHT: dict[str, list[Send]] = {
    "as much as is allowed": sends(every=0.5, count=100, size=500),
    "a burst after a while": sends(every=0.01, count=20, size=500),
    "a new connection each time, as after restarts": [
        each for number in range(5) for each in sends(every=0.01, count=20, size=500, session=number, first=number)
    ],
    "a broker that does not know the quota yet": sends(every=0.01, count=100, size=500, waits=False, final=False),
    "a polite user": sends(user="polite", every=1, count=30, size=400, waits=False),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_anomaly_is_found(name: str) -> None:
    expected, requests = WRONG[name]
    assert rates.check(history(requests), Options()).names == {expected}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_no_anomaly(name: str) -> None:
    verdict = rates.check(history(RIGHT[name]), Options())
    assert verdict.names == set()
    assert verdict.examined == len(RIGHT[name])


def test_a_greedy_user_waits_and_a_polite_one_does_not() -> None:
    drawn = replace(draw(5), brokers=3, controllers=0, drifts=(0.0,) * 3, workload="log", load=0.5)
    drawn = replace(drawn, with_security=True, with_hostile=False, with_transactions=False, with_queue=False)
    outcome = simulation.run(5, 0.5, drawn=drawn, faults=[], calm_seconds=10.0)
    assert outcome.problems == []
    assert [verdict.names for verdict in outcome.verdicts] == [set()] * len(outcome.verdicts)
    found = Counter(
        (op.value["user"], op.value["throttle_ms"] > 0)
        for op in outcome.ops
        if op.f == "rated-send" and op.type is Type.OK
    )
    assert found["greedy", True] > 100
    assert found["polite", False] > 100
    assert not found["polite", True]
