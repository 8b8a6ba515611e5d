"""One partition as this broker holds it: its log, what of it is committed, and who waits for it.

With one replica, everything appended is committed: the high watermark is the log end offset. What the leader of several
replicas has to know besides will be `replication/leader.py`; this is where it plugs in.

A disk that fails costs the partition, not the broker: what cannot be written is answered with KAFKA_STORAGE_ERROR, and
after a failed sync nothing more is accepted, because what the kernel dropped cannot be synced again; the next start
recovers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from kraftpy.broker.waiting import Watch, wake_all
from kraftpy.log import compaction
from kraftpy.log.compaction import CompactionAbandoned, CompactionJob, CompactionResult
from kraftpy.log.partition_log import AppendResult, Origin, PartitionLog, TimestampAndOffset
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import LeaderEpoch, Millis, Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed ones must leave out."""

    producer_id: int
    first_offset: int


class Records(NamedTuple):
    """Whole batches, and what to leave out of them (empty for a reader that takes everything)."""

    records: bytes
    aborted_transactions: list[AbortedTransaction]


class Replica:
    """The leader's replica of one partition."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log_directory: Directory,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_directory = log_directory
        self.log = log
        self.leader_epoch = leader_epoch
        self.watches: set[Watch] = set()
        self.flushed_at_ms = Millis(0)
        self.clean_until = Offset(0)
        """Where the part that was not compacted yet begins."""
        self._flushing = asyncio.Lock()
        self._compacting = asyncio.Lock()
        self._compaction: CompactionJob | None = None
        self._has_complained = False

    # --- how far it goes ---------------------------------------------------------------------

    @property
    def high_watermark(self) -> Offset:
        """Everything before it is committed."""
        return Offset(self.log.log_end_offset)

    @property
    def last_stable_offset(self) -> Offset:
        """Everything before it is committed and belongs to no open transaction."""
        return Offset(self.log.last_stable_offset(self.high_watermark))

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Begin a leader epoch at the log's end, before anything is served in it."""
        self.leader_epoch = leader_epoch
        self.log.assign_epoch(leader_epoch)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """That the client means the leader this is. Raises KafkaError (FENCED_ or UNKNOWN_LEADER_EPOCH).

        -1 asks nothing.
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {current_leader_epoch} is over")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {current_leader_epoch} is not known here yet")

    def epoch_of(self, offset: Offset) -> int:
        """The leader epoch a record was written in, or would be where it is the log's end."""
        return self.leader_epoch if offset >= self.log.log_end_offset else self.log.leader_epoch_of(offset)

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to the one asked for; (-1, -1) where there is none."""
        end = self.log.end_offset_for_epoch(leader_epoch)
        return end.leader_epoch, end.end_offset

    def diverging_epoch(self, last_fetched_epoch: LeaderEpoch, fetch_offset: Offset) -> tuple[int, int] | None:
        """Where the reader's log and this one part, if they do. Raises KafkaError (OFFSET_OUT_OF_RANGE)."""
        epoch, end_offset = self.end_offset_for_epoch(last_fetched_epoch)
        if end_offset < 0 or fetch_offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {last_fetched_epoch} is not known here any more")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    # --- reading and writing -----------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int, *, read_committed: bool, min_one_batch: bool) -> Records:
        """Committed batches from `offset` on. Raises KafkaError (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR)."""
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        try:
            read = self.log.read(offset, max_bytes, end_offset=end_offset, min_one_batch=min_one_batch)
        except OSError as error:
            raise self._storage_error("read", error) from error
        aborted: list[AbortedTransaction] = []
        if read_committed and read.records:
            found = self.log.producers.aborted_transactions(offset, read.next_offset)
            aborted = [AbortedTransaction(producer_id, first_offset) for producer_id, first_offset in found]
        return Records(read.records, aborted)

    def offset_for_timestamp(self, timestamp: Millis, end_offset: Offset) -> TimestampAndOffset | None:
        """The first record of that time or later, before `end_offset`. Raises KafkaError (KAFKA_STORAGE_ERROR)."""
        try:
            return self.log.offset_for_timestamp(timestamp, end_offset=end_offset)
        except OSError as error:
            raise self._storage_error("read", error) from error

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of all. Raises KafkaError (KAFKA_STORAGE_ERROR)."""
        try:
            return self.log.offset_of_max_timestamp()
        except OSError as error:
            raise self._storage_error("read", error) from error

    def append(self, records: Buffer, origin: Origin, now: Millis) -> AppendResult:
        """Append one batch, assign its offsets, wake who waits for it. Raises KafkaError."""
        if self.log.is_failed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "an earlier sync of the log failed; restart the broker")
        try:
            appended = self.log.append(records, leader_epoch=self.leader_epoch, now=now, origin=origin)
        except OSError as error:
            raise self._storage_error("append to", error) from error
        self._has_complained = False
        if not appended.is_duplicate:
            wake_all(self.watches)
        return appended

    async def committed(self, end_offset: int, deadline: float) -> bool:
        """Wait until everything before `end_offset` is committed.

        False when the event loop's time is `deadline` first.
        """
        if self.high_watermark >= end_offset:
            return True
        with Watch([self]) as watch:
            while self.high_watermark < end_offset:
                if not await watch.wait_until(deadline):
                    return self.high_watermark >= end_offset
        return True

    async def flush(self, end_offset: int, now: Millis) -> None:
        """Make everything before `end_offset` durable. One sync serves all who wait. Raises KafkaError.

        It goes on when the caller is cancelled (its client has gone): the log must learn what became of it.
        """
        await asyncio.shield(self._flush(end_offset, now))

    async def _flush(self, end_offset: int, now: Millis) -> None:
        async with self._flushing:
            if self.log.recovery_point >= end_offset or self.log.is_closed:
                return
            try:
                job = self.log.begin_flush()
                if job is not None:
                    try:
                        await asyncio.to_thread(job.run)
                    finally:
                        self.log.finish_flush(job)
            except OSError as error:
                raise self._storage_error("sync", error) from error
            self.flushed_at_ms = now

    async def compact(self, now: Millis) -> CompactionResult | None:
        """Clean what is dirty, where that is due (`log.compaction`); None where nothing was done.

        It goes on when the caller is cancelled; `settle` ends it. Raises OSError, CorruptBatch.
        """
        return await asyncio.shield(self._compact(now))

    async def _compact(self, now: Millis) -> CompactionResult | None:
        async with self._compacting:
            if self.log.is_closed or self.log.is_failed:
                return None
            job = compaction.begin(self.log, self.clean_until, now, high_watermark=self.high_watermark)
            if job is None:
                return None
            self._compaction = job
            try:
                await asyncio.to_thread(job.run)
            except CompactionAbandoned:
                return None
            finally:
                self._compaction = None
                result = compaction.finish(self.log, job)
            if result is not None:
                self.clean_until = Offset(result.end_offset)
            return result

    async def settle(self) -> None:
        """Wait for a flush that is under way, and end a compaction."""
        if self._compaction is not None:
            self._compaction.is_abandoned = True
        async with self._compacting, self._flushing:
            pass

    async def close(self) -> None:
        """Make everything durable and close the files, so that the log opens without a scan."""
        await self.settle()
        async with self._compacting, self._flushing:
            await asyncio.to_thread(self.log.close)

    async def release(self) -> None:
        """Close the files, write nothing: the end of a partition that is deleted."""
        wake_all(self.watches)
        await self.settle()
        async with self._compacting, self._flushing:
            self.log.release()

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        if not self._has_complained:
            logger.error("%s: cannot %s the log: %s", self.topic_partition, what, error)
            self._has_complained = True  # a full disk fails every request until there is room
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {what} the log: {error.strerror or error}")
