"""The report of a run: each difference of the same place and values once."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outcomes import Outcomes

VARYING = re.compile(r"of request \d+|<id of [^>]*>|\d+(?= times)|rnd\.[a-z_.0-9]+|x{20,}|a{20,}")
"""Parts of values by which differences of one kind differ from each other."""
WIDTH = 200


@dataclass(kw_only=True, slots=True)
class Shown:
    """Differences that are printed as one."""

    first: dict[str, Any]
    versions: set[int] = field(default_factory=set)
    cases: dict[str, None] = field(default_factory=dict)
    count: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("printing a report")
    group.add_argument("--show", type=Path, metavar="FILE", help="print the report of a run, and run nothing")
    group.add_argument("--api", default="", help="only of this API, as a regular expression")
    group.add_argument("--scenario", default="", help="only of this scenario, as a regular expression")
    group.add_argument("--requests", action="store_true", help="with the first request of each")
    group.add_argument("--width", type=int, default=WIDTH, help="characters of a value")


def show(options: argparse.Namespace) -> None:
    """Print a report."""
    found: dict[tuple[str, str, str, str], Shown] = {}
    for line in options.show.read_text(encoding="utf-8").splitlines():
        kind = json.loads(line)
        if re.fullmatch(options.api or ".*", kind["api"], re.IGNORECASE) and re.fullmatch(
            options.scenario or ".*", kind["scenario"]
        ):
            values = [_kind_of(kind[name], kind["path"]) for name in ("kafka", "here")]
            shown = found.setdefault((kind["api"], kind["path"], *values), Shown(first=kind))
            shown.versions |= {version for version in kind["versions"] if version is not None}
            shown.cases[f"{kind['scenario']}: {kind['case']}"] = None
            shown.count += kind["count"]
    for (api, place, _, _), shown in found.items():
        kafka, here = (_cut(shown.first[name], options.width) for name in ("kafka", "here"))
        print(f"{api} {_ranges(sorted(shown.versions))} {place}, {shown.count} times: {kafka}  ||  {here}")
        print(f"    {len(shown.cases)} cases: {_cut(' | '.join(shown.cases), options.width)}")
        if options.requests:
            print(f"    {_cut(shown.first['request'], 2 * options.width)}")


def _kind_of(value: object, path: str) -> str:
    """Return the part of a value that distinguishes kinds of differences."""
    if isinstance(value, dict):
        return "{}"
    if path == "outcome" or path.endswith("error_message"):
        return re.split(r"[:{]", str(value))[0] if path == "outcome" else str(bool(value))
    return VARYING.sub("#", json.dumps(value))


def _cut(value: object, width: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= width else f"{text[:width]}..."


def _ranges(versions: list[int]) -> str:
    """Return "0-3,5" for 0, 1, 2, 3 and 5."""
    parts: list[list[int]] = []
    for version in versions:
        if parts and version == parts[-1][-1] + 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def write_words(outcomes: Outcomes, path: Path) -> None:
    """Write the messages that mean the same in other words."""
    lines = [
        f"{api} {count} times\n  kafka   {kafka}\n  kraftpy {here}\n"
        for (api, kafka, here), count in outcomes.words.most_common()
    ]
    path.write_text("".join(lines), encoding="utf-8")
