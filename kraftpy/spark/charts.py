"""Charts over time as SVG: bars in layers, and lines. Pure, and of the standard library; equal values, equal text.

Colours are classes (`c0`, `c1`, ...) that the page's style sheet defines, so that a page can have two sets of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 12, 30
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One place in time: values of the layers from the bottom, and what is said of it."""

    at_ms: int
    values: tuple[float, ...]
    said: str


def bars(columns: Sequence[Column], *, unit: str) -> str:
    """Return an <svg> of bars whose layers stand on each other."""
    frame = _Frame.of(columns, max((sum(each.values) for each in columns), default=0.0), unit)
    width = min(10.0, max(1.5, (WIDTH - LEFT - RIGHT) / max(len(columns), 1) * 0.7))
    drawn = []
    for column in columns:
        x, below = frame.x(column.at_ms) - width / 2, 0.0
        layers = []
        for layer, value in enumerate(column.values):
            if value > 0:
                top = frame.y(below + value)
                size = f'width="{width:.1f}" height="{frame.y(below) - top:.1f}"'
                layers.append(f'<rect class="c{layer}" x="{x:.1f}" y="{top:.1f}" {size}/>')
            below += value
        drawn.append(f"<g><title>{escape(column.said)}</title>{''.join(layers)}</g>")
    return frame.around("".join(drawn))


def line(columns: Sequence[Column], *, unit: str) -> str:
    """Return an <svg> of a line through the first values; each place can be pointed at."""
    frame = _Frame.of(columns, max((each.values[0] for each in columns), default=0.0), unit)
    places = [(frame.x(each.at_ms), frame.y(each.values[0]), each.said) for each in columns]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    dots = "".join(
        f'<circle class="c0" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{escape(said)}</title></circle>'
        for x, y, said in places
    )
    return frame.around(f'<polyline class="line" points="{path}"/>{dots}')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes: from what is measured to places in the picture."""

    first_ms: int
    last_ms: int
    most: float
    unit: str

    @classmethod
    def of(cls, columns: Sequence[Column], most: float, unit: str) -> _Frame:
        first = min((each.at_ms for each in columns), default=0)
        last = max((each.at_ms for each in columns), default=0)
        return cls(first_ms=first, last_ms=max(last, first + 1_000), most=_round_up(most), unit=unit)

    def x(self, at_ms: int) -> float:
        return LEFT + 6 + (at_ms - self.first_ms) / (self.last_ms - self.first_ms) * (WIDTH - LEFT - RIGHT - 12)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)

    def around(self, inner: str) -> str:
        grid = []
        for part in range(5):
            value = self.most * part / 4
            y = self.y(value)
            grid.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            grid.append(
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)} {escape(self.unit)}</text>'
            )
        for at_ms in self._ticks():
            x = self.x(at_ms)
            grid.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{self._clock(at_ms)}</text>')
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(grid)}{inner}</svg>'

    def _ticks(self) -> list[int]:
        span_s = (self.last_ms - self.first_ms) / 1000
        step = next((each for each in _STEPS_S if span_s / each <= 8), max(1, math.ceil(span_s / 8 / 86_400)) * 86_400)
        first = -(-self.first_ms // (step * 1000)) * step * 1000
        return list(range(first, self.last_ms + 1, step * 1000))

    def _clock(self, at_ms: int) -> str:
        long = self.last_ms - self.first_ms > 86_400_000
        return clock(at_ms, "%m-%d %H:%M" if long else "%H:%M:%S")


def clock(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in UTC, or dashes for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "-"


def _round_up(most: float) -> float:
    """Return the next larger 1, 2, 4 or 8 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((power * each for each in (1, 2, 4, 8) if power * each >= most), power * 10)


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"
