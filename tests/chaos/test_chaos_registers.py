"""The search for an order of what was done to topics: long histories with many calls of unknown fate."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from planted import Line, history
from registers import Clients, Kind, with_a_stale_read

from chaos.checkers import linear, metadata
from chaos.checkers.linear import IMPOSSIBLE, judge
from chaos.checkers.metadata import EXISTS, UNKNOWN
from chaos.checkers.verdict import Answer, Options, Verdict
from chaos.history import History, Op, Type

KINDS = {
    "two clients, who only ask whether it is there": Kind(clients=2, described=0.0),
    "six clients": Kind(),
    "a third without an answer": Kind(unknown=0.3, described=0.1),
    "a third without an answer, most of them late": Kind(unknown=0.3, late=0.8),
    "hardly an answer": Kind(clients=12, topics=1, unknown=0.8, late=0.6, pause_ms=5),
    "every number of partitions is another": Kind(partitions=None, unknown=0.2),
}


@functools.cache
def generated(name: str, lines: int, seed: int = 1) -> list[Op]:
    return Clients(seed, KINDS[name]).run(lines)


def judged(ops: list[Op], most_steps: int) -> Verdict:
    return metadata.check(History(ops), Options(most_steps=most_steps))


@pytest.mark.parametrize("name", KINDS)
def test_a_history_of_a_perfect_register_is_right(name: str) -> None:
    for seed in range(3):
        ops = generated(name, 4000, seed)
        assert sum(op.type is Type.INFO for op in ops) > 150
        verdict = judged(ops, 400_000)
        assert verdict.answer is Answer.RIGHT, (seed, verdict.anomalies, verdict.undecided)


def test_twenty_four_thousand_operations_take_steps_in_proportion() -> None:
    """Each of four topics has 6,000 operations, 600 of them of unknown fate, which stay open until the end."""
    ops = generated("six clients", 48_000)
    verdict = judged(ops, 400_000)
    assert verdict.examined > 24_000 - 50
    assert verdict.answer is Answer.RIGHT, verdict.undecided


def test_where_it_is_stuck_it_goes_back_a_little_way() -> None:
    """Ten of 10,000 calls are open at any time; to restart with more configurations takes millions of steps."""
    ops = Clients(1, Kind(clients=12, topics=1, pause_ms=1, unknown=0.05, partitions=None)).run(20_000)
    verdict = judged(ops, 1_000_000)
    assert verdict.answer is Answer.RIGHT, verdict.undecided


@pytest.mark.parametrize("seed", range(4))
def test_a_stale_read_is_found(seed: int) -> None:
    ops, stale = with_a_stale_read(generated("every number of partitions is another", 8000), seed)
    verdict = judged(ops, 500_000)
    assert verdict.names == {"not-linearizable"}
    (anomaly,) = verdict.anomalies
    assert anomaly.ops[-1] == stale.index
    assert len(anomaly.ops) < 20, "not every call of unknown fate is shown"


@pytest.mark.parametrize("most_steps", [0, 100, 1000, 10_000])
def test_a_stale_read_is_never_right_however_small_the_bound(most_steps: int) -> None:
    crowded = Clients(1, Kind(clients=12, topics=1, pause_ms=1, partitions=None)).run(2000)
    ops, _ = with_a_stale_read(crowded, 1)
    verdict = judged(ops, most_steps)
    assert verdict.answer is not Answer.RIGHT
    again = judged(ops, most_steps)
    assert (again.counts, again.undecided) == (verdict.counts, verdict.undecided)


def test_what_is_too_large_is_undecided_and_always_at_the_same_step() -> None:
    ops = Clients(1, Kind(clients=12, topics=1, pause_ms=1)).run(2000)
    few, again = judged(ops, 5000), judged(ops, 5000)
    assert few.answer is Answer.UNDECIDED
    assert few.names == set()
    assert few.undecided == again.undecided
    assert few.undecided[0].evidence["steps"] > 5000
    assert judged(ops, 100_000).answer is Answer.RIGHT


# No detail that calls and states omit could change an answer.


def plainly(state: Any, op: Op) -> Any:
    """The model with everything in it."""
    if op.type is Type.FAIL:
        return state if (state is not None) == (op.extra["error"] == EXISTS) else IMPOSSIBLE
    value = op.value
    if op.f == "create-topic":
        return (value["partitions"], (), None) if state is None else IMPOSSIBLE
    if op.f == "describe-topic":
        return state if _describes(state, value) else IMPOSSIBLE
    if state is None:
        return IMPOSSIBLE
    partitions, config, replicas = state
    match op.f:
        case "delete-topic":
            return None
        case "alter-topic":
            return (partitions, tuple(sorted({**dict(config), **value["config"]}.items())), replicas)
        case _:
            return (partitions, config, tuple(value["replicas"]))


def _describes(state: Any, seen: dict[str, Any]) -> bool:
    if state is None or not seen["exists"]:
        return (state is not None) == bool(seen["exists"])
    partitions, config, replicas = state
    return bool(
        seen.get("partitions", partitions) == partitions
        and all(seen.get("config", {}).get(name, of) == of for name, of in config)
        and (replicas is None or tuple(seen.get("replicas") or replicas) == replicas)
    )


def random_history(chance: random.Random) -> History:
    """A few calls about one topic, half of them overlapping, with answers that are often wrong."""
    lines: list[Line] = []
    waiting: dict[int, tuple[str, dict[str, Any]]] = {}
    process = 3
    free = [0, 1, 2]
    begun = 0
    while begun < 8 or waiting:
        if begun < 8 and free and chance.random() < 0.5:
            f = chance.choice(("create-topic", "create-topic", "delete-topic", "alter-topic", "reassign", *_LOOKS))
            value: dict[str, Any] = {"topic": "t"}
            if f == "create-topic":
                value["partitions"] = chance.randint(1, 2)
            elif f == "alter-topic":
                value["config"] = {name: chance.choice("12") for name in chance.choice(("a", "b", "ab"))}
            elif f == "reassign":
                value["replicas"] = [chance.randint(1, 2)]
            who = free.pop()
            waiting[who] = (f, value)
            lines.append((who, "invoke", f, value))
            begun += 1
        elif waiting:
            who = chance.choice(sorted(waiting))
            f, value = waiting.pop(who)
            chosen = chance.random()
            if chosen < 0.3:
                lines.append((who, "info", f, value))
                who, process = process, process + 1
            elif f == "describe-topic":
                lines.append((who, "ok", f, {**value, **_seen(chance)}))
            elif chosen < 0.4:
                lines.append((who, "fail", f, value, {"error": EXISTS if f == "create-topic" else UNKNOWN}))
            else:
                lines.append((who, "ok", f, value))
            free.append(who)
    return history(*lines)


_LOOKS = ("describe-topic",) * 3


def _seen(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.2:
        return {"exists": False}
    seen: dict[str, Any] = {"exists": True}
    if chance.random() < 0.4:
        seen["partitions"] = chance.randint(1, 2)
    if chance.random() < 0.5:
        seen["config"] = {name: chance.choice("12") for name in chance.choice(("a", "b", "ab"))}
    if chance.random() < 0.4:
        seen["replicas"] = chance.choice(([], [1], [2]))
    return seen


def crowded_history(chance: random.Random) -> History:
    """Three clients at one topic; often one of them saw it as it was, or will be, at another time."""
    ops = Clients(chance.randrange(1 << 30), Kind(clients=3, topics=1, unknown=0.3, described=0.7, pause_ms=2)).run(40)
    seen = [op for op in ops if op.type is Type.OK and "partitions" in op.value and op.f == "describe-topic"]
    if seen and chance.random() < 0.7:
        one, other = chance.choice(seen), chance.choice(seen)
        ops[one.index] = replace(one, value=other.value)
    return History(ops)


@pytest.mark.parametrize("first_width", [None, 1, 2])
@pytest.mark.parametrize("make", [random_history, crowded_history])
def test_neither_what_is_left_out_nor_where_it_begins_changes_an_answer(
    make: Callable[[random.Random], History], first_width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    found: list[tuple[History, bool]] = []
    for _ in range(400):
        past = make(chance)
        ops = [op for op in past.completions if op.type is not Type.INFO or op.f != "describe-topic"]
        plain = judge(past, ops, None, plainly, 1_000_000).linearizable
        assert plain is not None
        found.append((past, plain))
    answers = [plain for _, plain in found]
    assert answers.count(True) > 20
    assert answers.count(False) > 20
    if first_width is not None:
        for name, number in {"_FIRST_WIDTH": first_width, "_WIDER": 2, "_PATIENCE": 3, "_BACK": (1, 2, 4)}.items():
            monkeypatch.setattr(linear, name, number)
    assert [metadata.check(past, Options()).valid for past, _ in found] == answers
