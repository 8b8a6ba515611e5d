"""Resolves regular expressions to topic names, in bounded steps and with bounded memory for what is cached.

    matches = TopicMatches(topics)
    matches.advance(now)                 # before every event: elapsed time refills the budget
    matches.resolve(regex)               # the names, or None: not known yet, ask again a little later

All expressions of all groups of a node share one budget of work: `SLICE_UNITS` (about 10 ms) at once, refilled in
`REFILL_MS`. An expression remembers its position in the list of topics, so the next call continues from there, and
later calls only look at new topics. Matches are cached and evicted least recently used first, within `max_bytes`.
Cached matches cost none of the budget while the topics stay the same, so that an expression with many matches does not
keep others from being resolved. Automata are kept only for the last few expressions.

Kafka resolves expressions on a separate thread, and members wait for the result in the same way (KIP-848).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kraftpy.groups.patterns import FAILED_COMPILE_UNITS, Pattern, PatternError, shown
from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.groups.topics import Topics

SLICE_UNITS = 2_000
"""The units that may be spent at once; `patterns` says how long a unit is."""
REFILL_MS = 50
"""The time in which a slice is refilled."""
AGAIN_MS = REFILL_MS
"""How soon a caller that got no result should ask again."""
DEBT_UNITS = 4 * SLICE_UNITS
"""Once the debt exceeds this, no further client expressions are compiled."""
DEFAULT_CACHE_BYTES = 16 * 1024 * 1024
_MOST_AUTOMATA = 16
_MOST_LINES = 10
_NAMES_PER_UNIT = 20
"""Names sorted for a result, per unit."""
_ENTRY_BYTES = 500
_NUMBER_BYTES = 5
"""The memory of a number in an array that grows."""
_REFERENCE_BYTES = 8
"""The memory of a name in a result: the topics hold the names themselves."""


@dataclass(slots=True)
class _Entry:
    """The progress of one expression: it was matched against all topics with numbers below `position`."""

    position: int = 0
    found: array[int] = field(default_factory=lambda: array("I"))
    is_broken: bool = False
    names: tuple[str, ...] = ()
    """The result for the topics of `version`."""
    version: int | None = None

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + len(self.found) * _NUMBER_BYTES + len(self.names) * _REFERENCE_BYTES


class TopicMatches:
    """Resolves expressions to the names of the topics that currently match."""

    def __init__(self, topics: Topics, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._topics = topics
        self._max_bytes = max_bytes
        self._version: int | None = None
        self._names: list[str | None] = []  # by number, in the order first seen; None for a deleted topic
        self._numbers: dict[str, int] = {}
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0
        self._patterns: OrderedDict[str, Pattern] = OrderedDict()
        self._units = SLICE_UNITS
        self._at: Millis | None = None
        self._broken: list[str] = []

    # ---- work

    def advance(self, now: Millis) -> None:
        """Refill the budget up to this time. The clock should not jump; after a jump the new time is believed."""
        if self._at is not None and now > self._at:
            self._units = min(SLICE_UNITS, self._units + (now - self._at) * SLICE_UNITS // REFILL_MS)
        if self._at is None or now > self._at:
            self._at = now

    @property
    def is_spent(self) -> bool:
        """Return True if the budget is used up and nothing is resolved until time passes."""
        return self._units <= 0

    @property
    def is_overdrawn(self) -> bool:
        """Return True if clients have compiled so much that the next one must come back later."""
        return self._units <= -DEBT_UNITS

    def check(self, regex: str) -> None:
        """Raise PatternError if the expression cannot be compiled."""
        self._pattern(regex)

    def _pattern(self, regex: str) -> Pattern:
        pattern = self._patterns.get(regex)
        if pattern is None:
            try:
                pattern = Pattern(regex)
            except PatternError:
                self._units -= FAILED_COMPILE_UNITS
                raise
            self._units -= pattern.compile_units
            self._patterns[regex] = pattern
            if len(self._patterns) > _MOST_AUTOMATA:
                self._patterns.popitem(last=False)
        self._patterns.move_to_end(regex)
        return pattern

    # ---- answers

    def take_broken(self) -> list[str]:
        """Return log lines about stored expressions that cannot be compiled, each once."""
        broken, self._broken = self._broken, []
        return broken

    def resolve(self, regex: str) -> tuple[str, ...] | None:
        """Return the names of the matching topics, sorted, or None until all topics have been examined.

        A stored expression that can no longer be compiled matches nothing.
        """
        self._follow_topics()
        entry = self._entries.get(regex)
        if entry is None:
            entry = self._entries[regex] = _Entry()
            self._bytes += entry.size_bytes + len(regex)
        self._entries.move_to_end(regex)
        if entry.version is not None and entry.version == self._version:
            return entry.names
        before = entry.size_bytes
        is_known = self._units > 0 and self._continue(regex, entry)
        if is_known:
            self._units -= 1 + len(entry.found) // _NAMES_PER_UNIT
            entry.names = tuple(sorted(name for number in entry.found if (name := self._names[number]) is not None))
            entry.version = self._version
        self._bytes += entry.size_bytes - before
        self._shrink()
        return entry.names if is_known else None

    def _continue(self, regex: str, entry: _Entry) -> bool:
        """Continue with topics not examined yet; False if the budget runs out first."""
        names, end = self._names, len(self._names)
        if entry.is_broken or entry.position == end:
            return True
        try:
            pattern = self._pattern(regex)
        except PatternError as error:
            entry.is_broken = True
            self._broken = self._broken[-_MOST_LINES:]
            self._broken.append(f"the regular expression {shown(regex)} does not compile and matches nothing: {error}")
            return True
        position = entry.position
        while position < end and self._units > 0:
            name = names[position]
            if name is not None:
                self._units -= pattern.units(name)
                if pattern.matches(name):
                    entry.found.append(position)
            position += 1
        entry.position = position
        return position == end

    def _shrink(self) -> None:
        """Evict the least recently used results until the rest fits. The last one stays even if it is too large."""
        while self._bytes > self._max_bytes and len(self._entries) > 1:
            regex, entry = self._entries.popitem(last=False)
            self._bytes -= entry.size_bytes + len(regex)

    def _follow_topics(self) -> None:
        if self._version == self._topics.version:
            return
        self._version = self._topics.version
        now = self._topics.names()
        there = set(now)
        for name in [name for name in self._numbers if name not in there]:
            self._names[self._numbers.pop(name)] = None
        for name in now:
            if name not in self._numbers:
                self._numbers[name] = len(self._names)
                self._names.append(name)
        if len(self._names) > 2 * len(self._numbers) + 1_000:  # mostly deleted topics
            self._names = list(self._numbers)
            self._numbers = {name: number for number, name in enumerate(self._names) if name is not None}
            self._entries.clear()
            self._bytes = 0
