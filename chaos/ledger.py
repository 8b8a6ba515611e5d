"""A campaign's ledger: a JSON line for each completed seed, so that a campaign can be resumed.

    {"seed": 7, "version": "3f0c9a1b22d4", "minutes": 5.0, "verdict": ["lost-write"], "workloads": ["log", "topics"],
     "operations": 4123, "virtual_seconds": 361.2, "cpu_seconds": 11.8}

A seed that has a line with the same version and minutes is not run again. The version covers the files a seed's run
depends on, committed or not: the sources of the product, and those sources of this harness that a simulation imports.
The code of real worlds, mutants and pages may change in the middle of a campaign.

Lines are appended, each in one write, and a truncated last line is skipped. The verdict is that of
`chaos.seeds.wrong`: empty if nothing was found.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[1]
_RUNNER: Final = "chaos.seeds"
"""The module that runs seeds: it imports every part of this harness that a seed depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A completed seed."""

    seed: int
    version: str
    minutes: float
    verdict: tuple[str, ...]
    workloads: tuple[str, ...]
    operations: int
    """Operations completed by clients."""
    virtual_seconds: float
    cpu_seconds: float


def version(root: Path = ROOT) -> str:
    """Return the version of the sources in this tree."""
    digest = hashlib.sha256()
    for file in sorted({*(root / "kraftpy").rglob("*.py"), *simulated(root).values()}):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def simulated(root: Path = ROOT) -> dict[str, Path]:
    """Return the modules of this harness that a simulation can import, wherever in a module the import stands."""
    found: dict[str, Path] = {}
    left = [_RUNNER]
    while left:
        name = left.pop()
        path = root.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not file.exists():  # an imported name may be a class of the module
            continue
        found[name] = file
        left.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                left += [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                left += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        left = [each for each in left if each.partition(".")[0] == "chaos"]
    return found


def read(file: Path) -> list[Entry]:
    """Read the lines of a ledger; none if there is no such file. Raise ValueError if it holds anything else."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        found = [json.loads(line) for line in lines]
        return [
            Entry(**{**each, "verdict": tuple(each["verdict"]), "workloads": tuple(each["workloads"])})
            for each in found
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is no ledger: {error}") from error


def append(file: Path, entry: Entry) -> None:
    """Append a line. The remains of an interrupted write are cut off first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as ledger:
        ledger.seek(0)
        known = ledger.read()
        if known and not known.endswith(b"\n"):
            ledger.truncate(known.rfind(b"\n") + 1)
        ledger.write(json.dumps(asdict(entry)).encode() + b"\n")


def done(entries: Iterable[Entry], of_version: str) -> set[tuple[int, float]]:
    """Return the seeds, with their minutes, that need not be run again."""
    return {(entry.seed, entry.minutes) for entry in entries if entry.version == of_version}


def summary(entries: Sequence[Entry]) -> Table:
    """Count by workload; a seed has one or several, and counts in each. The last row counts each seed once."""
    table = Table(title="campaign")
    for name in ("workload", "seeds", "bad", "operations", "virtual minutes", "CPU minutes", "virtual/CPU", "found"):
        is_text = name in ("workload", "found")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name == "workload")
    for workload in sorted({name for entry in entries for name in entry.workloads}):
        table.add_row(workload, *_row([entry for entry in entries if workload in entry.workloads]))
    table.add_section()
    table.add_row("all", *_row(entries))
    return table


def _row(entries: Sequence[Entry]) -> list[str]:
    virtual, cpu = (sum(getattr(entry, name) for entry in entries) for name in ("virtual_seconds", "cpu_seconds"))
    found = sorted({name for entry in entries for name in entry.verdict})
    return [
        str(len(entries)),
        str(sum(bool(entry.verdict) for entry in entries)),
        f"{sum(entry.operations for entry in entries):,}",
        f"{virtual / 60:.0f}",
        f"{cpu / 60:.1f}",
        f"{virtual / cpu:.0f}" if cpu else "-",
        ", ".join(found),
    ]
