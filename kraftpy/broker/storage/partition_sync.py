"""Connects one partition's log with its disk's rounds of syncs.

It knows what must be synced, handles the results, and keeps syncs away from a log that is changing. Synced records
count as acknowledged by this broker if the topic says `kraftpy.flush.before.ack`; the replica draws the conclusions
(`synced`). The replica also handles a failed sync (`failed`): the log takes nothing more from then on, because data
that the kernel dropped cannot be synced again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from kraftpy.broker.storage.group_commit import Rounds
from kraftpy.log.flushing import FlushJob
from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

_NEVER_MS = (1 << 63) - 1
"""The `flush.ms` of a log that no time limit has synced."""


class LogSyncs:
    """A log as `Rounds` sees it."""

    __slots__ = ("_failed", "_log", "_rounds", "_synced", "_syncing", "_taking", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        rounds: Callable[[], Rounds],
        *,
        synced: Callable[[], None],
        failed: Callable[[OSError], KafkaError],
    ) -> None:
        self.topic_partition = topic_partition
        self._log = log
        self._rounds = rounds
        self._synced = synced
        self._failed = failed
        self._taking = asyncio.Lock()
        self._syncing: asyncio.Event | None = None  # set when the sync is over; a log has one only now and then

    # --- what is synced ----------------------------------------------------------------------

    @property
    def comes_before_ack(self) -> bool:
        """True if the topic has its records synced before they are acknowledged (`kraftpy.flush.before.ack`)."""
        return self._log.config.kraftpy_flush_before_ack

    @property
    def synced_end_offset(self) -> int:
        """Everything before this offset is synced."""
        return self._log.recovery_point

    @property
    def counted_end_offset(self) -> int | None:
        """The offset up to which the log counts as acknowledged by this broker; None means to its end."""
        return self._log.recovery_point if self._log.config.kraftpy_flush_before_ack else None

    @property
    def come_by_themselves(self) -> bool:
        """True if records are synced without a request for it: after `flush.ms`, or before they are acknowledged."""
        config = self._log.config
        return config.flush_ms < _NEVER_MS or config.kraftpy_flush_before_ack

    @property
    def has_unsynced_segments(self) -> bool:
        """True if a sealed segment is not synced yet."""
        return self._log.segments.active.base_offset > self._log.recovery_point

    @property
    def is_pending(self) -> bool:
        """True if records wait for a sync that nobody may have requested."""
        log = self._log
        if log.is_failed or log.recovery_point >= log.log_end_offset:
            return False
        return self.come_by_themselves or self.has_unsynced_segments

    @property
    def lacks_promise(self) -> bool:
        """True if the topic's settings require the promise to sync before acknowledging, and it is not made yet."""
        log = self._log
        return log.config.kraftpy_flush_before_ack and not (log.promises_synced or log.metadata is None)

    def is_due(self, end_offset: int) -> bool:
        """Return whether everything before an offset must be synced before it is acknowledged, and is not yet."""
        log = self._log
        if log.config.kraftpy_flush_before_ack:
            return log.recovery_point < end_offset
        return log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def request(self) -> None:
        """Request a sync without waiting for it."""
        self._rounds().request(self)

    def request_what_counts(self) -> None:
        """Sync records that the log already holds (from before a crash, or another leader), so that they count."""
        if self.is_due(self._log.log_end_offset) and self.comes_before_ack:
            self.request()

    async def wait(self, end_offset: int) -> None:
        """Sync everything before `end_offset`, in a round that others share. Raises KafkaError."""
        await self._rounds().wait(self, end_offset)

    @contextlib.asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Keep syncs away while the context is entered."""
        try:
            async with self._taking:
                if self._syncing is not None:
                    await self._syncing.wait()
                yield
        finally:
            if not self.is_taken:
                self._rounds().let_go(self)

    def moved(self, log: PartitionLog, before: Rounds) -> None:
        """Switch to another log, on another disk; waiters move along. Call it within `none`."""
        self._log = log
        before.hand_over(self, self._rounds())

    # --- for the rounds ----------------------------------------------------------------------

    @property
    def is_taken(self) -> bool:
        """True if something keeps syncs away, or waits to."""
        return self._taking.locked()

    def begin_sync(self) -> FlushJob | None:
        """Return the job of syncing this log; None if all is synced. Raises what `group_commit.Log` says."""
        if self._log.is_closed:
            message = f"{self.topic_partition} was closed before it was synced"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        try:
            job = self._log.begin_flush()
        except OSError as error:
            if failure_of(error) is Failure.RESOURCES and not self._log.is_failed:
                self._failed(error)
                raise
            raise self._failed(error) from error
        if job is not None:
            self._syncing = asyncio.Event()
        return job

    def end_sync(self, job: FlushJob, failure: Exception | None) -> Exception | None:
        """Apply the result of a sync; return the error for its waiters, if it failed.

        Raises a failure that is not the disk's.
        """
        if self._syncing is not None:
            self._syncing.set()
            self._syncing = None
        try:
            self._log.finish_flush(job)
        except OSError as error:
            failure = failure or error
        if isinstance(failure, OSError):
            told = self._failed(failure)
            is_short = failure_of(failure) is Failure.RESOURCES and not self._log.is_failed
            return failure if is_short else told
        if failure is not None:  # a bug of ours
            raise failure
        self._synced()
        return None
