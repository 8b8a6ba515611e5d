"""The audit books: how many records each tier of a pipeline has counted, and where they differ."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.audit.books import Books, Entry, Verdict, keep_books
from kraftpy.audit.counts import DEFAULT_WINDOW_MS, BadTally, Tally, latest, parse_tally
from kraftpy.console.cluster import now_ms
from kraftpy.console.console import Console, console_of
from kraftpy.console.decoding import Decoder
from kraftpy.console.forms import number_of
from kraftpy.console.paging import page_of
from kraftpy.console.plots import Plot, line_plot
from kraftpy.console.reading import Found, Wanted
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

DEFAULT_TOPIC: Final = "audit"
_MINUTE_MS: Final = 60_000
_GRACE_MINUTES: Final = 30
_MOST: Final = 2**53
"""Numbers of a count from here on are none."""
MOST_PLOTTED: Final = 6
"""Topics that are plotted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The plots of one topic's books."""

    topic: str
    counted: Plot | None
    wrong: Plot | None


async def books(request: Request) -> Response:
    """Show the books of an audit topic."""
    console = console_of(request)
    query = dict(request.query_params)
    topic = query.get("audit", "").strip() or DEFAULT_TOPIC
    grace = number_of(query, "grace", _GRACE_MINUTES, high=1_000_000)
    shows_all = query.get("all") == "yes"
    tallies, bad, found = await _read(console, topic)
    windows = Counter(tally.window_ms // _MINUTE_MS for tally in tallies)
    usual = windows.most_common(1)[0][0] if windows else DEFAULT_WINDOW_MS // _MINUTE_MS
    minutes = number_of(query, "window", max(1, usual), low=1)
    kept = await asyncio.to_thread(
        keep_books, tallies, now_ms=now_ms(), window_ms=minutes * _MINUTE_MS, grace_ms=grace * _MINUTE_MS
    )
    shown = [each for each in kept.entries if shows_all or each.verdict is not Verdict.BALANCED]
    shown.sort(key=lambda each: -each.start_ms)
    return console.render(
        request,
        "books.html",
        title="Audit books",
        audit=topic,
        window=minutes,
        grace=grace,
        shows_all=shows_all,
        exists=found is not None,
        stopped_by="" if found is None else found.stopped_by,
        bad=bad,
        windows=sorted(windows)[:20],
        books=kept,
        page=page_of(shown, query),
        drawn=[_drawn(kept, name) for name in sorted({each.topic for each in kept.entries})[:MOST_PLOTTED]],
    )


async def _read(console: Console, topic: str) -> tuple[list[Tally], int, Found | None]:
    """Return the last tally of each key, the number of records that are none, and how far it got; None: no topic."""
    try:
        info = await console.cluster.topic(topic)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return [], 0, None
    extents = await console.cluster.extents(info)
    begin = {TopicPartition(topic, number): each.first for number, each in extents.items() if each.first is not None}
    end = {TopicPartition(topic, number): each.end for number, each in extents.items() if each.end is not None}
    found = Found()
    tallies: list[Tally] = []
    bad = 0
    plain = Decoder("text")
    wanted = Wanted(begin=begin, end=end, keys=plain, values=plain)
    async with aclosing(console.reader.chunks(wanted, found)) as chunks:
        async for chunk in chunks:
            for each in chunk:
                if each.record.value is None:
                    continue
                try:
                    tally = parse_tally(each.record.key, each.record.value)
                except BadTally:
                    bad += 1
                    continue
                if max(abs(tally.start_ms), tally.window_ms, tally.count) < _MOST:
                    tallies.append(tally)
                else:
                    bad += 1
    return latest(tallies), bad, found


def _drawn(books: Books, topic: str) -> Drawn:
    """Return the plots of a topic: what the first tier counted by window, and what others lack or have too much."""
    mine = [each for each in books.entries if each.topic == topic and each.start_ms >= 0]
    first = next((tier for tier in books.tiers if any(each.tier == tier for each in mine)), "")
    counted = [(each.start_ms, float(each.count)) for each in mine if each.tier == first]
    return Drawn(
        topic=topic,
        counted=line_plot(counted, title=f"{topic}: counted by {first}", unit="records"),
        wrong=line_plot(_wrong(mine), title=f"{topic}: lost or duplicated", unit="records"),
    )


def _wrong(entries: Sequence[Entry]) -> list[tuple[int, float]]:
    sums: dict[int, float] = {}
    for each in entries:
        is_wrong = each.verdict in (Verdict.LOST, Verdict.DUPLICATED)
        sums[each.start_ms] = sums.get(each.start_ms, 0.0) + (abs(each.difference) if is_wrong else 0.0)
    return sorted(sums.items())
