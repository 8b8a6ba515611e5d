"""docs/limits.md names every setting that bounds what clients may cost: they exist, with these defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kraftpy.config.broker import BROKER_SETTINGS
from kraftpy.config.broker_settings import BROKER_TABLE

PAGE = (Path(__file__).parent.parent / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = [
    (name, cells[2].strip())
    for line in PAGE.splitlines()
    if line.startswith("|") and len(cells := line.strip("|").split("|")) == 4
    for name in re.findall(r"`([a-z.]+\.[a-z.]+)`", cells[1])
]
BOUNDS = re.compile(r"^(kraftpy\.[a-z.]*max[a-z.]*|kraftpy\.group\.regex\.cache\.bytes) ", re.MULTILINE)


@pytest.mark.parametrize(("name", "default"), ROWS)
def test_a_setting_of_the_page_has_that_default(name: str, default: str) -> None:
    assert (BROKER_SETTINGS[name].default or "") == default


def test_no_bound_of_ours_is_missing() -> None:
    ours = set(BOUNDS.findall(BROKER_TABLE))
    assert len(ours) >= 12
    assert ours - {name for name, _ in ROWS} == set()
