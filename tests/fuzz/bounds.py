"""A bound on the work and the memory of one call, measured by counting rather than by a clock.

`bounded` counts what is called, in Python and in C, while a target takes one input, and how much memory that takes at
most. The allowed cost is proportional to the input's length. A loop without a single call in it is not counted;
libFuzzer's own time limit finds it in a guided run, and the test's time limit in a replay.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

CALLS = 60_000
CALLS_PER_BYTE = 400
PEAK_BYTES = 6 << 20
PEAK_PER_BYTE = 600


class TooMuch(BaseException):
    """An input cost more than allowed. Not an Exception, so that no target can swallow it."""


def bounded(one: Callable[[bytes], None], data: bytes, more_bytes: int = 0) -> None:
    """Run `one(data)`. Raises TooMuch if it costs too much; `more_bytes` is what the target's own limit allows."""
    left = CALLS + CALLS_PER_BYTE * len(data)

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_call"):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise TooMuch(
                    f"{len(data)} bytes take more than {CALLS + CALLS_PER_BYTE * len(data)} calls, at {where}"
                )

    tracemalloc.start()
    try:
        sys.setprofile(count)
        try:
            one(data)
        finally:
            sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = PEAK_BYTES + PEAK_PER_BYTE * len(data) + more_bytes
    if peak > most:
        raise TooMuch(f"{len(data)} bytes take {peak} bytes of memory; {most} are allowed")
