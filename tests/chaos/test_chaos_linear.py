"""The linearizability checker, on a register: what is known of small histories, and against trying every order."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from planted import history

from chaos.checkers.linear import IMPOSSIBLE, judge
from chaos.history import History, Op, Type


def register(state: Any, op: Op) -> Any:
    if op.f == "write":
        return op.value
    if op.f == "cas":
        return op.value[1] if state == op.value[0] else IMPOSSIBLE
    return state if op.value == state else IMPOSSIBLE


def linearizable(past: History, most: int = 100_000) -> bool | None:
    ops = [op for op in past.completions if op.type is not Type.FAIL]
    return judge(past, ops, 0, register, most).linearizable


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        (True, [(0, "invoke", "write", 1), (0, "ok", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 1)]),
        (False, [(0, "invoke", "write", 1), (0, "ok", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 0)]),
        (True, [(0, "invoke", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 0), (0, "ok", "write", 1)]),
        (True, [(0, "invoke", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 1), (0, "ok", "write", 1)]),
        # New, then old: two reads in a row disagree about one write.
        (False, [
            (0, "invoke", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 1),
            (1, "invoke", "read", None), (1, "ok", "read", 0), (0, "ok", "write", 1),
        ]),
        # Of unknown fate: may take effect late, and once only.
        (True, [
            (0, "invoke", "write", 1), (0, "info", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 0),
            (1, "invoke", "read", None), (1, "ok", "read", 1),
        ]),
        (False, [
            (0, "invoke", "write", 1), (0, "info", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 1),
            (1, "invoke", "write", 2), (1, "ok", "write", 2), (1, "invoke", "read", None), (1, "ok", "read", 1),
        ]),
        # Needed before something that was possible without it: the second search finds it.
        (True, [
            (0, "invoke", "cas", [0, 5]), (0, "info", "cas", [0, 5]),
            (2, "invoke", "cas", [5, 0]), (2, "info", "cas", [5, 0]),
            (1, "invoke", "read", None), (1, "ok", "read", 0), (1, "invoke", "read", None), (1, "ok", "read", 5),
        ]),
    ],
)  # fmt: skip
def test_small_histories(expected: bool, lines: list[Any]) -> None:
    assert linearizable(history(*lines)) is expected


def brute_force(past: History) -> bool:
    """Every order of every subset that has all that is complete."""
    definite = [op for op in past.completions if op.type is Type.OK]
    unknown = [op for op in past.completions if op.type is Type.INFO]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*definite, *chosen]):
                if _fits(past, order):
                    return True
    return False


def _fits(past: History, order: tuple[Op, ...]) -> bool:
    state: Any = 0
    for place, op in enumerate(order):
        for later in order[place + 1 :]:
            if later.type is Type.OK and later.index < past.invocation(op).index:
                return False
        state = register(state, op)
        if state is IMPOSSIBLE:
            return False
    return True


def random_history(chance: random.Random) -> History:
    lines: list[Any] = []
    waiting: dict[int, tuple[str, Any]] = {}
    process = 3
    free = [0, 1, 2]
    begun = 0
    while begun < 6 or waiting:
        if begun < 6 and free and chance.random() < 0.5:
            who = free.pop()
            f = chance.choice(["read", "read", "write", "cas"])
            value = {"read": None, "write": chance.randint(1, 2), "cas": [chance.randint(0, 2), chance.randint(0, 2)]}[
                f
            ]
            lines.append((who, "invoke", f, value))
            waiting[who] = (f, value)
            begun += 1
        elif waiting:
            who = chance.choice(sorted(waiting))
            f, value = waiting.pop(who)
            if chance.random() < 0.25:
                lines.append((who, "info", f, value))
                free.append(process)
                process += 1
            else:
                lines.append((who, "ok", f, chance.randint(0, 2) if f == "read" else value))
                free.append(who)
    return history(*[line for line in lines if not (line[1] == "info" and line[2] == "read")])


def test_it_agrees_with_trying_every_order() -> None:
    chance = random.Random(20)
    answers = []
    for _ in range(300):
        past = random_history(chance)
        ops = [op for op in past.completions if op.f != "read" or op.type is Type.OK]
        known = judge(past, ops, 0, register, 100_000).linearizable
        kept = History(past.ops)
        kept.completions = ops
        assert known is brute_force(kept)
        answers.append(known)
    assert answers.count(True) > 30
    assert answers.count(False) > 30


def test_beyond_the_limit_it_does_not_know() -> None:
    writes = [(process, "invoke", "write", process) for process in range(1, 15)]
    reads = [(20, "invoke", "read", None), (20, "ok", "read", 99)]
    assert linearizable(history(*writes, *reads), most=1000) is None


def test_many_operations_of_unknown_fate_cost_little_where_nothing_needs_them() -> None:
    lines: list[Any] = []
    for process in range(1, 200):
        lines += [(process, "invoke", "write", process), (process, "info", "write", process)]
        lines += [(0, "invoke", "write", -process), (0, "ok", "write", -process)]
        lines += [(0, "invoke", "read", None), (0, "ok", "read", process if process % 50 == 0 else -process)]
    assert linearizable(history(*lines), most=5000) is True
