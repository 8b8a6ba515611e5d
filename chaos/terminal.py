"""The results of a run, as tables for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.availability import KindOfFault, Quantiles
from chaos.checkers.verdict import Answer, Verdict
from chaos.history import History, Op, Type, to_line
from chaos.report import ms

_ANSWERS = {
    Answer.RIGHT: "[green]right[/]",
    Answer.WRONG: "[red]wrong[/]",
    Answer.UNDECIDED: "[dark_orange]undecided[/]",
    Answer.NOTHING: "nothing to judge",
}


def show(history: History, verdicts: Sequence[Verdict], evidence: int = 3, console: Console | None = None) -> None:
    """Print the verdicts, some evidence for each kind of anomaly, and what is undecided."""
    console = console or Console(highlight=False)
    console.print(summary(history))
    table = Table("checker", "examined", "verdict", "anomalies", "allowed")
    for verdict in verdicts:
        found = "\n".join([*_counts(verdict.counts), *(f"undecided: {each.key}" for each in verdict.undecided)])
        allowed = "\n".join(_counts(verdict.allowed_counts))
        table.add_row(verdict.checker, str(verdict.examined), _ANSWERS[verdict.answer], escape(found), allowed)
    console.print(table)
    for verdict in verdicts:
        for name, what in verdict.notes.items():
            console.print(f"{verdict.checker}: {name} {escape(json.dumps(what))}", style="dim", soft_wrap=True)
    lines = {op.index: op for op in history.ops}
    for verdict in verdicts:
        shown: dict[str, int] = {}
        for anomaly in verdict.anomalies:
            shown[anomaly.name] = shown.get(anomaly.name, 0) + 1
            if anomaly.allowed or shown[anomaly.name] > evidence:
                continue
            console.print(f"\n[red]{escape(anomaly.name)}[/] {escape(anomaly.text)}", soft_wrap=True)
            for index in anomaly.ops:
                console.print(f"  {escape(_line(lines.get(index), index))}", soft_wrap=True)
        for each in verdict.undecided:
            console.print(f"\n[dark_orange]undecided[/] {escape(each.text)}", soft_wrap=True)
            for index in each.ops:
                console.print(f"  {escape(_line(lines.get(index), index))}", soft_wrap=True)


def summary(history: History) -> str:
    """Return one line about the amount of work done."""
    kinds = {kind: sum(op.type is kind for op in history.completions) for kind in (Type.OK, Type.FAIL, Type.INFO)}
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{len(history.completions)} operations in {history.duration / 1e9:.1f} s: {counted}"


def _counts(counts: dict[str, int]) -> list[str]:
    return [f"{name} {count}" for name, count in counts.items()]


def _line(op: Op | None, index: int) -> str:
    if op is None:
        return f"operation {index} was never completed"
    line = to_line(op)
    return line if len(line) <= 400 else line[:400] + " ..."


_COST = ("fault", "n", "no send", "no poll", "to heal", "not healed")


def _costs(kinds: Sequence[KindOfFault]) -> list[tuple[str, ...]]:
    def three(of: Quantiles | None) -> str:
        return "-" if of is None else f"{ms(of.p50)} / {ms(of.p99)} / {ms(of.most)}"

    return [
        (kind.kind, str(kind.count), three(kind.sends), three(kind.polls), three(kind.heal), str(kind.not_healed))
        for kind in kinds
    ]


def unavailability(kinds: Sequence[KindOfFault]) -> Table:
    """Print the cost of each kind of fault, in milliseconds; the last column counts faults whose rate did not recover
    before the next."""
    table = Table(title="unavailability in ms: p50 / p99 / max")
    for name in _COST:
        table.add_column(name, justify="left" if name == "fault" else "right", no_wrap=name == "fault")
    for row in _costs(kinds):
        table.add_row(*row)
    return table


def unavailability_markdown(kinds: Sequence[KindOfFault]) -> str:
    """Render the same for a page."""
    rows = [_COST, ("---", *("---:",) * (len(_COST) - 1)), *_costs(kinds)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
