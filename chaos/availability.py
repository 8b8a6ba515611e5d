"""How long clients went without service, fault by fault, and how rates and latencies changed over time.

A gap is the longest time without an acknowledged send (or a poll that brought records) between the start of a fault
and the start of the next, or the end of the workload. The time to heal runs from the fault's end until clients'
acknowledged operations reach four fifths, over one second, of the median rate of the ten seconds before the fault.

Everything is computed from the times in the history.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.checkers.versions import polled
from chaos.history import FAULT, HEAL, History, Op, Type

SECOND = 1_000_000_000
BEFORE = 10 * SECOND
"""The window before a fault whose median rate counts as normal."""
RECOVERED = 0.8
AFTERWARDS = ("final", "last")
"""Marks operations that run after the workload: final reads, and those that end open transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One fault in time, in nanoseconds."""

    id: int
    kind: str
    target: str
    begin: int
    end: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The cost of one fault, in milliseconds. None means no such operation, or not healed before the next fault."""

    span: Span
    send_gap_ms: float | None
    poll_gap_ms: float | None
    heal_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Percentiles of a set of numbers."""

    count: int
    p50: float
    p99: float
    most: float


def quantiles(numbers: Iterable[float]) -> Quantiles | None:
    """Compute percentiles by nearest rank; return None for an empty list."""
    ordered = sorted(numbers)
    if not ordered:
        return None
    rank = [ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 99)]
    return Quantiles(count=len(ordered), p50=rank[0], p99=rank[1], most=ordered[-1])


def spans(history: History) -> list[Span]:
    """Return the faults in order of start; one that was never healed lasts to the end."""
    found: dict[int, Span] = {}
    for op in history.notes(FAULT, HEAL):
        number = op.value["id"]
        if op.f == FAULT:
            kind, target = str(op.value.get("kind", "fault")), str(op.value.get("target", ""))
            found[number] = Span(
                id=number, kind=kind, target=target, begin=op.time, end=history.duration, value=dict(op.value)
            )
        elif number in found:
            fault = found[number]
            found[number] = Span(
                id=number, kind=fault.kind, target=fault.target, begin=fault.begin, end=op.time, value=fault.value
            )
    return sorted(found.values(), key=lambda span: (span.begin, span.id))


LOOKS = ("watermarks", "replica", "image", "controller", "compacted", "isr")
"""Operations the harness sends to single nodes; they are not part of the workload."""
_NO_LOAD = frozenset((*LOOKS, "crash", "assign", "init", "acquire", "acknowledge"))
"""Queues are drained only after all other work has finished."""


def workload_end(history: History) -> int:
    """Return when the last workload operation completed, ignoring later operations and looks at nodes."""
    of_load = (
        op.time
        for op in history.completions
        if op.f not in _NO_LOAD and not any(op.extra.get(mark) for mark in AFTERWARDS)
    )
    return max(of_load, default=history.duration)


def acknowledged(history: History) -> tuple[list[int], list[int]]:
    """Return the times of acknowledged operations that sent, and of those that polled records."""
    end = workload_end(history)
    sent, got = [], []
    for op in history.completions:
        if op.type is not Type.OK or op.time > end:
            continue
        if op.f in ("send", "txn", "process") and any(micro[0] == "send" for micro in op.value):
            sent.append(op.time)
        if any(True for _ in polled(op)) or (op.f == "acquire" and op.value["records"]):
            got.append(op.time)
    return sorted(sent), sorted(got)


def outages(history: History) -> list[Outage]:
    """Return the cost of every fault."""
    faults, end = spans(history), workload_end(history)
    sent, got = acknowledged(history)
    both = sorted(sent + got)
    found = []
    for place, span in enumerate(faults):
        until = min(end, faults[place + 1].begin) if place + 1 < len(faults) else end
        if span.begin >= until:
            continue
        found.append(
            Outage(
                span=span,
                send_gap_ms=longest_gap(sent, span.begin, until),
                poll_gap_ms=longest_gap(got, span.begin, until),
                heal_ms=_time_to_heal(both, span, until),
            )
        )
    return found


def longest_gap(times: Sequence[int], begin: int, until: int) -> float | None:
    """Return the longest gap in milliseconds between start, times and end; None if there are no times at all."""
    if not times:
        return None
    inside = times[bisect.bisect_left(times, begin) : bisect.bisect_right(times, until)]
    edges = [begin, *inside, until]
    return max(later - earlier for earlier, later in itertools.pairwise(edges)) / 1e6


def _time_to_heal(times: Sequence[int], span: Span, until: int) -> float | None:
    usual = _usual_rate(times, span.begin)
    if usual is None:
        return None
    needed = max(1, round(usual * RECOVERED))
    first = bisect.bisect_left(times, span.end)
    while first < len(times) and times[first] <= until:
        last = first + needed - 1
        if last < len(times) and times[last] - times[first] <= SECOND and times[last] <= until:
            return (times[first] - span.end) / 1e6
        first += 1
    return None


def _usual_rate(times: Sequence[int], begin: int) -> float | None:
    """Return the median count over the whole seconds before a fault."""
    counts = []
    edge = begin
    while edge - SECOND >= max(0, begin - BEFORE):
        counts.append(bisect.bisect_left(times, edge) - bisect.bisect_left(times, edge - SECOND))
        edge -= SECOND
    return sorted(counts)[len(counts) // 2] if counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfFault:
    """The cost of all faults of one kind."""

    kind: str
    count: int
    sends: Quantiles | None
    polls: Quantiles | None
    heal: Quantiles | None
    not_healed: int


def by_kind(found: Sequence[Outage]) -> list[KindOfFault]:
    """Return gaps and times to heal by kind of fault, sorted by name."""
    table = []
    for kind in sorted({outage.span.kind for outage in found}):
        alike = [outage for outage in found if outage.span.kind == kind]
        healed = [outage.heal_ms for outage in alike if outage.heal_ms is not None]
        table.append(
            KindOfFault(
                kind=kind,
                count=len(alike),
                sends=quantiles(outage.send_gap_ms for outage in alike if outage.send_gap_ms is not None),
                polls=quantiles(outage.poll_gap_ms for outage in alike if outage.poll_gap_ms is not None),
                heal=quantiles(healed),
                not_healed=len(alike) - len(healed),
            )
        )
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One step on the time axis."""

    at_s: float
    ok: int
    fail: int
    info: int
    latency: Quantiles | None
    """Latency of acknowledged operations, in milliseconds."""


def bins(history: History, ops: Sequence[Op], width: int) -> list[Bin]:
    """Completions and latencies over time."""
    count = history.duration // width + 1
    sorted_in: list[list[Op]] = [[] for _ in range(count)]
    for op in ops:
        sorted_in[op.time // width].append(op)
    found = []
    for place, inside in enumerate(sorted_in):
        latencies = [(op.time - history.invocation(op).time) / 1e6 for op in inside if op.type is Type.OK]
        kinds = {kind: sum(op.type is kind for op in inside) for kind in (Type.OK, Type.FAIL, Type.INFO)}
        found.append(
            Bin(
                at_s=place * width / SECOND,
                ok=kinds[Type.OK],
                fail=kinds[Type.FAIL],
                info=kinds[Type.INFO],
                latency=quantiles(latencies),
            )
        )
    return found
