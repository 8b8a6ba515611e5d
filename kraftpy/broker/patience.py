"""Retries work that failed only because the process is out of descriptors, memory or threads.

For work that must not be left half done: a truncation, the sync of a directory. The disk is fine, so the work succeeds
once there are resources again, however long that takes. A caller that must not wait cancels the wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kraftpy.broker.containment import Complaints
from kraftpy.ports import Directory, Failure, failure_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


async def patiently(
    attempt: Callable[[], Awaitable[T]], what: str, complaints: Complaints, *, is_sync: bool = False
) -> T:
    """Call `attempt` until it does not lack resources, with growing pauses; return its result."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except OSError as error:
            if failure_of(error, is_sync=is_sync) is not Failure.RESOURCES:
                raise
            kind = f"again: {what.partition(' ')[0]}"
            complaints.write(logger, logging.ERROR, kind, "", "cannot %s for now, retrying: %s", what, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def sync_patiently(directory: Directory, complaints: Complaints) -> None:
    """Sync a directory in a thread; wait while there are no descriptors or threads for it. Raises OSError."""
    await patiently(lambda: asyncio.to_thread(directory.sync), f"sync {directory.path}", complaints, is_sync=True)
