"""Deletes files once no reader can be using them: after `file.delete.delay.ms`, in a thread.

The files have been removed from their log or renamed by then, so nothing opens them again. If a stop prevents a
deletion, the next start finds the files by their names and deletes them. A deletion that lacks descriptors or
threads is retried; any other failure is logged, and the files stay.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from kraftpy.broker.threads import Threads
from kraftpy.log import deletion
from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Directory, Failure, failure_of

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


class DeferredDeletions:
    """The deletions of one broker that are still to come."""

    def __init__(self) -> None:
        self._thread = Threads(1, thread_name_prefix="delete-log")
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_stopped = False

    def delete_files(self, log: PartitionLog, names: list[str]) -> None:
        """Delete files that were removed from a log."""
        self._call_later(
            log.config.file_delete_delay_ms / 1000, functools.partial(deletion.delete_files, log.directory, names)
        )

    def delete_directory(self, log: PartitionLog, directory: Directory, name: str) -> None:
        """Delete a log's directory, which was renamed to `name` in `directory`."""
        self._call_later(log.config.file_delete_delay_ms / 1000, functools.partial(directory.delete, name))

    def stop(self) -> None:
        """Begin no more deletions."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()

    def close(self) -> None:
        """End the thread, after a deletion in progress."""
        self._thread.shutdown(cancel_futures=True)

    def _call_later(self, seconds: float, delete: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._timers.discard(timer)
            if self._is_stopped:
                return
            try:
                deleting = loop.run_in_executor(self._thread, delete_quietly, delete)
            except OSError:  # no thread can be started
                self._call_later(_RETRY_SECONDS, delete)
            else:
                deleting.add_done_callback(retry)

        def retry(deleting: asyncio.Future[bool]) -> None:
            if not (deleting.cancelled() or deleting.exception() or deleting.result() or self._is_stopped):
                self._call_later(_RETRY_SECONDS, delete)

        timer = loop.call_later(seconds, start)
        self._timers.add(timer)


def delete_quietly(delete: Callable[[], None]) -> bool:
    """Delete, in a thread; return False if it should be retried."""
    try:
        delete()
    except OSError as error:
        if failure_of(error) is Failure.RESOURCES:
            return False
        logger.error("cannot delete files that are no longer needed: %s", error)
    return True
