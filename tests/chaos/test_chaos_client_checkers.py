"""Transactions, groups and share groups: each anomaly is caught and named, perfect histories pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
from planted import Line, Plant, assert_caught, done, history, judged, named_by

from chaos import checkers
from chaos.checkers import groups, queue, transactions
from chaos.checkers.verdict import Options
from chaos.checkers.versions import ancestor, polled, sends
from chaos.generator import GroupCalls, GroupOptions, LogCalls, LogOptions, PipelineCalls, QueueCalls
from chaos.history import History, Op, Type
from chaos.reference.clients import Clients
from chaos.reference.queue import QueueClients

Parts = list[list[Line]]


def send(process: int, offset: int | None, value: Any, key: str = "x", kind: str = "ok", **extra: Any) -> list[Line]:
    return done(process, kind, "send", [["send", key, [offset, value]]], **extra)


def poll(process: int, *pairs: tuple[int, Any], key: str = "x", **extra: Any) -> list[Line]:
    return done(process, "ok", "poll", [["poll", {key: [list(pair) for pair in pairs]}]], **extra)


def note(f: str, **value: Any) -> list[Line]:
    return [("someone", "info", f, value)]


# Transactions.


def init(process: int, producer_id: int, epoch: int) -> list[Line]:
    return done(process, "ok", "init", {"transactional_id": "t", "producer_id": producer_id, "epoch": epoch})


def committed(process: int, offset: int) -> list[Line]:
    return done(process, "ok", "txn", [["send", "x", [offset, offset]]], transactional_id="t")


def refused(process: int) -> list[Line]:
    error = "INVALID_TXN_STATE: x0-0: producer 7 has no ongoing transaction that was verified here"
    return done(process, "fail", "txn", [["send", "x", 9]], transactional_id="t", error=error)


def processed(*outputs: tuple[int, str]) -> list[Line]:
    return done(1, "ok", "process", [["send", "out", list(output)] for output in outputs])


FINAL = poll(9, (0, 1), final=True)


def _overtaken(**extra: Any) -> list[Line]:
    """A transaction, complete at 3, of which a poll that was complete at 2 had a record."""
    asked, complete = done(0, "ok", "txn", [["send", "x", [0, 1]]], **extra)
    poll_asked, got = poll(1, (0, 1))
    return [asked, poll_asked, got, complete]


TRANSACTIONS: dict[str, tuple[str, Parts]] = {
    "half is never read": (
        "torn-transaction",
        [done(0, "info", "txn", [["send", "x", 1], ["send", "y", 1]]), FINAL],
    ),
    "two descendants": (
        "processed-twice",
        [
            send(0, 0, 1, "in"),
            processed((0, "in@0#1")),
            processed((1, "in@0#2")),
            poll(9, (0, "in@0#1"), (1, "in@0#2"), key="out"),
        ],
    ),
    "an earlier record has none": (
        "not-processed",
        [
            send(0, 0, 1, "in"),
            send(0, 1, 2, "in"),
            processed((0, "in@1#1")),
            poll(9, (0, "in@1#1"), key="out", final=True),
        ],
    ),
    "no such input": (
        "unknown-input",
        [send(0, 0, 1, "in"), processed((0, "in@7#1")), poll(9, (0, "in@7#1"), key="out")],
    ),
    "read before its commit was asked for": ("early-read", [_overtaken(commit_asked=3)]),
    "acknowledged after its replacement": ("zombie-commit", [init(0, 1, 0), init(1, 1, 1), committed(0, 0)]),
    "an epoch for two": ("epoch-reused", [init(0, 1, 0), init(1, 1, 0)]),
    "refused, though nobody replaced it": (
        "refused-successor",
        [init(0, 1, 0), init(1, 1, 1), refused(1)],
    ),
    "an epoch falls": ("epoch-falls", [init(0, 1, 3), init(1, 1, 2)]),
}

GOOD_TRANSACTIONS: dict[str, Parts] = {
    "two values at an offset are the log's affair": [
        send(0, 0, 1, "in"),
        poll(8, (0, "before"), key="out"),
        processed((0, "in@0#1")),
        poll(9, (0, "in@0#1"), key="out", final=True),
    ],
    "read after its commit was asked for, and before it was acknowledged": [_overtaken(commit_asked=1)],
    "nobody says when its commit was asked for": [_overtaken()],
    "whole": [done(0, "info", "txn", [["send", "x", 1], ["send", "x", 2]]), poll(9, (0, 1), (1, 2), final=True)],
    "of nothing a trace": [done(0, "info", "txn", [["send", "x", 3], ["send", "y", 1]]), FINAL],
    "no final polls": [done(0, "info", "txn", [["send", "x", 1], ["send", "y", 1]]), poll(9, (0, 1))],
    "the newer may commit": [init(0, 1, 0), init(1, 1, 1), committed(1, 0)],
    "refused after it was replaced": [init(0, 1, 0), init(1, 1, 1), refused(0)],
    "refused while it is being replaced": [
        [*init(0, 1, 0), refused(0)[0], init(1, 1, 1)[0], refused(0)[1], init(1, 1, 1)[1]],
    ],
    "refused after another came late, whose request was made before": [
        [init(1, 1, 1)[0], *init(0, 1, 0), *refused(0), init(1, 1, 1)[1]],
    ],
    "a new producer id starts again": [init(0, 1, 9), init(1, 2, 0)],
    "begun before its replacement": [
        [*init(0, 1, 0), committed(0, 0)[0], *init(1, 1, 1), committed(0, 0)[1]],
    ],
}


def test_a_transaction_may_be_refused_that_took_so_long_that_it_was_aborted() -> None:
    ops = history(*init(0, 1, 0), *refused(0)).ops
    assert transactions.check(History(ops), Options()).names == {"refused-successor"}
    ops[-1] = dataclasses.replace(ops[-1], time=10_000_000_000)
    assert not transactions.check(History(ops), Options()).names


# Groups.


def assigned(member: str, generation: int, *partitions: str) -> list[Line]:
    return note("assigned", group="g", generation=generation, member=member, partitions=list(partitions))


def commit(process: int, offset: int, kind: str = "ok", f: str = "commit") -> list[Line]:
    return done(process, kind, f, {"group": "g", "offsets": {"x": offset}})


def look(offset: int | None) -> list[Line]:
    return done(7, "ok", "committed", {"group": "g", "offsets": {"x": offset}})


GROUPS: dict[str, tuple[str, Parts]] = {
    "two owners": ("double-ownership", [assigned("a", 1, "x", "y"), assigned("b", 1, "y")]),
    "back to a generation": ("generation-falls", [assigned("a", 2), assigned("a", 1)]),
    "nothing is committed": ("lost-commit", [commit(0, 5), look(None)]),
    "an older commit": ("stale-commit", [commit(0, 5), commit(0, 6), look(5)]),
    "never committed": ("phantom-commit", [commit(0, 5), look(4)]),
    "a failed commit": ("phantom-commit", [commit(0, 5), commit(0, 6, "fail"), look(6)]),
    "a commit goes back": ("commit-falls", [commit(0, 6), commit(1, 5)]),
    "nobody got it": (
        "skipped-record",
        [send(0, 0, "a"), send(0, 1, "b"), poll(1, (1, "b"), group="g"), commit(1, 2)],
    ),
    "read to the end, but for one": (
        "undelivered",
        [send(0, 0, "a"), send(0, 1, "b"), poll(1, (0, "a"), group="g"), note("drained", group="g", keys=["x"])],
    ),
}

GOOD_GROUPS: dict[str, Parts] = {
    "one after the other": [assigned("a", 1, "x"), assigned("b", 2, "x"), assigned("a", 2)],
    "unknown commits count or not": [commit(0, 5), commit(1, 6, "info"), look(5), look(6), look(6)],
    "at the same time": [[commit(0, 5)[0], *look(None), commit(0, 5)[1]], look(5)],
    "a reset may go back": [commit(0, 6), commit(1, 2, f="reset"), look(2), commit(0, 3), look(3)],
    "got and committed": [
        send(0, 0, "a"), poll(1, (0, "a"), group="g"), commit(1, 1), note("drained", group="g", keys=["x"]),
    ],
    "committed on the way": [
        done(0, "ok", "process", [["poll", {}]], group="g", committed_offsets={"x": 3}), look(3),
    ],
}  # fmt: skip

# Share groups.


def acquire(process: int, offset: int = 0, count: int = 1, value: Any = "a", **extra: Any) -> list[Line]:
    return done(process, "ok", "acquire", {"group": "q", "records": [["x", offset, value, count]]}, **extra)


def nothing(process: int) -> list[Line]:
    return done(process, "ok", "acquire", {"group": "q", "records": []})


def acknowledge(process: int, what: str = "accept", offset: int = 0, kind: str = "ok") -> list[Line]:
    return done(process, kind, "acknowledge", {"group": "q", "records": [["x", offset, what]]})


SENT = send(0, 0, "a")
NEMESIS: list[Line] = [("nemesis", "info", "fault", {"id": 0})]
DRAINED = note("drained", group="q", keys=["x"])

QUEUES: dict[str, tuple[str, Parts]] = {
    "accepted, delivered again": (
        "delivered-after-acknowledged",
        [SENT, acquire(1), acknowledge(1), acquire(2, count=2)],
    ),
    "rejected, delivered again": (
        "delivered-after-acknowledged",
        [SENT, acquire(1), acknowledge(1, "reject"), acquire(2, count=2)],
    ),
    "delivered again, too late to have been fetched ahead": (
        "delivered-after-acknowledged",
        [SENT, nothing(2), acquire(1), acknowledge(1), nothing(2), acquire(2, count=2)],
    ),
    "to two at once": ("concurrent-delivery", [SENT, acquire(1, lock_ms=30_000), acquire(2, count=2, lock_ms=30_000)]),
    "to another, before its member crashes": (
        "concurrent-delivery",
        [
            SENT,
            acquire(1, lock_ms=30_000),
            acquire(2, count=2, lock_ms=30_000),
            done(1, "info", "crash", None),
            acquire(3, count=3),
        ],
    ),
    "one count for two": ("repeated-count", [SENT, acquire(1), acquire(2)]),
    "the count falls": (
        "count-falls",
        [SENT, done(5, "info", "acquire", {"group": "q"}), acquire(1, count=2), acquire(2)],
    ),
    "the count skips": ("count-skips", [SENT, acquire(1, count=2)]),
    "who crashed had never asked": ("count-skips", [SENT, done(1, "info", "crash", None), acquire(2, count=2)]),
    "too often": ("over-delivered", [SENT, acquire(1), acquire(1, count=2, delivery_limit=1)]),
    "never sent": ("unknown-record", [SENT, acquire(1, value="b")]),
    "its send failed": ("unknown-record", [send(0, None, "a", kind="fail"), acquire(1)]),
    "sent elsewhere": ("unknown-record", [send(0, 3, "a"), acquire(1)]),
    "never delivered": ("undelivered", [SENT, send(0, 1, "b"), acquire(1), acknowledge(1), DRAINED]),
    "never acknowledged": ("unacknowledged", [SENT, acquire(1), acknowledge(1, "release"), DRAINED]),
}

GOOD_QUEUES: dict[str, Parts] = {
    "released and accepted": [
        SENT, acquire(1, lock_ms=30_000), acknowledge(1, "release"), acquire(2, count=2), acknowledge(2), DRAINED,
    ],
    "an acceptance of unknown fate": [SENT, acquire(1), acknowledge(1, kind="info"), acquire(2, count=2)],
    "fetched ahead, and handed out after its lock and another's delivery": [
        SENT, nothing(1), acquire(2, count=2, lock_ms=30_000), acquire(1, lock_ms=0),
    ],
    "fetched ahead": [SENT, nothing(2), acquire(1), acknowledge(1), acquire(2, count=2)],
    "after the lock": [SENT, acquire(1, lock_ms=0), acquire(2, count=2, lock_ms=0)],
    "an answer that was lost took a count": [SENT, done(1, "info", "acquire", {"group": "q"}), acquire(2, count=2)],
    "a member that crashes may have been given what it did not see": [
        SENT, nothing(1), done(1, "info", "crash", None), acquire(2, count=2),
    ],
    "a member that crashes gives it back": [
        SENT, acquire(1, lock_ms=30_000), done(1, "info", "crash", None), acquire(2, count=2, lock_ms=30_000),
    ],
    "a member that is given up gives it back": [
        SENT, acquire(1, lock_ms=30_000), done(1, "info", "acquire", {"group": "q"}), acquire(2, count=2),
    ],
    "the leader's memory went with it": [
        SENT, acquire(1, lock_ms=30_000), acquire(1, count=2, lock_ms=30_000), NEMESIS,
        acquire(2), acquire(3, count=2),
    ],
    "spent": [SENT, acquire(1, delivery_limit=2), acquire(1, count=2, delivery_limit=2), DRAINED],
}  # fmt: skip

KINDS: dict[str, tuple[Any, dict[str, tuple[str, Parts]], dict[str, Parts]]] = {
    "transactions": (transactions, TRANSACTIONS, GOOD_TRANSACTIONS),
    "groups": (groups, GROUPS, GOOD_GROUPS),
    "queue": (queue, QUEUES, GOOD_QUEUES),
}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, (_, cases, _) in KINDS.items() for case in cases])
def test_an_anomaly_is_caught_and_named(kind: str, case: str) -> None:
    checker, cases, _ = KINDS[kind]
    assert_caught(checker, *cases[case])


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, (*_, cases) in KINDS.items() for case in cases])
def test_what_is_no_anomaly_passes(kind: str, case: str) -> None:
    checker, _, cases = KINDS[kind]
    assert judged(checker.check, *cases[case]).names == set()


@pytest.mark.parametrize("kind", KINDS)
def test_every_anomaly_in_the_checker_s_words_has_a_planted_history(kind: str) -> None:
    checker, cases, _ = KINDS[kind]
    assert named_by(checker) == {name for name, _ in cases.values()}


def test_transactions_of_unknown_fate_are_told_apart() -> None:
    parts = [done(0, "info", "txn", [["send", "x", 1]]), done(1, "info", "txn", [["send", "y", 1]]), FINAL]
    assert judged(transactions.check, *parts).notes == {"unknown_outcomes": {"committed": 1, "no_trace": 1}}


# Generated histories.


@functools.cache
def generated(workload: str, seed: int, lines: int) -> list[Op]:
    match workload:
        case "transactions":
            options = LogOptions(transactions=True, via="subscribe", crash_chance=0.002)
            return Clients(seed, LogCalls(seed, options), 5, transactions=True).run(lines)
        case "groups":
            return Clients(seed, GroupCalls(seed, GroupOptions(crash_chance=0.004)), 5).run(lines)
        case "pipeline":
            return Clients(seed, PipelineCalls(seed), 6).run(lines)
        case _:
            return QueueClients(seed, QueueCalls(seed), 6).run(lines)


@pytest.mark.parametrize("workload", ["transactions", "groups", "pipeline", "queue"])
def test_a_perfect_history_passes_every_checker(workload: str) -> None:
    ops = generated(workload, 5, 10_000)
    assert Type.INFO in {op.type for op in ops if op.is_client}
    verdicts = {verdict.checker: verdict for verdict in checkers.check(History(ops))}
    assert {name: dict(verdict.counts) for name, verdict in verdicts.items() if verdict.counts} == {}
    judges = {"pipeline": "transactions"}.get(workload, workload)
    assert verdicts[judges].examined > 500


def tear(plant: Plant) -> None:
    """The last record of a key that a transaction of unknown fate wrote is never handed out, though its others are."""
    op = plant.pick(lambda op: op.type is Type.OK and op.f in ("send", "txn") and len({k for k, _, _ in sends(op)}) > 1)
    key, offset, _ = list(sends(op))[-1]
    plant.everywhere_polled(key, lambda pairs: [pair for pair in pairs if pair[0] != offset])


def read_early(plant: Plant) -> None:
    """Let another client's poll, the last before a commit is asked for, return a record of that transaction."""
    op = plant.pick(lambda op: op.type is Type.OK and op.index > 1000 and any(True for _ in sends(op)))
    key, offset, value = next(sends(op))
    polls = [other for other in plant.ops if other.f == "poll" and other.type is Type.OK]
    early = [other for other in polls if other.time < op.extra["commit_asked"]][-1]
    early.value[0][1].setdefault(key, []).append([offset, value])


def process_again(plant: Plant) -> None:
    op = plant.pick(lambda op: op.type is Type.OK and op.f == "poll" and any(ancestor(v) for _, _, v in polled(op)))
    key, _, value = plant.chance.choice([found for found in polled(op) if ancestor(found[2])])
    op.value[0][1][key].append([10**9, f"{value}-again"])


def drop_processed(plant: Plant) -> None:
    early = plant.pick(lambda op: op.f == "send" and op.type is Type.OK and op.index < 400)
    source = next((key, offset) for key, offset, _ in sends(early))
    plant.everywhere_polled("out-0", lambda pairs: [pair for pair in pairs if ancestor(pair[1]) != source])


def own_twice(plant: Plant) -> None:
    notes = [op for op in plant.ops if op.f == "assigned" and op.value["partitions"]]
    op = plant.chance.choice(notes)
    index = len(plant.ops)
    value = {**op.value, "member": "another"}
    plant.ops.append(
        Op(index=index, time=plant.ops[-1].time, process="another", type=Type.INFO, f="assigned", value=value)
    )


def forget_commit(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "committed" and op.type is Type.OK and None not in op.value["offsets"].values())
    op.value["offsets"] = dict.fromkeys(op.value["offsets"])


def old_commit(plant: Plant) -> None:
    op = plant.pick(
        lambda op: (
            op.f == "committed" and op.type is Type.OK and all(o and o > 20 for o in op.value["offsets"].values())
        )
    )
    (key,) = op.value["offsets"]
    commits = [c for c in plant.ops if c.f == "commit" and c.type is Type.OK and key in c.value["offsets"]]
    op.value["offsets"] = {key: commits[0].value["offsets"][key]}


def never_deliver(plant: Plant) -> None:
    _, key, offset, _ = plant.acknowledged_and_read()
    plant.everywhere_polled(key, lambda pairs: [pair for pair in pairs if pair[0] != offset])


def deliver_again(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "acknowledge" and op.type is Type.OK and op.value["records"][0][2] == "accept")
    key, offset, _ = op.value["records"][0]
    past = plant.history()
    later = [a for a in past.completed("acquire") if a.type is Type.OK and past.invocation(a).index > op.index]
    plant.chance.choice(later).value["records"].append([key, offset, offset + 1, 2])


def lose_from_queue(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "send" and op.type is Type.OK)
    key, offset, _ = next(sends(op))
    for other in plant.ops:
        if other.f in ("acquire", "acknowledge") and other.value and "records" in other.value:
            other.value["records"] = [r for r in other.value["records"] if r[:2] != [key, offset]]


PLANTS: dict[str, tuple[str, Callable[[Plant], None]]] = {
    "torn-transaction": ("transactions", tear),
    "early-read": ("transactions", read_early),
    "processed-twice": ("pipeline", process_again),
    "not-processed": ("pipeline", drop_processed),
    "double-ownership": ("groups", own_twice),
    "lost-commit": ("groups", forget_commit),
    "stale-commit": ("groups", old_commit),
    "skipped-record": ("groups", never_deliver),
    "delivered-after-acknowledged": ("queue", deliver_again),
    "undelivered": ("queue", lose_from_queue),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLANTS)
def test_an_anomaly_planted_into_a_perfect_history_is_caught(name: str, seed: int) -> None:
    workload, spoil = PLANTS[name]
    ops = generated(workload, seed, 4000)
    checker = {"pipeline": transactions, "transactions": transactions, "groups": groups, "queue": queue}[workload]
    assert checker.check(History(ops), checkers.Options()).names == set()
    plant = Plant(ops, seed)
    spoil(plant)
    assert name in checker.check(plant.history(), checkers.Options()).names
