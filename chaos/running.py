"""`python -m chaos run`: a real cluster under load and faults, judged; see `chaos.live`.

    python -m chaos run --world namespaces --faults 40 --seed 1
    python -m chaos run --world namespaces --minutes 3 --kind kill --kind partition

    python -m chaos run --faults 40 --setting min.insync.replicas=1 --setting unclean.leader.election.enable=true

The last cluster is allowed to lose records: its runs show what the others would find in case of a bug.

Each world is a line in `WORLDS`: a function that creates it, given a directory of its own, the number of nodes, and
settings for every node.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chaos.nemesis import Kind

if TYPE_CHECKING:
    from chaos.worlds.living import LiveWorld

CALM_SECONDS: Final = 8.0
RATE: Final = 8.0
"""The number of calls that a client makes in a second."""


def _namespaces(directory: Path, nodes: int, settings: Mapping[str, str]) -> LiveWorld:
    from chaos.worlds.namespaces import NamespacesWorld

    return NamespacesWorld(directory, nodes=nodes, settings=settings)


def _docker(directory: Path, nodes: int, settings: Mapping[str, str]) -> LiveWorld:
    from chaos.worlds.docker import DockerWorld

    return DockerWorld(directory, nodes=nodes, settings=settings)


WORLDS: dict[str, Callable[[Path, int, Mapping[str, str]], LiveWorld]] = {
    "docker": _docker,
    "namespaces": _namespaces,
}


def command_of(
    world: str,
    seed: int,
    faults: int | None,
    minutes: float | None,
    nodes: int,
    kinds: Sequence[str] = (),
    settings: Sequence[str] = (),
    calm: float = CALM_SECONDS,
    rate: float = RATE,
    flags: Sequence[str] = (),
) -> str:
    """Return the command line that repeats a run."""
    words = ["python", "-m", "chaos", "run", "--world", world, "--seed", str(seed)]
    words += [] if faults is None else ["--faults", str(faults)]
    words += [] if minutes is None else ["--minutes", f"{minutes:g}"]
    words += [] if nodes == 3 else ["--nodes", str(nodes)]
    words += [] if calm == CALM_SECONDS else ["--calm", f"{calm:g}"]
    words += [] if rate == RATE else ["--rate", f"{rate:g}"]
    words += flags
    words += [word for kind in kinds for word in ("--kind", kind)]
    return shlex.join([*words, *(word for setting in settings for word in ("--setting", setting))])


@click.command("run")
@click.option("--world", type=click.Choice(sorted(WORLDS)), default="namespaces", show_default=True)
@click.option("--seed", default=1, show_default=True, help="Seed of the workload and the faults.")
@click.option("--faults", type=click.IntRange(min=1), help="End after this many faults.")
@click.option("--minutes", type=click.FloatRange(min=0.1), help="End after this many minutes.")
@click.option("--nodes", type=click.IntRange(min=1, max=250), default=3, show_default=True)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([str(kind) for kind in Kind]),
    help="Only this kind of fault; repeatable.",
)
@click.option("--setting", "given", multiple=True, metavar="NAME=VALUE", help="Setting of every node; repeatable.")
@click.option("--calm", default=CALM_SECONDS, show_default=True, help="Longest pause between faults, in seconds.")
@click.option("--rate", default=RATE, show_default=True, help="Most calls of a client per second.")
@click.option(
    "--transactions", is_flag=True, help="Also run transactions: over partitions, and from topics to a topic."
)
@click.option("--queue", is_flag=True, help="Also run a share group, which acquires and acknowledges records.")
@click.option("--group-protocol", type=click.Choice(["classic", "consumer"]), default="classic", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Directory for history, page and logs.")
def run_command(
    world: str,
    seed: int,
    faults: int | None,
    minutes: float | None,
    nodes: int,
    kinds: tuple[str, ...],
    given: tuple[str, ...],
    calm: float,
    rate: float,
    transactions: bool,
    queue: bool,
    group_protocol: str,
    out: Path | None,
) -> None:
    """Run a real cluster under load and faults. Exit status 1 if something is wrong, 3 if that is not known."""
    from chaos.checkers.verdict import status
    from chaos.drawing import SHARE_GROUPS
    from chaos.live import Interrupted, Settings, run
    from chaos.workloads.sharing import limits

    if faults is None and minutes is None:
        raise click.UsageError("say --faults, or --minutes, or both")
    if wrong := [each for each in given if "=" not in each]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--setting")
    own = {name: value for name, _, value in (each.partition("=") for each in given)}
    flags = [name for name, is_given in (("--transactions", transactions), ("--queue", queue)) if is_given]
    if queue:
        own = {**SHARE_GROUPS, **own}
    flags += [] if group_protocol == "classic" else ["--group-protocol", group_protocol]
    directory = out or Path("chaos-runs") / f"{world}-seed-{seed}"
    settings = Settings(
        seed=seed,
        directory=directory,
        command=command_of(world, seed, faults, minutes, nodes, kinds, given, calm, rate, flags),
        faults=faults,
        minutes=minutes,
        kinds=tuple(map(Kind, kinds)) or tuple(Kind),
        calls_per_second=rate,
        transactions=transactions,
        queue=limits(own) if queue else None,
        group_protocol=group_protocol,
        pause_ms=(round(calm * 375), round(calm * 1000)),
    )
    try:
        outcome = run(WORLDS[world](directory, nodes, own), settings)
    except Interrupted:
        click.echo(f"stopped; to judge what was seen: python -m chaos check {directory / 'history.jsonl'}", err=True)
        sys.exit(130)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status(outcome.verdicts, outcome.problems))


@click.command("cost")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--markdown", is_flag=True, help="Print a table in Markdown.")
def cost_command(files: tuple[Path, ...], markdown: bool) -> None:
    """Print what each kind of fault cost in unavailability, over one history or several."""
    from rich.console import Console

    from chaos.availability import by_kind, outages
    from chaos.history import BadHistory, History, read
    from chaos.terminal import unavailability, unavailability_markdown

    found = []
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                found += outages(History(read(lines)))
        except BadHistory as error:
            raise click.ClickException(f"{file}: {error}") from error
    if markdown:
        click.echo(unavailability_markdown(by_kind(found)))
    else:
        Console(highlight=False).print(unavailability(by_kind(found)))
