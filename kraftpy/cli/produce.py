"""`kraftpy produce`: send lines of text or JSON to a topic.

Success is silent unless at a terminal or with --progress; exit status 0 means that every record was acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, client_options, run
from kraftpy.cli.lines import STANDARD_INPUT, read_lines
from kraftpy.cli.output import Failure, say
from kraftpy.client.json_records import Headers, NewRecord, parse_json_record

if TYPE_CHECKING:
    from kraftpy.client import Delivery, Producer

TOPIC_SECONDS = 5.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """The format of the input lines."""

    is_json: bool
    key_separator: bytes | None
    null_marker: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None

    def record(self, line: bytes) -> NewRecord:
        """Turn a line into a record. Raises ValueError with the reason."""
        if self.is_json:
            parsed = parse_json_record(line)
            partition = parsed.partition if self.partition is None else self.partition
            return replace(parsed, headers=parsed.headers + self.headers, partition=partition)
        key, value = None, line
        if self.key_separator is not None:
            before, separator, after = line.partition(self.key_separator)
            if not separator:
                raise ValueError(f"the key separator {self.key_separator.decode()!r} is missing")
            key, value = before, after
        return NewRecord(key=self._null(key), value=self._null(value), headers=self.headers, partition=self.partition)

    def _null(self, data: bytes | None) -> bytes | None:
        return None if data is None or data == self.null_marker else data


def _headers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Headers:
    headers = []
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{value}' is not NAME=VALUE", ctx, param)
        headers.append((name, text.encode()))
    return tuple(headers)


def _separator(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    if value is None:
        return None
    if not value:
        raise click.BadParameter("must not be empty", ctx, param)
    return value.replace("\\t", "\t").encode()


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@bootstrap_option
@click.option("--json", "is_json", is_flag=True, help="Read JSON objects, as `consume` writes them to a pipe.")
@click.option(
    "--key-separator", "-K", callback=_separator, metavar="TEXT", help=r"Text that ends the key in a line (\t: tab)."
)
@click.option("--null-marker", metavar="TEXT", help="Send a key or value that equals this text as null.")
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="NAME=VALUE",
    help="Header for every record; repeatable.",
)
@click.option(
    "--partition", "-p", type=click.IntRange(min=0), help="Send to this partition instead of choosing by key."
)
@click.option("--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Acknowledgements to wait for.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Collect records into a batch this long.",
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Size of a batch in bytes.")
@click.option("--max-request-size", type=click.IntRange(min=1), help="Size of the largest record in bytes.")
@click.option("--progress", is_flag=True, help="Show a progress bar on standard error.")
def produce(topic: str, files: tuple[str, ...], bootstrap: str, progress: bool, **options: Any) -> None:
    """Send lines to TOPIC, one record per line.

    Reads FILEs, or standard input if none is given.

    \b
      echo hello | kraftpy produce greetings
      kraftpy produce prices --key-separator : prices.txt --progress
      kraftpy consume prices | kraftpy produce copies --json
    """
    shape = LineFormat(
        is_json=options.pop("is_json"),
        key_separator=options.pop("key_separator"),
        null_marker=_encoded(options.pop("null_marker")),
        headers=options.pop("headers"),
        partition=options.pop("partition"),
    )
    names = files or (STANDARD_INPUT,)
    if STANDARD_INPUT in names and sys.stdin.isatty():
        say("reading lines from the terminal; Ctrl-D ends")
    client = {
        "acks": options["acks"] if options["acks"] == "all" else int(options["acks"]),
        "compression_type": options["compression"],
        "linger_ms": options["linger_ms"],
    }
    client |= {name: options[name] for name in ("batch_size", "max_request_size") if options[name] is not None}
    with _progress(names) if progress else contextlib.nullcontext(lambda _bytes, _records: None) as advance:
        sent = run(bootstrap, _send(bootstrap, topic, names, shape, client, advance))
    if progress or sys.stderr.isatty():
        say(f"{sent:,} records sent to {topic}")


async def _send(
    bootstrap: str,
    topic: str,
    names: tuple[str, ...],
    shape: LineFormat,
    client: dict[str, Any],
    advance: Callable[[int, int], None],
) -> int:
    """Send everything and wait for it. Returns the number of records. Raises Failure and KafkaError."""
    from kraftpy.client import Producer

    sent = 0
    delivery: Delivery | None = None
    under_way: deque[Delivery] = deque()  # the last of each block: enough to notice early that nothing arrives
    async with Producer(**client_options(bootstrap, client_id="kraftpy-produce", **client)) as producer:
        await _known(producer, topic)
        async with contextlib.aclosing(read_lines(names)) as blocks:
            async for lines in blocks:
                for line in lines:
                    if shape.is_json and not line.strip():
                        continue
                    sent += 1
                    try:
                        record = shape.record(line)
                    except ValueError as error:
                        raise Failure(f"record {sent}: {error}") from None
                    delivery = await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=record.headers,
                    )
                if delivery is not None:
                    under_way.append(delivery)
                while under_way and under_way[0].done():
                    under_way.popleft().result()
                advance(sum(map(len, lines)) + len(lines), len(lines))
    return sent


async def _known(producer: Producer, topic: str) -> None:
    """Wait briefly for the topic: a producer would wait a minute for it to be created. Raises Failure."""
    import asyncio

    try:
        async with asyncio.timeout(TOPIC_SECONDS):
            await producer.partitions_for(topic)
    except TimeoutError:
        raise Failure(f"topic {topic} does not exist, and the broker does not create it") from None


@contextlib.contextmanager
def _progress(names: tuple[str, ...]) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over the bytes of the files, or a count if their size is unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    total = None if STANDARD_INPUT in names else sum(os.path.getsize(name) for name in names)
    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, records=0)
        records = 0

        def advance(sent_bytes: int, sent_records: int) -> None:
            nonlocal records
            records += sent_records
            bar.update(task, advance=sent_bytes, records=records)

        yield advance


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
