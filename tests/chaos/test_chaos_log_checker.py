"""Sends and polls: each anomaly is caught and named, and nothing else is; what is allowed passes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from planted import Line, Plant, done, history, judged

from chaos.checkers import log
from chaos.checkers.verdict import Options
from chaos.checkers.versions import polled, sends, versions
from chaos.generator import LogCalls, LogOptions
from chaos.history import History, Op, Type
from chaos.reference.clients import Clients


def send(process: int, *pairs: Any, key: str = "x", kind: str = "ok") -> list[Line]:
    """Sends of (offset, value), or of a value whose offset is not known."""
    return done(
        process, kind, "send", [["send", key, list(pair) if isinstance(pair, tuple) else pair] for pair in pairs]
    )


def poll(process: int, *pairs: tuple[int, Any], key: str = "x", kind: str = "ok", **extra: Any) -> list[Line]:
    return done(process, kind, "poll", [["poll", {key: [list(pair) for pair in pairs]}]], **extra)


WRITTEN = send(9, "a", "b", "c", "d", "e", kind="info")
"""A send without its outcome: the polls must show if the log holds it."""

REBALANCED = {"rebalance_log": [{"keys": ["x"]}]}


def piped(process: int, sent: int, value: Any, producer: str = "p", kind: str = "ok") -> list[Line]:
    """A send of a producer that does not wait for the one before it."""
    return done(process, kind, "send", [["send", "x", value]], producer=producer, sent=sent)


PLANTED: dict[str, tuple[str, list[list[Line]]]] = {
    "two sends": ("inconsistent-offsets", [send(0, (0, 1)), send(1, (0, 2)), poll(2, (0, 1)), poll(3, (0, 2))]),
    "two polls": ("inconsistent-offsets", [WRITTEN, poll(2, (0, "a")), poll(3, (0, "b"))]),
    "unknown send, proved by a read": (
        "inconsistent-offsets",
        [
            done(0, "info", "send", [["send", "x", [0, 1]], ["send", "y", 1]]),
            send(1, (0, 2)),
            poll(2, (5, 1), key="y"),
            poll(3, (0, 2)),
            poll(4, (0, 1)),
        ],
    ),
    "sent at 1, read at 3": ("duplicate", [send(0, (1, "a")), send(1, "b", kind="info"), poll(2, (2, "b"), (3, "a"))]),
    "read in a failed operation": ("duplicate", [send(0, (1, 0)), poll(1, (1, 0)), poll(2, (11, 0), kind="fail")]),
    "in flight, the second before the first": (
        "reordered",
        [piped(0, 0, [1, "a"]), piped(1, 1, [0, "b"]), poll(2, (0, "b"), (1, "a"))],
    ),
    "in flight, one of unknown fate": (
        "reordered",
        [
            piped(0, 7, "a", kind="info"),
            piped(1, 8, "c", kind="info"),
            piped(2, 9, [4, "b"]),
            poll(3, (4, "b"), (5, "a")),
        ],
    ),
    "read of what failed": ("G1a", [send(0, 2, kind="fail"), poll(1, (0, 2))]),
    "read of its own": (
        "precommitted-read",
        [done(0, "ok", "txn", [["send", "x", [0, 1]], ["poll", {"x": [[0, 1]]}]])],
    ),
    "half of a transaction that must have happened": (
        "lost-write",
        [
            done(0, "info", "send", [["send", "x", "a"], ["send", "y", [0, "b"]]]),
            send(1, "c", key="y", kind="info"),
            poll(2, (0, "a")),
            poll(3, (1, "c"), key="y"),
        ],
    ),
    "acknowledged, never read": ("unseen", [send(0, (0, 1))]),
    "nobody sent it": ("no-writer", [poll(0, (0, 1))]),
    "a poll leaves one out": ("int-poll-skip", [WRITTEN, poll(0, (1, "a"), (4, "d")), poll(1, (2, "b"))]),
    "two polls leave one out": (
        "int-poll-skip",
        [
            WRITTEN,
            done(0, "ok", "poll", [["poll", {"x": [[1, "a"]]}], ["poll", {"x": [[4, "d"]]}]]),
            poll(1, (2, "b")),
        ],
    ),
    "a poll goes back": ("int-nonmonotonic-poll", [WRITTEN, poll(0, (3, "c"), (1, "a"))]),
    "a poll repeats": (
        "int-nonmonotonic-poll",
        [WRITTEN, done(0, "ok", "poll", [["poll", {"x": [[2, "b"], [3, "c"]]}], ["poll", {"x": [[3, "c"]]}]])],
    ),
    "a process leaves one out": ("poll-skip", [WRITTEN, poll(0, (1, "a")), poll(1, (2, "b")), poll(0, (3, "c"))]),
    "no going back after a failure": (
        "poll-skip",
        [
            WRITTEN,
            poll(0, (0, "a")),
            poll(0, (1, "b"), (2, "c"), kind="fail"),
            poll(0, (3, "d")),
            poll(1, (0, "a"), (1, "b"), (2, "c")),
        ],
    ),
    "nor after a crash": (
        "poll-skip",
        [WRITTEN, poll(0, (0, "a")), poll(0, (2, "c"), kind="info"), poll(1, (0, "a"), (1, "b"), (2, "c"))],
    ),
    "a process goes back": ("nonmonotonic-poll", [WRITTEN, poll(0, (1, "a"), (2, "b")), poll(0, (2, "b"), (3, "c"))]),
    "sends in the wrong order": (
        "int-nonmonotonic-send",
        [send(0, (3, "c"), (1, "a")), poll(1, (1, "a"), (3, "c"))],
    ),
    "sends in the wrong order, as polls show": (
        "int-nonmonotonic-send",
        [send(0, "d", "b", kind="info"), send(1, "c", kind="info"), poll(2, (2, "b"), (3, "c"), (4, "d"))],
    ),
    "a later send stands before": (
        "nonmonotonic-send",
        [send(0, (3, "c"), (4, "d")), send(0, (1, "a"), (2, "b")), poll(1, (1, "a"), (2, "b"), (3, "c"), (4, "d"))],
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_an_anomaly_is_caught_and_named(case: str) -> None:
    name, parts = PLANTED[case]
    verdict = judged(log.check, *parts)
    assert verdict.names == {name}
    found = next(anomaly for anomaly in verdict.anomalies if not anomaly.allowed)
    assert found.ops, "the operations that prove it"
    assert found.evidence["key"] in ("x", "y")
    assert found.text


def test_every_name_has_a_planted_history() -> None:
    assert log.__doc__ is not None
    named = {name for name, _ in PLANTED.values()}
    assert named >= {
        *("inconsistent-offsets", "duplicate", "G1a", "precommitted-read", "lost-write", "unseen", "no-writer"),
        *("int-poll-skip", "int-nonmonotonic-poll", "poll-skip", "nonmonotonic-poll"),
        *("int-nonmonotonic-send", "nonmonotonic-send"),
    }
    assert all(name in log.__doc__ for name in named)


CLEAN: dict[str, list[list[Line]]] = {
    "nothing": [],
    "an unknown send may claim an offset": [
        done(0, "info", "send", [["send", "x", [0, 1]], ["send", "y", 1]]),
        send(1, (0, 2)),
        poll(2, (0, 2)),
    ],
    "a failed poll counts, a failed send does not": [
        send(0, (2, 1), kind="fail"),
        send(1, (1, 0)),
        poll(2, (1, 0), kind="fail"),
        poll(3, (1, 0)),
    ],
    "what was never known to happen is not lost": [
        done(0, "info", "send", [["send", "x", "a"], ["send", "y", [0, "b"]]]),
        send(1, "c", key="y", kind="info"),
        poll(3, (1, "c"), key="y"),
    ],
    "markers leave gaps": [send(0, (0, "a"), (7, "b")), poll(1, (0, "a"), (7, "b"))],
    "given up, and polled again": [
        WRITTEN,
        poll(0, (0, "a")),
        poll(0, (1, "b"), (2, "c"), kind="fail"),
        poll(0, (1, "b"), (2, "c"), kind="info"),
        poll(1, (0, "a"), (1, "b"), (2, "c")),
    ],
    "a rebalance moves the key": [WRITTEN, poll(0, (1, "a"), (4, "d"), **REBALANCED), poll(1, (2, "b"))],
    "another assignment between": [
        WRITTEN,
        poll(0, (1, "a"), (2, "b")),
        done(0, "ok", "assign", ["y"]),
        done(0, "ok", "assign", ["x", "y"]),
        poll(0, (1, "a")),
    ],
    "other senders between two sends": [
        send(0, (1, "a"), (3, "c")),
        send(1, (2, "b")),
        poll(2, (1, "a"), (2, "b"), (3, "c")),
    ],
    "a send that was never completed": [[(0, "invoke", "send", [["send", "x", 1]])], poll(1, (0, 1))],
}


@pytest.mark.parametrize("case", CLEAN)
def test_what_is_no_anomaly_passes(case: str) -> None:
    assert judged(log.check, *CLEAN[case]).names == set()


def test_an_assignment_that_keeps_the_key_forgives_nothing() -> None:
    kept = done(0, "ok", "assign", ["x", "y"])
    parts = [WRITTEN, poll(0, (1, "a"), (2, "b")), kept, poll(0, (1, "a"))]
    assert judged(log.check, *parts).names == {"nonmonotonic-poll"}


def test_whoever_subscribes_may_skip_and_go_back() -> None:
    parts = [
        WRITTEN,
        done(0, "ok", "subscribe", ["x"]),
        poll(0, (1, "a"), (2, "b")),
        poll(0, (1, "a")),
        poll(0, (3, "c")),
    ]
    verdict = judged(log.check, *parts)
    assert verdict.names == set()
    assert set(verdict.allowed_counts) == {"nonmonotonic-poll", "poll-skip"}


def test_a_lost_write_behind_another_at_its_offset() -> None:
    """The one that lost its offset is in no order, and is missed all the same."""
    verdict = judged(log.check, send(0, (0, "a")), send(0, (0, "b"), (2, "c")), poll(1, (0, "b"), (2, "c")))
    (lost,) = (anomaly for anomaly in verdict.anomalies if anomaly.name == "lost-write")
    assert (lost.evidence["value"], lost.evidence["index"], lost.evidence["max_read_index"]) == ("a", 0, 1)


def test_both_lost_writes_before_a_read_are_found() -> None:
    parts = [send(0, (0, "a")), send(0, (1, "b"), (3, "d")), send(1, "c", kind="info"), poll(2, (2, "c"))]
    lost = [anomaly for anomaly in judged(log.check, *parts).anomalies if anomaly.name == "lost-write"]
    assert [(found.evidence["value"], found.evidence["index"]) for found in lost] == [("a", 0), ("b", 1)]


def test_an_unknown_send_of_which_something_was_read_counts() -> None:
    half = done(0, "info", "send", [["send", "x", [0, 1]], ["send", "y", 1]])
    parts = [half, send(1, (0, 2)), poll(3, (0, 2))]
    assert judged(log.check, *parts).names == set()
    assert judged(log.check, *parts, poll(2, (5, 1), key="y")).names == {"inconsistent-offsets", "lost-write"}


def test_many_values_at_two_offsets_are_all_duplicates() -> None:
    parts = [part for value in range(10) for part in (send(0, (0, value)), poll(1, (1, value)))]
    verdict = judged(log.check, *parts)
    assert sorted(a.evidence["value"] for a in verdict.anomalies if a.name == "duplicate") == list(range(10))
    assert verdict.counts["inconsistent-offsets"] == 2


def test_the_order_of_a_key_closes_gaps_and_takes_what_is_known() -> None:
    info = done(1, "info", "txn", [["send", "x", [1, "c"]], ["send", "x", [3, "b"]], ["send", "x", [4, "d"]]])
    order = versions(history(*poll(0, (0, "a"), (1, "b")), *info)).order("x")
    assert order.offsets == [0, 1, 3, 4]
    assert order.log[1] == ["c", "b"] or order.log[1] == ["b", "c"]


def test_only_so_much_evidence_is_kept_and_all_is_counted() -> None:
    verdict = judged(log.check, *(send(0, (offset, offset)) for offset in range(100)))
    assert verdict.counts["unseen"] == 100
    assert len(verdict.anomalies) == 32


def test_an_anomaly_can_be_tolerated() -> None:
    verdict = judged(log.check, send(0, (0, 1)), allow=frozenset({"unseen"}))
    assert verdict.valid
    assert verdict.allowed_counts == {"unseen": 1}


def test_how_long_a_record_stood_unread_is_noted() -> None:
    lines = [
        *done(0, "ok", "assign", ["x"]),
        *done(0, "ok", "poll", [["poll", {}]]),
        *send(1, (0, "a")),
        *send(1, (2, "b")),
        *poll(0, (0, "a")),
        *done(0, "ok", "poll", [["poll", {"x": [[2, "b"]]}]]),
    ]
    past = history(*lines)
    notes = log.check(past, Options()).notes
    asked, known = past.invocation(past.completions[4]).time, past.completions[3].time
    assert notes["worst_lag"] == {"ms": (asked - known) / 1e6, "key": "x", "operation": past.completions[4].index}
    assert "handed_twice" not in notes


def test_what_a_subscriber_was_handed_twice_is_noted() -> None:
    parts = [
        WRITTEN,
        done(0, "ok", "subscribe", ["x"]),
        poll(0, (1, "a"), (2, "b")),
        poll(0, (1, "a")),
        poll(1, (1, "a")),
    ]
    assert judged(log.check, *parts).notes["handed_twice"] == {"2": 1}


# Generated histories.

WORKLOADS = {
    "assign": LogOptions(),
    "subscribe": LogOptions(via="subscribe", crash_chance=0.005),
    "transactions": LogOptions(transactions=True, crash_chance=0.002),
    "transactions of subscribers": LogOptions(transactions=True, via="subscribe", crash_chance=0.002),
}


@functools.cache
def generated(workload: str, seed: int, lines: int) -> list[Op]:
    options = WORKLOADS[workload]
    return Clients(seed, LogCalls(seed, options), 5, transactions=options.transactions).run(lines)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_perfect_log_is_clean(workload: str) -> None:
    ops = generated(workload, 1, 20_000)
    assert sum(op.type is not Type.INVOKE for op in ops) >= 10_000 - 100
    kinds = {op.type for op in ops}
    assert Type.INFO in kinds
    if WORKLOADS[workload].transactions:
        assert Type.FAIL in kinds
    verdict = log.check(History(ops), Options())
    assert verdict.counts == {}
    assert verdict.examined > 8_000


def lose(plant: Plant) -> None:
    _, key, offset, _ = plant.acknowledged_and_read()
    plant.everywhere_polled(key, lambda pairs: [pair for pair in pairs if pair[0] != offset])


def duplicate(plant: Plant) -> None:
    op = plant.pick(lambda op: op.type is Type.OK and any(True for _ in polled(op)))
    key, _, value = plant.chance.choice(list(polled(op)))
    next(micro for micro in op.value if micro[0] == "poll" and key in micro[1])[1][key].append([1_000_000, value])


def exchange(plant: Plant) -> None:
    """Two readers see different values at an offset."""
    _, key, offset, _ = plant.acknowledged_and_read()
    op = plant.pick(lambda op: any((k, o) == (key, offset) for k, o, _ in polled(op)))
    for micro in op.value:
        if micro[0] == "poll" and key in micro[1]:
            micro[1][key] = [[o, -1 if o == offset else v] for o, v in micro[1][key]]


def abort(plant: Plant) -> None:
    op, *_ = plant.acknowledged_and_read()
    plant.change(op, type=Type.FAIL)


def forget(plant: Plant) -> None:
    """The last records of a key are never handed out."""
    _, key, offset, _ = plant.acknowledged_and_read()
    plant.everywhere_polled(key, lambda pairs: [pair for pair in pairs if pair[0] < offset])


def turn_round(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f in ("poll", "txn") and not op.rebalanced_keys() and _longest(op) > 1)
    for micro in op.value:
        if len(micro) == 2:
            for pairs in micro[1].values():
                pairs.reverse()


def _longest(op: Op) -> int:
    return max((len(pairs) for micro in op.value if len(micro) == 2 for pairs in micro[1].values()), default=0)


def leave_out(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "poll" and not op.rebalanced_keys() and _longest(op) > 2)
    for micro in op.value:
        for pairs in micro[1].values():
            del pairs[1 : len(pairs) - 1]


def read_own(plant: Plant) -> None:
    op = plant.pick(lambda op: op.type is Type.OK and op.f == "send" and any(o is not None for _, o, _ in sends(op)))
    asked = plant.history().invocation(op)
    plant.change(asked, f="txn")
    plant.change(op, f="txn", value=[*op.value, ["poll", {k: [[o, v]] for k, o, v in sends(op)}]])


PLANTS = {
    "lost-write": lose,
    "duplicate": duplicate,
    "inconsistent-offsets": exchange,
    "G1a": abort,
    "unseen": forget,
    "int-nonmonotonic-poll": turn_round,
    "int-poll-skip": leave_out,
    "precommitted-read": read_own,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PLANTS)
def test_an_anomaly_planted_into_a_clean_history_is_caught(name: str, seed: int) -> None:
    workload = sorted(WORKLOADS)[seed % len(WORKLOADS)]
    ops = generated(workload, seed, 1500)
    assert log.check(History(ops), Options()).names == set()
    plant = Plant(ops, seed)
    PLANTS[name](plant)
    verdict = log.check(plant.history(), Options())
    assert name in verdict.names
