"""The result of a run: counts by API, and each kind of difference once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from answer_differences import Difference
from both import Both, each
from known_differences import KnownDifferences
from plain_answers import Plain

SHOWN_BYTES = 24
SHOWN_REQUEST = 700


@dataclass(kw_only=True, slots=True)
class Kind:
    """Differences of the same scenario, case, field and values."""

    scenario: str
    case: str
    api: str
    about: str
    path: str
    kafka: Plain
    here: Plain
    request: str
    versions: list[int | None] = field(default_factory=list)
    count: int = 0


class Outcomes:
    """Counts by API, and what differed. A question whose differences are all known counts as documented."""

    def __init__(self, known: KnownDifferences) -> None:
        self.known = known
        self.equal = Counter[str]()
        self.documented = Counter[str]()
        self.different = Counter[str]()
        self.differing_scenarios = Counter[str]()
        self.asked = Counter[str]()
        """By scenario."""
        self.kinds: dict[tuple[object, ...], Kind] = {}
        self.words = Counter[tuple[str, str, str]]()
        """Messages that both have, in other words: (API, Kafka's, ours)."""
        self.failed: dict[str, str] = {}
        """Scenarios that could not be asked to their end, with the traceback."""

    def unexplained(self, api: str, version: int | None, case: str, found: list[Difference]) -> list[Difference]:
        """Return the differences that no entry explains, those of words apart."""
        return [
            each_found
            for each_found in found
            if not each_found.is_of_words() and self.known.explaining(api, version, case, each_found) is None
        ]

    def add(
        self, scenario: str, case: str, api: str, version: int | None, request: object, found: list[Difference]
    ) -> None:
        """Count one question, whose answers differ in `found`."""
        self.asked[scenario] += 1
        words = [difference for difference in found if difference.is_of_words()]
        for difference in words:
            self.words[api, difference.kafka, difference.here] += 1
        unexplained = self.unexplained(api, version, case, found)
        if unexplained:
            self.different[api] += 1
            self.differing_scenarios[scenario] += 1
        elif len(found) > len(words):
            self.documented[api] += 1
        else:
            self.equal[api] += 1
        for difference in unexplained:
            values = json.dumps([difference.kafka, difference.here])
            kind = self.kinds.setdefault(
                (scenario, case, api, difference.field, values),
                Kind(
                    scenario=scenario,
                    case=case,
                    api=api,
                    about=difference.about,
                    path=difference.field,
                    kafka=difference.kafka,
                    here=difference.here,
                    request=shown(request),
                ),
            )
            kind.count += 1
            if version not in kind.versions:
                kind.versions.append(version)

    def has_differences(self) -> bool:
        return bool(self.different or self.failed)

    def table(self) -> list[str]:
        """Return the counts of each API, as lines."""
        apis = sorted(self.equal.keys() | self.documented.keys() | self.different.keys())
        return [
            f"{api:36} {self.equal[api]:6} equal {self.documented[api]:6} documented {self.different[api]:6} different"
            for api in apis
        ]

    def totals(self) -> str:
        """Return the last line of a run."""
        return (
            f"{self.equal.total()} equal, {self.documented.total()} documented, "
            f"{self.different.total() + len(self.failed)} different"
        )

    def write(self, path: Path) -> None:
        """Write each kind of difference as a line of JSON."""
        with path.open("w", encoding="utf-8") as file:
            for kind in self.kinds.values():
                file.write(json.dumps({name: getattr(kind, name) for name in Kind.__slots__}) + "\n")


def shown(body: object) -> str:
    """Return a request as it was written down, in one line."""
    return json.dumps(_shown(body))[:SHOWN_REQUEST]


def _shown(value: object) -> object:
    if isinstance(value, Both):
        return f"<{str(each(value)[0])[:30]}>"
    if isinstance(value, Mapping):
        return {name: _shown(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(element) for element in value]
    if isinstance(value, bytes | memoryview):
        return f"<{len(value)} bytes {bytes(value[:SHOWN_BYTES]).hex()}>"
    return value if isinstance(value, str | int | float | bool | None) else str(value)
