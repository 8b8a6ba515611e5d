"""A checker's verdict: anomalies with evidence, how many of each, and whether they are allowed.

An anomaly that the semantics of Kafka permit (a cycle of interleaved writes, say) is reported as `allowed` and does
not make a history invalid. A checker that found no operation of its kind has `examined` 0, which is no approval.
Neither is a search that was given up: its subject is `undecided`, neither right nor an anomaly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from chaos.history import Op

MOST_KEPT = 32
"""The number of anomalies of one kind that keep their evidence. All are counted."""

MOST_STEPS = 5_000_000
"""A count rather than a time, so that the answer is the same on every machine: five to ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The strictness of the checkers."""

    allow: frozenset[str] = frozenset()
    """Names of anomalies to tolerate."""
    rw_edges: bool = False
    """Let a poll that did not see a later record precede its writer: for G-single and G2-item, which Kafka permits."""
    most_steps: int = MOST_STEPS
    """The limit for one key's linear order; a search that exceeds it leaves the key undecided."""


class Answer(Enum):
    """A one-word verdict. Only the first is an approval."""

    RIGHT = "right"
    WRONG = "wrong"
    UNDECIDED = "undecided"
    NOTHING = "nothing to judge"


class Status(IntEnum):
    """The exit status of a command that judges. (2 means that the command line was not understood.)"""

    RIGHT = 0
    WRONG = 1
    UNDECIDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One thing that must not be, or that is allowed."""

    name: str
    text: str
    """A sentence with the keys, offsets and values."""
    ops: tuple[int, ...]
    """Indexes of the operations that prove it."""
    evidence: Mapping[str, Any]
    allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """One key (a topic, say) for which the checker does not know if anything is wrong."""

    key: str
    text: str
    """A sentence that says why."""
    ops: tuple[int, ...]
    """Indexes of the operations at which the search was given up."""
    evidence: Mapping[str, Any]


@dataclass(slots=True)
class Verdict:
    """A checker's answer."""

    checker: str
    examined: int = 0
    """The number of operations of the checker's kind."""
    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Anomalies by name that are not allowed."""
    allowed_counts: Counter[str] = field(default_factory=Counter)
    undecided: list[Undecided] = field(default_factory=list)
    """One entry for each key, without a limit."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Facts that are good to know and never wrong."""

    @property
    def valid(self) -> bool:
        """Return True if there are no anomalies beyond the allowed ones, and nothing is undecided."""
        return not self.counts and not self.undecided

    @property
    def answer(self) -> Answer:
        """Return the answer; an anomaly counts even if something else is undecided."""
        if self.counts:
            return Answer.WRONG
        if self.undecided:
            return Answer.UNDECIDED
        return Answer.RIGHT if self.examined else Answer.NOTHING

    @property
    def names(self) -> set[str]:
        """Return the anomalies that are not allowed."""
        return set(self.counts)


def status(verdicts: Iterable[Verdict], problems: Iterable[str] = ()) -> Status:
    """Return the answer for a history that was judged, given its problems besides anomalies."""
    answers = {verdict.answer for verdict in verdicts}
    if any(problems) or Answer.WRONG in answers:
        return Status.WRONG
    return Status.UNDECIDED if Answer.UNDECIDED in answers else Status.RIGHT


class Findings:
    """Collects anomalies for one verdict."""

    def __init__(self, checker: str, options: Options) -> None:
        self.verdict = Verdict(checker)
        self._options = options

    def add(self, name: str, text: str, ops: Iterable[Op | None], *, allowed: bool = False, **evidence: Any) -> None:
        """Report an anomaly."""
        allowed = allowed or name in self._options.allow
        counts = self.verdict.allowed_counts if allowed else self.verdict.counts
        counts[name] += 1
        if counts[name] <= MOST_KEPT:
            indexes = tuple(op.index for op in ops if op is not None)
            found = Anomaly(name=name, text=text, ops=indexes, evidence=evidence, allowed=allowed)
            self.verdict.anomalies.append(found)

    def undecided(self, key: str, text: str, ops: Iterable[Op | None], **evidence: Any) -> None:
        """Report a key as undecided."""
        indexes = tuple(op.index for op in ops if op is not None)
        self.verdict.undecided.append(Undecided(key=key, text=text, ops=indexes, evidence=evidence))
