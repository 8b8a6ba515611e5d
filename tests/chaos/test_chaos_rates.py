"""The checker of quotas: the smallest history with each anomaly, and histories that look alike and are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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


def history(requests: list[Send], client_ids: Mapping[str, str] | None = None) -> History:
    """The history of these requests; `client_ids` are those of users whose client ids have the quota."""
    limits = dict.fromkeys(("greedy", "polite", *(client_ids or {}).values()), RATE)
    ops = [Op(index=0, time=0, process="administrator", type=Type.INFO, f="rates", value=limits)]
    for at, user, size, throttle_ms, session, final in requests:
        value: dict[str, Any] = {"user": user, "node": "node1", "session": session, "bytes": size}
        if client_ids:
            value["client_id"] = client_ids[user]
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


def together(*groups: list[Send]) -> list[Send]:
    """Requests of several users, in the order in which they are made."""
    return sorted((each for group in groups for each in group), key=lambda each: each[0])


HALVES = {user: sends(user=user, every=0.5, count=100, size=250) for user in ("ann", "ben")}
DOUBLES = {user: sends(user=user, every=0.5, count=100, size=500) for user in ("ann", "ben")}


def test_users_who_share_a_quota_have_it_together() -> None:
    """Each of them alone is within it."""
    shared = dict.fromkeys(("ann", "ben"), "app")
    assert rates.check(history(together(*DOUBLES.values()), shared), Options()).names == {"over-shared-quota"}
    assert rates.check(history(together(*HALVES.values()), shared), Options()).names == set()
    before_the_end = [(*each[:-1], False) for each in together(*DOUBLES.values())]
    assert rates.check(history(before_the_end, shared), Options()).names == set()


Call = tuple[float, str, bool, bool]


def calls(address: str, every: float, count: int, *, answered: bool = True, final: bool = True) -> list[Call]:
    return [(number * every, address, answered, final) for number in range(count)]


def arrivals(opened: list[Call]) -> History:
    ops = [Op(index=0, time=0, process="administrator", type=Type.INFO, f="arrivals", value={"many": 2.0, "few": 2.0})]
    for at, address, answered, final in opened:
        common: dict[str, Any] = {
            "time": int(at * SECOND), "process": 1, "f": "arrival", "extra": {"final": True} if final else {},
        }  # fmt: skip
        value = {"address": address, "node": "node1"}
        ops.append(Op(index=len(ops), type=Type.INVOKE, value=value, **common))
        ops.append(Op(index=len(ops), type=Type.OK, value={**value, "answered": answered}, **common))
    return History(ops)


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        (calls("many", 0.1, 100), {"too-many-connections"}),
        (calls("many", 0.1, 100, final=False), set()),
        (calls("many", 0.1, 100, answered=False), set()),
        (calls("many", 0.5, 100), set()),
        (calls("many", 0.1, 25), set()),
        (calls("few", 1.1, 20), set()),
        (calls("few", 1.1, 20, answered=False), {"turned-away"}),
        (calls("few", 1.1, 20, answered=False, final=False), set()),
        (calls("unlimited", 0.1, 100), set()),
    ],
)
def test_connections_of_an_address(opened: list[Call], expected: set[str]) -> None:
    verdict = rates.check(arrivals(opened), Options())
    assert verdict.names == expected
    assert verdict.examined == len(opened)


def test_greedy_users_and_addresses_wait_and_polite_ones_do_not() -> None:
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
    for user in ("ann", "ben"):
        assert found[user, True] > 20, "they have no quota of their own"
    opened = Counter(
        (op.value["address"], op.value["answered"])
        for op in outcome.ops
        if op.f == "arrival" and op.type is Type.OK and op.extra.get("final")
    )
    assert opened["10.8.0.1", False] > 10
    assert opened["10.8.0.2", True] > 10
    assert not opened["10.8.0.2", False]
