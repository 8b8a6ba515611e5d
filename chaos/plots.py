"""Throughput and latency over time as one SVG, with faults shaded behind.

Drawn by matplotlib without a display; the same history gives the same bytes. Text stays text.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.availability import LOOKS, SECOND, Bin, Span, bins
from chaos.history import History, Op

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _GRID = "#1f2933", "#6b7785", "#e4e8ec"
_SENDS, _POLLS, _WRONG = "#2f6db5", "#2b8a6a", "#c2452d"
_SHADES = ("#f6c9a8", "#f3dc9b", "#d3c4e8", "#c5dce8", "#e8c4d4", "#d2dfb9", "#d9d0c4", "#c9cfd8")

MOST_STEPS = 240
LABELLED = 24
"""The most faults to name in the plot; the table below it lists all of them."""


def colours(faults: Sequence[Span]) -> dict[str, str]:
    """Choose a shade for each kind of fault, in order of names."""
    kinds = sorted({span.kind for span in faults})
    return {kind: _SHADES[place % len(_SHADES)] for place, kind in enumerate(kinds)}


def step_width(history: History) -> int:
    """Return the width of the plot's steps in nanoseconds: a second or a round part or multiple of it."""
    for width in (SECOND // 20, SECOND // 10, SECOND // 4, SECOND // 2, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND):
        if history.duration / width <= MOST_STEPS:
            return width
    return 60 * SECOND


def plot(history: History, faults: Sequence[Span]) -> str:
    """Return an <svg> element."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of matplotlib's own dependencies
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "chaos", "font.family": "sans-serif"}):
            figure = Figure(figsize=(12.5, 6.6), facecolor="white")
            FigureCanvasSVG(figure)
            rates, latencies = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1))
            figure.subplots_adjust(left=0.06, right=0.985, top=0.9, bottom=0.08, hspace=0.24)
            width = step_width(history)
            sends = [op for op in history.completions if op.f in ("send", "txn", "process")]
            unlike = ("send", "txn", "process", "crash", *LOOKS)
            others = [op for op in history.completions if op.f not in unlike]
            _rates(rates, history, sends, others, width)
            _latencies(latencies, history, sends, others, width)
            for axes in (rates, latencies):
                _shade(axes, faults, named=axes is rates)
                axes.set_xlim(0, max(history.duration / SECOND, 0.001))
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _rates(axes: Axes, history: History, sends: Sequence[Op], others: Sequence[Op], width: int) -> None:
    _style(axes, "Operations a second", "")
    per_second = SECOND / width
    for ops, colour, label in ((sends, _SENDS, "sends, acknowledged"), (others, _POLLS, "polls and others, answered")):
        steps = bins(history, ops, width)
        axes.step(_at(steps), [step.ok * per_second for step in steps], where="post", color=colour, lw=1.3, label=label)
    steps = bins(history, [*sends, *others], width)
    wrong = [(step.fail + step.info) * per_second for step in steps]
    axes.step(_at(steps), wrong, where="post", color=_WRONG, lw=1.1, label="failed or unknown")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=3, fontsize=8.5, frameon=True, framealpha=0.85, edgecolor="none")


def _latencies(axes: Axes, history: History, sends: Sequence[Op], others: Sequence[Op], width: int) -> None:
    _style(axes, "Latency of what was acknowledged, ms (p50 thick, p99 thin)", "seconds")
    axes.set_yscale("log")
    for ops, colour in ((sends, _SENDS), (others, _POLLS)):
        steps = bins(history, ops, width)
        for of, weight in (("p50", 1.6), ("p99", 0.7)):
            values = [getattr(step.latency, of) if step.latency else float("nan") for step in steps]
            axes.plot(_at(steps), [max(value, 0.01) for value in values], color=colour, lw=weight)


def _at(steps: Sequence[Bin]) -> list[float]:
    return [step.at_s for step in steps]


def _shade(axes: Axes, faults: Sequence[Span], *, named: bool) -> None:
    shades = colours(faults)
    for span in faults:
        begin, end = span.begin / SECOND, span.end / SECOND
        axes.axvspan(begin, end, color=shades[span.kind], alpha=0.6, lw=0, zorder=0)
        if named and len(faults) <= LABELLED:
            place: Any = axes.get_xaxis_transform()
            axes.text(begin, 1.015, span.kind, transform=place, fontsize=7, color=_QUIET, rotation=25, ha="left")


def _style(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK, pad=22 if not below else 8)
    axes.set_xlabel(below, fontsize=9, color=_QUIET)
    axes.tick_params(length=0, colors=_QUIET, labelsize=8.5)
    axes.grid(axis="y", color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
