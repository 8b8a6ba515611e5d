"""A stream's batches as one HTML page without scripts or anything from elsewhere: durations, lag, rates, partitions.

Pure. Everything that a log says is escaped. A long history is drawn in `MOST_COLUMNS` steps, each with its slowest
batch and its largest lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from kraftpy.spark.charts import Column, bars, clock, line
from kraftpy.spark.event_logs import Point, QueryHistory, Recorded

MOST_COLUMNS = 400
MOST_PARTITIONS = 200
MOST_SHOWN = 50
"""Queries on one page."""
PARTS = ("addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets")
"""Parts of a trigger that do not overlap, from the bottom of a bar; the rest is "other"."""
_COLOURS = ("#2f6db5", "#d9822b", "#7a52a8", "#2b8a6a", "#b6455c", "#9aa5b1")
_STYLE = """\
:root { color-scheme: light dark; --ink: #1f2933; --quiet: #6b7785; --grid: #e4e8ec; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --quiet: #9aa5b1; --grid: #323f4b; --page: #14191f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1000px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em } h3 { font-size: 1em; margin: 1.5em 0 .3em }
svg { width: 100%; height: auto; font-size: 11px } svg text { fill: var(--quiet) }
.grid { stroke: var(--grid) } .line { fill: none; stroke: #2f6db5; stroke-width: 1.5 }
table { border-collapse: collapse }
th, td { text-align: left; padding: .2em 1.2em .2em 0; border-bottom: 1px solid var(--grid) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } .quiet { color: var(--quiet) }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em } pre { white-space: pre-wrap }
"""


def page(recorded: Recorded, *, title: str) -> str:
    """Return the page."""
    queries = [query for query in recorded.queries.values() if query.points]
    shown = sorted(queries, key=lambda query: query.points[-1].started_ms)[-MOST_SHOWN:]
    colours = "".join(f".c{place} {{ fill: {each}; background: {each} }}\n" for place, each in enumerate(_COLOURS))
    notes = list(recorded.notes)
    if len(shown) < len(queries):
        notes.append(f"{len(queries)} queries; these are the last {len(shown)}.")
    body = "".join(f'<p class="quiet">{escape(note)}</p>' for note in notes) + "".join(map(_query, shown))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>\n{_STYLE}{colours}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _query(query: QueryHistory) -> str:
    points = list(query.points)
    heading = escape((query.name or "query")[:200])
    told = [
        f'<h2>{heading} <span class="quiet">{escape(query.query_id[:60])}</span></h2>',
        _summary(query, points),
        "<h3>Duration of batches, by part</h3>",
        bars([_duration(step) for step in _steps(points)], unit="ms"),
        _key(),
    ]
    lags = [point for point in points if point.lag is not None]
    if lags:
        told += ["<h3>Lag, in offsets, when the batch was done</h3>", _line(lags, _lag, "")]
    rates = [point for point in points if point.rows is not None and point.duration_ms > 0]
    if rates:
        told += ["<h3>Rows a second while a batch ran</h3>", _line(rates, _rate, "/s")]
    told.append(_partitions(query))
    if query.failures:
        failures = "".join(f"<pre>{escape(each)}</pre>" for each in query.failures)
        told.append(f"<h3>Runs that failed</h3>{failures}")
    return "\n".join(told)


def _summary(query: QueryHistory, points: Sequence[Point]) -> str:
    durations = sorted(point.duration_ms for point in points)
    lags = [point.lag for point in points if point.lag is not None]
    delays = [point.delay_ms for point in points if point.delay_ms is not None]
    tasks = query.tasks.values()
    kept = f" (the last {len(points)} are shown)" if query.total > len(points) else ""
    rows: list[tuple[str, str]] = [
        ("batches", f"{query.total}{kept}"),
        ("from, to", f"{clock(points[0].started_ms)} - {clock(points[-1].started_ms + points[-1].duration_ms)} UTC"),
        ("rows", f"{sum(point.rows or 0 for point in points):,}"),
        ("duration: median, 99 %, longest", f"{_at(durations, 0.5)}, {_at(durations, 0.99)}, {durations[-1]} ms"),
    ]
    if lags:
        rows.append(("lag: largest, last", f"{max(lags):,}, {lags[-1]:,}"))
    if delays:
        rows.append(("oldest record's wait: largest, last", f"{max(delays)}, {delays[-1]} ms"))
    observed = [point.observed_bytes for point in points if point.observed_bytes is not None]
    if observed:
        rows.append(("bytes of keys and values", f"{sum(observed):,}"))
    retries = [point.retries for point in points if point.retries is not None]
    if retries:
        rows.append(("retries of the planner's questions", str(sum(_restarting(retries)))))
    if query.tasks:
        rows.append(("tasks; failed", f"{sum(each.count for each in tasks)}; {sum(each.failed for each in tasks)}"))
        rows.append(("tasks' time in executors", f"{sum(each.run_ms for each in tasks):,} ms"))
        rows.append(("bytes that Python returned to Spark", f"{sum(each.python_bytes for each in tasks):,}"))
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{lines}</table>"


def _restarting(counts: Iterable[int]) -> Iterable[int]:
    """Yield the increases of a count that begins at 0 again with each run."""
    before = 0
    for count in counts:
        yield count - before if count >= before else count
        before = count


def _steps(points: Sequence[Point]) -> list[list[Point]]:
    """Divide a history into at most `MOST_COLUMNS` steps of as many batches each."""
    size = -(-len(points) // MOST_COLUMNS)
    return [list(points[start : start + size]) for start in range(0, len(points), size)]


def _duration(step: Sequence[Point]) -> Column:
    slowest = max(step, key=lambda point: point.duration_ms)
    if not slowest.parts:
        return Column(at_ms=slowest.started_ms, values=(slowest.duration_ms,), said=_said(slowest))
    parts = [max(0, slowest.parts.get(name, 0)) for name in PARTS]
    other = max(0, slowest.duration_ms - sum(parts))
    named = ", ".join(f"{name} {ms}" for name, ms in zip((*PARTS, "other"), (*parts, other), strict=True) if ms)
    return Column(at_ms=slowest.started_ms, values=(*parts, other), said=f"{_said(slowest)}: {named}")


def _line(points: Sequence[Point], value: Callable[[Point], float], unit: str) -> str:
    columns = []
    for step in _steps(points):
        point = max(step, key=value)
        end_ms = point.started_ms + point.duration_ms
        columns.append(Column(at_ms=end_ms, values=(value(point),), said=f"{_said(point)}: {value(point):,.0f}{unit}"))
    return line(columns, unit=unit)


def _lag(point: Point) -> float:
    return point.lag or 0


def _rate(point: Point) -> float:
    return (point.rows or 0) * 1000 / point.duration_ms


def _said(point: Point) -> str:
    rows = "" if point.rows is None else f", {point.rows:,} rows"
    return f"batch {point.number}, {clock(point.started_ms)}, {point.duration_ms} ms{rows}"


def _key() -> str:
    names = (*PARTS, "other")
    return (
        '<p class="key quiet">' + "".join(f'<span class="c{n}"></span>{name}' for n, name in enumerate(names)) + "</p>"
    )


def _partitions(query: QueryHistory) -> str:
    if query.last is None or not query.last.partitions:
        return ""
    most_behind = sorted(query.last.partitions, key=lambda each: (-(each.lag or 0), each.where))
    rows = []
    for each in most_behind[:MOST_PARTITIONS]:
        cells = (each.end, each.log_end, each.lag, query.rows_by_partition.get(each.where))
        numbers = "".join(f'<td class="n">{"" if cell is None else f"{cell:,}"}</td>' for cell in cells)
        rows.append(
            f"<tr><td>{escape(each.where.topic[:249])}</td><td class=n>{each.where.partition}</td>{numbers}</tr>"
        )
    left = len(most_behind) - len(rows)
    more = f'<p class="quiet">{left} more partitions are less behind.</p>' if left else ""
    heads = "".join(f'<th class="n">{name}</th>' for name in ("partition", "position", "end of the log", "lag", "rows"))
    return (
        f"<h3>Partitions, after batch {query.last.number}</h3><table><tr><th>topic</th>{heads}</tr>"
        f"{''.join(rows)}</table>{more}"
    )


def _at(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
