"""Plot the books: each tier's records by window, and below them what was lost, duplicated or late."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path

from kraftpy.audit.books import Books, Verdict

_COLOURS = {Verdict.LOST: "#c0392b", Verdict.DUPLICATED: "#e67e22", Verdict.LATE: "#95a5a6"}


def draw(books: Books, path: Path) -> None:
    """Write a PNG (or another format by suffix), one column per topic. Raises ValueError if there are no entries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from matplotlib's own dependencies
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.dates import AutoDateFormatter, AutoDateLocator
        from matplotlib.figure import Figure

    topics = sorted({entry.topic for entry in books.entries})
    if not topics:
        raise ValueError("there is nothing to draw")
    figure = Figure(figsize=(6 * len(topics) + 2, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(topics), sharex="col", squeeze=False, height_ratios=(2, 1))
    for column, topic in enumerate(topics):
        above, below = axes[0][column], axes[1][column]
        mine = [entry for entry in books.entries if entry.topic == topic and entry.start_ms >= 0]
        for place, tier in enumerate(books.tiers):
            points = [(_moment(entry.start_ms), entry.count) for entry in mine if entry.tier == tier]
            if points:
                above.plot(
                    *zip(*points, strict=True), label=tier, linewidth=6 - 4 * place / len(books.tiers), alpha=0.7
                )
        for verdict, colour in _COLOURS.items():
            points = [(_moment(entry.start_ms), entry.difference) for entry in mine if entry.verdict is verdict]
            if points:
                days = mine[0].window_ms / 86_400_000
                below.bar(*zip(*points, strict=True), width=days, align="edge", color=colour, label=verdict.value)
        above.set_title(topic)
        above.set_ylabel("records in a window")
        above.legend()
        below.set_ylabel("difference")
        below.axhline(0, color="black", linewidth=0.5)
        if below.get_legend_handles_labels()[0]:
            below.legend()
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        below.xaxis.set_major_locator(locator)
        below.xaxis.set_major_formatter(AutoDateFormatter(locator))  # type: ignore[no-untyped-call]
        below.tick_params(axis="x", rotation=30)
    figure.savefig(path, dpi=120)


def _moment(start_ms: int) -> datetime:
    return datetime.fromtimestamp(start_ms / 1000, UTC)
