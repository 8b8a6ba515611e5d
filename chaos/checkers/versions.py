"""The history's view of each key's log: the values at its offsets, who wrote and who read them.

Offsets come from acknowledged sends and from polls. The order of a key is its values by offset, gaps closed:
transactions' markers take offsets that no client sees. A send that failed, or one of unknown fate of which nothing was
ever read, says nothing about the log; a poll does, even in a transaction that was given up, since a consumer is only
ever handed what is committed.

Left out: reads below read_committed. Definitions: Jepsen's Kafka workload.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.history import History, Key, Op, Type, Value

SENDING = ("send", "txn", "process")
POLLING = ("poll", "txn", "process")
MICRO = ("send", "poll", "txn", "process")
PRODUCER, SENT = "producer", "sent"
"""Beside the value of a send: the idempotent producer that sent it, and its place among all that this one sent."""


def sends(op: Op) -> Iterator[tuple[Key, int | None, Value]]:
    """Return each send of the operation, in order: key, offset if it is known, value."""
    if op.f not in SENDING or op.value is None:
        return
    for micro in op.value:
        if micro[0] == "send":
            what = micro[2]
            if isinstance(what, list):
                yield micro[1], what[0], what[1]
            else:
                yield micro[1], None, what


def polled(op: Op) -> Iterator[tuple[Key, int, Value]]:
    """Return each record the operation was handed, in order: key, offset, value."""
    if op.f not in POLLING or op.value is None:
        return
    for micro in op.value:
        if micro[0] == "poll" and len(micro) > 1:
            for key, pairs in micro[1].items():
                for offset, value in pairs:
                    yield key, offset, value


def writes(op: Op) -> dict[Key, list[Value]]:
    """Return the values that the operation sent, by key."""
    found: dict[Key, list[Value]] = {}
    for key, _, value in sends(op):
        found.setdefault(key, []).append(value)
    return found


def reads(op: Op) -> dict[Key, list[Value]]:
    """Return the values that the operation was handed over all its polls, by key."""
    found: dict[Key, list[Value]] = {}
    for key, _, value in polled(op):
        found.setdefault(key, []).append(value)
    return found


@dataclass(slots=True)
class Order:
    """One key's log. `by_index` is dense; if several values claim an offset, the one seen first stands for them."""

    log: dict[int, list[Value]] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    by_index: list[Value] = field(default_factory=list)
    by_value: dict[Value, int] = field(default_factory=dict)

    def add(self, offset: int, value: Value) -> None:
        """Record that the value was seen at the offset."""
        there = self.log.setdefault(offset, [])
        if value not in there:
            there.append(value)

    def close(self) -> None:
        """Put the log in order once everything is added."""
        self.offsets = sorted(self.log)
        self.by_index = [self.log[offset][0] for offset in self.offsets]
        self.by_value = {value: index for index, value in enumerate(self.by_index)}

    def delta(self, value: Value, later: Value) -> int:
        """Return how many places further on the later value stands: 1 if it directly follows, or if either is
        unknown."""
        here, there = self.by_value.get(value), self.by_value.get(later)
        return 1 if here is None or there is None else there - here


@dataclass(slots=True)
class Versions:
    """Shared data of the checkers that look at logs."""

    orders: dict[Key, Order] = field(default_factory=dict)
    writer_of: dict[Key, dict[Value, Op]] = field(default_factory=dict)
    readers_of: dict[Key, dict[Value, list[Op]]] = field(default_factory=dict)
    ok_reads: dict[Key, set[Value]] = field(default_factory=dict)
    failed_writes: dict[Key, set[Value]] = field(default_factory=dict)
    shared: set[Key] = field(default_factory=set)
    """Keys from which a share group acquired records."""
    ops: list[Op] = field(default_factory=list)
    """Completions of send, poll and txn."""

    def order(self, key: Key) -> Order:
        """Return the key's log; an empty one if none of its offsets are known."""
        return self.orders.get(key) or Order()

    def must_have_committed(self, op: Op) -> bool:
        """Return True if the operation certainly happened: it was acknowledged, or something it wrote was read."""
        if op.type is Type.OK:
            return True
        if op.type is not Type.INFO:
            return False
        return any(value in self.ok_reads.get(key, ()) for key, _, value in sends(op))


@functools.lru_cache(maxsize=2)
def versions(history: History) -> Versions:
    """Read the history once."""
    found = Versions(ops=list(history.completed(*MICRO)))
    for op in found.ops:
        for key, _, value in sends(op):
            found.writer_of.setdefault(key, {})[value] = op
            if op.type is Type.FAIL:
                found.failed_writes.setdefault(key, set()).add(value)
        for key, _, value in polled(op):
            readers = found.readers_of.setdefault(key, {}).setdefault(value, [])
            if not readers or readers[-1] is not op:
                readers.append(op)
            if op.type is Type.OK:
                found.ok_reads.setdefault(key, set()).add(value)
    for op in history.completed("acquire"):
        found.shared.update(key for key, *_ in op.value.get("records", ()))
    for op in found.ops:
        if found.must_have_committed(op):
            for key, offset, value in sends(op):
                if offset is not None:
                    found.orders.setdefault(key, Order()).add(offset, value)
        for key, offset, value in polled(op):
            found.orders.setdefault(key, Order()).add(offset, value)
    for order in found.orders.values():
        order.close()
    return found


def descendant(key: Key, offset: int, attempt: str) -> str:
    """Make the output value of an input record: its source, and the attempt that made it, so that values are unique."""
    return f"{key}@{offset}#{attempt}"


def ancestor(value: Any) -> tuple[Key, int] | None:
    """Return the input record an output value descends from; None if it is no descendant."""
    if not isinstance(value, str) or "#" not in value:
        return None
    source, _, _ = value.partition("#")
    key, at, offset = source.rpartition("@")
    return (key, int(offset)) if at and offset.isdigit() else None
