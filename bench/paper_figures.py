"""The figures of the paper's bench: megabytes so far to the right, messages a second upwards, a line for each system.

Drawn by matplotlib without a display; the same points give the same bytes. Text stays text.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence

_INK, _QUIET, _GRID = "#1f2933", "#6b7785", "#e4e8ec"
_COLOURS = {"kraftpy": "#2f6db5", "Apache Kafka": "#c2452d", "RabbitMQ": "#2b8a6a", "ActiveMQ Artemis": "#8a5fb0"}

Points = Sequence[tuple[float, float]]


def figure(title: str, below: str, lines: Mapping[str, Points]) -> str:
    """Return an SVG. The lines' names begin with those of the systems, and lines of batch 1 are dashed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of matplotlib's own dependencies
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.ticker import StrMethodFormatter

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paper", "font.family": "sans-serif"}):
            drawn = Figure(figsize=(8.4, 4.8), facecolor="white")
            FigureCanvasSVG(drawn)
            axes = drawn.subplots()
            drawn.subplots_adjust(left=0.1, right=0.98, top=0.88, bottom=0.11)
            for name, points in lines.items():
                colour = next((each for system, each in _COLOURS.items() if name.startswith(system)), _INK)
                dashes = "--" if name.endswith("batch 1") else "-"
                across, up = zip(*points, strict=True) if points else ((), ())
                axes.plot(across, up, dashes, color=colour, lw=1.5, marker=".", ms=4, label=name)
            axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK)
            axes.set_xlabel(below, fontsize=9, color=_QUIET)
            axes.set_ylabel("messages a second", fontsize=9, color=_QUIET)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.tick_params(length=0, colors=_QUIET, labelsize=8.5)
            axes.grid(axis="y", color=_GRID, lw=0.8)
            axes.set_axisbelow(True)
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            axes.spines["bottom"].set_color(_GRID)
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=8.5, frameon=False)
            text = io.StringIO()
            drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
