"""Every script in this directory tells what a share partition, or the coordinator of its state, does."""

from __future__ import annotations

from pathlib import Path

import pytest
from share_script import play

SCRIPTS = sorted(Path(__file__).parent.glob("*.script"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_happens_is_what_the_script_says(path: Path) -> None:
    play(path)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 6
