"""The scenarios: what both are asked, one after the other.

A scenario is a function that is handed a `Differ`. It makes what it asks about, under names that no other scenario has,
and asks; what it leaves behind is cleaned up, so that its answers are the same whichever scenarios ran before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worlds import OPEN

if TYPE_CHECKING:
    from differ import Differ

Ask = Callable[["Differ"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A function that asks, the number of nodes it is for, and the world they are in (`worlds`)."""

    name: str
    ask: Ask
    nodes: int
    world: str = OPEN


SCENARIOS: dict[str, Scenario] = {}


def add_scenario(name: str, ask: Ask, nodes: int = 1, world: str = OPEN) -> None:
    assert name not in SCENARIOS, name
    SCENARIOS[name] = Scenario(name=name, ask=ask, nodes=nodes, world=world)


def scenario(ask: Ask) -> Ask:
    """Add a function, under its own name."""
    add_scenario(ask.__name__, ask)
    return ask


def of_three_nodes(ask: Ask) -> Ask:
    """Add a function for clusters of three nodes."""
    add_scenario(ask.__name__, ask, nodes=3)
    return ask
