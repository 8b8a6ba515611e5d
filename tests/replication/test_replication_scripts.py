"""The scripts: events for a leader and a follower, and the effects that must follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from replication_script import Scripted, paragraphs

SCRIPTS = sorted(Path(__file__).parent.glob("*.script"))
REWRITE = "KRAFTPY_REWRITE_SCRIPTS"
"""Set this in the environment to have scripts rewritten with what happens now. Then read the difference."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    scripted = Scripted()
    written = []
    for comment, commands, expected in paragraphs(path):
        said = [line for command in commands for line in scripted.do(command)]
        if os.environ.get(REWRITE):
            notes = [f"# {comment}"] if comment else []
            written.append("\n".join([*notes, *commands, *(["---", *said] if said else [])]))
        else:
            assert said == expected, comment
        scripted.check_invariants()
    if written:
        path.write_text("\n\n".join(written) + "\n")
