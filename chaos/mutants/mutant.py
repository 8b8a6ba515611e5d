"""A mutant: one rule of the product broken in one known way, for as long as a `with` block lasts.

A mutant replaces functions and methods of the product, in this process. It must be small and believable: a mistake that
an engineer might make who does not know the rule, not sabotage.

If a rule only matters in a particular situation, the mutant creates it: `directed` changes what a seed draws, and
`faults` takes the place of its schedule. So few seeds are needed. The seed still decides when, and everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

from chaos.drawing import Drawn
from chaos.nemesis import Fault, Kind

ENDS = (Kind.KILL, Kind.PAUSE, Kind.PARTITION, Kind.STOP, Kind.ROLLING_RESTART, Kind.LOSE_UNSYNCED)
"""Faults that end or silence a node, so that others take over."""
_FEW = 6

PROBLEM = "problem"
"""Evidence of a mutant besides anomalies in the history: a node that ended unasked, a client that hangs."""


Faults = Callable[[Random, int], list[Fault]]
"""Draws a schedule of faults that lasts the given number of milliseconds."""
_QUIET_MS = 4_000
_BROKERS = 3


def as_drawn(drawn: Drawn) -> Drawn:
    """Return it unchanged."""
    return drawn


def three(
    *, controllers: int = 0, settings: Mapping[str, str] = MappingProxyType({}), **changes: Any
) -> Callable[[Drawn], Drawn]:
    """Three brokers, some controllers apart from them, and everything else that must differ from what a seed draws."""

    def directed(drawn: Drawn) -> Drawn:
        drifts = (0.0,) * (3 + controllers)
        together = {**drawn.settings, **settings}
        return replace(drawn, brokers=3, controllers=controllers, drifts=drifts, settings=together, **changes)

    return directed


def cycle(*parts: tuple[Kind, str, int, Mapping[str, Any]], pause_ms: tuple[int, int] = (1_000, 4_000)) -> Faults:
    """Return these faults (kind, target, mean milliseconds, settings) one directly after the other, repeated after a
    pause."""

    def faults(chance: Random, duration_ms: int) -> list[Fault]:
        made: list[Fault] = []
        now_ms = _QUIET_MS
        while True:
            for kind, target, mean_ms, settings in parts:
                lasts_ms = round(mean_ms * chance.uniform(0.7, 1.4))
                if now_ms + lasts_ms > duration_ms:
                    return made
                own = {
                    name: chance.choice(value) if isinstance(value, list) else value for name, value in settings.items()
                }
                made.append(
                    Fault(id=len(made), kind=kind, target=target, at_ms=now_ms, lasts_ms=lasts_ms, settings=own)
                )
                now_ms += lasts_ms
            now_ms += chance.randint(*pause_ms)

    return faults


def quiet(chance: Random, duration_ms: int) -> list[Fault]:
    """Return no faults: what clients do is enough."""
    return []


def rounds(
    *parts: tuple[int | tuple[int, int], Kind, str, int, Mapping[str, Any]],
    every_ms: int,
    jitter_ms: int = 150,
    nodes: str = "",
) -> Faults:
    """Return these faults, round by round; they may overlap. Each is given as: the milliseconds after the beginning of
    the round (or two bounds for them), kind, target, duration, settings.

    `nodes` are letters that targets may use, "node a": each stands for a broker, another one in each round. A list of
    letters among the settings (`replicas`, `to`) becomes those brokers.
    """

    def faults(chance: Random, duration_ms: int) -> list[Fault]:
        made: list[Fault] = []
        begin_ms = _QUIET_MS
        while begin_ms + every_ms <= duration_ms:
            numbers = dict(zip(nodes, chance.sample(range(1, _BROKERS + 1), k=len(nodes)), strict=True))
            for after_ms, kind, target, lasts_ms, settings in parts:
                between = after_ms if isinstance(after_ms, tuple) else (after_ms, after_ms + jitter_ms)
                at_ms = begin_ms + chance.randint(*between)
                word, _, letter = target.partition(" ")
                target = f"{word} {numbers[letter]}" if letter in numbers else target
                own = {
                    name: [numbers.get(each, each) for each in value] if isinstance(value, list) else value
                    for name, value in settings.items()
                }
                made.append(Fault(kind=kind, target=target, id=0, at_ms=at_ms, lasts_ms=lasts_ms, settings=own))
            begin_ms += every_ms
        made.sort(key=lambda fault: fault.at_ms)
        return [replace(fault, id=number) for number, fault in enumerate(made)]

    return faults


def replicated(drawn: Drawn) -> bool:
    """More than one broker."""
    return drawn.brokers > 1


def few(*kinds: Kind) -> Callable[[Drawn], bool]:
    """Three brokers, faults of a few kinds, which then meet each other often, and among them one of these."""
    return lambda drawn: drawn.brokers == 3 and len(drawn.kinds) <= _FEW and not set(kinds).isdisjoint(drawn.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A function or method to replace."""

    owner: Any
    """A class or module."""
    name: str
    replaced_by: Callable[[Any], Any]
    """Is given the original, gives what takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mutant: the rule that it breaks, and the anomalies that should show it."""

    name: str
    breaks: str
    """A sentence about the broken product."""
    rule: str
    """The rule, as the product's modules call it: "17", or a word if it has no number."""
    shows: frozenset[str]
    """Anomalies of which any one is the proof; `PROBLEM` among them."""
    patches: tuple[Patch, ...]
    needs: Callable[[Drawn], bool] = replicated
    """Returns True if a run, as `directed`, can show it: seeds that draw something else are not run."""
    directed: Callable[[Drawn], Drawn] = as_drawn
    """Changes what a seed draws."""
    faults: Faults | None = None
    """Faults that replace those that a seed draws."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the product in this process."""
        undo: list[tuple[Any, str, Any]] = []
        try:
            for patch in self.patches:
                raw = vars(patch.owner)[patch.name]  # as it stands there: a classmethod is one still
                undo.append((patch.owner, patch.name, raw))
                setattr(patch.owner, patch.name, patch.replaced_by(getattr(patch.owner, patch.name)))
            yield
        finally:
            for owner, name, raw in reversed(undo):
                setattr(owner, name, raw)


def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Patch:
    """Put something else in its place, which does not call it."""
    return Patch(owner=owner, name=name, replaced_by=lambda original: by)


def set_to(owner: Any, name: str, value: object) -> Patch:
    """Put a value in its place."""
    return Patch(owner=owner, name=name, replaced_by=lambda original: value)


def wrapped(owner: Any, name: str, by: Callable[[Any], Any]) -> Patch:
    """Put something in its place that may call it: `by` is given the original."""
    return Patch(owner=owner, name=name, replaced_by=by)
