"""What a checker says: anomalies with evidence, how many of each, and whether they are allowed.

An anomaly that the semantics of Kafka permit (a cycle of interleaved writes, say) is reported as `allowed` and does not
make a history invalid. A checker that found no operation of its kind has `examined` 0: that is no approval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.history import Op

MOST_KEPT = 32
"""Of one kind of anomaly, how many keep their evidence. All are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How strictly to judge."""

    allow: frozenset[str] = frozenset()
    """Names of anomalies to tolerate."""
    rw_edges: bool = False
    """Let a poll that did not see a later record precede its writer: for G-single and G2-item, which Kafka permits."""
    most_configurations: int = 200_000
    """Of the linearizability checker: beyond this it says that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One thing that must not (or may) be."""

    name: str
    text: str
    """A sentence with the keys, offsets and values."""
    ops: tuple[int, ...]
    """Indexes of the operations that prove it."""
    evidence: Mapping[str, Any]
    allowed: bool = False


@dataclass(slots=True)
class Verdict:
    """A checker's answer."""

    checker: str
    examined: int = 0
    """Operations of the checker's kind."""
    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Anomalies by name that are not allowed."""
    allowed_counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Any] = field(default_factory=dict)
    """What is good to know and wrong in no way."""

    @property
    def valid(self) -> bool:
        """No anomaly, but those allowed."""
        return not self.counts

    @property
    def names(self) -> set[str]:
        """The anomalies that are not allowed."""
        return set(self.counts)


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
