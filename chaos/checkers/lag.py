"""How far consumers lag behind, and what they are handed twice: informative, never an anomaly.

The lag of a poll in a key is the time from when any client first knew of a record beyond those handed to the process,
to when the poll was invoked: the record was unread for at least that long. It covers keys that were assigned by hand,
or of which the poll returned something; final polls, which begin at the start, are left out.
"""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Any

from chaos.checkers.versions import MICRO, POLLING, polled, sends
from chaos.history import History, Key, Op, Process, Type


def worst_lag(history: History) -> dict[str, Any] | None:
    """The longest lag in milliseconds, with its key and operation; None without a poll."""
    known = _known(history)
    assigned: dict[Process, list[Key]] = {}
    positions: dict[Process, dict[Key, int]] = {}
    worst: dict[str, Any] | None = None
    for op in history.completed("assign", "subscribe", *POLLING):
        if op.type is not Type.OK or op.extra.get("final"):
            continue
        if op.f in ("assign", "subscribe"):
            kept = {} if op.extra.get("seek_to_beginning") else positions.get(op.process, {})
            positions[op.process] = {key: kept[key] for key in op.value if key in kept}
            assigned[op.process] = op.value if op.f == "assign" else []
            continue
        if not any(micro[0] == "poll" for micro in op.value):
            continue
        own = positions.setdefault(op.process, {})
        keys = dict.fromkeys(assigned.get(op.process, ()))
        for key, offset, _ in polled(op):
            own[key] = max(own.get(key, -1), offset)
            keys[key] = None
        for key in keys:
            lag = _lag(history, known, op, key, own.get(key, -1))
            if worst is None or lag > worst["ms"]:
                worst = {"ms": lag, "key": key, "operation": op.index}
    return worst


def _known(history: History) -> dict[Key, tuple[list[int], list[int]]]:
    """Return, by key and rising, the highest offset that any client knew of, and since when."""
    known: dict[Key, tuple[list[int], list[int]]] = {}
    for op in history.completed(*MICRO):
        if op.type is not Type.OK:
            continue
        seen = [(key, offset) for key, offset, _ in sends(op) if offset is not None]
        for key, offset in [*seen, *((key, offset) for key, offset, _ in polled(op))]:
            offsets, times = known.setdefault(key, ([], []))
            if not offsets or offset > offsets[-1]:
                offsets.append(offset)
                times.append(op.time)
    return known


def _lag(history: History, known: dict[Key, tuple[list[int], list[int]]], op: Op, key: Key, position: int) -> float:
    offsets, times = known.get(key, ([], []))
    place = bisect.bisect_right(offsets, position)
    return max(0, history.invocation(op).time - times[place]) / 1e6 if place < len(times) else 0.0


def handed_twice(history: History) -> dict[str, int]:
    """Count, over subscribed processes, how many records one process was handed several times by acknowledged
    operations."""
    subscribed: set[Process] = set()
    counts: Counter[tuple[Process, Key, int]] = Counter()
    for op in history.completed("subscribe", *POLLING):
        if op.type is Type.OK and op.f == "subscribe":
            subscribed.add(op.process)
        elif op.type is Type.OK and op.process in subscribed:
            counts.update((op.process, key, offset) for key, offset, _ in polled(op))
    return {str(times): many for times, many in sorted(Counter(counts.values()).items()) if times > 1}
