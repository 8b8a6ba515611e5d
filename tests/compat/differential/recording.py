"""The answers of Apache Kafka, kept in a file: `recorded_answers.xz`.

Lines of JSON, compressed: first what was recorded, then for each scenario its name, and for each of its questions API,
version, case and plain answer, in the order in which they are asked. Plain answers do not depend on ids and times, so a
recording that is made again is the same file.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plain_answers import Plain
from worlds import NO_TOKENS, OPEN, RIGHTS, TOKENS

FILE = Path(__file__).resolve().parent / "recorded_answers.xz"
FILES = {
    OPEN: FILE,
    RIGHTS: FILE.with_name("recorded_rights.xz"),
    TOKENS: FILE.with_name("recorded_tokens.xz"),
    NO_TOKENS: FILE.with_name("recorded_no_tokens.xz"),
}
"""A file for each world."""


class OutOfDate(Exception):
    """A scenario asks something else than it did when its answers were recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Kafka's answer to one question."""

    api: str
    version: int | None
    case: str
    answer: Mapping[str, Plain]


class Answers:
    """The kept answers of one scenario, handed out in order."""

    def __init__(self, scenario: str, kept: Sequence[Kept]) -> None:
        self._scenario = scenario
        self._kept = kept
        self._next = 0

    def next(self, api: str, version: int | None, case: str) -> Mapping[str, Plain]:
        """Return the answer to the next question, and advance. Raises `OutOfDate`."""
        answer = self.peek(api, version, case)
        self._next += 1
        return answer

    def peek_outcome(self) -> object:
        """Return what came of the next question."""
        return self._kept[self._next].answer["outcome"] if self._next < len(self._kept) else None

    def peek(self, api: str, version: int | None, case: str) -> Mapping[str, Plain]:
        """Return the answer to the next question. Raises `OutOfDate` if that was another one."""
        kept = self._kept[self._next] if self._next < len(self._kept) else None
        if kept is None or (kept.api, kept.version, kept.case) != (api, version, case):
            asked = "nothing" if kept is None else f"{kept.api} {kept.version} {kept.case}"
            raise OutOfDate(
                f"question {self._next + 1} of {self._scenario} is {api} {version} {case}, recorded is {asked}: "
                "make compat-kafka-record"
            )
        return kept.answer

    def end(self) -> None:
        if self._next != len(self._kept):
            raise OutOfDate(f"{self._scenario} asks less than was recorded: make compat-kafka-record")


def write(scenarios: Mapping[str, Sequence[Kept]], *, seed: int, path: Path = FILE) -> None:
    lines = [json.dumps({"kafka": "4.3.1", "seed": seed})]
    for name, kept in scenarios.items():
        lines.append(json.dumps({"scenario": name}))
        lines += [json.dumps([each.api, each.version, each.case, each.answer], sort_keys=True) for each in kept]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path = FILE) -> tuple[int, dict[str, list[Kept]]]:
    """Return the seed, and what is kept of each scenario."""
    first, *rest = lzma.decompress(path.read_bytes()).decode().splitlines()
    scenarios: dict[str, list[Kept]] = {}
    kept: list[Kept] = []
    for line in rest:
        told = json.loads(line)
        if isinstance(told, dict):
            kept = scenarios.setdefault(told["scenario"], [])
        else:
            api, version, case, answer = told
            kept.append(Kept(api=api, version=version, case=case, answer=answer))
    return json.loads(first)["seed"], scenarios
