"""docs/rules.md names what shows that a rule holds: those tests, and those blocks of scripts, are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
ROWS = [line.split("|") for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| rule |")]


def test_every_test_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", PAGE)
    assert len(named) >= 40
    for file, function in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        if function:
            assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), f"{file}::{function}"


def test_every_block_it_quotes_opens_one_of_its_script() -> None:
    quoted = 0
    for row in ROWS:
        text = ""
        for file, block in re.findall(r'`(tests/[\w/.]+)(?:::\w+)?`|"([^"]+)"', row[3]):
            if file:
                text = (ROOT / file).read_text(encoding="utf-8") if file.endswith(".script") else ""
                continue
            quoted += 1
            assert re.search(rf"(^|\n\n)# {re.escape(block)}", text), block
    assert quoted >= 15


def test_every_rule_has_a_row() -> None:
    assert {str(number) for number in range(1, 50)} <= {row[1].strip() for row in ROWS}


def test_every_rule_that_code_cites_is_defined() -> None:
    defined = {row[1].strip() for row in ROWS}
    for file in [*(ROOT / "kraftpy").rglob("*.py"), *(ROOT / "chaos").rglob("*.py")]:
        for first, others in re.findall(r"\brules? (\d+)((?:(?:, | and | to )\d+)*)", file.read_text(encoding="utf-8")):
            assert {first, *re.findall(r"\d+", others)} <= defined, file
