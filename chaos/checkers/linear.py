"""Linearizability: does a model allow an order of operations in which each lies between its invocation and completion?

Operations are taken in the order of their completions. For each, the configurations (the model's state, and which open
operations have already taken effect) are extended by open operations until this one has taken effect; those in which
it cannot are dropped. If none is left, the history is not linearizable. (Wing and Gong's search, with Lowe's
just-in-time linearization, and every configuration visited once.) Whenever nothing is open, a configuration is just a
state, so the history splits there without further effort.

These rules keep the search small without changing its answer:

- An operation of unknown fate stays open forever. If two configurations differ only in such operations, the one that
  has used fewer can do all that the other can, and only it is kept. Equal ones are used in the order of their
  invocations, so that only their number counts.
- An operation that only reads takes effect as soon as it can.
- A model may say from when on no observer can distinguish two operations of unknown fate, or two states.

The search then goes from cheap to exact. First each completion is explained by as few operations of unknown fate as it
can be, and few configurations are kept; where none is left it goes back a little way, with more of them. An order that
is found so is one. If none is, the search is made with every operation of unknown fate as often as one likes, which
leaves nothing to remember of them: if even so there is no order, there is none. Only histories that are still
undecided are searched again from the beginning with more and more configurations, and in the end with all.

Cost: linear in operations, exponential in those open at once, where the first two do not decide. The total number of
steps is limited (a step is one configuration tried with one operation); beyond the limit the answer is "unknown". The
steps depend on the history alone, not on time or hashes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from chaos.history import History, Op, Type

_FIRST_WIDTH: Final = 32
"""How many configurations are kept at first, and by what factor that grows with each further attempt."""
_WIDER: Final = 8
_BACK: Final = (8, 32, 128)
"""How many completions the search goes back when it is stuck, the first time, the second, and so on."""
_COMPARED_IN_A_STEP: Final = 8
_PATIENCE: Final = 256
"""The number of steps that a completion may take for each of these."""


class Impossible(Enum):
    """A model's answer if an operation cannot have ended as it did in this state."""

    IMPOSSIBLE = "impossible"


IMPOSSIBLE = Impossible.IMPOSSIBLE

Step = Callable[[Any, Any], Any]
"""(state, completion or its action) -> the state after it, or IMPOSSIBLE. States are hashable. A completion of type
info may have any result; it is enough to give the effect it may have had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts a model knows about completions, which shorten the search. Each is optional."""

    action: Callable[[Op], Hashable] | None = None
    """The operation's effect, passed to the model in its place: operations with equal actions are alike in every
    state."""
    reads: Callable[[Op], bool] = lambda op: False
    """Return True if the operation changes no state."""
    later: Callable[[Op], tuple[int, Hashable | None] | None] = lambda op: None
    """For an action of unknown fate: the completion after which it is as good as another action (None: as none at all),
    because no observer can see a difference any more. Actions that are alike have the same."""
    blurs: frozenset[int] = frozenset()
    """Completions after which no observer can distinguish some states."""
    blur: Callable[[Any, int], Any] = lambda state, index: state
    """Return the state as it is from then on: the same for all states that cannot be told apart."""


_NO_FACTS: Final = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of the search."""

    linearizable: bool | None
    """None if undecided."""
    stuck: Op | None = None
    """The first operation (by completion) that no order can place, or the one at which the search gave up."""
    states: tuple[Any, ...] = ()
    """The states the model could have been in before it."""
    open: tuple[Op, ...] = ()
    """Other operations that were open, with a completion to come."""
    unknown: tuple[Op, ...] = ()
    """Other operations of unknown fate that could have explained something, in order of invocation."""
    steps: int = 0


def judge(
    history: History, ops: Iterable[Op], initial: Hashable, step: Step, most_steps: int, facts: Facts = _NO_FACTS
) -> Judgement:
    """Judge completions (those of type fail have not happened, unless the model says what they mean)."""
    events = _events(history, ops, facts)
    budget = _Budget(step)

    def search(width: int | None, spare: int | None, *, repeated: bool = False) -> Judgement:
        return _Search(budget, initial, facts, width=width, spare=spare, repeated=repeated).through(events)

    budget.most = most_steps // 2
    judgement = search(_FIRST_WIDTH, 0)
    if judgement.linearizable is not None:
        return judgement
    budget.most = most_steps * 3 // 4
    generous = search(None, None, repeated=True)
    if generous.linearizable is False:
        return generous
    budget.most = most_steps
    width, spare = _FIRST_WIDTH, 0
    while True:
        width, spare = width * _WIDER, spare + 1
        judgement = search(width, spare)
        if judgement.linearizable is not None or budget.is_over:
            return judgement


class _Call(NamedTuple):
    """An operation as the search sees it."""

    op: Op
    reads: bool
    is_known: bool
    action: Any
    sort: int
    """The same number for all calls that are alike."""
    later: _Call | None = None
    """The call it becomes once it fades; None if it becomes nothing."""


class _What(Enum):
    """The kinds of event at a place in the history."""

    OPENS = 0
    CLOSES = 1
    FADES = 2


_Event = tuple[int, _What, _Call]


def _events(history: History, ops: Iterable[Op], facts: Facts) -> list[_Event]:
    events: list[_Event] = []
    sorts: dict[Hashable, int] = {}
    for op in ops:
        begins = history.invocation(op).index
        action = op if facts.action is None else facts.action(op)
        sort = sorts.setdefault(op.index if facts.action is None else action, len(sorts))
        call = _Call(op, facts.reads(op), op.type is not Type.INFO, action, sort)
        if call.is_known:
            events.append((op.index, _What.CLOSES, call))
        elif call.reads:
            continue
        elif (later := facts.later(op)) is not None:
            index, action = later
            if action is not None:
                other = sorts.setdefault(action, len(sorts))
                call = call._replace(later=call._replace(action=action, sort=other))
            if index < begins:
                if call.later is None:
                    continue
                call = call.later
            else:
                events.append((index, _What.FADES, call))
        events.append((begins, _What.OPENS, call))
    return sorted(events, key=lambda event: (event[0], event[1].value))


class _Budget:
    """Counts steps over all attempts, and caches the result of each."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._known: dict[tuple[Hashable, int], Any] = {}
        self.most = 0
        self.steps = 0

    @property
    def is_over(self) -> bool:
        """Return True if the budget is used up."""
        return self.steps > self.most

    def step(self, state: Hashable, call: _Call) -> Any:
        """Return the state after the call, or IMPOSSIBLE."""
        self.steps += 1
        key = (state, call.sort)
        after = self._known.get(key, self)
        if after is self:
            after = self._known[key] = self._step(state, call.action)
        return after


class _Configuration(NamedTuple):
    state: Hashable
    written: int
    """Writing operations with a completion to come that have taken effect, as bits."""
    read: int
    """The same for operations that only read."""
    unknown: int
    """Operations of unknown fate that have taken effect."""


class _Kept:
    """Configurations, none of which is covered by an earlier one."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._alike: dict[tuple[Hashable, int], list[tuple[int, int]]] = {}

    def add(self, configuration: _Configuration) -> bool:
        """Add a configuration; return True unless an equal or better one is there."""
        state, written, read, unknown = configuration
        alike = self._alike.setdefault((state, written), [])
        self._budget.steps += len(alike) // _COMPARED_IN_A_STEP
        for more, fewer in alike:
            if more & read == read and fewer & unknown == fewer:
                return False
        alike.append((read, unknown))
        return True


@dataclass(slots=True)
class _Open:
    """Calls that are open, each at a bit of its own."""

    calls: dict[int, _Call] = field(default_factory=dict)
    bits: dict[int, int] = field(default_factory=dict)
    """By the operation's index."""
    taken: int = 0

    def add(self, call: _Call) -> int:
        """Add a call and return the lowest free bit."""
        bit = ~self.taken & (self.taken + 1)
        self.taken |= bit
        self.calls[bit] = call
        self.bits[call.op.index] = bit
        return bit

    def remove(self, call: _Call) -> int:
        """Remove a call and return its bit."""
        bit = self.bits.pop(call.op.index)
        self.taken &= ~bit
        del self.calls[bit]
        return bit


class _Search:
    """One attempt, from the first event to the last, or to the one at which no configuration is left."""

    def __init__(
        self, budget: _Budget, initial: Hashable, facts: Facts, *, width: int | None, spare: int | None, repeated: bool
    ) -> None:
        self._budget = budget
        self._facts = facts
        self._usual = (width, spare)
        self._width = width
        self._spare = spare
        """How many operations of unknown fate are tried beyond the fewest that explain a completion."""
        self._repeated = repeated
        """If True, they may take effect any number of times."""
        self._configurations = [_Configuration(initial, 0, 0, 0)]
        self._before: deque[tuple[int, list[_Configuration]]] = deque(maxlen=max(_BACK))
        """The places of the last completions, with the configurations there."""
        self._steps_before = 0
        """Steps before the current completion."""
        self._is_partial = False
        """True if something was left untried."""
        self._stuck_at = -1
        self._times_stuck = 0
        self._nothing_open()

    def _nothing_open(self) -> None:
        self._writers = _Open()
        self._readers = _Open()
        self._unknown = _Open()
        self._sorts: dict[int, list[int]] = {}
        """Bits of equal operations of unknown fate, in the order of their invocations."""
        self._bits_of_sort: dict[int, int] = {}

    def through(self, events: list[_Event]) -> Judgement:
        """Search through all events."""
        place = 0
        while place < len(events):
            _, what, call = events[place]
            if what is not _What.CLOSES:
                self._moves(what, call)
            else:
                self._before.append((place, self._configurations))
                found = self._close(call)
                if self._budget.is_over:
                    return Judgement(linearizable=None, stuck=call.op, steps=self._budget.steps)
                if not found:
                    if not self._can_go_back(place):
                        return self._failed(call.op)
                    place = self._go_back(events)
                    continue
                self._moves(what, call)
                self._configurations = self._blurred(found, call.op.index)
                if place == self._stuck_at:
                    self._width, self._spare = self._usual
            place += 1
        return Judgement(linearizable=True, steps=self._budget.steps)

    def _can_go_back(self, place: int) -> bool:
        """Return True if something was left untried and going back may help."""
        if place > self._stuck_at:
            self._stuck_at, self._times_stuck = place, 0
        self._times_stuck += 1
        return self._is_partial and self._times_stuck <= len(_BACK)

    def _go_back(self, events: list[_Event]) -> int:
        """Go back to an earlier completion, with more configurations until this one is past; return its place."""
        width, spare = self._usual
        assert width is not None
        assert spare is not None
        self._width, self._spare = width * _WIDER**self._times_stuck, spare + self._times_stuck
        for _ in range(min(_BACK[self._times_stuck - 1], len(self._before))):
            place, configurations = self._before.pop()
        self._budget.steps += place
        self._nothing_open()
        self._configurations = []
        for _, what, call in events[:place]:
            self._moves(what, call)
        self._configurations = configurations
        return place

    def _moves(self, what: _What, call: _Call) -> None:
        """Update the open calls, and the state that depends only on them."""
        match what:
            case _What.OPENS:
                self._opens(call)
            case _What.FADES:
                self._fades(call)
            case _What.CLOSES:
                (self._readers if call.reads else self._writers).remove(call)

    def _opens(self, call: _Call) -> None:
        if not call.is_known:
            bit = self._unknown.add(call)
            self._sorts.setdefault(call.sort, []).append(bit)
            self._bits_of_sort[call.sort] = self._bits_of_sort.get(call.sort, 0) | bit
        elif call.reads:
            self._readers.add(call)
            self._configurations = [self._having_read(configuration) for configuration in self._configurations]
        else:
            self._writers.add(call)

    def _fades(self, call: _Call) -> None:
        """Let a call fade, together with all that are alike."""
        bits, gone = self._sorts.pop(call.sort, []), self._bits_of_sort.pop(call.sort, 0)
        if not bits:
            return
        if call.later is None:
            for bit in bits:
                self._unknown.remove(self._unknown.calls[bit])
            self._configurations = self._best(c._replace(unknown=c.unknown & ~gone) for c in self._configurations)
            return
        for bit in bits:
            later = self._unknown.calls[bit].later
            assert later is not None
            self._unknown.calls[bit] = later
        both = self._sorts.setdefault(call.later.sort, [])
        both += bits
        every = self._bits_of_sort[call.later.sort] = self._bits_of_sort.get(call.later.sort, 0) | gone
        first = list(itertools.accumulate(both, int.__or__, initial=0))
        self._configurations = self._best(
            c._replace(unknown=c.unknown & ~every | first[(c.unknown & every).bit_count()])
            for c in self._configurations
        )

    def _blurred(self, configurations: list[_Configuration], index: int) -> list[_Configuration]:
        if index not in self._facts.blurs:
            return configurations
        return self._best(c._replace(state=self._facts.blur(c.state, index)) for c in configurations)

    def _close(self, call: _Call) -> list[_Configuration]:
        """Return the configurations in which the call has taken effect."""
        if call.reads:
            bit = self._readers.bits[call.op.index]
            found = [c._replace(read=c.read & ~bit) for c in self._extend(lambda c: c.read & bit != 0)]
        else:
            bit = self._writers.bits[call.op.index]
            found = [c._replace(written=c.written & ~bit) for c in self._extend(lambda c: c.written & bit != 0)]
        return self._best(found)

    def _best(self, configurations: Iterable[_Configuration]) -> list[_Configuration]:
        kept = _Kept(self._budget)
        ordered = sorted(configurations, key=lambda c: (c.unknown.bit_count(), -c.read.bit_count()))
        return [configuration for configuration in ordered if kept.add(configuration)]

    def _extend(self, is_done: Callable[[_Configuration], bool]) -> list[_Configuration]:
        """Return all configurations reachable with the allowed number of operations of unknown fate."""
        found: list[_Configuration] = []
        kept = _Kept(self._budget)
        level = [configuration for configuration in self._configurations if kept.add(configuration)]
        levels_left = self._spare
        self._steps_before = self._budget.steps
        while level:
            undone = []
            for configuration in level:  # the list grows during the loop
                if is_done(configuration):
                    found.append(configuration)
                else:
                    undone.append(configuration)
                    level += (each for each in self._written(configuration) if kept.add(each))
                if self._is_enough(found):
                    return found
            if found and levels_left is not None:
                if not levels_left:
                    self._is_partial |= bool(undone and self._sorts)
                    break
                levels_left -= 1
            level = []
            for configuration in undone:
                level += (each for each in self._supposed(configuration) if kept.add(each))
                if self._is_enough(found):
                    return found
        return found

    def _is_enough(self, found: list[_Configuration]) -> bool:
        if self._budget.is_over:
            return True
        if self._width is None:
            return False
        steps = self._budget.steps - self._steps_before
        is_enough = len(found) >= self._width or steps > self._width * _PATIENCE
        self._is_partial |= is_enough
        return is_enough

    def _written(self, configuration: _Configuration) -> Iterator[_Configuration]:
        """Apply one more open operation with a completion to come."""
        state, written, read, unknown = configuration
        for bit, call in self._writers.calls.items():
            if not written & bit:
                after = self._budget.step(state, call)
                if after is not IMPOSSIBLE:
                    yield self._having_read(_Configuration(after, written | bit, read, unknown))

    def _supposed(self, configuration: _Configuration) -> Iterator[_Configuration]:
        """Apply one more operation of unknown fate."""
        state, written, read, unknown = configuration
        for sort, bits in self._sorts.items():
            used_up = (unknown & self._bits_of_sort[sort]).bit_count()
            if used_up < len(bits):
                bit = bits[used_up]
                after = self._budget.step(state, self._unknown.calls[bit])
                if after is not IMPOSSIBLE and after != state:
                    used = unknown if self._repeated else unknown | bit
                    yield self._having_read(_Configuration(after, written, read, used))

    def _having_read(self, configuration: _Configuration) -> _Configuration:
        read = configuration.read
        for bit, call in self._readers.calls.items():
            if not read & bit and self._budget.step(configuration.state, call) is not IMPOSSIBLE:
                read |= bit
        return configuration._replace(read=read) if read != configuration.read else configuration

    def _failed(self, op: Op) -> Judgement:
        if self._is_partial:
            return Judgement(linearizable=None, stuck=op, steps=self._budget.steps)
        others = (*self._writers.calls.values(), *self._readers.calls.values())
        unknown = sorted(call.op.index for call in self._unknown.calls.values())
        by_index = {call.op.index: call.op for call in self._unknown.calls.values()}
        return Judgement(
            linearizable=False,
            stuck=op,
            states=tuple(sorted({c.state for c in self._configurations}, key=repr)),
            open=tuple(call.op for call in others if call.op is not op),
            unknown=tuple(by_index[index] for index in unknown),
            steps=self._budget.steps,
        )
