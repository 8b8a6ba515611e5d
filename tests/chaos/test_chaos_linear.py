"""The linearizability checker, on a register: what is known of small histories, and against trying every order."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planted import history

from chaos.checkers.linear import IMPOSSIBLE, Facts, judge
from chaos.history import History, Op, Type

PATHS = (str(Path(__file__).parents[2]), str(Path(__file__).parent))


def register(state: Any, op: Op) -> Any:
    return act(state, (op.f, op.value))


def act(state: Any, action: tuple[str, Any]) -> Any:
    f, value = action
    if f == "write":
        return value
    if f == "cas":
        return value[1] if state == value[0] else IMPOSSIBLE
    return state if value == state else IMPOSSIBLE


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
        # These have an unknown fate: they may take effect late, and once only.
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
        # Either explains the first read, and only one of them the second.
        (True, [
            (0, "invoke", "write", 5), (0, "info", "write", 5), (2, "invoke", "cas", [0, 5]),
            (2, "info", "cas", [0, 5]), (1, "invoke", "read", None), (1, "ok", "read", 5),
            (1, "invoke", "write", 9), (1, "ok", "write", 9), (1, "invoke", "read", None), (1, "ok", "read", 5),
        ]),
        (True, [
            (2, "invoke", "cas", [0, 5]), (2, "info", "cas", [0, 5]), (0, "invoke", "write", 5),
            (0, "info", "write", 5), (1, "invoke", "read", None), (1, "ok", "read", 5),
            (1, "invoke", "write", 9), (1, "ok", "write", 9), (1, "invoke", "read", None), (1, "ok", "read", 5),
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


def test_it_agrees_with_trying_every_order_when_it_is_told_what_is_alike() -> None:
    chance = random.Random(21)
    facts = Facts(
        action=lambda op: (op.f, tuple(op.value) if op.f == "cas" else op.value), reads=lambda op: op.f == "read"
    )
    answers = []
    for _ in range(300):
        past = random_history(chance)
        ops = [op for op in past.completions if op.f != "read" or op.type is Type.OK]
        known = judge(past, ops, 0, act, 100_000, facts).linearizable
        kept = History(past.ops)
        kept.completions = ops
        assert known is brute_force(kept)
        answers.append(known)
    assert answers.count(True) > 30
    assert answers.count(False) > 30


def at_once(read: int, writes: int = 14) -> History:
    """Writes that are all acknowledged, after a read that was made while they were open."""
    asked = [(process, "invoke", "write", process) for process in range(1, writes + 1)]
    answered = [(process, "ok", "write", process) for process in range(1, writes + 1)]
    return history(*asked, (20, "invoke", "read", None), (20, "ok", "read", read), *answered)


def test_beyond_the_limit_it_does_not_know() -> None:
    assert linearizable(at_once(99), most=1000) is None
    assert linearizable(at_once(99, writes=6), most=10_000) is False
    assert linearizable(at_once(7), most=200_000) is True


def test_it_takes_the_same_steps_each_time_whatever_hashes_are() -> None:
    program = (
        "from test_chaos_linear import at_once, register\n"
        "from chaos.checkers.linear import judge\n"
        "past = at_once(99, writes=8)\n"
        "named = lambda state, op: str(register(None if state == 'None' else int(state), op)) "
        "if op.f == 'write' else register(state, op)\n"
        "for most in (5_000, 1_000_000):\n"
        "    print(judge(past, past.completions, 'None', named, most))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(PATHS)},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert "linearizable=None" in said[0]
    assert "linearizable=False" in said[0]


def test_a_contradiction_is_found_among_many_operations_of_unknown_fate() -> None:
    lines: list[Any] = []
    for process in range(1, 100):
        lines += [(process, "invoke", "write", process), (process, "info", "write", process)]
    for value in (-1, -2):
        lines += [(0, "invoke", "write", value), (0, "ok", "write", value)]
    for process in range(1, 100, 10):
        lines += [(0, "invoke", "read", None), (0, "ok", "read", process)]
    assert linearizable(history(*lines), most=1_000_000) is True
    lines += [(0, "invoke", "read", None), (0, "ok", "read", -1)]
    assert linearizable(history(*lines), most=1_000_000) is False


def test_many_operations_of_unknown_fate_cost_little_where_nothing_needs_them() -> None:
    lines: list[Any] = []
    for process in range(1, 200):
        lines += [(process, "invoke", "write", process), (process, "info", "write", process)]
        lines += [(0, "invoke", "write", -process), (0, "ok", "write", -process)]
        lines += [(0, "invoke", "read", None), (0, "ok", "read", process if process % 50 == 0 else -process)]
    assert linearizable(history(*lines), most=5000) is True
