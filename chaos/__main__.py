"""`python -m chaos`: judge a history, show it, make a sample of one, write it as Jepsen's EDN.

    python -m chaos check history.jsonl     every checker, a table
    python -m chaos sample history.jsonl    a history of the perfect Kafka, to try the others on
    python -m chaos report history.jsonl    a page with plots, verdicts and what the faults cost: history.html
    python -m chaos plan --seed 7           a schedule of faults
    python -m chaos edn history.jsonl       Jepsen's history.edn on standard output
    python -m chaos sim --seeds 100         simulated clusters under faults, one for each seed
    python -m chaos sim --known --fresh 50  seeds that once failed, and some of this version's own
    python -m chaos sim --ledger runs.jsonl every seed is written down, and not run again: a campaign goes on
    python -m chaos sim --seed 7            one of them, and its history in seed-7.jsonl
    python -m chaos sim --ledger runs.jsonl every seed is written down, and not run again: a campaign continues
    python -m chaos mutants                 the product broken in known ways: which seed catches each
    python -m chaos run --faults 40         real processes under faults: `chaos.running`
    python -m chaos cost history.jsonl      how long clients went without, by kind of fault

A command exits with status 1 if it finds something wrong, and with 3 if nothing is wrong but something is undecided.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from chaos import checkers, edn, nemesis
from chaos.checkers.verdict import MOST_STEPS, Options, status
from chaos.history import BadHistory, History, Op, read, to_line
from chaos.reference.samples import SAMPLES
from chaos.running import cost_command, run_command
from chaos.worlds import replacing


def load(file: Path) -> list[Op]:
    """The operations of a history: JSON lines, or Jepsen's EDN by its suffix."""
    try:
        if file.suffix == ".edn":
            return edn.from_edn(file.read_text(encoding="utf-8"))
        with file.open(encoding="utf-8") as lines:
            return read(lines)
    except (BadHistory, OSError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def load_history(file: Path) -> History:
    """Load a history, with its operations in pairs."""
    try:
        return History(load(file))
    except BadHistory as error:
        raise click.ClickException(f"{file}: {error}") from error


_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))

_MOST_STEPS = click.option(
    "--most-steps",
    default=MOST_STEPS,
    show_default=True,
    help="Most steps of a search for a key's order; beyond, it is undecided.",
)


@click.group()
def main() -> None:
    """Histories of a Kafka under faults."""


main.add_command(run_command)
main.add_command(cost_command)


@main.command("check")
@_FILE
@click.option("--allow", multiple=True, metavar="ANOMALY", help="Tolerate this anomaly. Repeatable.")
@click.option("--rw-edges", is_flag=True, help="Also look for G-single and G2-item, which Kafka permits.")
@click.option("--evidence", default=3, show_default=True, help="Anomalies of a kind to show.")
@_MOST_STEPS
def check_command(file: Path, allow: tuple[str, ...], rw_edges: bool, evidence: int, most_steps: int) -> None:
    """Judge a history with every checker. Exit status 1 if one finds an anomaly, 3 if it is undecided."""
    from chaos.terminal import show

    history = load_history(file)
    options = Options(allow=frozenset(allow), rw_edges=rw_edges, most_steps=most_steps)
    verdicts = checkers.check(history, options)
    show(history, verdicts, evidence)
    sys.exit(status(verdicts))


@main.command("sample")
@_FILE
@click.option("--workload", type=click.Choice(list(SAMPLES)), default="log", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--lines", default=10_000, show_default=True)
def sample_command(file: Path, workload: str, seed: int, lines: int) -> None:
    """Write a history in which nothing is wrong."""
    ops = SAMPLES[workload](seed).run(lines)
    with file.open("w", encoding="utf-8") as sink:
        sink.writelines(to_line(op) + "\n" for op in ops)
    click.echo(f"{len(ops)} lines in {file}")


@main.command("report")
@_FILE
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the page. Default: beside the history."
)
@click.option("--command", help="Command that repeats the run, if the history has none.")
@click.option("--title", default="", help="The page's title.")
@_MOST_STEPS
def report_command(file: Path, out: Path | None, command: str | None, title: str, most_steps: int) -> None:
    """Write a run's page. Exit status as that of `check`."""
    from chaos.report import render
    from chaos.terminal import summary

    history = load_history(file)
    verdicts = checkers.check(history, Options(most_steps=most_steps))
    out = out or file.with_suffix(".html")
    out.write_text(render(history, verdicts, command=command, title=title), encoding="utf-8")
    click.echo(f"{summary(history)}\n{out}")
    sys.exit(status(verdicts))


_KINDS = click.Choice([str(kind) for kind in nemesis.Kind])


@main.command("plan")
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", default=5.0, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=_KINDS, help="Only this kind of fault; repeatable.")
def plan_command(seed: int, minutes: float, kinds: tuple[str, ...]) -> None:
    """Show the faults that a seed gives, one JSON object a line."""
    chosen = tuple(nemesis.Kind(kind) for kind in kinds) or tuple(nemesis.Kind)
    for fault in nemesis.schedule(seed, nemesis.Plan(kinds=chosen, duration_ms=round(minutes * 60_000))):
        click.echo(json.dumps(fault.as_value()))


@main.command("edn")
@_FILE
@click.option("--numbered", is_flag=True, help="Number the keys, as Jepsen's plots expect.")
def edn_command(file: Path, numbered: bool) -> None:
    """Write a history as Jepsen's EDN operations."""
    ops = load(file)
    if numbered:
        ops, names = edn.numbered(ops)
        for name, number in names.items():
            click.echo(f"{number} is {name}", err=True)
    click.echo(edn.for_jepsen(ops), nl=False)


def _with_fixed_hashes() -> None:
    """Re-execute with a fixed hash seed, so that a seed means the same in every process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "chaos", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


@main.command("sim")
@click.option("--seeds", default=50, show_default=True, help="Number of seeds.")
@click.option("--first", default=1, show_default=True, help="First seed.")
@click.option("--having", multiple=True, metavar="WORKLOAD", help="Only seeds that draw this workload; repeatable.")
@click.option("--brokers", type=click.Choice(["1", "3", "5"]), help="Only seeds that draw this number of brokers.")
@click.option("--known", is_flag=True, help="Run the seeds that once failed, instead.")
@click.option("--fresh", type=int, help="Run this many of the version's own seeds, instead or besides --known.")
@click.option("--seed", type=int, help="Run only this seed, and write its history to seed-N.jsonl.")
@click.option(
    "--faults", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the faults for --seed."
)
@click.option("--trace", is_flag=True, help="Print the run of --seed as a timeline.")
@click.option("--log-lines", is_flag=True, help="Add every line that a node logs to the timeline.")
@click.option(
    "--replace-nothing", is_flag=True, help="Leave out what replaces methods of the product: for compiled modules."
)
@click.option("--minutes", default=5.0, show_default=True, help="Virtual minutes of faults and load.")
@click.option("--jobs", default=2, show_default=True, help="Parallel processes.")
@click.option(
    "--shrink", default=60, show_default=True, help="Most runs to reduce the faults of a seed that failed; 0 for none."
)
@click.option(
    "--ledger", type=click.Path(dir_okay=False, path_type=Path), help="File in which completed seeds are recorded."
)
def sim_command(
    seeds: int,
    first: int,
    having: tuple[str, ...],
    brokers: str | None,
    known: bool,
    fresh: int | None,
    seed: int | None,
    faults: Path | None,
    trace: bool,
    log_lines: bool,
    replace_nothing: bool,
    minutes: float,
    jobs: int,
    shrink: int,
    ledger: Path | None,
) -> None:
    """Simulate clusters. Exit status 1 if a seed found something wrong, 3 if something is only undecided.

    Each such seed is shown with the command line that repeats it.
    Seeds that the ledger already lists for this code and these minutes are not run again.
    """
    if seed is None and (faults is not None or trace or log_lines):
        raise click.UsageError("--faults, --trace and --log-lines are for one --seed")
    from chaos.drawing import WORKLOADS, Drawn

    if unknown := [name for name in having if name not in WORKLOADS]:
        raise click.UsageError(f"--having {unknown[0]!r}: workloads are {', '.join(WORKLOADS)}")
    if (having or brokers) and (known or fresh is not None or seed is not None):
        raise click.UsageError("--having and --brokers are for --first and --seeds")
    _with_fixed_hashes()
    if replace_nothing:
        os.environ[replacing.NOTHING] = "1"
    from chaos.ledger import read as read_ledger
    from chaos.ledger import version
    from chaos.seeds import Task, fresh_seeds, known_seeds, read_faults, seeds_having, simulate, simulate_one

    if seed is not None:
        if ledger is not None:
            raise click.UsageError("--ledger is for many seeds")
        task = Task(seed=seed, minutes=minutes, faults=None if faults is None else read_faults(faults))
        sys.exit(simulate_one(task, trace=trace, log_lines=log_lines, shrink_runs=shrink))
    tasks = [Task(seed=each["seed"], minutes=each["minutes"]) for each in known_seeds()] if known else []
    if fresh is not None:
        chosen = fresh_seeds(fresh, version())
        click.echo(f"fresh seeds: --first {chosen.start} --seeds {fresh} --minutes {minutes:g}")
        tasks += [Task(seed=each, minutes=minutes) for each in chosen]
    elif not known:

        def fits(drawn: Drawn) -> bool:
            does = not having or any(name in drawn.workloads for name in having)
            return does and brokers in (None, str(drawn.brokers))

        tasks = [Task(seed=each, minutes=minutes) for each in seeds_having(fits, first, seeds)]
    if ledger is not None:
        try:
            read_ledger(ledger)
        except (OSError, ValueError) as error:
            raise click.BadParameter(str(error), param_hint="--ledger") from error
    sys.exit(simulate(tasks, jobs, shrink_runs=shrink, ledger_file=ledger))


@main.command("mutants")
@click.option("--name", "names", multiple=True, help="Only this mutant; repeatable.")
@click.option("--list", "only_list", is_flag=True, help="List the mutants, with their last results.")
@click.option("--seeds", default=300, show_default=True, help="Most seeds for each mutant.")
@click.option("--first", default=1, show_default=True, help="First seed.")
@click.option("--minutes", default=0.75, show_default=True, help="Virtual minutes of faults and load.")
@click.option("--jobs", default=2, show_default=True, help="Parallel processes.")
@click.option("--write/--no-write", default=True, help="Record the results, also in chaos/MUTANTS.md.")
def mutants_command(
    names: tuple[str, ...], only_list: bool, seeds: int, first: int, minutes: float, jobs: int, write: bool
) -> None:
    """Break the product in known ways, and see that the simulation notices. Exit status 1 if it misses one."""
    _with_fixed_hashes()
    from chaos.mutants import MUTANTS, suite

    if unknown := [name for name in names if name not in MUTANTS]:
        raise click.UsageError(f"no mutant is called {unknown[0]}; they are {', '.join(MUTANTS)}")
    if only_list:
        suite.show(list(suite.read_caught().values()))
        return
    found = suite.hunt(names or tuple(MUTANTS), first=first, seeds=seeds, minutes=minutes, jobs=jobs, write=write)
    suite.show(found)
    sys.exit(any(not caught.by for caught in found))


if __name__ == "__main__":
    main(prog_name="python -m chaos")
