"""How many instructions a node takes for one small request in user space: a produce of 200 bytes, and a fetch of it.

    python -m bench.instructions [--compiled DIR] [--requests N] [--output FILE]

Writes bench/INSTRUCTIONS.md. The node runs under Valgrind's callgrind, which counts instructions and takes fifty times
as long. A count hardly depends on the machine and what else runs there, so it shows a change of one percent. It is no
time: a request finds caches cold after each wait, and the kernel's part is not counted. With `--compiled`, a node with
compiled modules (`make compiled`) is counted, too. Needs valgrind.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench import machine
from bench.stages import frames, node_with_topic

RESULTS = Path(__file__).with_name("INSTRUCTIONS.md")
_WARM = 300
_OBJECTS = (
    ("the interpreter", re.compile(r"/(lib)?python3[^/]*$")),
    ("compiled modules", re.compile(r"__mypyc|/kraftpy/")),
    ("the C library", re.compile(r"/libc[.-]")),
)
_REST = "other libraries"


@dataclass(frozen=True, slots=True)
class Count:
    """The instructions of one request, in all and by where they are."""

    in_all: float
    by_object: dict[str, float]


def counted(profile: str, requests: int) -> Count:
    """Read what callgrind wrote: each function's lines follow its object's name; what it calls is counted there."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    current, is_call = _REST, False
    for line in profile.splitlines():
        if line.startswith(("ob=", "cob=")):  # the object of a function, or of one that it calls
            kind, _, named = line.partition("=")
            number, _, path = named.partition(" ")  # the path comes with the number's first use
            found = names.setdefault(number, _object(path))
            current = found if kind == "ob" else current
        elif line.startswith("calls="):
            is_call = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if not is_call and len(parts := line.split()) > 1:
                costs[current] += int(parts[-1])
            is_call = False
    return Count(costs.total() / requests, {name: cost / requests for name, cost in costs.items()})


def _object(path: str) -> str:
    return next((name for name, pattern in _OBJECTS if pattern.search(path)), _REST)


def count(under: Path, what: str, requests: int, sources: Path | None) -> Count:
    """Count a request's instructions in a node of its own."""
    with tempfile.TemporaryDirectory(dir=under) as directory:
        written = Path(directory) / "profile"
        program = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "-q", f"--callgrind-out-file={written}"]
        program += [sys.executable, "-P", "-m", "kraftpy"]  # -P: the modules of `sources`, not those of this directory
        path = str(sources or Path(__file__).resolve().parents[1])
        with node_with_topic(under, ["env", f"PYTHONPATH={path}", *program]) as (process, wire):
            frame = frames()[what]
            for _ in range(_WARM):
                wire.exchange(frame)
            _control(process.pid, "--instr=on")
            _control(process.pid, "--zero")
            for _ in range(requests):
                wire.exchange(frame)
            _control(process.pid, "--dump")
        profiles = [each.read_text(errors="replace") for each in Path(directory).glob("profile*")]
    return max((counted(each, requests) for each in profiles), key=lambda found: found.in_all)


def _control(process_id: int, what: str) -> None:
    subprocess.run(["callgrind_control", what, str(process_id)], check=True, capture_output=True)


def table(counts: dict[str, tuple[Count, ...]]) -> list[str]:
    """Return the rows: a request in all, then its parts."""
    has_compiled = any(len(each) > 1 for each in counts.values())
    lines = ["", "| instructions | interpreted |" + (" compiled | |" if has_compiled else "")]
    lines.append("|---|--:|" + ("--:|--:|" if has_compiled else ""))
    for what, sides in counts.items():
        lines.append(_row(f"**{what}**", [side.in_all for side in sides]))
        for name in [*(name for name, _ in _OBJECTS), _REST]:
            parts = [side.by_object.get(name, 0.0) for side in sides]
            if any(parts):
                lines.append(_row(name, parts))
    return lines


def _row(name: str, values: list[float]) -> str:
    ratio = f" {values[1] / values[0]:.2f} |" if len(values) > 1 and values[0] else " |" if len(values) > 1 else ""
    return f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + f" |{ratio}"


def main() -> int:
    """Count, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", type=Path, metavar="DIR", help="sources with compiled modules, counted as well")
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed")
    sides = [None, *([options.compiled.resolve(strict=True)] if options.compiled else [])]
    counts = {
        what: tuple(count(options.directory, what, options.requests, side) for side in sides)
        for what in ("produce", "fetch")
    }
    page = ["# Instructions of a request", "", "Written by `python -m bench.instructions`; do not edit.", ""]
    page += [f"- {line}" for line in machine.describe(options.directory)]
    page += ["", "In user space, by callgrind: the kernel's part is not in these counts."]
    page += table(counts)
    print("\n".join(page))
    options.output.write_text("\n".join([*page, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
