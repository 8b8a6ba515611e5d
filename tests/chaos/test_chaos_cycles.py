"""Cycles of dependencies: named by the edges they need, with the shortest as evidence."""

from __future__ import annotations

from typing import Any

import pytest
from planted import Line, Plant, done, judged

from chaos.checkers import cycles
from chaos.checkers.verdict import Options
from chaos.generator import LogCalls, LogOptions
from chaos.history import History, Type
from chaos.reference.clients import Clients


def send(key: str, offset: int, value: Any) -> list[Any]:
    return ["send", key, [offset, value]]


def poll(key: str, *pairs: tuple[int, Any]) -> list[Any]:
    return ["poll", {key: [list(pair) for pair in pairs]}]


def txn(process: int, *micro: list[Any]) -> list[Line]:
    return done(process, "ok", "txn", list(micro))


def together(*operations: list[Line]) -> list[Line]:
    """Return operations that are all invoked before any is complete."""
    return [lines[0] for lines in operations] + [lines[1] for lines in operations]


BOTH_READ = together(txn(0, send("x", 0, 1), poll("y", (0, 1))), txn(1, send("y", 0, 1), poll("x", (0, 1))))
"""Each read what the other wrote."""

READ_BEFORE_WRITTEN_BY_A_LATER = [
    *txn(0, poll("y", (0, 1))),
    *txn(0, send("x", 0, 1)),
    *txn(1, poll("x", (0, 1)), send("y", 0, 1)),
]
"""Process 0 read y before it wrote the x which process 1 read before it wrote y. """

READ_BEFORE_ASKED_FOR = [*txn(0, poll("x", (0, 1))), *txn(1, send("x", 0, 1))]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("G1c", BOTH_READ),
        ("G1c-process", [
            *together(txn(0, poll("y", (0, 1))), txn(1, poll("x", (0, 1)))),
            *together(txn(0, send("x", 0, 1)), txn(1, send("y", 0, 1))),
        ]),
        ("G1c-process", READ_BEFORE_WRITTEN_BY_A_LATER),
        ("G1c-realtime", READ_BEFORE_ASKED_FOR),
    ],
)  # fmt: skip
def test_reading_before_it_is_written_is_never_allowed(name: str, lines: list[Line]) -> None:
    verdict = judged(cycles.check, lines)
    assert verdict.names == {name}
    (found,) = (anomaly for anomaly in verdict.anomalies if not anomaly.allowed)
    steps = found.evidence["steps"]
    assert [step["to"] for step in steps] == [*(step["from"] for step in steps[1:]), steps[0]["from"]]
    assert {step["edge"] for step in steps} <= {"wr", "process", "realtime"}
    assert all(step["why"] for step in steps if step["edge"] == "wr")


INTERLEAVED = together(txn(0, send("x", 0, "a"), send("y", 1, "a")), txn(1, send("y", 0, "b"), send("x", 1, "b")))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("G0", INTERLEAVED),
        ("G1c", together(
            txn(0, send("x", 0, "a"), poll("y", (0, "b"))), txn(1, send("y", 0, "b"), send("x", 1, "b")),
        )),
        ("G0-process", [
            *txn(0, send("x", 1, "a")),
            *together(txn(0, send("y", 0, "a")), txn(1, send("y", 1, "b"), send("x", 0, "b"))),
        ]),
        ("G0-realtime", [*txn(0, send("x", 1, "a")), *txn(1, send("x", 0, "b"))]),
        ("G1b", [*txn(0, send("x", 0, "a"), send("x", 1, "b")), *txn(1, poll("x", (0, "a")))]),
    ],
)  # fmt: skip
def test_what_kafka_does_not_promise_is_named_and_allowed(name: str, lines: list[Line]) -> None:
    verdict = judged(cycles.check, lines)
    assert verdict.names == set()
    assert set(verdict.allowed_counts) == {name}


SKEWED = together(
    txn(0, poll("x", (0, 0)), send("y", 1, 1)), txn(1, poll("y", (0, 0)), send("x", 1, 1))
)  # fmt: skip
WRITTEN = [*txn(9, send("x", 0, 0)), *txn(8, send("y", 0, 0))]


def test_cycles_over_what_was_not_seen_are_found_when_asked_for() -> None:
    assert judged(cycles.check, WRITTEN, SKEWED).allowed_counts == {}
    assert set(judged(cycles.check, WRITTEN, SKEWED, rw_edges=True).allowed_counts) == {"G2-item"}
    missed = together(txn(0, poll("x", (0, 0)), poll("y", (1, 1))), txn(1, send("x", 1, 1), send("y", 1, 1)))
    assert set(judged(cycles.check, WRITTEN, missed, rw_edges=True).allowed_counts) == {"G-single"}


def test_an_allowed_cycle_does_not_hide_one_that_is_not() -> None:
    more = together(
        txn(0, send("x", 0, 1), poll("y", (0, 1)), send("z", 0, 1), send("w", 1, 1)),
        txn(1, send("y", 0, 1), poll("x", (0, 1)), send("w", 0, 2), send("z", 1, 2)),
    )
    assert judged(cycles.check, more).names == {"G1c"}


def test_the_shortest_cycle_is_shown() -> None:
    """A ring of five, with a chord that makes it three."""
    ring = together(
        txn(0, send("k0", 0, 1), poll("k4", (0, 1))),
        txn(1, send("k1", 0, 1), poll("k0", (0, 1))),
        txn(2, send("k2", 0, 1), poll("k1", (0, 1))),
        txn(3, send("k3", 0, 1), poll("k2", (0, 1))),
        txn(4, send("k4", 0, 1), poll("k3", (0, 1)), poll("k1", (0, 1))),
    )
    (found,) = judged(cycles.check, ring).anomalies
    assert len(found.evidence["steps"]) == 3


@pytest.mark.parametrize(("via", "seed"), [("assign", 3), ("subscribe", 4)])
def test_a_perfect_log_has_no_forbidden_cycle_and_a_planted_one_is_found(via: str, seed: int) -> None:
    ops = Clients(seed, LogCalls(seed, LogOptions(transactions=True, via=via)), 5, transactions=True).run(10_000)
    assert cycles.check(History(ops), Options()).counts == {}
    plant = Plant(ops, seed)
    read = plant.pick(lambda op: op.type is Type.OK and op.f == "poll" and op.index < 1000)
    write = plant.pick(lambda op: op.type is Type.OK and op.f == "send" and op.index > 2000)
    _, key, (offset, value) = write.value[0]
    read.value.append(["poll", {key: [[offset, value]]}])
    assert {name.partition("-")[0] for name in cycles.check(plant.history(), Options()).names} == {"G1c"}
