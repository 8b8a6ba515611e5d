"""Plots as SVG: the geometry that the template `plot.svg` draws, so that a plot needs no program in the browser.

    plot = line_plot(points, title="Lag of billing", unit="records")

A plot has a fixed box of `WIDTH` by `HEIGHT` units; the page scales it. Points that follow each other by more than
`GAP` times the usual distance are not joined: nothing was measured there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 170
LEFT: Final = 64
BOTTOM: Final = 22
TOP: Final = 8
RIGHT: Final = 8
GAP: Final = 3.0
_TICKS: Final = 4
_TIMES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis, and the value there."""

    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot of one line. `paths` are SVG path data; `x_ticks` are times in ms."""

    title: str
    unit: str
    paths: Sequence[str]
    area: Sequence[str]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    last: float
    highest: float
    dot: tuple[float, float]


def line_plot(points: Sequence[tuple[int, float]], *, title: str, unit: str) -> Plot | None:
    """Return the plot of points (time in ms, value); None for fewer than two."""
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    span = max(1, last - first)
    top = nice_top(max(value for _, value in points))

    def place(time_ms: int, value: float) -> tuple[float, float]:
        x = LEFT + (time_ms - first) / span * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)
        return round(x, 1), round(y, 1)

    base = HEIGHT - BOTTOM
    paths, area = [], []
    for run in _runs(points):
        places = [place(*point) for point in run]
        line = " ".join(f"{'M' if not number else 'L'}{x} {y}" for number, (x, y) in enumerate(places))
        paths.append(line)
        area.append(f"{line} L{places[-1][0]} {base} L{places[0][0]} {base} Z")
    return Plot(
        title=title,
        unit=unit,
        paths=paths,
        area=area,
        x_ticks=[
            Tick(at=place(round(time), 0)[0], value=time)
            for time in (first + span * number / _TIMES for number in range(_TIMES + 1))
        ],
        y_ticks=[
            Tick(at=place(first, value)[1], value=value)
            for value in (top * number / _TICKS for number in range(_TICKS + 1))
        ],
        last=points[-1][1],
        highest=max(value for _, value in points),
        dot=place(*points[-1]),
    )


def nice_top(highest: float) -> float:
    """Return the top of an axis: 1, 1.2, 2, 4, 6 or 8 times a power of ten, at least 4."""
    if highest <= 4:
        return 4
    power = 10 ** math.floor(math.log10(highest))
    return next(float(step * power) for step in (1, 1.2, 2, 4, 6, 8, 12) if step * power >= highest * 1.05)


def _runs(points: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Divide points where nothing was measured for a while."""
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    usual = max(1, steps[len(steps) // 2])
    runs = [[points[0]]]
    for before, after in pairwise(points):
        if after[0] - before[0] > GAP * usual:
            runs.append([])
        runs[-1].append(after)
    return runs
