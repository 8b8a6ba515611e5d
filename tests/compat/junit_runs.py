"""The last run of each class of Kafka's own tests: `junit/runs.tsv`, and the table that `junit/README.md` shows of it.

A line of the file is `class day passed failed explained disabled`; a class that was never run has only its name.
Explained are those tests that did not pass and are in `cannot_pass.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compat.junit_table import Entry, Outcome, judge

RUNS = Path(__file__).parent / "junit" / "runs.tsv"
README = RUNS.with_name("README.md")
BEGIN, END = "<!-- runs: begin -->", "<!-- runs: end -->"
_HEADING = ("package", "classes", "never run", "passed", "failed", "in the table", "disabled by Kafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcomes of the last run of a class, counted."""

    day: str
    passed: int
    failed: int
    explained: int
    disabled: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], table: dict[str, Entry], day: str) -> Run:
        verdict = judge(list(outcomes), table)
        return cls(
            day=day,
            passed=len(verdict.passed),
            failed=len(verdict.failed),
            explained=len(verdict.explained),
            disabled=len(verdict.disabled),
        )


Runs = dict[str, Run | None]
"""By class; None for one that was never run."""


def read_runs(text: str) -> Runs:
    found: Runs = {}
    for line in text.splitlines():
        name, *told = line.split("\t")
        if not told:
            found[name] = None
            continue
        day, *counts = told
        passed, failed, explained, disabled = map(int, counts)
        found[name] = Run(day=day, passed=passed, failed=failed, explained=explained, disabled=disabled)
    return found


def write_runs(runs: Mapping[str, Run | None]) -> str:
    lines = []
    for name, run in sorted(runs.items()):
        told = () if run is None else (run.day, run.passed, run.failed, run.explained, run.disabled)
        lines.append("\t".join(map(str, (name, *told))))
    return "\n".join(lines) + "\n"


def table_of(runs: Mapping[str, Run | None], packages: Iterable[str]) -> str:
    """Return the table of the README: a row for each package with all below it, and one for all."""
    rows: list[tuple[object, ...]] = [_HEADING, tuple("---" for _ in _HEADING)]
    for package in (*packages, ""):
        mine = [run for name, run in runs.items() if not package or name.startswith(f"{package}.")]
        run = [each for each in mine if each is not None]
        counts = [sum(getattr(each, what) for each in run) for what in ("passed", "failed", "explained", "disabled")]
        rows.append((f"`{package}`" if package else "all", len(mine), len(mine) - len(run), *counts))
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def with_table(readme: str, table: str) -> str:
    """Return the README with this table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"
