"""Runs `*.script` files: the specifications of the client's state machines.

A file is steps with a blank line between them: commands, `---`, and the resulting lines (none: nothing happened).
Lines that begin with `#` are comments. `KRAFTPY_UPDATE_SCRIPTS=1` writes what happens now into the file; read the
difference before you keep it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

Words = dict[str, str]
Run = Callable[[str, Words], list[str]]


def parse_command(line: str) -> tuple[str, Words]:
    """`name key=value ...`"""
    name, *rest = shlex.split(line)
    return name, dict(word.split("=", 1) for word in rest)


def run_script(path: Path, run: Run) -> None:
    """Run every step of a file and compare, or rewrite the file."""
    steps = []
    expected_steps = []
    for block in path.read_text().strip().split("\n\n"):
        head, separator, tail = block.partition("\n---")
        assert separator, f"{path.name}: a step without ---:\n{block}"
        output: list[str] = []
        for line in head.split("\n"):
            if line and not line.startswith("#"):
                output += run(*parse_command(line))
        steps.append(f"{head}\n---\n" + "".join(f"{line}\n" for line in output))
        expected_steps.append(f"{head}\n---\n" + "".join(f"{line}\n" for line in tail.split("\n") if line))
    if os.environ.get("KRAFTPY_UPDATE_SCRIPTS"):
        path.write_text("\n".join(steps))
    for step, expected in zip(steps, expected_steps, strict=True):
        assert step == expected
