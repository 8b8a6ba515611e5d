"""Files and directories that only the present user can read, as they hold passwords, keys or records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_files() -> Iterator[None]:
    """Create all files of the block for the present user alone, in whichever thread."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
