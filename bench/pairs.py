"""Runs in pairs: the same load on ours and on a peer, in turn, so that what disturbs the machine disturbs both."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench import machine

Figures = dict[str, Any]
Runs = list[list[Figures]]
"""The figures of each run, of ours and then of the peer's, which is the last."""

Side = TypeVar("Side")


def in_turn(pairs: int, sides: Sequence[Side], run: Callable[[Side], Figures]) -> Runs:
    """Run on both, or on all, `pairs` times; every other time the last begins."""
    runs: Runs = [[] for _ in sides]
    for pair in range(pairs):
        order = range(len(sides))
        for side in order if pair % 2 == 0 else reversed(order):
            runs[side].append(run(sides[side]))
    return runs


def ratio_of(runs: Runs, key: str, side: int = 0) -> float:
    """Return the median of the pairs' ratios, ours (or another side of ours) divided by the peer's."""
    return statistics.median(ours[key] / theirs[key] for ours, theirs in zip(runs[side], runs[-1], strict=True))


def median(runs: list[Figures], key: str) -> float:
    """Return the median of one side."""
    return statistics.median(run[key] for run in runs)


def ended(process: subprocess.Popen[str]) -> Figures:
    """Wait for a load that prints a line of JSON; return its figures. Raises RuntimeError if it fails."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args} failed")
    figures: Figures = json.loads(output)
    return figures


def options(settings: Sequence[str]) -> list[str]:
    """Return the arguments of a load for settings, each name=value."""
    return [part for setting in settings for part in ("--setting", setting)]


def met(yes: bool) -> str:
    """Say whether a target was reached."""
    return "met" if yes else "missed"


def write_results(
    output: Path, title: str, target: str, lines: Sequence[str], *, directory: Path, load_before: float, pairs: int
) -> None:
    """Write the file of results that `make` with this target keeps: the machine, the number of pairs, the lines."""
    head = [
        f"# {title}, beside Apache Kafka 4.3.1",
        "",
        f"Written by `make {target}` (`python -m {target.replace('-', '.')}`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(directory)),
        f"- load average {load_before:.1f} before; medians of {pairs} pairs",
    ]
    output.write_text("\n".join([*head, *lines]) + "\n")
