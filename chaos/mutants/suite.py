"""Runs seeds against each mutant until one catches it, and writes down which.

`caught.jsonl` holds the last result for each mutant, and MUTANTS.md is made from it: both are written here, and a test
compares them with the list of mutants and runs some of the seeds again.

A mutant is caught by an anomaly that it should show (`Mutant.shows`), not by anything else that goes wrong meanwhile.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from chaos import simulation
from chaos.drawing import Drawn, draw
from chaos.mutants import MUTANTS
from chaos.mutants.mutant import PROBLEM
from chaos.simulation import Outcome

CAUGHT = Path(__file__).parent / "caught.jsonl"
TABLE = Path(__file__).parent.parent / "MUTANTS.md"


_TEMPO, _CALM_SECONDS = 4.0, 6.0
_CALLS_PER_SECOND, _LOAD = 6.0, 2 / 3
"""Calls of each client, four times as many as elsewhere: a run is short, and only clients notice a broken rule."""

_console = Console(highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """The outcome for a mutant."""

    mutant: str
    by: tuple[str, ...]
    """The anomalies that caught it; empty if it was not caught."""
    seed: int
    """The seed that caught it; the last one tried, if none did."""
    seeds: int
    """How many were tried, of those that draw what it needs."""
    minutes: float
    cpu_seconds: float
    """The time that all these seeds took."""

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"python -m chaos mutants --name {self.mutant} --first {self.seed} --seeds 1 --minutes {self.minutes:g}"


def anomalies(outcome: Outcome) -> set[str]:
    """Return the names of the anomalies, and `PROBLEM` for anything else that is wrong."""
    return {name for verdict in outcome.verdicts for name in verdict.counts} | (
        {PROBLEM} if outcome.problems else set()
    )


def run_mutant(name: str, seed: int, minutes: float) -> Outcome:
    """A seed with the product broken: short, its faults close together, so that many seeds are cheap."""
    with MUTANTS[name].applied():
        return run_unbroken(name, seed, minutes)


def run_unbroken(name: str, seed: int, minutes: float) -> Outcome:
    """Run a seed with nothing broken."""
    mutant = MUTANTS[name]
    faults = None if mutant.faults is None else mutant.faults(Random(f"{name} {seed}"), round(minutes * 60_000))
    drawn = _drawn(name, seed)
    return simulation.run(
        seed,
        minutes,
        calls_per_second=_CALLS_PER_SECOND * drawn.load,
        drawn=drawn,
        calm_seconds=_CALM_SECONDS,
        faults=faults,
    )


def _drawn(name: str, seed: int) -> Drawn:
    return MUTANTS[name].directed(replace(draw(seed), tempo=_TEMPO, load=_LOAD))


def seeds_for(name: str, first: int, count: int) -> list[int]:
    """Return the given number of seeds from `first` on that draw what the mutant needs."""
    fitting = (seed for seed in itertools.count(first) if MUTANTS[name].needs(_drawn(name, seed)))
    return list(itertools.islice(fitting, count))


def hunt(names: Sequence[str], *, first: int, seeds: int, minutes: float, jobs: int, write: bool) -> list[Caught]:
    """Run seeds from `first` on against each of them, until it is caught; `write` it down at once."""
    found: list[Caught] = []
    columns = (TextColumn("{task.description:36}"), BarColumn(), MofNCompleteColumn(), TextColumn("seeds"))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, Progress(*columns, console=_console) as progress:
        for name in names:
            bar = progress.add_task(name, total=seeds)
            caught = _hunt_one(pool, name, seeds_for(name, first, seeds), minutes, jobs, progress, bar)
            found.append(caught)
            if write:
                write_caught([caught])
            progress.remove_task(bar)
            what = f"caught by {', '.join(caught.by)} at seed {caught.seed}" if caught.by else "[red]got away[/]"
            progress.console.print(f"{name}: {what} ({caught.seeds} seeds, {caught.cpu_seconds:.0f} s)")
    return found


def _hunt_one(
    pool: Pool, name: str, seeds: Sequence[int], minutes: float, jobs: int, progress: Progress, bar: TaskID
) -> Caught:
    """Run as many seeds at a time as there are processes; the lowest of those that catch it counts."""
    cpu_seconds, tried = 0.0, 0
    for start in range(0, len(seeds), jobs):
        together = [(name, seed, minutes) for seed in seeds[start : start + jobs]]
        hits: list[tuple[int, tuple[str, ...]]] = []
        for seed, by, seconds in pool.imap(_try, together):
            cpu_seconds += seconds
            tried += 1
            progress.advance(bar)
            if by:
                hits.append((seed, by))
        if hits:
            seed, by = hits[0]
            return Caught(
                mutant=name, by=by, seed=seed, seeds=tried, minutes=minutes, cpu_seconds=round(cpu_seconds, 1)
            )
    return Caught(mutant=name, by=(), seed=seeds[-1], seeds=tried, minutes=minutes, cpu_seconds=round(cpu_seconds, 1))


def _try(task: tuple[str, int, float]) -> tuple[int, tuple[str, ...], float]:
    name, seed, minutes = task
    began = time.process_time()
    by = tuple(sorted(anomalies(run_mutant(name, seed, minutes)) & MUTANTS[name].shows))
    return seed, by, time.process_time() - began


# --- what was found ---


def read_caught() -> dict[str, Caught]:
    """Return the last results, by mutant."""
    if not CAUGHT.exists():
        return {}
    lines = [json.loads(line) for line in CAUGHT.read_text(encoding="utf-8").splitlines()]
    return {line["mutant"]: Caught(**{**line, "by": tuple(line["by"])}) for line in lines}


def write_caught(found: Iterable[Caught]) -> None:
    """Add these results to the file, and write the table again. Mutants that no longer exist are left out."""
    known = read_caught() | {caught.mutant: caught for caught in found}
    kept = [known[name] for name in MUTANTS if name in known]
    CAUGHT.write_text("".join(json.dumps(asdict(caught)) + "\n" for caught in kept), encoding="utf-8")
    TABLE.write_text(as_markdown(kept), encoding="utf-8")


_HEAD = """# Mutants

Each mutant breaks the product in one known way ([mutants/](mutants)); suitable seeds are run until one shows an anomaly
that proves it. Rules are those that the product's modules refer to. Written by `python -m chaos mutants`, which repeats
a row with `--name NAME --first SEED --seeds 1 --minutes MINUTES`. A row's seed was valid on the day it was found: any
change of the product or of the simulation changes the course of a seed, so another one may be needed to catch the
mutant.

| mutant | what it breaks | rule | caught by | seed | minutes | seeds tried | CPU s |
|---|---|---|---|---|---|---|---|
"""
_NOT_CAUGHT = """
## Not caught so far

No seed has shown these yet. The last column says how many seeds were tried, of the 300 in which each is to be caught.

| mutant | what it breaks | rule | seeds tried |
|---|---|---|---|
"""
_NOT_MUTANTS = """
## No mutants

These were tried or considered, and left out, because the product enforces the rule in two places; each was judged by
reading the code, not by runs:

- *A fetch with a stale leader epoch is answered* (rule 6): each fetch of a follower contains the epoch of its last
  record, and the leader compares the logs (rule 3); the records it then gets belong to its own history, regardless of
  the epoch in the request.
- *A follower appends without checking its log's end* (rule 7): the plan of its fetches drops an answer for a position
  that is no longer current, a change of role closes the connection, and the log itself accepts no batch that does not
  follow.
- *A follower takes batches of a later leader epoch* (rule 8, KAFKA-18723): the leader compares the epoch in the same
  iteration in which it reads, each time it reads, so this broker sends no such batch. Kafka's may.
- *A broker that lost unsynced records stays in sync when it comes back* (rule 20): the controller accepts no
  registration of a broker that it considers alive (DUPLICATE_BROKER_REGISTRATION), so it has fenced the broker before,
  which removed it from every ISR.
- *A voter drops all entries after those that a message names, though they match* (rule 46, D1): a leader names all
  entries from some index on to the end of its log (up to 256 KiB; fewer are in flight here), its log does not shrink in
  its term, and a connection keeps the order. So it has never sent any entry after the ones it names.
- *A change of metadata is acted on out of order*: a broker acts on the current image, not on the change that was
  reported.
"""


def as_markdown(found: Sequence[Caught]) -> str:
    """Return the table: mutants that were caught, those that were not, and what is no mutant."""
    known = {caught.mutant: caught for caught in found}
    caught_rows, other_rows = [], []
    for name, mutant in MUTANTS.items():
        one = known.get(name)
        if one is not None and one.by:
            tried = f"{one.minutes:g} | {one.seeds} | {one.cpu_seconds:.0f}"
            caught_rows.append(
                f"| {name} | {mutant.breaks} | {mutant.rule} | {', '.join(one.by)} | {one.seed} | {tried} |\n"
            )
        else:
            other_rows.append(f"| {name} | {mutant.breaks} | {mutant.rule} | {0 if one is None else one.seeds} |\n")
    others = _NOT_CAUGHT + "".join(other_rows) if other_rows else ""
    return _HEAD + "".join(caught_rows) + others + _NOT_MUTANTS


def show(found: Sequence[Caught]) -> None:
    """Print the results as a table for a terminal."""
    table = Table("mutant", "caught by", "seed", "seeds", "CPU s", "what it breaks")
    for caught in found:
        by = "\n".join(caught.by) or "[red]nothing[/]"
        breaks = MUTANTS[caught.mutant].breaks
        table.add_row(
            caught.mutant,
            by,
            str(caught.seed),
            str(caught.seeds),
            f"{caught.cpu_seconds:.0f}",
            breaks,
            end_section=True,
        )
    _console.print(table)
