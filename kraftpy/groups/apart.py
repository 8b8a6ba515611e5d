"""Decisions about a group that pause while a large computation is done apart from the coordinator.

A decision is a generator. It yields `Work`, and is sent the result. Small work is done on the spot. For large work the
group's `Decision` is kept, the shell is asked to call the function in a thread (`Compute`), and the decision continues
when the result comes (`Computed`). Until then the group is changing: everything else about it waits in its queue, while
other groups are served.

A function that is done apart touches nothing that the coordinator may change meanwhile: it works on the decision's own
draft. Topics may change while it runs; then the group looks at the topics again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

UNITS_AT_ONCE: Final = 3_000
"""Work up to this size, about 10 ms, is done on the spot. A unit is a partition, task, topic or member."""

LIGHT: Final = 8
"""How many names or partitions are converted, copied or counted in the time of a unit."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A computation that takes about this many units."""

    units: int
    function: Callable[[], Any]


Deciding = Generator[Work, Any, T]
"""A decision with its result."""


@dataclass(slots=True, kw_only=True)
class Decision:
    """A decision that may pause, with its results so far.

    The types of its parts are those of `change_queue`: modules below that one need not know them.
    """

    token: int
    draft: Any
    answers: list[tuple[Any, Any]]
    """The requests that were decided on the draft, each with its response."""
    steps: Deciding[Any]
    """The rest of the decision."""
    step: Any
    """The step in which it began. It is renewed when the decision continues."""
    then: Callable[[Any, Any], None] | None = None
    """Continues with the result, in a step. Without it the draft is stored, and the requests are answered."""
