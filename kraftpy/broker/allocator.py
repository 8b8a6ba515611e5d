"""Lets the C library keep memory that is freed, for the next answer of a fetch, rather than give it back at once.

The GNU C library returns the top of its heap to the system once more of it is free than twice the largest block that
was freed. An answer of four partitions frees four blocks of 1 MiB, so that each answer began with new, zeroed pages,
which cost more than copying the records (docs/decisions/0054). Other C libraries are left alone, and so are settings in
the environment.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_MMAP_BYTES: Final = 8 << 20
"""From this size on, a block has a mapping of its own, which is given back when it is freed (mallopt(3))."""
_KEPT_BYTES: Final = 16 << 20
"""How much free memory is kept at the top of the heap."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Set up the allocator of this process and of those it forks."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
