"""The differences from Kafka that are meant: docs/answers.toml, which the documentation shows as a table.

An entry says in which requests (`request`: names of APIs, or "*"), versions, field and case ours is another answer,
what Kafka answers, what kraftpy answers, and why that is better for a user. Only what is given restricts it: `field` is
one path or several, or their ends; `about` and `case` are regular expressions that are found in what the element is
about and in the scenario's words for the question; `kafka` and `here` are values, or "any", "absent", "present",
"text". `when` says the case in words, for the table.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from answer_differences import ABSENT, Difference
from plain_answers import Plain

FILE = Path(__file__).resolve().parents[3] / "docs" / "answers.toml"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One entry of the file."""

    request: tuple[str, ...]
    field: tuple[str, ...]
    kafka: tuple[str, ...]
    here: tuple[str, ...]
    why: str
    when: str = ""
    versions: str = ""
    about: str = ""
    case: str = ""
    nodes: int = 1
    """The number of nodes with which a whole run shows it."""
    world: str = "open"
    """The world whose whole run shows it."""
    follows: bool = False
    """True if it is a consequence of the entry before, and not shown in the table."""

    @cached_property
    def apis(self) -> set[str]:
        """The names of the APIs as their keys have them: "FETCH" for "Fetch"."""
        return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in self.request}

    @cached_property
    def _pattern(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(self.about), re.compile(self.case)

    def explains(self, api: str, version: int | None, case: str, found: Difference) -> bool:
        about, cases = self._pattern
        return (
            (api in self.apis or self.request == ("*",))
            and any(found.field == name or found.field.endswith(f".{name}") for name in self.field)
            and self._has_version(version)
            and about.search(found.about) is not None
            and cases.search(case) is not None
            and any(is_value(wanted, found.kafka) for wanted in self.kafka)
            and any(is_value(wanted, found.here) for wanted in self.here)
        )

    def _has_version(self, version: int | None) -> bool:
        if not self.versions:
            return True
        if version is None:
            return False
        first, _, last = self.versions.partition("-")
        return int(first) <= version <= int(last or first)


def is_value(wanted: str, value: Plain) -> bool:
    """Return whether a value is the one that an entry names."""
    match wanted:
        case "any":
            return True
        case "absent":
            return bool(value == ABSENT)
        case "present":
            return bool(value != ABSENT)
        case "text":
            return isinstance(value, str) and value not in ("", ABSENT)
        case "answered" | "closed" | "silent":
            return str(value).partition(":")[0] == wanted
        case _:
            return wanted == (value if isinstance(value, str) else json.dumps(value))


class KnownDifferences:
    """All entries, and how often each explained a difference."""

    def __init__(self, entries: Sequence[Known]) -> None:
        self.entries = entries
        self.used = Counter[int]()

    def explaining(self, api: str, version: int | None, case: str, found: Difference) -> Known | None:
        """Return the first entry that explains a difference, and count it."""
        for number, entry in enumerate(self.entries):
            if entry.explains(api, version, case, found):
                self.used[number] += 1
                return entry
        return None

    def unused(self, nodes: int, world: str) -> list[Known]:
        """Return the entries that a whole run with these nodes in this world should have shown, and did not."""
        entries = enumerate(self.entries)
        shown_by = (nodes, world)
        return [each for number, each in entries if (each.nodes, each.world) == shown_by and not self.used[number]]


def _read(entry: dict[str, Any]) -> Known:
    values = dict(entry)
    for name in ("request", "field", "kafka", "here"):
        value = values[name]
        values[name] = tuple(value) if isinstance(value, list) else (value,)
    return Known(**values)


def read() -> list[Known]:
    return [_read(entry) for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["answer"]]
