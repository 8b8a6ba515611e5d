"""Thread pools that tolerate a system without threads to spare, as long as they have at least one.

The standard pool starts threads as work arrives, and raises RuntimeError if the system refuses one, although the work
is already in its queue and the next free thread runs it. The caller would take it for failed.

Pools of a node start their first thread before anything depends on them. A pool that has none raises OSError (EAGAIN),
which `ports.failure_of` recognises.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """A pool whose work waits for its threads, however few of them there are."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                raise OSError(errno.EAGAIN, str(error)) from error
