"""Delegation tokens: the smallest history with each anomaly, histories that are right, and a simulated cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from chaos import simulation
from chaos.checkers import tokens
from chaos.checkers.verdict import Options
from chaos.drawing import draw
from chaos.history import History, Op, Type

SECOND = 1_000_000_000
Step = tuple[float, str, dict[str, Any], str, dict[str, Any]]


def step(at: float, f: str, kind: str = "ok", extra: dict[str, Any] | None = None, **value: Any) -> Step:
    return at, f, value, kind, extra or {}


def create(at: float, ends: float, latest: float = 30) -> Step:
    latest_ns = int(latest * SECOND)
    return step(at, "create-token", token=0, ends=int(ends * SECOND), **{"ends-at-the-latest": latest_ns})


def renew(at: float, ends: float, kind: str = "ok") -> Step:
    return step(at, "renew-token", kind, token=0, ends=int(ends * SECOND))


def log_in(at: float, accepted: bool, token: int | None = 0, **extra: Any) -> Step:
    return step(at, "token-login", "ok", extra, token=token, node="node1", accepted=accepted)


def use(at: float, served: bool) -> Step:
    return step(at, "token-use", token=0, node="node1", served=served)


def fault(at: float, skew_ms: int) -> Step:
    value = {"kind": "clock-skew", "settings": {"skew_ms": skew_ms}}
    return at, "fault", value, "info", {"process": "nemesis"}


def several(at: float, *faults: Step) -> Step:
    value = {"kind": "several", "settings": {"parts": [value for _, _, value, _, _ in faults]}}
    return at, "fault", value, "info", {"process": "nemesis"}


def end(at: float) -> Step:
    return step(at, "end-token", token=0, ends=int(at * SECOND))


def history(steps: list[Step]) -> History:
    """Each operation takes no time; a step of the nemesis stands alone."""
    ops: list[Op] = []
    process = 0
    for at, f, value, kind, extra in steps:
        common: dict[str, Any] = {"time": int(at * SECOND), "f": f, "value": value}
        if "process" in extra:
            ops.append(Op(index=len(ops), process=extra["process"], type=Type.INFO, **common))
            continue
        ops.append(Op(index=len(ops), process=process, type=Type.INVOKE, extra=extra, **common))
        ops.append(Op(index=len(ops), process=process, type=Type(kind), extra=extra, **common))
        process += kind == "info"
    return History(ops)


WRONG: dict[str, tuple[str, list[Step]]] = {
    "a login after the end": ("ended-token", [create(1, 6), log_in(8, True)]),
    "a request after the end": ("ended-session", [create(1, 6), log_in(2, True), use(8, True)]),
    "a login after the end of a renewal": ("ended-token", [create(1, 6), renew(5, 10), log_in(12, True)]),
    "a renewal comes too late": ("ended-token", [create(1, 6), log_in(9, True), renew(10, 15)]),
    "no renewal goes beyond the latest end": ("ended-token", [create(1, 6, 8), renew(5, 8, "info"), log_in(11, True)]),
    "a clock that is a second wrong explains no three": (
        "ended-token",
        [create(1, 6), fault(2, -1_000), log_in(10, True)],
    ),
    "a forged token": ("forged-token", [create(1, 6), log_in(2, True, None)]),
    "a token that was ended": ("removed-token", [create(1, 20), end(3), log_in(9, True, final=True)]),
    "a token that lasts is refused": ("refused-token", [create(1, 20), log_in(9, False, final=True)]),
}
RIGHT: dict[str, list[Step]] = {
    "logins until the end": [create(1, 6), log_in(5, True), use(5.5, True), log_in(8, False), use(8, False)],
    "a renewal": [create(1, 6), renew(5, 12), log_in(11, True)],
    "a renewal without an answer": [create(1, 6), renew(5, 0, "info"), log_in(25, True)],
    "a clock is wrong": [create(1, 6), fault(2, -4_000), log_in(9, True)],
    "a clock is wrong, among other faults": [
        *[create(1, 6), several(2, fault(2, -1_000), fault(2, -4_000)), log_in(9, True)],
    ],
    "a broker lags behind the end": [create(1, 20), end(3), log_in(4, True)],
    "a token that was ended is refused": [create(1, 20), end(3), log_in(9, False, final=True)],
    "it may be over by the clock of the broker": [create(1, 9.5), log_in(9, False, final=True)],
    "a change without an answer may have ended it": [
        *[create(1, 20), step(3, "end-token", "info", token=0)],
        log_in(9, False, final=True),
    ],
    "a forged token is refused": [create(1, 6), log_in(2, False, None)],
}


@pytest.mark.parametrize("name", WRONG)
def test_each_anomaly_is_found(name: str) -> None:
    expected, steps = WRONG[name]
    assert tokens.check(history(steps), Options()).names == {expected}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_no_anomaly(name: str) -> None:
    verdict = tokens.check(history(RIGHT[name]), Options())
    assert verdict.names == set()
    assert verdict.examined > 0


def test_tokens_are_of_use_until_they_end() -> None:
    drawn = replace(draw(5), brokers=3, controllers=0, drifts=(0.0,) * 3, workload="log", load=0.5)
    drawn = replace(drawn, with_security=True, with_hostile=False, with_transactions=False, with_queue=False)
    outcome = simulation.run(5, 0.5, drawn=drawn, faults=[], calm_seconds=10.0)
    assert outcome.problems == []
    assert [verdict.names for verdict in outcome.verdicts] == [set()] * len(outcome.verdicts)
    found = Counter(
        (op.f, op.value.get("accepted", op.value.get("served")), bool(op.extra.get("final")))
        for op in outcome.ops
        if op.f in ("token-login", "token-use") and op.type is Type.OK
    )
    assert found["token-login", True, True] == 3, "the last one, on each broker"
    for least, kind in ((5, ("token-login", True, False)), (5, ("token-login", False, False))):
        assert found[kind] >= least
    assert found["token-use", True, False] > 0
    assert found["token-use", False, False] > 0
