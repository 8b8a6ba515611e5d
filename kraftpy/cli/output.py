"""The commands' output: tables for people at a terminal, JSON lines or plain lines for programs in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

import click

from kraftpy.config.printing import printable

Row = Mapping[str, Any]
"""One line of a table: column -> value. Lists and None are fine."""

FORMATS = ("auto", "table", "json", "plain")


class Failure(click.ClickException):
    """A failure that is reported as one or more lines on standard error."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self._lines = lines

    def show(self, file: Any = None) -> None:
        """Print the lines, led by the program's name as is customary."""
        for line in self._lines:
            say(line)


def say(text: str) -> None:
    """Print a line on standard error, for the person at the terminal."""
    click.echo(f"kraftpy: {printable(text)}", err=True)


def tell(text: str) -> None:
    """Print a line on standard output."""
    click.echo(printable(text))


def at_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Output format; auto is a table at a terminal and lines in a pipe.",
)


def print_rows(
    rows: Sequence[Row], form: str = "auto", *, title: str | None = None, plain: str | None = None, empty: str = ""
) -> None:
    """Print rows as a table, as JSON lines, or plain.

    `plain` is the one column that a pipe gets by default, a line each. Without it a pipe gets JSON, and `--format
    plain` prints the values between tabs. If there are no rows, a person gets the text `empty` on standard error.
    """
    if form == "auto":
        form = "table" if at_terminal() else ("plain" if plain else "json")
    if form == "json":
        write_lines(json_line(row) for row in rows)
    elif form == "plain":
        write_lines("\t".join(_cell(value) for value in ([row[plain]] if plain else row.values())) for row in rows)
    elif rows:
        _print_table(rows, title)
    elif empty:
        click.echo(empty, err=True)


def write_lines(lines: Iterable[str]) -> None:
    """Print lines. Raises BrokenPipeError if the reader has closed the pipe.

    A terminal gets nothing that it would interpret: lines and tabs stay, other control characters are escaped.
    """
    if at_terminal():
        lines = (printable(line, keep="\n\t") for line in lines)
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def json_line(row: Row) -> str:
    """Format a row as JSON on one line, without unnecessary escapes."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def local_time(timestamp_ms: int) -> str:
    """Format milliseconds since 1970 as ISO 8601 in this machine's time zone; '-' for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds")


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error during the block, if that is a terminal. Report bytes as they are done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield lambda done: progress.advance(task, done)


def _print_table(rows: Sequence[Row], title: str | None) -> None:
    from rich.align import Align
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column, value in rows[0].items():
        is_number = all(isinstance(row[column], int | float) or row[column] is None for row in rows)
        name = column.replace("_", " ")
        justify: Literal["left", "right"] = "right" if is_number and value is not None else "left"
        # A heading is no wider than its longest word: on a narrow terminal the values need the room.
        heading = Align(name.replace(" ", "\n"), align=justify, vertical="bottom")
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    Console().print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ",".join(map(str, value))
        case dict():
            return " ".join(f"{name}={text}" for name, text in value.items())
        case _:
            return str(value)
