"""Linearizability: does a model allow one order of operations, each between its invocation and its completion?

Operations are taken in the order of their completions. For each, the configurations (the model's state, and which open
operations have already taken effect) are extended by open operations until this one has taken effect; those in which it
cannot are dropped. None left: not linearizable. (Wing and Gong's search, with Lowe's just-in-time linearization, and
every configuration visited once.)

An operation of unknown fate stays open for ever. Of two configurations that differ only in such operations, the one
that has used fewer can do all that the other can, and only it is kept.

Cost: linear in operations, exponential in those open at once. Beyond a limit the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from chaos.history import History, Op, Type


class Impossible(Enum):
    """A model's answer to an operation that cannot have ended as it did in this state."""

    IMPOSSIBLE = "impossible"


IMPOSSIBLE = Impossible.IMPOSSIBLE

Step = Callable[[Any, Op], Any]
"""(state, completion) -> the state after it, or IMPOSSIBLE. States are hashable. A completion of type info may have any
result; it is enough to give the effect it may have had."""


class _Configuration(NamedTuple):
    state: Hashable
    definite: int
    """Open operations with a completion to come that have taken effect, as bits."""
    unknown: int
    """Likewise those whose fate is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the search came to."""

    linearizable: bool | None
    """None: given up."""
    stuck: Op | None = None
    """The first operation (by completion) that can have taken effect in no order."""
    states: tuple[Any, ...] = ()
    """In which states the model could have been before it."""
    open: tuple[Op, ...] = ()
    """What else was under way."""
    configurations: int = 0


def judge(history: History, ops: Iterable[Op], initial: Hashable, step: Step, most: int) -> Judgement:
    """Judge completions (those of type fail have not happened, unless the model says what they mean).

    At first an operation of unknown fate takes effect only where nothing else explains a completion. An order that is
    found so is one. Where none is found, all is tried.
    """
    events: list[tuple[int, bool, Op]] = []
    for op in ops:
        events.append((history.invocation(op).index, False, op))
        if op.type is not Type.INFO:
            events.append((op.index, True, op))
    events.sort(key=lambda event: event[:2])
    judgement = _Search(initial, step, most, sparing=True).through(events)
    if judgement.linearizable:
        return judgement
    return _Search(initial, step, most, sparing=False).through(events)


class _Search:
    def __init__(self, initial: Hashable, step: Step, most: int, *, sparing: bool) -> None:
        self._step = step
        self._most = most
        self._sparing = sparing
        self._configurations = {_Configuration(initial, 0, 0)}
        self._definite: dict[int, Op] = {}
        self._unknown: dict[int, Op] = {}
        self._slot_of: dict[int, int] = {}
        self._visited = 0
        self._over = False

    def through(self, events: list[tuple[int, bool, Op]]) -> Judgement:
        """All invocations and completions."""
        for _, completes, op in events:
            if not completes:
                self._open(op)
                continue
            found = self._close(op)
            if self._over:
                return Judgement(linearizable=None, stuck=op, configurations=self._visited)
            if not found:
                return self._failed(op)
            del self._definite[self._slot_of.pop(op.index)]
            self._configurations = found
        return Judgement(linearizable=True, configurations=self._visited)

    def _open(self, op: Op) -> None:
        slots = self._unknown if op.type is Type.INFO else self._definite
        slot = 1
        while slot in slots:
            slot <<= 1
        slots[slot] = op
        self._slot_of[op.index] = slot

    def _close(self, op: Op) -> set[_Configuration]:
        """Configurations in which it has taken effect."""
        everything = len(self._unknown)
        for most_unknown in range(everything + 1) if self._sparing else (everything,):
            found = self._extend(self._slot_of[op.index], most_unknown)
            if found or self._over:
                break
        return self._undominated(found)

    def _extend(self, slot: int, most_unknown: int) -> set[_Configuration]:
        """All that can be reached with at most so many more operations of unknown fate."""
        found: set[_Configuration] = set()
        spent = dict.fromkeys(self._configurations, 0)
        work = sorted(self._configurations, key=lambda c: (c.unknown, c.definite))
        while work and not self._over:
            configuration = work.pop()
            if configuration.definite & slot:
                found.add(configuration._replace(definite=configuration.definite & ~slot))
                continue
            for extended in self._extensions(configuration):
                cost = spent[configuration] + (extended.unknown != configuration.unknown)
                if cost <= most_unknown and cost < spent.get(extended, most_unknown + 1):
                    spent[extended] = cost
                    work.append(extended)
            self._over = len(spent) > self._most
        self._visited += len(spent)
        return found

    def _extensions(self, configuration: _Configuration) -> Iterator[_Configuration]:
        for slot, op in self._definite.items():
            if not configuration.definite & slot:
                state = self._step(configuration.state, op)
                if state is not IMPOSSIBLE:
                    yield _Configuration(state, configuration.definite | slot, configuration.unknown)
        for slot, op in self._unknown.items():
            if not configuration.unknown & slot:
                state = self._step(configuration.state, op)
                if state is not IMPOSSIBLE and state != configuration.state:
                    yield _Configuration(state, configuration.definite, configuration.unknown | slot)

    @staticmethod
    def _undominated(found: set[_Configuration]) -> set[_Configuration]:
        alike: dict[tuple[Hashable, int], list[int]] = {}
        for configuration in sorted(found, key=lambda c: (c.unknown.bit_count(), c.unknown)):
            kept = alike.setdefault((configuration.state, configuration.definite), [])
            if not any(fewer & configuration.unknown == fewer for fewer in kept):
                kept.append(configuration.unknown)
        return {_Configuration(*like, unknown) for like, masks in alike.items() for unknown in masks}

    def _failed(self, op: Op) -> Judgement:
        states = sorted({repr(configuration.state) for configuration in self._configurations})
        others = (*self._definite.values(), *self._unknown.values())
        return Judgement(
            linearizable=False,
            stuck=op,
            states=tuple(states),
            open=tuple(other for other in others if other is not op),
            configurations=self._visited,
        )
