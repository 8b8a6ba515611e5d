"""A run as one self-contained HTML page: verdicts, plot, the cost of each kind of fault, anomalies with evidence.

A run describes itself in its history, as notes of process "run" with f "run": at first {command, world, seed, ...}; in
the end {problems, damage}, observations that no operation shows: nodes that ended without being asked to, tracebacks in
their logs, copies that could not be read. The page shows all of it. Everything else is computed from the history.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.availability import SECOND, KindOfFault, Outage, Quantiles, by_kind, outages, quantiles, spans
from chaos.checkers.verdict import Anomaly, Answer, Undecided, Verdict
from chaos.history import History, Op, Type, to_line

RUN = "run"
TEMPLATES = Path(__file__).with_name("templates")
LONGEST_LINE = 1200
_SHOWN_APART = frozenset({"command", "problems", "damage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """Counts of operations with one name."""

    f: str
    ok: int
    fail: int
    info: int
    latency: Quantiles | None


def asked_for(history: History) -> list[AskedFor]:
    """Count operations by name."""
    by_name: dict[str, list[Op]] = {}
    for op in history.completions:
        by_name.setdefault(op.f, []).append(op)
    found = []
    for name, ops in sorted(by_name.items()):
        latencies = [(op.time - history.invocation(op).time) / 1e6 for op in ops if op.type is Type.OK]
        counts = {kind: sum(op.type is kind for op in ops) for kind in (Type.OK, Type.FAIL, Type.INFO)}
        found.append(
            AskedFor(
                f=name,
                ok=counts[Type.OK],
                fail=counts[Type.FAIL],
                info=counts[Type.INFO],
                latency=quantiles(latencies),
            )
        )
    return found


def run_of(history: History) -> dict[str, Any]:
    """Return what the run said about itself."""
    said: dict[str, Any] = {}
    for op in history.notes(RUN):
        said |= op.value
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An anomaly with the lines that prove it."""

    checker: str
    anomaly: Anomaly
    evidence: str
    lines: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An undecided key, with the lines at which the search was given up."""

    checker: str
    undecided: Undecided
    evidence: str
    lines: list[str]


class _Lines:
    """The contents of a history's page."""

    def __init__(self, history: History) -> None:
        self._by_index = {op.index: op for op in [*history.ops, *history.completions]}

    def of(self, what: Anomaly | Undecided) -> dict[str, Any]:
        """Return the lines that prove it."""
        lines = [_cut(to_line(self._by_index[index])) for index in what.ops if index in self._by_index]
        return {"evidence": _cut(json.dumps(dict(what.evidence), ensure_ascii=False, default=str)), "lines": lines}

    def shown(self, verdicts: Sequence[Verdict], *, allowed: bool) -> list[Shown]:
        """Return the anomalies that are allowed, or those that are not."""
        return [
            Shown(checker=verdict.checker, anomaly=anomaly, **self.of(anomaly))
            for verdict in verdicts
            for anomaly in verdict.anomalies
            if anomaly.allowed is allowed
        ]

    def open(self, verdicts: Sequence[Verdict]) -> list[Open]:
        """Return the undecided keys."""
        return [
            Open(checker=verdict.checker, undecided=each, **self.of(each))
            for verdict in verdicts
            for each in verdict.undecided
        ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ... ({len(text)} characters)"


def render(history: History, verdicts: Sequence[Verdict], *, command: str | None = None, title: str = "") -> str:
    """Render the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from chaos.plots import colours, plot

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ms"] = ms
    environment.filters["sum_counts"] = lambda counts: sum(counts.values())
    environment.filters["seconds"] = lambda nanoseconds: f"{nanoseconds / SECOND:.2f}"
    faults = spans(history)
    cost: list[Outage] = outages(history)
    kinds: list[KindOfFault] = by_kind(cost)
    run = run_of(history)
    lines = _Lines(history)
    return environment.get_template("report.html").render(
        title=title or f"{run.get('workload', 'chaos')} on {run.get('world', 'a cluster')}",
        run={name: value for name, value in run.items() if name not in _SHOWN_APART},
        problems=run.get("problems", []),
        damage=run.get("damage", []),
        command=command or run.get("command"),
        history=history,
        duration_s=history.duration / SECOND,
        answer=_answer(verdicts),
        verdicts=verdicts,
        asked_for=asked_for(history),
        plot=Markup(plot(history, faults)),  # our own drawing
        colours=colours(faults),
        outages=cost,
        kinds=kinds,
        wrong=lines.shown(verdicts, allowed=False),
        undecided=lines.open(verdicts),
        allowed=lines.shown(verdicts, allowed=True),
    )


def _answer(verdicts: Sequence[Verdict]) -> Answer:
    """Return the answer for all verdicts together: the worst."""
    answers = {verdict.answer for verdict in verdicts}
    return next(
        (each for each in (Answer.WRONG, Answer.UNDECIDED, Answer.RIGHT) if each in answers),
        Answer.NOTHING,
    )


def ms(number: float | None) -> str:
    """Format milliseconds for people."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
