"""Thread pools that live with too few threads: one that cannot be started is no failure while there are others.

The standard pool starts threads as work comes, and raises RuntimeError if the system refuses one, although the work is
in its queue by then and the next free thread does it. The caller would not know of that.

Pools of a node have a first thread before anything depends on them; one that has none raises OSError (EAGAIN), which
`ports.failure_of` knows for what it is.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """A pool whose work waits for its threads, however many of them there can be."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                raise OSError(errno.EAGAIN, str(error)) from error
