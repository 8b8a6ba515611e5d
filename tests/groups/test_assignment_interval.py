"""When a group may be assigned to again (KIP-1263)."""

from __future__ import annotations

import pytest

from kraftpy.groups.assignment_interval import NEVER_ASSIGNED, may_assign
from kraftpy.types import Millis


@pytest.mark.parametrize(
    ("assigned_at", "interval_ms", "now", "may"),
    [
        (NEVER_ASSIGNED, 1_000, 500, True),
        (5_000, 1_000, 5_000, False),
        (5_000, 1_000, 5_999, False),
        (5_000, 1_000, 6_000, True),
        (5_000, 0, 5_000, True),
        (5_000, 1_000, 4_999, True),  # the clock was set back: the group must not wait until it is there again
    ],
)
def test_the_interval(assigned_at: int, interval_ms: int, now: int, may: bool) -> None:
    assert may_assign(assigned_at, interval_ms, Millis(now)) is may
