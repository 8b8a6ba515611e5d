"""A log keeps what it acknowledged, exactly once, in one order, and hands it out in that order.

The anomalies of Jepsen's Kafka workload, by its definitions:

    inconsistent-offsets     several values claim one offset
    duplicate                a value stands at several offsets
    G1a                      an acknowledged poll returned what a failed operation wrote
    precommitted-read        an operation polled what it was itself writing
    lost-write               something written for certain was never read, though something after it was
    unseen                   acknowledged, and never read by the end (share groups: see `queue`)
    int-poll-skip, int-nonmonotonic-poll     within one operation, polls left a record out, or went back
    poll-skip, nonmonotonic-poll             so did a process from one operation to its next
    int-send-skip, int-nonmonotonic-send     within one operation, sends stand apart, or in the wrong order
    nonmonotonic-send                        so do sends of one process, from one operation to its next

Two more are ours: `no-writer`, a poll returned a value that was never sent; and of an idempotent producer, which may
have several batches in flight (`versions.PRODUCER`):

    reordered                records of one producer stand in another order than it sent them

Allowed: int-send-skip always, since writers are not isolated from each other; poll-skip and nonmonotonic-poll if the
process subscribed, since partitions move between members. For facts that are noted but never wrong, see `lag`.
`unseen` needs a history that ends with polls of everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from chaos.checkers.lag import handed_twice, worst_lag
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import PRODUCER, SENT, Versions, polled, reads, sends, versions, writes
from chaos.history import History, Key, Op, Type, Value

NAME = "log"


def check(history: History, options: Options) -> Verdict:
    """Judge sends and polls."""
    findings = Findings(NAME, options)
    known = versions(history)
    findings.verdict.examined = len(known.ops)
    _offsets(known, findings)
    _aborted_and_unwritten(known, findings)
    _precommitted(known, findings)
    _lost(known, findings)
    _unseen(known, findings)
    _within_operations(known, findings)
    _between_operations(history, known, findings)
    _reordered(known, findings)
    worst, twice = worst_lag(history), handed_twice(history)
    findings.verdict.notes |= {"worst_lag": worst} if worst else {}
    findings.verdict.notes |= {"handed_twice": twice} if twice else {}
    return findings.verdict


def _offsets(known: Versions, findings: Findings) -> None:
    for key, order in known.orders.items():
        places: dict[Value, list[int]] = {}
        for index, offset in enumerate(order.offsets):
            values = order.log[offset]
            for value in values:
                places.setdefault(value, []).append(offset)
            if len(values) > 1:
                who = [op for value in values for op in _witnesses(known, key, value)]
                text = f"{key} has {_list(values)} at offset {offset}"
                findings.add("inconsistent-offsets", text, who, key=key, offset=offset, index=index, values=values)
        for value, offsets in places.items():
            if len(offsets) > 1:
                text = f"{key} has {value!r} at offsets {_list(offsets)}"
                who = _witnesses(known, key, value)
                findings.add("duplicate", text, who, key=key, value=value, count=len(offsets), offsets=offsets)


def _witnesses(known: Versions, key: Key, value: Value) -> list[Op]:
    writer = known.writer_of.get(key, {}).get(value)
    readers = known.readers_of.get(key, {}).get(value, [])
    return [op for op in (writer, *readers[:4]) if op is not None]


def _list(items: Iterable[object]) -> str:
    return ", ".join(repr(item) for item in items)


def _aborted_and_unwritten(known: Versions, findings: Findings) -> None:
    for key, by_value in known.readers_of.items():
        failed = known.failed_writes.get(key, set())
        writers = known.writer_of.get(key, {})
        for value, readers in by_value.items():
            if value not in writers:
                text = f"{key} handed out {value!r}, which nobody sent"
                findings.add("no-writer", text, readers[:4], key=key, value=value)
            elif value in failed:
                for reader in readers:
                    if reader.type is Type.OK:
                        text = f"{key}: {value!r} was read, though what wrote it failed"
                        findings.add("G1a", text, (writers[value], reader), key=key, value=value)


def _precommitted(known: Versions, findings: Findings) -> None:
    for op in known.ops:
        written = writes(op)
        if not written:
            continue
        for key, values in reads(op).items():
            own = [value for value in values if value in written.get(key, ())]
            if own:
                text = f"{key}: an operation polled {own[0]!r}, which it was only sending"
                findings.add("precommitted-read", text, (op,), key=key, value=own[0])


def _lost(known: Versions, findings: Findings) -> None:
    for key, read in known.ok_reads.items():
        order = known.order(key)
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for index, offset in enumerate(order.offsets):
            for value in order.log[offset]:
                first.setdefault(value, index)
                last[value] = index
        bound = max((first[value] for value in read if value in first), default=-1)
        must = sorted((value for value, index in last.items() if index <= bound), key=last.__getitem__)
        for value in must:
            writer = known.writer_of.get(key, {}).get(value)
            if value in read or writer is None or not known.must_have_committed(writer):
                continue
            farthest = known.readers_of[key].get(order.by_index[bound], [None])[0]
            text = (
                f"{key}: {value!r} at offset {order.offsets[first[value]]} was never read, "
                f"though offset {order.offsets[bound]} was"
            )
            evidence: dict[str, Any] = {"key": key, "value": value, "index": first[value], "max_read_index": bound}
            findings.add("lost-write", text, (writer, farthest), **evidence)


def _unseen(known: Versions, findings: Findings) -> None:
    for op in known.ops:
        if op.type is not Type.OK:
            continue
        for key, offset, value in sends(op):
            if value not in known.ok_reads.get(key, ()) and key not in known.shared:
                text = f"{key}: {value!r} was acknowledged and nobody has read it"
                findings.add("unseen", text, (op,), key=key, value=value, offset=offset)


def _within_operations(known: Versions, findings: Findings) -> None:
    for op in known.ops:
        rebalanced = op.rebalanced_keys() if op.extra else frozenset()
        for key, values in reads(op).items():
            if key not in rebalanced:
                _neighbours(known, findings, op, key, values, "poll")
        for key, values in writes(op).items():
            _neighbours(known, findings, op, key, values, "send")


def _neighbours(known: Versions, findings: Findings, op: Op, key: Key, values: list[Value], what: str) -> None:
    order = known.order(key)
    for value, later in itertools.pairwise(values):
        delta = order.delta(value, later)
        if delta == 1:
            continue
        evidence: dict[str, Any] = {"key": key, "values": [value, later], "delta": delta}
        if delta > 1:
            skipped = order.by_index[order.by_value[value] + 1 : order.by_value[later]]
            text = f"{key}: one operation's {what}s go from {value!r} to {later!r} over {_list(skipped[:5])}"
            evidence["skipped"] = skipped[:32]
            findings.add(f"int-{what}-skip", text, (op,), allowed=what == "send", **evidence)
        else:
            text = f"{key}: one operation's {what}s go back from {value!r} to {later!r}"
            findings.add(f"int-nonmonotonic-{what}", text, (op,), **evidence)


def _between_operations(history: History, known: Versions, findings: Findings) -> None:
    subscribed = any(op.f == "subscribe" for op in history.completions)
    last_polls: dict[object, dict[Key, tuple[Op, Value]]] = {}
    last_sends: dict[object, dict[Key, tuple[Op, Value]]] = {}
    for op in history.completions:
        if op.f in ("assign", "subscribe"):
            if op.type is not Type.FAIL:
                for last in (last_polls, last_sends):
                    kept = last.get(op.process, {})
                    last[op.process] = {key: kept[key] for key in op.value if key in kept}
            continue
        if any(True for _ in polled(op)):
            before = last_polls.setdefault(op.process, {})
            _steps(known, findings, op, reads(op), before, "poll", subscribed)
        if op.type is not Type.FAIL and any(True for _ in sends(op)):
            before = last_sends.setdefault(op.process, {})
            _steps(known, findings, op, writes(op), before, "send", False)


def _reordered(known: Versions, findings: Findings) -> None:
    """Batches stand in the order in which their producer sent them; those that failed are missing (KIP-98)."""
    streams: dict[tuple[Any, Key], list[tuple[int, Value, Op]]] = {}
    for op in known.ops:
        if PRODUCER in op.extra and op.type is not Type.FAIL:
            for key, _, value in sends(op):
                streams.setdefault((op.extra[PRODUCER], key), []).append((op.extra[SENT], value, op))
    for (producer, key), sent in streams.items():
        places = known.order(key).by_value
        there = [(places[value], value, op) for _, value, op in sorted(sent) if value in places]
        for (place, value, op), (later_place, later, later_op) in itertools.pairwise(there):
            if later_place < place:
                text = f"{key}: {producer} sent {value!r} before {later!r}, which stands before it"
                findings.add("reordered", text, (op, later_op), key=key, producer=producer, values=[value, later])


def _steps(
    known: Versions,
    findings: Findings,
    op: Op,
    by_key: dict[Key, list[Value]],
    last: dict[Key, tuple[Op, Value]],
    what: str,
    allowed: bool,
) -> None:
    """Compare each key's last value in the previous operation with its first in this one."""
    for key, values in by_key.items():
        if key in last:
            earlier, value = last[key]
            order = known.order(key)
            delta = order.delta(value, values[0])
            evidence: dict[str, Any] = {"key": key, "values": [value, values[0]], "delta": delta}
            if delta > 1 and what == "poll":
                skipped = order.by_index[order.by_value[value] + 1 : order.by_value[values[0]]]
                evidence["skipped"] = skipped[:32]
                text = f"{key}: process {op.process} polled {values[0]!r} after {value!r}, over {_list(skipped[:5])}"
                findings.add("poll-skip", text, (earlier, op), allowed=allowed, **evidence)
            elif delta < 1:
                name = f"nonmonotonic-{what}"
                text = (
                    f"{key}: process {op.process}'s {what} of {values[0]!r} comes after {value!r}, which is not before"
                )
                findings.add(name, text, (earlier, op), allowed=allowed, **evidence)
        if what == "send" or op.type is Type.OK:  # a poll that was given up is repeated
            last[key] = (op, values[-1])
