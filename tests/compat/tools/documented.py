"""Differences on purpose, and the differing lines of two outputs that each covers."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).resolve().parent / "documented.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """A difference: the command lines it shows in, the lines that only one side prints, and why."""

    commands: tuple[str, ...]
    kafka: tuple[str, ...]
    here: tuple[str, ...]
    reason: str
    seen_in: set[str] = field(default_factory=set)

    def covers(self, line: str, differing: str) -> bool:
        """Return whether a line that only one side prints (`-` Kafka, `+` kraftpy) is of this difference."""
        patterns = self.kafka if differing[0] == "-" else self.here
        return any(fnmatchcase(line, each) for each in self.commands) and any(
            re.fullmatch(each, differing[1:]) for each in patterns
        )


def read() -> list[Documented]:
    """Read the file of documented differences."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("difference", [])
    return [
        Documented(
            commands=tuple(entry["commands"]),
            kafka=tuple(entry.get("kafka", ())),
            here=tuple(entry.get("here", ())),
            reason=entry["reason"],
        )
        for entry in entries
    ]


def differing_lines(kafka: list[str], here: list[str]) -> list[str]:
    """Return the lines that only one side prints, marked with `-` for Kafka and `+` for kraftpy, in order."""
    found = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, kafka, here, autojunk=False).get_opcodes():
        if tag != "equal":
            found += [f"-{line}" for line in kafka[i:j]] + [f"+{line}" for line in here[k:m]]
    return found
