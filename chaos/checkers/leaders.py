"""A partition has one leader in an epoch, and that leader never takes back a promise.

    two-leaders            two nodes lead a partition in one epoch
    leader-epoch-falls     a node returned to an earlier epoch of a partition without a restart, or a replica to none
    high-watermark-falls, last-stable-falls, log-start-falls     at the leader of one epoch
    watermark-order        log start <= last stable offset <= high watermark <= log end does not hold
    in-sync-too-early      a replica joined the ISR with less than was committed, or than the leader epoch began with
    lost-tail              an acknowledged record stands at or above the high watermark in the end
    commit-beyond-stable   a group's committed offset lies above the last stable offset in the end

Read from: `watermarks` {node, key, leader, leader_epoch, log_start, last_stable, high_watermark, log_end}, asked of
one node; `final` for those after healing, `incarnation` beside the value if the node may have restarted, `replica` if
the partition may have left the node and come back: such a replica is new, and in epoch -1 until it has its role;
acknowledged sends (with acks=all) and commits; `isr` {key, leader, leader_epoch, epoch_start, high_watermark, isr:
[node, ...], ends: [[node, log end], ...]}: the metadata, and the state at the same moment: the leader's high watermark
and the offset at which its epoch begins, null unless it leads in this epoch; the ends of replicas that are in this
epoch, on nodes whose broker is the one that is registered.

A replica joins the ISR within a leader epoch only after fetching up to the epoch's start and the high watermark
(KIP-101, KIP-497). From then on the high watermark waits for it, and its log is not truncated during that epoch unless
it restarts: the quorum then sees a new broker, and removes the replica from the ISR when it registers that broker
(KIP-903).

Left out: watermarks between epochs, where a new leader's lag behind the old one's until it hears from its followers;
topics that are deleted and made again under their name, since a key is one partition for the whole history.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos.checkers.realtime import Decrease, falls
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import sends, versions
from chaos.history import History, Key, Op, Type

NAME = "leaders"

_NO_EPOCH: Final = -1
"""The epoch of a replica that has not learned its role yet."""

_NEVER_FALL = {
    "high_watermark": "high-watermark-falls",
    "last_stable": "last-stable-falls",
    "log_start": "log-start-falls",
}


def check(history: History, options: Options) -> Verdict:
    """Judge leaders."""
    findings = Findings(NAME, options)
    readings = [op for op in history.completed("watermarks") if op.type is Type.OK]
    joining = list(history.completed("isr"))
    findings.verdict.examined = len(readings) + len(joining)
    leading = [op for op in readings if op.value["leader"]]
    _one_leader(history, findings, readings, leading)
    _watermarks(history, findings, readings, leading)
    _joining(joining, findings)
    _in_the_end(history, findings, leading)
    return findings.verdict


def _one_leader(history: History, findings: Findings, readings: list[Op], leading: list[Op]) -> None:
    leaders: dict[tuple[Key, int], Op] = {}
    for op in leading:
        key, epoch, node = op.value["key"], op.value["leader_epoch"], op.value["node"]
        first = leaders.setdefault((key, epoch), op)
        if first.value["node"] != node:
            text = f"{key}: nodes {first.value['node']} and {node} both lead in epoch {epoch}"
            findings.add("two-leaders", text, (first, op), key=key, epoch=epoch, nodes=[first.value["node"], node])
    for fall in (*_falls_on_a_node(history, readings), *_falls_to_none(history, readings)):
        key, node = fall.later.value["key"], fall.later.value["node"]
        text = f"{key}: node {node} went from leader epoch {fall.high} back to {fall.low}"
        findings.add("leader-epoch-falls", text, (fall.earlier, fall.later), key=key, node=node)


def _falls_on_a_node(history: History, readings: list[Op]) -> Iterator[Decrease]:
    """Return the readings of a node that knew a later epoch before, also by a replica that it no longer holds."""
    known = [op for op in readings if op.value["leader_epoch"] != _NO_EPOCH]
    yield from falls(history, ((op, _node_of(op), op.value["leader_epoch"]) for op in known))


def _falls_to_none(history: History, readings: list[Op]) -> Iterator[Decrease]:
    """Return the readings in which a replica that had an epoch has none."""
    epochs = ((op, (*_node_of(op), op.extra.get("replica")), op.value["leader_epoch"]) for op in readings)
    return (fall for fall in falls(history, epochs) if fall.low == _NO_EPOCH)


def _node_of(op: Op) -> tuple[int, Key, int | None]:
    return op.value["node"], op.value["key"], op.extra.get("incarnation")


def _watermarks(history: History, findings: Findings, readings: list[Op], leading: list[Op]) -> None:
    for field, name in _NEVER_FALL.items():
        numbers = (
            (op, (op.value["key"], op.value["leader_epoch"], op.value["node"]), op.value[field]) for op in leading
        )
        for fall in falls(history, numbers):
            key = fall.later.value["key"]
            text = f"{key}: {field} of the leader fell from {fall.high} to {fall.low} within an epoch"
            findings.add(name, text, (fall.earlier, fall.later), key=key, values=[fall.high, fall.low])
    for op in readings:
        order = [op.value[name] for name in ("log_start", "last_stable", "high_watermark", "log_end")]
        if order != sorted(order):
            text = f"{op.value['key']}: log start, last stable, high watermark and log end are {order}"
            findings.add("watermark-order", text, (op,), key=op.value["key"], node=op.value["node"])


def _joining(readings: list[Op], findings: Findings) -> None:
    latest: dict[Key, Op] = {}
    for op in readings:
        value = op.value
        before, latest[value["key"]] = latest.get(value["key"]), op
        if before is None or before.value["leader_epoch"] != value["leader_epoch"]:
            continue
        offsets = [offset for offset in (value["epoch_start"], value["high_watermark"]) if offset is not None]
        for node, end in value["ends"]:
            if node not in value["isr"] or node in before.value["isr"] or end >= max(offsets, default=0):
                continue
            key, evidence = value["key"], {"node": node, "log_end": end, "offsets": offsets}
            text = f"{key}: node {node} joined the ISR with its log's end at {end}, below {max(offsets)}"
            findings.add("in-sync-too-early", text, (before, op), key=key, **evidence)


def _in_the_end(history: History, findings: Findings, leading: list[Op]) -> None:
    final: dict[Key, Op] = {}
    for op in leading:
        if op.extra.get("final"):
            best = final.setdefault(op.value["key"], op)
            if op.value["leader_epoch"] >= best.value["leader_epoch"]:
                final[op.value["key"]] = op
    if not final:
        return
    for op in versions(history).ops:
        if op.type is Type.OK:
            for key, offset, value in sends(op):
                end = final.get(key)
                if end is not None and offset is not None and offset >= end.value["high_watermark"]:
                    text = (
                        f"{key}: {value!r} was acknowledged at {offset}, and {end.value['high_watermark']} is the end"
                    )
                    findings.add("lost-tail", text, (op, end), key=key, offset=offset, value=value)
    for op in history.completed("commit"):
        for key, offset in op.value["offsets"].items() if op.type is Type.OK else ():
            end = final.get(key)
            if end is not None and offset > end.value["last_stable"]:
                group = op.value["group"]
                text = (
                    f"{group}: {key} is committed at {offset}, above the last stable offset {end.value['last_stable']}"
                )
                findings.add("commit-beyond-stable", text, (op, end), group=group, key=key, offset=offset)
