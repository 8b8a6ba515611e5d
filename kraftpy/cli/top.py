"""`kraftpy top`: a cluster at a terminal, live."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, client_options, run
from kraftpy.cli.metrics_options import metrics_options
from kraftpy.cli.output import at_terminal, json_line, write_lines
from kraftpy.config.printing import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kraftpy.client import Admin
    from kraftpy.diagnosis.sampling import MetricsEndpoints, Sample

_PATIENCE_MS = 10_000
_COLUMNS = {
    "topic": ("topic", "partitions", "offline", "under_replicated", "written_per_second"),
    "group": ("group", "state", "lag", "lag_per_second", "read_per_second"),
    "request": ("endpoint", "request", "p99_ms"),
}
Row = dict[str, Any]


@click.command()
@bootstrap_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two samples.",
)
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines; the default in a pipe.")
@click.option(
    "--lines", type=click.IntRange(1), default=10, show_default=True, help="Topics, groups and requests in a table."
)
@metrics_options
def top(
    bootstrap: str,
    interval: float,
    once: bool,
    as_json: bool,
    lines: int,
    endpoints: MetricsEndpoints,
) -> None:
    """Watch a cluster: rates of topics, lags of groups, partitions that lack something.

    Shows the records written to each topic and read by each group in a second, the lag of each group and whether it
    grows, partitions without a leader or replica, and, with --metrics, the requests that take longest. Works with any
    Kafka cluster; ends with Ctrl-C.

    \b
      kraftpy top
      kraftpy top --once --json
      kraftpy top --metrics http://127.0.0.1:9464/metrics
    """
    from kraftpy.diagnosis.sampling import sample

    take = functools.partial(sample, endpoints=endpoints)
    as_json = as_json or not at_terminal()
    if as_json or once:
        show = _print_json if as_json else _print_tables(lines)
        with contextlib.nullcontext() if once else contextlib.suppress(KeyboardInterrupt):
            run(bootstrap, _watch(bootstrap, interval, take, show, is_once=once))
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live, contextlib.suppress(KeyboardInterrupt):

        def draw(rows: Sequence[Row]) -> None:
            live.update(_tables(rows, lines), refresh=True)

        run(bootstrap, _watch(bootstrap, interval, take, draw, is_once=False))


async def _watch(
    bootstrap: str,
    interval: float,
    take: Callable[[Admin], Awaitable[Sample]],
    show: Callable[[Sequence[Row]], None],
    *,
    is_once: bool,
) -> None:
    """Show each interval. Once some was shown, a cluster that cannot be asked for a while ends nothing."""
    from kraftpy.client import Admin
    from kraftpy.diagnosis.sampling import rows
    from kraftpy.protocol.errors import KafkaError

    options = client_options(
        bootstrap, client_id="kraftpy-top", default_api_timeout_ms=_PATIENCE_MS, request_timeout_ms=_PATIENCE_MS // 2
    )
    async with Admin(**options) as admin:
        before = await take(admin)
        while True:
            await asyncio.sleep(interval)
            try:
                after = await take(admin)
            except KafkaError as error:
                if is_once:
                    raise
                show([{"kind": "failure", "message": str(error)}])
                continue
            show(rows(before, after))
            if is_once:
                return
            before = after


def _print_json(rows: Sequence[Row]) -> None:
    write_lines(json_line(row) for row in rows)


def _print_tables(lines: int) -> Callable[[Sequence[Row]], None]:
    def show(rows: Sequence[Row]) -> None:
        from rich.console import Console

        Console().print(_tables(rows, lines))

    return show


def _tables(rows: Sequence[Row], lines: int) -> RenderableType:
    """Return the cluster's line and a table of each kind of rows."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for row in rows:
        if row["kind"] == "failure":
            parts.append(Text(printable(f"the cluster cannot be asked: {row['message']}"), style="red"))
        elif row["kind"] == "cluster":
            troubled = row["offline"] or row["under_replicated"]
            parts.append(Text(_summary(row), style="red" if troubled else ""))
            parts += [Text(printable(f"no metrics: {why}"), style="red") for why in row["silent_endpoints"].values()]
    for kind, columns in _COLUMNS.items():
        of_kind = [row for row in rows if row["kind"] == kind]
        if not of_kind:
            continue
        left_out = f", {len(of_kind) - lines} more" if len(of_kind) > lines else ""
        table = Table(title=f"{kind}s{left_out}", title_justify="left", box=None, pad_edge=False)
        for name in columns:
            is_number = not isinstance(of_kind[0][name], str)
            table.add_column(name.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
        for row in of_kind[:lines]:
            table.add_row(*(Text(_cell(row[name])) for name in columns))
        parts += [Text(""), table]
    return Group(*parts)


def _summary(row: Row) -> str:
    return (
        f"{row['brokers']} brokers, controller {row['controller']}; {row['topics']} topics, {row['partitions']} "
        f"partitions, {row['offline']} offline, {row['under_replicated']} under-replicated; "
        f"{row['written_per_second']:g} records/s"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.10g}" if isinstance(value, int | float) else printable(str(value))
