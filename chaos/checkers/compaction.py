"""A compacted topic keeps the last value of each record key.

    lost-last-value      the last value of a record key is gone, and an older one or none stands in its place
    changed-value        the record at the offset of an acknowledged put differs
    duplicate-offset     a read shows one offset twice, or offsets out of order

Read from: `put` {key, record_key, value} completed with its `offset`, value null for a tombstone; `compacted`
{key, records: [[offset, record key, value], ...]}, a read of the whole partition after all puts were acknowledged.

Left out: whether anything is ever cleaned. A put of unknown fate may or may not be there; a tombstone of unknown fate
may have removed the record key and then been removed itself.
"""

from __future__ import annotations

import itertools
from typing import Any

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History, Op, Type

NAME = "compaction"


def check(history: History, options: Options) -> Verdict:
    """Judge compacted partitions."""
    findings = Findings(NAME, options)
    last: dict[tuple[str, Any], Op] = {}
    at: dict[tuple[str, int], Op] = {}
    removed = _perhaps_removed(history)
    for op in history.completed("put", "compacted"):
        findings.verdict.examined += 1
        if op.type is not Type.OK:
            continue
        if op.f == "compacted":
            _judge(history, findings, op, last, at, removed)
            continue
        what = (op.value["key"], op.value["record_key"])
        at[op.value["key"], op.value["offset"]] = op
        if what not in last or op.value["offset"] > last[what].value["offset"]:
            last[what] = op
    return findings.verdict


def _perhaps_removed(history: History) -> dict[tuple[str, Any], int]:
    """Return the record keys with a tombstone of unknown fate, each with the index of the first one."""
    found: dict[tuple[str, Any], int] = {}
    for op in history.completed("put"):
        if op.type is Type.INFO and op.value["value"] is None:
            found.setdefault((op.value["key"], op.value["record_key"]), history.invocation(op).index)
    return found


def _judge(
    history: History,
    findings: Findings,
    op: Op,
    last: dict[tuple[str, Any], Op],
    at: dict[tuple[str, int], Op],
    removed: dict[tuple[str, Any], int],
) -> None:
    key, records = op.value["key"], op.value["records"]
    for (offset, *_), (following, *_) in itertools.pairwise(records):
        if following <= offset:
            text = f"{key}: offset {following} follows offset {offset}"
            findings.add("duplicate-offset", text, (op,), key=key, offset=following)
    newest: dict[Any, tuple[int, Any]] = {}
    for offset, record_key, value in records:
        newest[record_key] = (offset, value)
        put = at.get((key, offset))
        if put is not None and (put.value["record_key"], put.value["value"]) != (record_key, value):
            text = f"{key}: offset {offset} holds {record_key!r}={value!r}, and another record was put there"
            findings.add("changed-value", text, (put, op), key=key, offset=offset)
    for (of, record_key), put in last.items():
        if of != key or put.index > history.invocation(op).index:
            continue
        offset, value = newest.get(record_key, (-1, None))
        removed_at = put.index if put.value["value"] is None else removed.get((of, record_key), op.index)
        may_be_gone = removed_at < op.index
        if offset < put.value["offset"] and not (may_be_gone and offset == -1):
            text = f"{key}: {record_key!r} was last put as {put.value['value']!r}, and {value!r} is read"
            findings.add("lost-last-value", text, (put, op), key=key, record_key=record_key, offset=put.value["offset"])
