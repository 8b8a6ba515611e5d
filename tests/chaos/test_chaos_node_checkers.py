"""Metadata, leaders, replicas and compaction: each anomaly is caught and named, perfect histories pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from planted import Line, Plant, assert_caught, done, judged, named_by

from chaos import checkers
from chaos.checkers import compaction, leaders, metadata, replicas
from chaos.checkers.metadata import EXISTS, UNKNOWN
from chaos.checkers.verdict import Answer
from chaos.generator import LogCalls, LogOptions, TopicCalls
from chaos.history import History, Op, Type
from chaos.reference.clients import Clients
from chaos.reference.topics import TopicClients

Parts = list[list[Line]]

# Metadata.


def call(f: str, kind: str = "ok", process: int = 0, error: str | None = None, **value: Any) -> list[Line]:
    return done(process, kind, f, {"topic": "t", **value}, **({"error": error} if error else {}))


CREATE = call("create-topic", partitions=3)
DELETE = call("delete-topic")
IS_THERE = call("describe-topic", process=1, exists=True, partitions=3, config={})
IS_NOT = call("describe-topic", process=1, exists=False)


def look(f: str, node: int, final: bool = False, incarnation: int = 0, **value: Any) -> list[Line]:
    extra = {"incarnation": incarnation} | ({"final": True} if final else {})
    return done(node, "ok", f, {"node": node, **value}, **extra)


METADATA: dict[str, tuple[str, Parts]] = {
    "created, and not there": ("not-linearizable", [CREATE, IS_NOT]),
    "deleted, and there": ("not-linearizable", [CREATE, DELETE, IS_THERE]),
    "created twice": ("not-linearizable", [CREATE, CREATE]),
    "deleted twice": ("not-linearizable", [CREATE, DELETE, DELETE]),
    "it exists, says who created nothing": ("not-linearizable", [call("create-topic", "fail", error=EXISTS)]),
    "unknown, and it is there": ("not-linearizable", [CREATE, call("alter-topic", "fail", error=UNKNOWN)]),
    "one creation of unknown fate, and two topics": (
        "not-linearizable",
        [
            call("create-topic", "info", process=9, partitions=3),
            IS_THERE,
            DELETE,
            call("describe-topic", process=1, exists=True),
        ],
    ),
    "the setting is another": (
        "not-linearizable",
        [CREATE, call("alter-topic", config={"a": "1"}), call("describe-topic", exists=True, config={"a": "2"})],
    ),
    "replicas are others": (
        "not-linearizable",
        [CREATE, call("reassign", replicas=[1, 2]), call("describe-topic", exists=True, replicas=[1, 3])],
    ),
    "two images of an offset": (
        "image-divergence",
        [look("image", 1, offset=5, digest="a"), look("image", 2, offset=5, digest="b")],
    ),
    "a broker stays behind": (
        "not-converged",
        [look("image", 1, offset=5, digest="a", final=True), look("image", 2, offset=4, digest="b", final=True)],
    ),
    "an image goes back": (
        "image-falls",
        [look("image", 1, offset=5, digest="a"), look("image", 1, offset=4, digest="b")],
    ),
    "two are elected": (
        "two-controllers",
        [look("controller", 1, epoch=3, controller=1), look("controller", 2, epoch=3, controller=2)],
    ),
    "another one decides": (
        "two-controllers",
        [look("controller", 1, epoch=3, controller=1), [("node-2", "info", "decided", {"node": 2, "epoch": 3})]],
    ),
    "an epoch goes back": (
        "controller-epoch-falls",
        [look("controller", 1, epoch=3, controller=1), look("controller", 1, epoch=2, controller=2)],
    ),
}  # fmt: skip

GOOD_METADATA: dict[str, Parts] = {
    "a life": [IS_NOT, CREATE, call("alter-topic", config={"a": "1"}), IS_THERE, DELETE, IS_NOT, CREATE],
    "of unknown fate": [
        call("create-topic", "info", partitions=3), IS_NOT, IS_THERE, call("delete-topic", "info", process=2), IS_NOT,
    ],
    "other failures say nothing": [call("create-topic", "fail", error="NOT_CONTROLLER"), IS_NOT, CREATE],
    "a lost answer to a look": [CREATE, call("describe-topic", "info")],
    "behind, but not in the end": [look("image", 1, offset=5, digest="a"), look("image", 2, offset=4, digest="b")],
    "after a restart": [look("image", 1, offset=5, digest="a"), look("image", 1, incarnation=1, offset=4, digest="b")],
    "no controller yet": [
        look("controller", 1, epoch=3, controller=None), look("controller", 2, epoch=3, controller=2),
    ],
}  # fmt: skip

# Leaders.


def marks(node: int, epoch: int = 1, leader: bool = True, **changed: Any) -> list[Line]:
    extra = {name: changed.pop(name) for name in ("final", "incarnation", "replica") if name in changed}
    value = {"key": "x", "log_start": 0, "last_stable": 5, "high_watermark": 5, "log_end": 7, **changed}
    return done(node, "ok", "watermarks", {"node": node, "leader": leader, "leader_epoch": epoch, **value}, **extra)


def in_sync(*isr: int, epoch: int = 1, **changed: Any) -> list[Line]:
    value = {"epoch_start": 4, "high_watermark": 3, "ends": [[1, 6], [2, 6], [3, 6]], **changed}
    return done(9, "ok", "isr", {"key": "x", "leader": 1, "leader_epoch": epoch, "isr": [*isr], **value})


SENT = done(8, "ok", "send", [["send", "x", [5, "e"]]])

LEADERS: dict[str, tuple[str, Parts]] = {
    "of one epoch": ("two-leaders", [marks(1), marks(2)]),
    "an epoch goes back": ("leader-epoch-falls", [marks(1, epoch=2), marks(1, leader=False)]),
    "an epoch is forgotten": ("leader-epoch-falls", [marks(1), marks(1, leader=False, epoch=-1)]),
    "a replica forgets its epoch": (
        "leader-epoch-falls",
        [marks(1, replica=7), marks(1, leader=False, epoch=-1, replica=7)],
    ),
    "a replica that came back is of an earlier epoch": (
        "leader-epoch-falls",
        [marks(1, epoch=2, replica=7), marks(1, leader=False, replica=8)],
    ),
    "the high watermark falls": ("high-watermark-falls", [marks(1, high_watermark=6), marks(1)]),
    "the last stable offset falls": ("last-stable-falls", [marks(1), marks(1, last_stable=4)]),
    "deleted records are back": ("log-start-falls", [marks(1, log_start=2), marks(1)]),
    "out of order": ("watermark-order", [marks(1, high_watermark=9)]),
    "in sync before the epoch's start": (
        "in-sync-too-early",
        [in_sync(1, 2), in_sync(1, 2, 3, ends=[[1, 6], [2, 6], [3, 3]])],
    ),
    "in sync below what is committed": (
        "in-sync-too-early",
        [in_sync(1, 2), in_sync(1, 2, 3, high_watermark=6, ends=[[1, 6], [2, 6], [3, 5]])],
    ),
    "acknowledged, and cut off": ("lost-tail", [SENT, marks(1, epoch=2, final=True)]),
    "committed, and not stable": (
        "commit-beyond-stable",
        [done(8, "ok", "commit", {"group": "g", "offsets": {"x": 6}}), marks(1, final=True)],
    ),
}

GOOD_LEADERS: dict[str, Parts] = {
    "joined with enough": [in_sync(1, 2), in_sync(1, 2, 3, high_watermark=6)],
    "joined with what the epoch began with": [in_sync(1, 2), in_sync(1, 2, 3, ends=[[1, 6], [2, 6], [3, 4]])],
    "in sync since the epoch began": [
        in_sync(1, 2), in_sync(1, 2, 3, epoch=2, ends=[[1, 6], [3, 3]]), in_sync(1, 3, epoch=2, ends=[[1, 6], [3, 3]]),
    ],
    "joined, and is not the broker that it was": [in_sync(1, 2), in_sync(1, 2, 3, ends=[[1, 6], [2, 6]])],
    "joined, and the leader is not to be asked": [
        in_sync(1, 2), in_sync(1, 2, 3, epoch_start=None, high_watermark=None, ends=[[3, 0]]),
    ],
    "not in sync": [in_sync(1), in_sync(1, 2, ends=[[1, 6], [2, 6], [3, 0]])],
    "the next leader lags": [marks(1, high_watermark=6), marks(2, epoch=2)],
    "followers lag": [marks(1), marks(2, leader=False, high_watermark=3, last_stable=3)],
    "a restart": [marks(1, epoch=2), marks(1, leader=False, incarnation=1)],
    "left, and came back": [
        marks(1, epoch=2, replica=7),
        marks(1, leader=False, epoch=-1, replica=8),
        marks(1, epoch=2, replica=8),
    ],
    "not yet in the end": [SENT, marks(1)],
    "at the same time": [[marks(1)[0], *marks(2, leader=False), marks(1)[1]]],
    "an old leader in the end": [SENT, marks(1, final=True), marks(2, epoch=2, high_watermark=6, final=True)],
}  # fmt: skip

# Replicas.

BATCHES = [[0, 4, 1, "aa"], [5, 5, 1, "bb"], [6, 9, 3, "cc"]]


def dump(node: int, batches: list[list[Any]] = BATCHES, final: bool = True, **changed: Any) -> list[Line]:
    end = batches[-1][1] + 1
    value = {
        "node": node,
        "key": "x",
        "log_start": 0,
        "high_watermark": end,
        "log_end": end,
        "epochs": [[1, 0], [3, 6]],
    }
    return done(node, "ok", "replica", {**value, "batches": batches, **changed}, final=final)


def other(place: int, *batch: Any) -> list[list[Any]]:
    return [list(batch) if place == at else known for at, known in enumerate(BATCHES)]


RECORDS, COMMIT = [0, 7, 0, "records"], [1, 7, 1, "commit"]
"""The batches of producer 7: its first transaction and the marker that ends it, whose epoch is one higher (KIP-890)."""

REPLICAS: dict[str, tuple[str, Parts]] = {
    "a byte": ("replica-divergence", [dump(1), dump(2, other(2, 6, 9, 3, "cd"), high_watermark=10)]),
    "a batch less": (
        "not-converged",
        [dump(1, high_watermark=6), dump(2, BATCHES[:2], epochs=[[1, 0]], high_watermark=6, log_end=6)],
    ),
    "the same after a difference": (
        "log-matching",
        [dump(1, high_watermark=5), dump(2, other(1, 5, 5, 1, "xx"), high_watermark=5)],
    ),
    "offsets go back": ("epoch-order", [dump(1, [*BATCHES, [8, 12, 3, "dd"]])]),
    "epochs go back": ("epoch-order", [dump(1, [*BATCHES, [10, 12, 2, "dd"]], epochs=[[1, 0], [3, 6], [2, 10]])]),
    "the cache says otherwise": ("epoch-order", [dump(1, epochs=[[1, 0], [3, 5]])]),
    "bytes that are no batch": ("damaged-batch", [dump(1, damaged=[5]), dump(2)]),
    "a marker again": ("marker-twice", [dump(1, transactional=[RECORDS, COMMIT, [3, 7, 1, "commit"]])]),
    "a marker again that ends the next transaction": (
        "marker-twice",
        [dump(1, transactional=[RECORDS, COMMIT, [3, 7, 1, "records"], [4, 7, 1, "commit"], [5, 7, 2, "commit"]])],
    ),
    "a marker again, and by then it aborts": (
        "marker-twice",
        [dump(1, transactional=[RECORDS, COMMIT, [3, 7, 1, "records"], [4, 7, 1, "abort"]])],
    ),
    "a marker again, after the next one": (
        "marker-twice",
        [dump(1, transactional=[RECORDS, COMMIT, [3, 7, 1, "records"], [4, 7, 2, "abort"], [5, 7, 1, "commit"]])],
    ),
    "a record less": ("lost-on-node", [SENT, dump(1, records=[[4, "d"], [6, "f"]]), dump(2, records=[[5, "e"]])]),
}

GOOD_REPLICAS: dict[str, Parts] = {
    "the same": [dump(1), dump(2), dump(3)],
    "one has deleted more": [dump(1), dump(2, BATCHES[1:], log_start=5, epochs=[[1, 5], [3, 6]])],
    "uncommitted tails of different epochs": [
        dump(1, high_watermark=6),
        dump(2, other(2, 6, 9, 2, "cd"), high_watermark=6, epochs=[[1, 0], [2, 6]]),
    ],
    "still under way": [dump(1, final=False), dump(2, BATCHES[:2], final=False, epochs=[[1, 0]])],
    "of unknown fate": [done(8, "info", "send", [["send", "x", "e"]]), dump(1, records=[]), dump(2, records=[])],
    "a marker for each transaction": [
        dump(1, transactional=[RECORDS, COMMIT, [3, 7, 1, "records"], [4, 7, 2, "commit"], [5, 8, 1, "commit"]]),
        dump(2, transactional=[RECORDS, COMMIT, [3, 7, 1, "records"], [4, 7, 2, "commit"], [5, 8, 1, "commit"]]),
    ],
    "transactions of one epoch, of which a marker came again": [
        dump(1, transactional=[RECORDS, *([at, 7, 0, "commit"] for at in (1, 2)), [3, 7, 0, "records"],
                               [4, 7, 0, "commit"]]),
    ],
    "fenced, and then given that epoch": [
        dump(1, transactional=[RECORDS, [1, 7, 1, "abort"], [2, 7, 1, "records"], [3, 7, 1, "commit"]]),
    ],
    "markers where it wrote nothing": [
        dump(1, transactional=[[0, 7, 1, "commit"], [1, 7, 1, "records"], [2, 7, 1, "commit"]]),
    ],
}  # fmt: skip

# Compaction.


def put(offset: int, record_key: str, value: str | None) -> list[Line]:
    return done(0, "ok", "put", {"key": "x", "record_key": record_key, "value": value, "offset": offset})


def read(*records: tuple[int, str, str | None]) -> list[Line]:
    return done(1, "ok", "compacted", {"key": "x", "records": [list(record) for record in records]})


def removed(record_key: str) -> dict[str, Any]:
    return {"key": "x", "record_key": record_key, "value": None}


COMPACTION: dict[str, tuple[str, Parts]] = {
    "gone": ("lost-last-value", [put(0, "a", "1"), read()]),
    "an older one instead": ("lost-last-value", [put(0, "a", "1"), put(1, "a", "2"), read((0, "a", "1"))]),
    "back from the dead": ("lost-last-value", [put(0, "a", "1"), put(1, "a", None), read((0, "a", "1"))]),
    "an older one behind a tombstone of unknown fate": (
        "lost-last-value",
        [put(0, "a", "1"), put(1, "a", "2"), done(2, "info", "put", removed("a")), read((0, "a", "1"))],
    ),
    "gone, and the tombstone was another's": (
        "lost-last-value",
        [put(0, "a", "1"), done(2, "info", "put", removed("b")), read()],
    ),
    "gone, and the tombstone came later": (
        "lost-last-value",
        [put(0, "a", "1"), read(), done(2, "info", "put", removed("a"))],
    ),
    "another value": ("changed-value", [put(0, "a", "1"), read((0, "a", "2"))]),
    "twice": ("duplicate-offset", [put(0, "a", "1"), read((0, "a", "1"), (0, "a", "1"))]),
}

GOOD_COMPACTION: dict[str, Parts] = {
    "cleaned": [put(0, "a", "1"), put(1, "b", "1"), put(2, "a", "2"), read((1, "b", "1"), (2, "a", "2"))],
    "not cleaned": [put(0, "a", "1"), put(1, "a", "2"), read((0, "a", "1"), (1, "a", "2"))],
    "a tombstone that is gone": [put(0, "a", "1"), put(1, "a", None), read()],
    "a put of unknown fate": [
        put(0, "a", "1"),
        done(2, "info", "put", {"key": "x", "record_key": "a", "value": "2"}),
        read((1, "a", "2")),
    ],
    "a tombstone of unknown fate, that is gone": [put(0, "a", "1"), done(2, "info", "put", removed("a")), read()],
    "a tombstone of unknown fate, that never was": [
        put(0, "a", "1"),
        done(2, "info", "put", removed("a")),
        read((0, "a", "1")),
    ],
}

KINDS: dict[str, tuple[Any, dict[str, tuple[str, Parts]], dict[str, Parts]]] = {
    "metadata": (metadata, METADATA, GOOD_METADATA),
    "leaders": (leaders, LEADERS, GOOD_LEADERS),
    "replicas": (replicas, REPLICAS, GOOD_REPLICAS),
    "compaction": (compaction, COMPACTION, GOOD_COMPACTION),
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


def test_a_search_that_grows_too_large_is_neither_an_approval_nor_an_anomaly() -> None:
    unknown = [call("alter-topic", "info", process=n, config={f"s{n}": "1"}) for n in range(1, 11)]
    asked = call("alter-topic", process=31, config={"never": "not"})
    seen = call("describe-topic", process=30, exists=True, config={"never": "set"})
    all_of_them = call("describe-topic", process=32, exists=True, config={f"s{n}": "1" for n in range(1, 11)})
    parts = [CREATE, *unknown, asked, seen, all_of_them]
    verdict = judged(metadata.check, *parts, most_steps=500)
    assert verdict.names == set()
    assert not verdict.valid
    assert verdict.answer is Answer.UNDECIDED
    (undecided,) = verdict.undecided
    assert undecided.key == "t"
    assert undecided.ops
    assert undecided.evidence == judged(metadata.check, *parts, most_steps=500).undecided[0].evidence
    assert judged(metadata.check, *parts).names == {"not-linearizable"}
    assert judged(metadata.check, CREATE, *unknown, asked, all_of_them).valid


def test_what_is_undecided_of_one_topic_hides_nothing_of_another() -> None:
    unknown = [call("alter-topic", "info", process=n, config={f"s{n}": "1"}) for n in range(1, 11)]
    seen = call("describe-topic", process=32, exists=True, config={f"s{n}": "1" for n in range(1, 12)})
    other = done(40, "ok", "describe-topic", {"topic": "other", "exists": True})
    asked = call("alter-topic", process=31, config={"s11": "2"})
    verdict = judged(metadata.check, CREATE, *unknown, asked, seen, other, most_steps=100)
    assert verdict.names == {"not-linearizable"}
    assert [each.key for each in verdict.undecided] == ["t"]
    assert verdict.answer is Answer.WRONG


def test_where_records_are_missing_is_said() -> None:
    sent = [done(8, "ok", "send", [["send", "x", [offset, offset]]]) for offset in range(10)]
    held = [[offset, offset] for offset in (2, 3, 6, 7)]
    lost = [a.evidence for a in judged(replicas.check, *sent, dump(1, records=held)).anomalies]
    assert [(evidence["offset"], evidence["where"]) for evidence in lost] == [
        *((offset, "prefix") for offset in (0, 1)),
        *((offset, "middle") for offset in (4, 5)),
        *((offset, "postfix") for offset in (8, 9)),
    ]


# Generated histories.


@functools.cache
def generated(kind: str, lines: int) -> list[Op]:
    if kind == "metadata":
        return TopicClients(3, TopicCalls(3), 5).run(lines)
    return Clients(3, LogCalls(3, LogOptions(transactions=True)), 5, transactions=True).run(lines)


@pytest.mark.parametrize("kind", ["metadata", "log"])
def test_a_perfect_history_passes_every_checker(kind: str) -> None:
    ops = generated(kind, 10_000)
    assert Type.INFO in {op.type for op in ops if op.is_client}
    verdicts = {verdict.checker: verdict for verdict in checkers.check(History(ops))}
    assert {name: dict(verdict.counts) for name, verdict in verdicts.items() if verdict.counts} == {}
    for name in ("metadata",) if kind == "metadata" else ("leaders", "replicas"):
        assert verdicts[name].examined > 20


def misdescribe(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "describe-topic" and op.value["exists"])
    op.value["partitions"] += 7


def change_image(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "image" and op.extra.get("final"))
    op.value["digest"] = "another"


def usurp(plant: Plant) -> None:
    plant.pick(lambda op: op.f == "controller").value["controller"] = 99


def lead_too(plant: Plant) -> None:
    key, epoch = next((op.value["key"], op.value["leader_epoch"]) for op in plant.ops if _leads(op))
    op = plant.pick(
        lambda op: (
            op.f == "watermarks"
            and (op.value["key"], op.value["leader_epoch"]) == (key, epoch)
            and not op.value["leader"]
        )
    )
    op.value["leader"] = True


def _leads(op: Op) -> bool:
    return op.f == "watermarks" and op.type is Type.OK and bool(op.extra.get("final")) and op.value["leader"]


def cut_off(plant: Plant) -> None:
    op = plant.pick(_leads)
    op.value.update(high_watermark=0, last_stable=0)


def flip(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "replica" and len(op.value["batches"]) > 2)
    plant.chance.choice(op.value["batches"])[3] = "flipped"


def tear(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "replica" and len(op.value["batches"]) > 2)
    op.value["damaged"] = [plant.chance.choice(op.value["batches"])[0]]


def drop(plant: Plant) -> None:
    op = plant.pick(lambda op: op.f == "replica" and len(op.value["records"]) > 2)
    acknowledged = {
        (micro[1], micro[2][0])
        for op in plant.ops
        if op.type is Type.OK and op.f in ("send", "txn")
        for micro in op.value
        if micro[0] == "send"
    }
    known = [record for record in op.value["records"] if (op.value["key"], record[0]) in acknowledged]
    op.value["records"].remove(plant.chance.choice(known))


PLANTS: dict[str, tuple[Any, str, Callable[[Plant], None]]] = {
    "not-linearizable": (metadata, "metadata", misdescribe),
    "not-converged": (metadata, "metadata", change_image),
    "two-controllers": (metadata, "metadata", usurp),
    "two-leaders": (leaders, "log", lead_too),
    "lost-tail": (leaders, "log", cut_off),
    "replica-divergence": (replicas, "log", flip),
    "lost-on-node": (replicas, "log", drop),
    "damaged-batch": (replicas, "log", tear),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLANTS)
def test_an_anomaly_planted_into_a_perfect_history_is_caught(name: str, seed: int) -> None:
    checker, kind, spoil = PLANTS[name]
    plant = Plant(generated(kind, 2000), seed)
    spoil(plant)
    assert name in checker.check(plant.history(), checkers.Options()).names
