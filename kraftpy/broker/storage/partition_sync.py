"""One partition's log and its disk's rounds of syncs: what must be synced, what became of it, and who keeps it away.

What is synced counts as acknowledged by this broker itself where the topic says `kraftpy.flush.before.ack`; that is the
replica's to draw conclusions from (`synced`). A sync that failed is the replica's as well (`failed`): the log takes
nothing more from then on, for what the kernel dropped cannot be synced again.
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


class LogSyncs:
    """What `Rounds` knows of a log."""

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
        self._syncing: asyncio.Event | None = None  # set when it is over; one has a sync once in a while

    # --- what is synced ----------------------------------------------------------------------

    @property
    def comes_before_ack(self) -> bool:
        """Whether the topic has its records synced before they are acknowledged (`kraftpy.flush.before.ack`)."""
        return self._log.config.kraftpy_flush_before_ack

    @property
    def synced_end_offset(self) -> int:
        """Everything before it is synced."""
        return self._log.recovery_point

    @property
    def counted_end_offset(self) -> int | None:
        """How far the log counts as an acknowledgement of this broker; None: to its end."""
        return self._log.recovery_point if self._log.config.kraftpy_flush_before_ack else None

    def is_due(self, end_offset: int) -> bool:
        """Whether what is before an offset must be synced before it is acknowledged, and is not."""
        log = self._log
        if log.config.kraftpy_flush_before_ack:
            return log.recovery_point < end_offset
        return log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def request(self) -> None:
        """Have it synced soon; nobody waits."""
        self._rounds().request(self)

    def request_what_counts(self) -> None:
        """What the log holds and has not synced (of before a crash, or of another leader) is to count."""
        if self.is_due(self._log.log_end_offset) and self.comes_before_ack:
            self.request()

    async def wait(self, end_offset: int) -> None:
        """Have everything before `end_offset` synced, in a round that others share. Raises KafkaError."""
        await self._rounds().wait(self, end_offset)

    @contextlib.asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """No sync runs meanwhile."""
        try:
            async with self._taking:
                if self._syncing is not None:
                    await self._syncing.wait()
                yield
        finally:
            if not self.is_taken:
                self._rounds().let_go(self)

    def moved(self, log: PartitionLog, before: Rounds) -> None:
        """The log is another now, on another disk: who waits for a sync waits for that one's. While there is `none`."""
        self._log = log
        before.hand_over(self, self._rounds())

    # --- for the rounds ----------------------------------------------------------------------

    @property
    def is_taken(self) -> bool:
        """Whether something keeps syncs away, or waits to."""
        return self._taking.locked()

    def begin_sync(self) -> FlushJob | None:
        """Take the job of syncing this log; None if all is synced. Raises KafkaError and OSError as `syncing.Log`."""
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
        """Take over what a sync achieved; what those who waited for it are to be told of a failure.

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
        if failure is not None:  # a mistake of ours
            raise failure
        self._synced()
        return None
