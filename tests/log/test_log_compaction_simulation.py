"""Compacted logs against a model (rules 39 to 42); `make sim` runs thousands of these histories."""

from __future__ import annotations

from collections import Counter

import pytest
from compaction_simulation import run

HISTORIES = 80
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_a_compacted_log_keeps_what_its_model_keeps(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part, HISTORIES, PARTS):
        totals += run(seed).statistics
    for what in ("cleanings", "cleanings cut off", "segments replaced", "passes of a full map", "markers gone"):
        assert totals[what], f"no history had any {what}"
