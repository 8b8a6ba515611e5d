"""Waits for a condition, with a time limit and never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

BOUND_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def eventually(condition: Callable[[], object], expected: object = "", *, seconds: float = BOUND_SECONDS) -> None:
    """Poll the condition until it holds. Fails with `expected` after the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, expected
        time.sleep(_PAUSE_SECONDS)


def sleep_until(moment: float) -> None:
    """Sleep until this time of the monotonic clock, for what ends by the clock, such as sessions."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
