"""A node whose wall clock is wrong: `python -m chaos.worlds.skewed CLOCK server FILE.properties`.

CLOCK is a file that `set_skew` writes: how wrong the clock is, in milliseconds. Everything else is `kraftpy` itself.

Python's clock is faked rather than the C library's: with the monotonic clock left alone, as it must be, libfaketime
0.9.10 lets every `time.sleep` of Python 3.11 fail with EINVAL. All that the product knows of the wall clock it asks
`time`; that file systems have another opinion is so with any clock that was wrong a moment ago.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

_SKEW = struct.Struct("<q")


def set_skew(file: Path, skew_ms: int) -> None:
    """Make the clock wrong by this much, at once; the file is created if it is missing."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, _SKEW.pack(skew_ms), 0)
    finally:
        os.close(descriptor)


def skew(file: Path) -> None:
    """Have this process's wall clock go by that file from now on."""
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SKEW.size, access=mmap.ACCESS_READ)
    true_ns = time.time_ns

    def time_ns() -> int:
        (skew_ms,) = _SKEW.unpack_from(shared)
        return true_ns() + int(skew_ms) * 1_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def main() -> None:
    """Run `kraftpy` with the arguments after the first."""
    skew(Path(sys.argv[1]))
    sys.argv = ["kraftpy", *sys.argv[2:]]
    from kraftpy.__main__ import main as kraftpy

    kraftpy()


if __name__ == "__main__":
    main()
