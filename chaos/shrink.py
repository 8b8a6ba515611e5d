"""Reduces a failing seed to fewer and shorter faults: the same anomaly, and less to read.

    shrunk = shrink(outcome.faults, fails, most_runs=60)

`fails` runs the seed with a schedule and returns True if the finding is still there. First faults are left out, many
at once while that works (delta debugging), then parts of those that are several at once, then each is made shorter.

Invariants: the result did fail, in its order of time; no more than `most_runs` runs are made, and
`is_minimal` says whether they were enough to try every fault that is left on its own.

Left out: the workload. A schedule of other faults moves everything that comes after, so an anomaly that needs a rare
coincidence may not survive any reduction: then all faults stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chaos.nemesis import Fault, Kind

_SHORTEST_MS = 200

Fails = Callable[[Sequence[Fault]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The reduced schedule."""

    faults: tuple[Fault, ...]
    runs: int
    is_minimal: bool
    """True if no fault can be left out; False if the runs were used up before that was known."""


class _OutOfRuns(Exception):
    """The limit of runs is reached."""


class _Trial:
    """Runs schedules, and keeps the smallest that failed."""

    def __init__(self, faults: Sequence[Fault], fails: Fails, most_runs: int) -> None:
        self.best = tuple(faults)
        self.runs = 0
        self._fails = fails
        self._most_runs = most_runs
        self._known: dict[str, bool] = {}

    def fails(self, faults: Sequence[Fault]) -> bool:
        """Return True if this schedule fails; if so it is the best so far. Raises `_OutOfRuns`."""
        key = repr([fault.as_value() for fault in faults])
        known = self._known.get(key)
        if known is None:
            if self.runs >= self._most_runs:
                raise _OutOfRuns
            self.runs += 1
            known = self._known[key] = self._fails(faults)
        if known:
            self.best = tuple(faults)
        return known


def shrink(faults: Sequence[Fault], fails: Fails, *, most_runs: int = 60) -> Shrunk:
    """Return the smallest schedule that still fails, as far as a limited number of runs can show."""
    trial = _Trial(faults, fails, most_runs)
    is_minimal = False
    try:
        _fewer(trial)
        _fewer_at_once(trial)
        is_minimal = True
        _shorter(trial)
    except _OutOfRuns:
        pass
    return Shrunk(faults=trial.best, runs=trial.runs, is_minimal=is_minimal)


def _fewer(trial: _Trial) -> None:
    """Delta debugging: leave out ever smaller parts, until no single fault can be left out."""
    if not trial.best or trial.fails(()):
        return
    parts = 2
    while len(trial.best) >= 2:
        faults = trial.best
        size = -(-len(faults) // parts)
        for first in range(0, len(faults), size):
            if trial.fails(faults[:first] + faults[first + size :]):
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                return
            parts = min(parts * 2, len(faults))


def _fewer_at_once(trial: _Trial) -> None:
    """Keep only the needed ones of several faults at once."""
    for place in range(len(trial.best)):
        part = 0
        while (fault := trial.best[place]).kind is Kind.SEVERAL and part < len(fault.settings["parts"]):
            left = [each for number, each in enumerate(fault.settings["parts"]) if number != part]
            fewer = (
                replace(left[0], id=fault.id, at_ms=fault.at_ms, lasts_ms=fault.lasts_ms)
                if len(left) == 1
                else replace(fault, settings={**fault.settings, "parts": tuple(left)})
            )
            if not trial.fails((*trial.best[:place], fewer, *trial.best[place + 1 :])):
                part += 1


def _shorter(trial: _Trial) -> None:
    """Halve each fault as long as the run still fails."""
    for place in range(len(trial.best)):
        while (fault := trial.best[place]).lasts_ms >= 2 * _SHORTEST_MS:
            lasts_ms = fault.lasts_ms // 2
            settings = dict(fault.settings)
            if fault.kind is Kind.SEVERAL:
                settings["parts"] = tuple(replace(part, lasts_ms=lasts_ms) for part in settings["parts"])
            shorter = replace(fault, lasts_ms=lasts_ms, settings=settings)
            if not trial.fails((*trial.best[:place], shorter, *trial.best[place + 1 :])):
                break
