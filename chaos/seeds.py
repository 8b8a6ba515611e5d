"""Many seeds in several processes, with progress; a line for each that found something, which repeats it."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chaos import simulation
from chaos.history import History, to_line
from chaos.simulation import Outcome
from chaos.terminal import show

_console = Console(highlight=False, soft_wrap=True)


def simulate(first: int, count: int, minutes: float, jobs: int) -> bool:
    """Run seeds `first` to `first + count - 1`; whether all were good."""
    began = time.monotonic()
    bad: list[Outcome] = []
    virtual_seconds = 0.0
    operations = 0
    tasks = [(seed, minutes) for seed in range(first, first + count)]
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, Progress(*columns, console=_console) as progress:
        bar = progress.add_task("seeds", total=count)
        for outcome in pool.imap_unordered(_run, tasks):
            virtual_seconds += outcome.virtual_seconds
            operations += len(outcome.ops)
            if not outcome.is_good:
                bad.append(outcome)
                progress.console.print(_line(outcome, minutes))
            progress.advance(bar)
    seconds = time.monotonic() - began
    _console.print(
        f"{count} seeds, {len(bad)} bad; {virtual_seconds / 60:.0f} virtual minutes in {seconds:.0f} s "
        f"({virtual_seconds / seconds:.0f} times real time, {jobs} processes), {operations} lines of history"
    )
    return not bad


def simulate_one(seed: int, minutes: float) -> bool:
    """Run one seed, show what came of it, and write its history."""
    outcome = _run((seed, minutes))
    path = Path(f"seed-{seed}.jsonl")
    path.write_text("".join(to_line(op) + "\n" for op in outcome.ops), encoding="utf-8")
    show(History(outcome.ops), outcome.verdicts, console=_console)
    for problem in outcome.problems:
        _console.print(f"[red]problem[/] {problem}", markup=True)
    _console.print(f"history: {path}")
    return outcome.is_good


def _run(task: tuple[int, float]) -> Outcome:
    return simulation.run(*task)


def _line(outcome: Outcome, minutes: float) -> str:
    wrong = [f"{name} {count}" for verdict in outcome.verdicts for name, count in verdict.counts.items()]
    what = "; ".join([*wrong, *outcome.problems[:3]])
    return f"seed {outcome.seed}: {what}: python -m chaos sim --seed {outcome.seed} --minutes {minutes:g}"
