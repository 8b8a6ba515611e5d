"""The long operations on one replica's log: truncation, compaction, and closing. At most one runs at a time.

Appends and reads continue during a compaction. A truncation runs in a thread that has exclusive use of the log: until
it is done the partition can be neither read nor led, and it ends a compaction that is in progress. Syncs wait until an
operation that changes files is over. A truncation is durable before anything is appended again.

An operation continues if its caller is cancelled: a log is never left half truncated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor

from kraftpy.broker.containment import Complaints
from kraftpy.broker.patience import patiently
from kraftpy.broker.replication.log_holder import LogHolder
from kraftpy.broker.storage.compaction_runner import CleaningWork, carry_out
from kraftpy.broker.storage.partition_sync import LogSyncs
from kraftpy.log import compaction
from kraftpy.log.compaction import CompactionJob, CompactionResult, Dirtiness, Limits
from kraftpy.log.files import FileCache
from kraftpy.types import Millis, Offset

logger = logging.getLogger(__name__)

_FILES_IN_A_THREAD = 8


class LogOperations:
    """The truncations and compactions of one log."""

    __slots__ = (
        "_compacting",
        "_compaction",
        "_complaints",
        "_replica",
        "_syncs",
        "_truncated",
        "clean_until",
        "lowest_truncation",
        "truncation",
    )

    def __init__(
        self, replica: LogHolder, syncs: LogSyncs, complaints: Complaints, truncated: Callable[[bool], None]
    ) -> None:
        """`truncated` is called after each truncation, with whether the whole log was dropped."""
        self._replica = replica
        self._syncs = syncs
        self._complaints = complaints
        self._truncated = truncated
        self._compacting = asyncio.Lock()
        self._compaction: CompactionJob | None = None
        self.truncation: asyncio.Future[None] | None = None
        """Done once the truncation in progress has ended; None if no truncation is in progress."""
        self.lowest_truncation: int | None = None
        """The lowest offset the log was truncated to since a copy of it (`upkeep.log_moves`) last looked."""
        self.clean_until = Offset(0)
        """The start of the part that was not compacted yet."""

    # --- truncation --------------------------------------------------------------------------

    async def truncate(self, offset: int) -> bool:
        """Truncate the log durably; return whether the checkpoints must be written before anything is appended.

        The replica must not lead. Raises OSError.
        """
        replica = self._replica
        if offset >= replica.log.log_end_offset:
            return replica.log.truncate_to(offset)  # at most epochs without records: quick (rule 5)
        if offset < replica.high_watermark:
            logger.warning(
                "%s: truncated to %d, below its high watermark %d",
                replica.topic_partition,
                offset,
                replica.high_watermark,
            )
        return await self._begin_truncation(offset, start_over=False)

    async def start_over(self, offset: int) -> bool:
        """Drop everything and continue at an offset; the records in between are not available. As `truncate`."""
        return await self._begin_truncation(offset, start_over=True)

    def _begin_truncation(self, offset: int, *, start_over: bool) -> Awaitable[bool]:
        """Make the log unreadable and unable to lead immediately, not only once the task runs."""
        assert self._replica.leading is None, "a leader's log is never truncated"
        done = self.truncation = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._truncate(offset, done, start_over=start_over))

    async def _truncate(self, offset: int, done: asyncio.Future[None], *, start_over: bool) -> bool:
        try:
            await self.end()
            async with self.undisturbed():
                log = self._replica.log
                if log.is_closed:
                    return False
                shared = log.files
                log.move_to(FileCache(_FILES_IN_A_THREAD))  # a cache belongs to one thread
                try:
                    is_lower = await patiently(
                        lambda: asyncio.to_thread(self._truncate_log, offset, start_over=start_over),
                        f"truncate {self._replica.topic_partition}",
                        self._complaints,
                        is_sync=True,
                    )
                finally:
                    log.move_to(shared)
                self.lowest_truncation = min(self.lowest_truncation or offset, -1 if start_over else offset)
                self.clean_until = Offset(min(self.clean_until, log.log_end_offset))
                self._truncated(start_over)
                return is_lower
        finally:
            self.truncation = None
            done.set_result(None)

    def _truncate_log(self, offset: int, *, start_over: bool) -> bool:
        if start_over:
            self._replica.log.truncate_fully_and_start_at(offset)
            return True
        return self._replica.log.truncate_to(offset)

    @property
    def is_truncating(self) -> bool:
        """True if a truncation has exclusive use of the log."""
        return self.truncation is not None

    async def truncation_ended(self) -> None:
        """Wait for a truncation in progress."""
        if self.truncation is not None:
            await asyncio.shield(self.truncation)

    # --- compaction --------------------------------------------------------------------------

    def dirtiness(self, now: Millis) -> Dirtiness:
        """Return how urgently the log needs compaction (`log.compaction`). Raises OSError, CorruptSegment."""
        replica = self._replica
        return compaction.dirtiness(replica.log, self.clean_until, now, stable_offset=replica.last_stable_offset)

    async def compact(
        self, now: Millis, limits: Limits, work: CleaningWork, discard: Callable[[list[str]], None]
    ) -> CompactionResult | None:
        """Compact the log with `work`, if that is due; return None if nothing was done. Old files go to `discard`.

        `end` ends it early. Raises OSError, KafkaError, and what `work` raises.
        """
        return await asyncio.shield(self._compact(now, limits, work, discard))

    async def _compact(
        self, now: Millis, limits: Limits, work: CleaningWork, discard: Callable[[list[str]], None]
    ) -> CompactionResult | None:
        log = self._replica.log
        async with self._compacting:
            if log.is_closed or log.is_failed or self.is_truncating:
                return None
            decided = compaction.decide(log, self._replica.high_watermark)
            await self._syncs.wait(decided.log_end_offset)
            job = compaction.begin(log, self.clean_until, now, decided, limits)
            if job is None:
                return None
            self._compaction = job
            try:
                result = await carry_out(log, job, work, discard, self._complaints)
            finally:
                self._compaction = None
            if result is not None:
                self.clean_until = Offset(result.end_offset)
            return result

    # --- exclusive use -----------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """Keep compaction and syncs away meanwhile; appends and reads continue."""
        async with self._compacting, self._syncs.none():
            yield

    async def end(self) -> None:
        """Wait for a sync in progress, and end a compaction."""
        if self._compaction is not None:
            self._compaction.abandon()
        async with self.undisturbed():
            pass

    async def close(self, pool: Executor) -> None:
        """Make everything durable and close the files, so that the log opens without a scan."""
        await self.end()
        async with self.undisturbed():
            await asyncio.get_running_loop().run_in_executor(pool, self._replica.log.close)

    async def release(self) -> None:
        """Close the files without writing anything, for a partition that is deleted."""
        await self.truncation_ended()
        await self.end()
        async with self.undisturbed():
            self._replica.log.release()
