"""docs/explanation/durability.md promises, and names the test behind each promise: those tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "durability.md").read_text(encoding="utf-8")


def test_every_test_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) >= 15
    for file, function in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        if function:
            assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), f"{file}::{function}"


def test_every_number_in_the_table_is_in_the_list() -> None:
    used = {int(number) for number in re.findall(r"\[(\d+)\](?!\()", PAGE)}
    listed = {int(number) for number in re.findall(r"^(\d+)\. `tests/", PAGE, re.MULTILINE)}
    assert used == listed
