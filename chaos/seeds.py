"""Runs many seeds in several processes, with progress, and prints for each finding a line that repeats it.

With a ledger (`chaos.ledger`), each completed seed is written down and not run again.

Each seed has a process of its own, forked from one that has imported everything. Its garbage ends with it: collecting
garbage, and reusing a process, took a sixth more time.

`wrong` puts a seed's findings into words: anomalies by name, problems without their numbers, and which checkers
could not decide. A seed that failed is shrunk (`chaos.shrink`) for as long as the first of those words remains; its
faults are then in a file of their own. One that is only undecided is shown like the others, and not shrunk.

`known_seeds.jsonl` lists seeds that once found something. A seed means the same only while the draws from it stay the
same; a seed that no longer does what it did is a seed like any other, and costs nothing to keep.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chaos import ledger, simulation
from chaos.checkers.verdict import Status, status
from chaos.drawing import Drawn, draw
from chaos.history import History, Type, to_line
from chaos.nemesis import Fault, from_value
from chaos.shrink import shrink
from chaos.simulation import Outcome
from chaos.story import Story, print_story
from chaos.terminal import show

KNOWN_SEEDS = Path(__file__).parent / "known_seeds.jsonl"
_MOST_DETAILS = 6
_PRELOADED = "chaos.preloaded"
"""The module that processes for simulations have imported before they are forked."""
MOST_SHRUNK = 3
"""The most failed seeds to shrink."""
_UNDECIDED = "undecided: "

_console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to make."""

    seed: int
    minutes: float
    faults: tuple[Fault, ...] | None = None
    """In place of the faults that the seed draws."""

    @property
    def command(self) -> str:
        """Return the command that repeats it; given faults are in the file that `faults_file` names."""
        faults = "" if self.faults is None else f" --faults {self.faults_file}"
        return f"python -m chaos sim --seed {self.seed} --minutes {self.minutes:g}{faults}"

    @property
    def faults_file(self) -> Path:
        """Return the file for its faults."""
        return Path(f"seed-{self.seed}.faults.jsonl")


def wrong(outcome: Outcome) -> list[str]:
    """Return the findings in a fixed order: names of anomalies, then problems without details that vary between
    runs."""
    names = [name for verdict in outcome.verdicts for name in verdict.counts]
    problems = [re.sub(r"\d+", "N", problem.partition(":")[0]) for problem in outcome.problems]
    undecided = [_UNDECIDED + verdict.checker for verdict in outcome.verdicts if verdict.undecided]
    return list(dict.fromkeys([*names, *problems, *undecided]))


def _status(words: Iterable[str]) -> Status:
    """Return only the undecided findings."""
    is_wrong = [not word.startswith(_UNDECIDED) for word in words]
    return Status.WRONG if any(is_wrong) else Status.UNDECIDED if is_wrong else Status.RIGHT


def read_faults(file: Path) -> tuple[Fault, ...]:
    """Read a schedule, one JSON object a line, as `plan` and shrinking write it."""
    with file.open(encoding="utf-8") as lines:
        return tuple(from_value(json.loads(line)) for line in lines if line.strip())


def known_seeds() -> list[dict[str, Any]]:
    """Read the list: `seed`, `minutes`, `found` (in words), `since` (the version that found it)."""
    with KNOWN_SEEDS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def fresh_seeds(count: int, version: str) -> range:
    """Return a version's own seeds (the version is a hexadecimal number): new after each change, stable when judged
    again."""
    first = 1_000_000 + int(version, 16) % 1_000_000_000
    return range(first, first + count)


def seeds_having(fits: Callable[[Drawn], bool], first: int, count: int) -> list[int]:
    """Return this many seeds, from `first` on, whose draws match."""
    return list(islice((seed for seed in itertools.count(first) if fits(draw(seed))), count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The result of a task, without its history."""

    task: Task
    entry: ledger.Entry
    details: tuple[str, ...]
    """Describe anomalies with their numbers, problems, and what is undecided."""
    faults: tuple[Fault, ...]

    @property
    def line(self) -> str:
        """Print the findings, and the command that repeats them."""
        return f"seed {self.task.seed}: {'; '.join(self.details[:_MOST_DETAILS])}: {self.task.command}"


def simulate(tasks: Sequence[Task], jobs: int, *, shrink_runs: int = 0, ledger_file: Path | None = None) -> Status:
    """Run the tasks and return all results, including those of the ledger. Some failing ones are shrunk, with a
    limited number of runs each."""
    began = time.monotonic()
    version = ledger.version()
    tasks, entries = list(tasks), []
    if ledger_file is not None:
        wanted = {(task.seed, task.minutes) for task in tasks}
        known = [entry for entry in ledger.read(ledger_file) if entry.version == version]
        entries = [entry for entry in known if (entry.seed, entry.minutes) in wanted]
        tasks = [task for task in tasks if (task.seed, task.minutes) not in ledger.done(entries, version)]
        if entries:
            _console.print(f"{len(entries)} of {len(wanted)} seeds were run before, by {ledger_file}")
    bad: list[Finished] = []
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([_PRELOADED])
    with processes.Pool(jobs, _begin, maxtasksperchild=1) as pool, Progress(*columns, console=_console) as progress:
        bar = progress.add_task("seeds", total=len(tasks))
        for finished in pool.imap_unordered(_run, [(task, version) for task in tasks]):
            entries.append(finished.entry)
            if ledger_file is not None:
                ledger.append(ledger_file, finished.entry)
            if finished.entry.verdict:
                bad.append(finished)
                progress.console.print(finished.line, markup=False)
            progress.advance(bar)
    seconds = time.monotonic() - began
    virtual_seconds = sum(entry.virtual_seconds for entry in entries[len(entries) - len(tasks) :])
    _console.print(ledger.summary(entries))
    _console.print(
        f"{len(tasks)} seeds, {len(bad)} bad; {virtual_seconds / 60:.0f} virtual minutes in {seconds:.0f} s "
        f"({virtual_seconds / seconds:.0f} times real time, {jobs} processes)"
    )
    failed = [finished for finished in bad if _status(finished.entry.verdict) is Status.WRONG]
    for finished in failed[:MOST_SHRUNK] if shrink_runs else []:
        shrink_seed(finished.task, finished.faults, finished.entry.verdict[0], shrink_runs)
    return _status(word for entry in entries for word in entry.verdict)


def simulate_one(task: Task, *, trace: bool = False, log_lines: bool = False, shrink_runs: int = 0) -> Status:
    """Run one seed, show the result, and write its history."""
    story = Story(with_log_lines=log_lines) if trace or log_lines else None
    outcome = simulation.run(task.seed, task.minutes, faults=task.faults, trace=story)
    if story is not None:
        print_story(_console, story.lines(outcome.ops, outcome.verdicts, outcome.problems))
        _console.print()
    path = Path(f"seed-{task.seed}.jsonl")
    path.write_text("".join(to_line(op) + "\n" for op in outcome.ops), encoding="utf-8")
    show(History(outcome.ops), outcome.verdicts, console=_console)
    for problem in outcome.problems:
        _console.print(f"[red]problem[/] {problem}", markup=True)
    _console.print(f"history: {path}")
    came_to = status(outcome.verdicts, outcome.problems)
    if came_to is Status.WRONG and shrink_runs:
        shrink_seed(task, outcome.faults, wrong(outcome)[0], shrink_runs)
    return came_to


def shrink_seed(task: Task, its_faults: Sequence[Fault], sought: str, most_runs: int) -> None:
    """Remove from a seed's schedule what an anomaly does not need; print and write down what is left."""

    def fails(faults: Sequence[Fault]) -> bool:
        return sought in wrong(simulation.run(task.seed, task.minutes, faults=faults))

    with _console.status(f"seed {task.seed}: shrinking {len(its_faults)} faults while {sought!r} remains"):
        shrunk = shrink(its_faults, fails, most_runs=most_runs)
    small = Task(seed=task.seed, minutes=task.minutes, faults=shrunk.faults)
    write_faults(small.faults_file, shrunk.faults)
    least = "none can go" if shrunk.is_minimal else f"as few as {most_runs} runs could tell"
    _console.print(
        f"seed {task.seed}: {sought} with {len(shrunk.faults)} of {len(its_faults)} faults ({least}; "
        f"{shrunk.runs} runs): {small.command}",
        markup=False,
    )
    for fault in shrunk.faults:
        _console.print(f"  {json.dumps(fault.as_value())}", markup=False)


def write_faults(file: Path, faults: Iterable[Fault]) -> None:
    """Write faults as `read_faults` reads them."""
    file.write_text("".join(json.dumps(fault.as_value()) + "\n" for fault in faults), encoding="utf-8")


def _begin() -> None:
    """Run in a process of a pool, which ends after one run."""
    gc.disable()


def _run(what: tuple[Task, str]) -> Finished:
    """Run in a process of a pool. A run that fails to end is a finding too: about the product, or about this
    harness."""
    task, version = what
    began = time.process_time()
    try:
        outcome = simulation.run(task.seed, task.minutes, faults=task.faults, is_last=True)
    except Exception as error:
        outcome = Outcome(task.seed, problems=[f"the run failed: {error!r}"])
    counted = [f"{name} {count}" for verdict in outcome.verdicts for name, count in verdict.counts.items()]
    entry = ledger.Entry(
        seed=task.seed,
        version=version,
        minutes=task.minutes,
        verdict=tuple(wrong(outcome)),
        workloads=draw(task.seed).workloads,
        operations=sum(op.type is not Type.INVOKE and isinstance(op.process, int) for op in outcome.ops),
        virtual_seconds=round(outcome.virtual_seconds, 1),
        cpu_seconds=round(time.process_time() - began, 2),
    )
    undecided = [f"undecided: {each.text}" for verdict in outcome.verdicts for each in verdict.undecided]
    details = (*counted, *outcome.problems, *undecided)
    return Finished(task=task, entry=entry, details=details, faults=tuple(outcome.faults))
