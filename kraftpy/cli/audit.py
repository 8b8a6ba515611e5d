"""`kraftpy audit`: count the records of a log, and check that all tiers of a pipeline have the same records."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kraftpy.cli.connect import bootstrap_option, probe, security_options
from kraftpy.cli.output import Failure, format_option, print_rows, say

if TYPE_CHECKING:
    from kraftpy.audit.books import Books, Entry, TierTotals

_MINUTE_MS = 60_000

audit_topic_option = click.option(
    "--audit-topic", default="audit", show_default=True, help="Topic that holds the counts."
)
audit_server_option = click.option(
    "--audit-server",
    metavar="HOST:PORT",
    help="Broker of the audit topic, reached with the same --command-config. Defaults to --bootstrap-server.",
)
window_option = click.option(
    "--window",
    "window_minutes",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Length of a window in minutes.",
)
_moment = click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"])


@click.group()
def audit() -> None:
    """Check for lost and duplicated records, from producers to tables.

    Every tier counts its records by topic and window of their own time, into an audit topic: producers and consumers
    by an interceptor, logs by `kraftpy audit count`, loads with `kraftpy load --audit-tier`. `kraftpy audit books`
    compares them.
    """


@audit.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--tier", default="log", show_default=True, help="Name of this log's tier.")
@click.option("--from", "begin", type=_moment, help="Count windows that begin at or after this time (UTC).")
@click.option("--to", "end", type=_moment, help="Count windows that begin before this time (UTC).")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_committed",
    show_default=True,
)
@window_option
@audit_topic_option
@audit_server_option
@bootstrap_option
@format_option
def count(
    topics: tuple[str, ...],
    tier: str,
    begin: datetime | None,
    end: datetime | None,
    isolation_level: str,
    window_minutes: int,
    audit_topic: str,
    audit_server: str | None,
    bootstrap: str,
    form: str,
) -> None:
    """Count the records of TOPICS for the audit.

    Reads the records, and writes the counts to the audit topic.
    """
    from kraftpy.audit.topic import create_topic, publish, read
    from kraftpy.client.ranges.reader import RangeReader

    try:
        from kraftpy.audit.counting import count_log
    except ModuleNotFoundError as missing:
        raise Failure(f"{missing.name} is not installed: pip install 'kraftpy[load]'") from None
    probe(bootstrap)
    server = audit_server or bootstrap
    secured = security_options()
    known, _ = read(server, audit_topic, **secured)
    with RangeReader(bootstrap, isolation_level=isolation_level, **secured) as broker:
        tallies = count_log(
            broker,
            topics,
            tier=tier,
            window_ms=window_minutes * _MINUTE_MS,
            now_ms=time.time_ns() // 1_000_000,
            from_ms=0 if begin is None else _milliseconds(begin),
            to_ms=None if end is None else _milliseconds(end),
            known=known,
        )
    create_topic(server, audit_topic, **secured)
    publish(server, audit_topic, tallies, **secured)
    rows = [
        {
            "topic": topic,
            "windows": len({tally.start_ms for tally in tallies if tally.topic == topic}),
            "records": sum(tally.count for tally in tallies if tally.topic == topic),
        }
        for topic in sorted(set(topics))
    ]
    print_rows(rows, form)


@audit.command()
@click.argument("topics", nargs=-1)
@click.option("--tiers", metavar="A,B,...", help="Tiers, in pipeline order.")
@click.option(
    "--grace",
    "grace_minutes",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Minutes before a window counts as wrong rather than late.",
)
@click.option("--all", "is_all", is_flag=True, help="Show balanced windows, too.")
@click.option("--summary", is_flag=True, help="Show one line per topic and tier instead of windows.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot to this PNG file.")
@window_option
@audit_topic_option
@bootstrap_option
@format_option
def books(
    topics: tuple[str, ...],
    tiers: str | None,
    grace_minutes: int,
    is_all: bool,
    summary: bool,
    plot: Path | None,
    window_minutes: int,
    audit_topic: str,
    bootstrap: str,
    form: str,
) -> None:
    """Compare the tiers' counts, of TOPICS or of all topics. Exits with status 1 if records were lost or duplicated.

    A tier is late, not wrong, as long as it has not counted any later window and the window ended less than --grace
    minutes ago.
    """
    from kraftpy.audit.books import Verdict, keep_books
    from kraftpy.audit.topic import read

    probe(bootstrap)
    tallies, bad = read(bootstrap, audit_topic, **security_options())
    if bad:
        say(f"{bad} record(s) of {audit_topic} are not audit counts")
    kept = keep_books(
        tallies,
        now_ms=time.time_ns() // 1_000_000,
        window_ms=window_minutes * _MINUTE_MS,
        tiers=tiers.split(",") if tiers is not None else None,
        topics=topics or None,
        grace_ms=grace_minutes * _MINUTE_MS,
    )
    if not kept.entries:
        raise Failure(f"{audit_topic} has no counts for these topics and windows")
    if summary:
        print_rows([_totals_row(each) for each in kept.totals], form)
    else:
        shown = [each for each in kept.entries if is_all or each.verdict is not Verdict.BALANCED]
        print_rows([_entry(each) for each in shown], form, empty="every window balances")
    if plot is not None:
        _draw(kept, plot)
    if not kept.balance:
        raise click.exceptions.Exit(1)


def _draw(kept: Books, path: Path) -> None:
    try:
        from kraftpy.audit.plot import draw

        draw(kept, path)
    except ModuleNotFoundError as missing:
        raise Failure(f"{missing.name} is not installed: pip install 'kraftpy[demo]'") from None
    say(f"drawn: {path}")


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "topic": entry.topic,
        "window": "-" if entry.start_ms < 0 else _text(entry.start_ms),
        "tier": entry.tier,
        "count": entry.count,
        "before": entry.before,
        "expected": entry.expected,
        "difference": entry.difference,
        "verdict": entry.verdict.value,
    }


def _totals_row(totals: TierTotals) -> dict[str, object]:
    return {
        "topic": totals.topic,
        "tier": totals.tier,
        "records": totals.records,
        "lost": totals.lost,
        "duplicated": totals.duplicated,
        "late": totals.late,
        "lag_minutes": totals.lag_ms // _MINUTE_MS,
    }


def _milliseconds(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _text(start_ms: int) -> str:
    try:
        return datetime.fromtimestamp(start_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
    except (ValueError, OverflowError, OSError):  # no calendar year for this number
        return str(start_ms)
