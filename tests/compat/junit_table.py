"""Outcomes of Kafka's own tests, and the table of those that cannot pass, held against each other.

The table is `junit/cannot_pass.toml`: for each reason, the tests. A test is `class#method`, which stands for all its
runs, or `class#method[n]` for the n-th run of a template.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "junit" / "cannot_pass.toml"
NOT_ASKED = "not asked: "
"""Part of the cause of a test that this run leaves out."""
_RUN = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one test."""

    test: str
    outcome: str
    """passed, failed, aborted (by an assumption that does not hold), disabled (by Kafka)."""
    cause: str = ""
    notes: tuple[str, ...] = ()
    """Names that it looked for in Kafka's process, and lines about errors in nodes' logs."""
    is_flaky_in_kafka: bool = False
    seconds: float = 0.0

    @classmethod
    def read(cls, line: dict[str, Any]) -> Outcome:
        """Read a line that `Outcomes.java` has written."""
        return cls(
            test=line["test"],
            outcome=line["outcome"],
            cause=line["cause"],
            notes=tuple(line.get("notes", ())),
            is_flaky_in_kafka=line["is_flaky_in_kafka"],
            seconds=line["seconds"],
        )

    @property
    def is_left_out(self) -> bool:
        return NOT_ASKED in self.cause

    @property
    def has_crashed_a_node(self) -> bool:
        """True if a node logged a traceback: a bug, even if the test passes."""
        return any("Traceback" in note for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A test that cannot pass."""

    test: str
    reason: str
    may_pass: bool
    """True if it passes now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All outcomes, sorted out."""

    passed: Sequence[Outcome]
    explained: Sequence[tuple[Outcome, Entry]]
    """Tests that did not pass, and are in the table."""
    failed: Sequence[Outcome]
    """Tests that did not pass, and are not in the table."""
    disabled: Sequence[Outcome]
    crashed: Sequence[Outcome]
    stale: Sequence[str]
    """Entries whose test passed, or does not exist."""

    @property
    def is_good(self) -> bool:
        return not (self.failed or self.crashed or self.stale)


def read_outcomes(class_name: str, text: str, trouble: str = "") -> list[Outcome]:
    """Read the file that `Outcomes.java` has written about a class.

    If its JVM had trouble, or ended before the class was done, the class itself has failed: tests of it have not run.
    """
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]  # the last one may be cut
    found = [Outcome.read(line) for line in lines if "outcome" in line]
    if not trouble and not any(line.get("is_done") for line in lines):
        ended = {outcome.test for outcome in found}
        open_tests = dict.fromkeys(line["begun"] for line in lines if "begun" in line and line["begun"] not in ended)
        trouble = f"the JVM ended before the class was done, in {', '.join(open_tests) or 'no test'}"
    if trouble:
        found.append(Outcome(test=f"{class_name}#", outcome="failed", cause=trouble))
    return found


def read_table(text: str) -> dict[str, Entry]:
    """Read a table; the keys are the tests. Raises ValueError if a test stands in it twice."""
    entries: dict[str, Entry] = {}
    for group in tomllib.loads(text).values():
        for test in group["tests"]:
            if test in entries:
                raise ValueError(f"{test} stands in the table twice")
            entries[test] = Entry(test=test, reason=group["reason"], may_pass=group.get("may_pass", False))
    return entries


def judge(outcomes: Sequence[Outcome], table: dict[str, Entry]) -> Verdict:
    """Hold outcomes against the table. Entries for classes that were not run are not judged."""
    run = [outcome for outcome in outcomes if not outcome.is_left_out]
    passed = [outcome for outcome in run if outcome.outcome == "passed"]
    explained: list[tuple[Outcome, Entry]] = []
    failed: list[Outcome] = []
    for outcome in run:
        if outcome.outcome in ("failed", "aborted"):
            entry = _entry(outcome.test, table)
            if entry is None:
                failed.append(outcome)
            else:
                explained.append((outcome, entry))
    stale = [
        f"{entry.test}: passed, and is still in the table ({entry.reason})"
        for entry in dict.fromkeys(_entry(outcome.test, table) for outcome in passed)
        if entry is not None and not entry.may_pass
    ]
    known = {outcome.test for outcome in outcomes} | {_RUN.sub("", outcome.test) for outcome in outcomes}
    classes = {_class(outcome.test) for outcome in outcomes}
    whole = {_class(outcome.test) for outcome in outcomes if outcome.test.endswith("#")}
    stale += [
        f"{test}: is in the table, and there is no such test"
        for test in table
        if _class(test) in classes - whole and test not in known
    ]
    return Verdict(
        passed=passed,
        explained=explained,
        failed=failed,
        disabled=[outcome for outcome in run if outcome.outcome == "disabled"],
        crashed=[outcome for outcome in run if outcome.has_crashed_a_node],
        stale=sorted(stale),
    )


def _entry(test: str, table: dict[str, Entry]) -> Entry | None:
    return table.get(test) or table.get(_RUN.sub("", test))


def _class(test: str) -> str:
    return test.partition("#")[0]
