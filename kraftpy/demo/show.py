"""The demo's output on the terminal: a line for each finished step, progress bars, and the table of delays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kraftpy.demo.delays import ByAirport, Delays


@contextlib.contextmanager
def step(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    """Print a step's result with its duration once it is done."""
    notes: list[str] = []
    started = time.perf_counter()
    yield notes.append
    seconds = time.perf_counter() - started
    console.print(f"[green]✓[/] [bold]{name:15}[/] [cyan]{seconds:6.1f} s[/]  {'; '.join(notes)}", soft_wrap=True)


@contextlib.contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar until it is done; call the function with the number of new events."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


@contextlib.contextmanager
def spinner(console: Console, what: str) -> Iterator[None]:
    """Show that something is in progress."""
    with console.status(what):
        yield


def rate(events: int, started: float) -> str:
    """Format events per second since `started` (of `time.perf_counter`)."""
    return f" [dim]({events / max(time.perf_counter() - started, 1e-9):,.0f}/s)[/]"


def delays_table(delays: ByAirport[int]) -> Table:
    """Return each hour's mean delay and share of late departures, by airport."""
    title = "Flights by the hour they left in, New York's time: mean delay in minutes, how many late"
    table = Table(title=title, title_style="bold", title_justify="left")
    table.add_column("hour")
    for airport in delays:
        table.add_column(airport, justify="right")
        table.add_column("mean", justify="right")
        table.add_column("late", justify="right")
    for hour in sorted({hour for groups in delays.values() for hour in groups}):
        cells = [cell for groups in delays.values() for cell in _cells(groups.get(hour))]
        table.add_row(f"{hour:02}:00", *cells)
    return table


def _cells(delays: Delays | None) -> tuple[str, str, str]:
    if delays is None:
        return ("-", "-", "-")
    return (f"{delays.flights:,}", f"{delays.mean:.1f}", f"{delays.late_share:.0%}")
