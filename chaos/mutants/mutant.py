"""A mutant: one rule of the product broken in one known way, for as long as a `with` block lasts.

A mutant replaces functions and methods of the product, in this process. It is to be small and believable: what somebody
might write who does not know the rule, not sabotage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PROBLEM = "problem"
"""What shows a mutant without being an anomaly in the history: a node that ended by itself, a client that hangs."""


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
    """What it breaks, and what should show it."""

    name: str
    breaks: str
    """A sentence about the broken product."""
    rule: str
    """Of the rules that the product's modules speak of: "17", or a word where it has no number."""
    shows: frozenset[str]
    """Anomalies of which any one is the proof; `PROBLEM` among them."""
    patches: tuple[Patch, ...]

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


def wrapped(owner: Any, name: str, by: Callable[[Any], Any]) -> Patch:
    """Put something in its place that may call it: `by` is given the original."""
    return Patch(owner=owner, name=name, replaced_by=by)
