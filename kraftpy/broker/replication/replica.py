"""One partition replica on this broker: its log, its role, its high watermark, and the requests that wait for it.

The role follows the metadata: leader, follower, or neither while there is no leader. The rules of leaders and followers
are in `kraftpy.replication`; this module applies their effects to the log and wakes waiters. `lead`, `follow` and
`stand_by` change the role immediately and do not block, so that a thousand roles can change in one turn of the loop.

Rule 1: a leader epoch begins at the log's end and is in the epoch cache before anything is served in it. It reaches the
disk with the next flush of the log; an entry without records behind it would be dropped at the next start anyway, and
one with records is recovered from them (`log.epochs`).

Truncation and compaction are in `log_operations`: a log that is being truncated can be neither read nor led. Searches
by time are in `log_search`.

A failed disk costs the partitions on it, not the broker: requests that cannot be written are answered with
KAFKA_STORAGE_ERROR, and any failure but a full disk or a process out of descriptors takes the whole log directory
offline (`storage.disk`). So does every failed sync: data that the kernel dropped cannot be synced again; the next start
recovers.

Reads are verified (`log.verifying`). Damage is answered with CORRUPT_MESSAGE, to consumers, followers and coordinators
alike, and logged once (`log_errors`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, assert_never

from kraftpy.broker.replication.change_reports import ChangeReports
from kraftpy.broker.replication.fetch_sessions import PartitionKey
from kraftpy.broker.replication.host import ReplicaHost
from kraftpy.broker.replication.log_errors import LogErrors
from kraftpy.broker.replication.log_operations import LogOperations
from kraftpy.broker.storage.partition_sync import LogSyncs
from kraftpy.broker.waiting import Watch, wake_all
from kraftpy.config import TopicConfig
from kraftpy.log.appending import Prepared
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import AppendResult, LogSlice, Origin, ReadResult
from kraftpy.log.segment import CorruptSegment
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import BatchHeader
from kraftpy.replication.events import FollowerLeftIsr, HighWatermarkAdvanced, LeaderEffect, ProposeIsr
from kraftpy.replication.follower import Follower
from kraftpy.replication.leader import Fetching, Leader, PartitionState
from kraftpy.types import BrokerId, LeaderEpoch, Millis, Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.metrics.traffic import TopicTraffic

NO_LEADER = BrokerId(-1)
NO_LEADER_EPOCH = -1
"""The epoch that a client sends if it knows none; any other negative epoch counts as older than the leader's."""
NEVER = 1 << 62


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed reader must leave out."""

    producer_id: int
    first_offset: int


class Records(NamedTuple):
    """Whole batches, and the aborted transactions to leave out of them (empty for a read_uncommitted reader)."""

    records: bytes | LogSlice
    aborted_transactions: list[AbortedTransaction]


class Replica:
    """This broker's replica of one partition."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log_directory: Directory,
        log: PartitionLog,
        host: ReplicaHost,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_directory = log_directory
        self.log = log
        self.leader_id = NO_LEADER
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = -1
        self.leading: Leader | None = None
        """The leader's state; None if this replica does not lead."""
        self.following: Follower | None = None
        """The follower's state; None if this replica does not follow."""
        self.is_offline = False
        """Its log directory failed."""
        self.lacks_records = False
        """The log was found shorter than expected when it was opened."""
        self.is_alone = False
        """The partition has no other replica: everything appended is committed."""
        self.leadership = 0
        """The number of times that it became the leader.

        A request that waits for a commit compares it: another leader may have truncated the log in between.
        """
        self.high_watermark = Offset(0)
        """Everything before it is known to be committed."""
        self.watches: dict[Watch, None] = {}
        """Requests that wait for records to be committed."""
        self.session_key: PartitionKey = ("", topic_id, topic_partition.partition)
        """The partition's key in followers' fetch sessions."""
        self.change_reports = ChangeReports(self.session_key)
        """Followers' fetch sessions that hear of each change."""
        self.traffic: TopicTraffic | None = None
        """The counters of its topic; None if there are no metrics."""
        self.flushed_at_ms = Millis(0)
        """When all of the log was last known to be synced, if records are now waiting for a sync."""
        self.counted_producers = 0
        """The number of the log's producers, as of the last count (`due_work`)."""
        self._host = host
        self.errors = LogErrors(self, host.storage_failed, host.complaints)
        """Storage errors of the log, and the damage found in it."""
        self.syncs = LogSyncs(
            topic_partition,
            log,
            lambda: host.syncs.of(self.log_directory.path),
            synced=self._synced,
            failed=lambda error: self.errors.failed("sync", error),
        )
        """Syncs of the log, and the offset up to which it is synced."""
        self.operations = LogOperations(self, self.syncs, host.complaints, self._truncated)
        """Truncations and compactions of the log."""
        self._low_watermark_awaited = 0

    # --- role --------------------------------------------------------------------------------

    def lead(self, state: PartitionState, brokers: Mapping[BrokerId, int], min_insync_replicas: int) -> None:
        """Become the leader, or continue with new metadata. `brokers` are those that may be in sync."""
        assert not self.operations.is_truncating, "a log that is being truncated cannot be led"
        now = self._host.monotonic_ms()
        self.partition_epoch = state.partition_epoch
        self.is_alone = len(state.replicas) == 1
        if self.leading is not None:
            is_new_epoch = state.leader_epoch > self.leader_epoch
            if is_new_epoch:
                self.leader_epoch = LeaderEpoch(state.leader_epoch)
                self.log.assign_epoch(state.leader_epoch)
            self._perform(self.leading.changed(state, now))
            if is_new_epoch:
                self._changed_role()
            return
        self.leadership += 1
        self.following = None
        self.leader_id = self._host.broker_id
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        self.log.assign_epoch(state.leader_epoch)
        self.leading = Leader(
            broker_id=self._host.broker_id,
            state=state,
            log_end_offset=self.log.log_end_offset,
            high_watermark=min(self.high_watermark, self.log.log_end_offset),
            min_insync_replicas=min_insync_replicas,
            lag_time_max_ms=self._host.lag_time_max_ms,
            brokers=brokers,
            now=now,
            synced_end_offset=self.syncs.counted_end_offset,
        )
        self.high_watermark = Offset(self.leading.high_watermark)
        self._changed_role()
        self.syncs.request_what_counts()
        if state.is_recovering:
            asyncio.get_running_loop().call_soon(self.check_lagging_followers)

    def follow(self, leader_id: BrokerId, leader_epoch: LeaderEpoch, partition_epoch: int) -> bool:
        """Follow this leader from now on; return whether that is a change."""
        self.partition_epoch = partition_epoch
        if self.following is not None and (self.leader_id, self.leader_epoch) == (leader_id, leader_epoch):
            return False
        self.leading = None
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        self.high_watermark = Offset(min(self.high_watermark, self.log.log_end_offset))
        self.following = Follower(
            leader=leader_id, leader_epoch=leader_epoch, log=self, back_off_max_ms=self._host.back_off_max_ms
        )
        self._changed_role()
        return True

    def stand_by(self, leader_epoch: LeaderEpoch, partition_epoch: int) -> None:
        """Neither lead nor follow, because the partition has no leader now, or is about to be deleted."""
        self.partition_epoch = partition_epoch
        if self.leading is None and self.following is None and self.leader_epoch == leader_epoch:
            return
        self.leading = self.following = None
        self.leader_id, self.leader_epoch = NO_LEADER, leader_epoch
        self._changed_role()

    def go_offline(self) -> None:
        """Go offline after the log directory failed: waiters get an error, and the log is used no more."""
        self.is_offline = True
        self.leading = self.following = None
        self.leader_id = NO_LEADER
        self._changed_role()

    def _changed_role(self) -> None:
        wake_all(self.watches)
        self.change_reports.send()

    def brokers_changed(self, brokers: Mapping[BrokerId, int]) -> None:
        """Handle a change of brokers; `brokers` are those that may be in sync, with their epochs."""
        if self.leading is not None:
            self._perform(self.leading.brokers_changed(brokers, self._host.monotonic_ms()))

    def configure(self, config: TopicConfig) -> None:
        """Apply new settings of the topic."""
        is_synced_otherwise = config.kraftpy_flush_before_ack != self.syncs.comes_before_ack
        self.log.config = config
        self._host.due.changed(self)
        if self.leading is None:
            return
        now = self._host.monotonic_ms()
        self._perform(self.leading.min_insync_replicas_changed(config.min_insync_replicas, now))
        if is_synced_otherwise:
            self._perform(self.leading.synced(self.syncs.counted_end_offset, now))
            self.syncs.request_what_counts()

    def check_lagging_followers(self) -> None:
        """Propose to drop followers that lag for too long (rule 12); must be called every half of that time."""
        if self.leading is not None:
            self._perform(self.leading.tick(self._host.monotonic_ms()))

    def proposal_agreed(self, leader: Leader, proposal: ProposeIsr) -> None:
        """Handle acceptance of the leader's proposal; if it was in effect already, no metadata change will follow."""
        if self.leading is leader and leader.state.partition_epoch == proposal.partition_epoch:
            self.proposal_refused(leader, proposal, ErrorCode.OPERATION_NOT_ATTEMPTED)

    def proposal_refused(self, leader: Leader, proposal: ProposeIsr, error: ErrorCode) -> None:
        """Handle a refusal of the leader's proposal, or an unknown outcome."""
        if self.leading is not leader:
            return
        now = self._host.monotonic_ms()
        self._perform(leader.proposal_refused(error, now, partition_epoch=proposal.partition_epoch))
        if leader.retry_at is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0, leader.retry_at - now + 1) / 1000, self.check_lagging_followers)

    def fetched(
        self,
        broker_id: BrokerId,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        fetching: Fetching | None = None,
    ) -> None:
        """Record that a follower has everything before `offset`. Raises KafkaError if it is not a follower."""
        assert self.leading is not None
        effects = self.leading.fetched(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            fetch_offset=offset,
            log_start_offset=log_start_offset,
            log_end_offset=self.log.log_end_offset,
            now=self._host.monotonic_ms(),
            fetching=fetching,
        )
        if effects:
            self._perform(effects)
        if self._low_watermark_awaited and log_start_offset >= self.log.log_start_offset:
            wake_all(self.watches)

    async def delete_records(self, before: Offset) -> None:
        """Hide the records before an offset, durably (DeleteRecords).

        Concurrent requests for the same offset share a checkpoint. Raises KafkaError (OFFSET_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR).
        """
        self.advance_log_start(before)
        if self.log.written_log_start < before:
            try:
                await self._host.write_log_start(self.log, before)
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log start cannot be written: {error}") from error

    async def low_watermark_at(self, offset: int, deadline: float) -> int:
        """Wait until no live replica has records before an offset (DeleteRecords); return the lowest log start offset.

        Raises KafkaError: REQUEST_TIMED_OUT if the event loop's time reaches `deadline` first, NOT_LEADER_OR_FOLLOWER.
        """
        with Watch([self]) as watch:
            self._low_watermark_awaited += 1
            try:
                while True:
                    if self.leading is None:
                        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership was lost")
                    low_watermark = self.leading.low_watermark(self.log.log_start_offset)
                    if low_watermark >= offset:
                        return low_watermark
                    if not await watch.wait_until(deadline):
                        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "a replica still has records before the offset")
            finally:
                self._low_watermark_awaited -= 1

    def _perform(self, effects: Sequence[LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced():
                    self.high_watermark = Offset(effect.offset)
                    wake_all(self.watches)
                    self.change_reports.send_news()
                case ProposeIsr():
                    self._host.propose(self, effect)
                case FollowerLeftIsr():
                    self.change_reports.send()
                case _:
                    assert_never(effect)

    # --- offsets -----------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> Offset:
        """Everything before it is committed and belongs to no open transaction."""
        return Offset(self.log.last_stable_offset(self.high_watermark))

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.log.log_start_offset

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 if none is known."""
        return self.log.epochs.latest

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Check that the client means this leader epoch. Raises KafkaError (FENCED_ or UNKNOWN_LEADER_EPOCH).

        -1 skips the check (rule 6).
        """
        if current_leader_epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {current_leader_epoch} is older than the current one, {self.leader_epoch}",
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {current_leader_epoch} is newer than the known one, {self.leader_epoch}",
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch up to `leader_epoch`, or (-1, -1)."""
        end = self.log.end_offset_for_epoch(leader_epoch)
        return end.leader_epoch, end.end_offset

    def diverging_epoch(self, last_fetched_epoch: LeaderEpoch, fetch_offset: Offset) -> tuple[int, int] | None:
        """Return the epoch and offset at which the reader's log diverges, if it does (rule 3).

        Raises KafkaError (OFFSET_OUT_OF_RANGE).
        """
        epoch, end_offset = self.end_offset_for_epoch(last_fetched_epoch)
        if end_offset < 0 or fetch_offset < self.log.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log no longer has epoch {last_fetched_epoch}, or the offset {fetch_offset}",
            )
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    # --- reading and writing -----------------------------------------------------------------

    def read(
        self, offset: Offset, max_bytes: int, *, read_committed: bool, min_one_batch: bool, slice_from: int = NEVER
    ) -> Records:
        """Read committed batches from `offset`; reads of at least `slice_from` bytes return a slice of the file.

        Raises KafkaError (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE).
        """
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        read = self._read(offset, max_bytes, end_offset, min_one_batch, slice_from)
        aborted: list[AbortedTransaction] = []
        records = read if isinstance(read, LogSlice) else read.records
        if read_committed and records:
            found = self.log.producers.aborted.between(offset, read.next_offset)
            aborted = [AbortedTransaction(each.producer_id, each.first_offset) for each in found]
        return Records(records, aborted)

    def read_to_end(self, offset: Offset, max_bytes: int, *, min_one_batch: bool) -> bytes:
        """Read batches from `offset`, committed or not, for a coordinator. Raises KafkaError (as `read`)."""
        read = self._read(offset, max_bytes, None, min_one_batch, NEVER)
        assert isinstance(read, ReadResult)
        return read.records

    def read_for_follower(
        self, offset: Offset, max_bytes: int, *, min_one_batch: bool, slice_from: int = NEVER
    ) -> bytes | LogSlice:
        """Read batches from `offset`, committed or not, for a follower; slices and errors as in `read`."""
        read = self._read(offset, max_bytes, None, min_one_batch, slice_from)
        return read if isinstance(read, LogSlice) else read.records

    def _read(
        self, offset: Offset, max_bytes: int, end_offset: int | None, min_one_batch: bool, slice_from: int
    ) -> ReadResult | LogSlice:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline")
        if self.operations.truncation is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is being truncated")
        try:
            return self.log.read_or_slice(
                offset, max_bytes, slice_from, end_offset=end_offset, min_one_batch=min_one_batch
            )
        except OSError as error:
            raise self.errors.failed("read", error) from error
        except CorruptSegment as damage:
            raise self.errors.damaged(damage) from damage

    def check_in_sync(self) -> None:
        """Check that acks=all can be promised now (rule 17). Raises KafkaError (NOT_ENOUGH_REPLICAS)."""
        leading = self.leading
        if leading is not None and not self.is_alone and leading.is_under_min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(leading.state.isr)} is insufficient to satisfy the min.isr "
                f"requirement of {leading.effective_min_insync_replicas} for partition {self.topic_partition}",
            )

    def append(
        self,
        records: Buffer,
        origin: Origin,
        now: Millis,
        batch: Prepared | None = None,
        header: BatchHeader | None = None,
    ) -> AppendResult:
        """Append one batch as the leader, assign its offsets and wake waiters. Raises KafkaError.

        `batch` is a producer's batch as `log.prepare` returned it; `header` is its header, if the caller has read it.
        """
        leading = self.leading
        if leading is None:
            if self.is_offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline")
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is led by another broker")
        appended = self._append(records, self.leader_epoch, origin, now, batch, header)
        if appended.flush_due:
            self.syncs.request()
        if not appended.is_duplicate:
            if self.traffic is not None:
                self.traffic.bytes_in += len(records)
                self.traffic.messages_in += appended.last_offset - appended.base_offset + 1
            if self.is_alone:
                leading.appended(appended.log_end_offset, now)
                if leading.high_watermark > self.high_watermark:
                    self.high_watermark = Offset(leading.high_watermark)
                    if self.watches:
                        wake_all(self.watches)
            else:
                self._perform(leading.appended(appended.log_end_offset, self._host.monotonic_ms()))
            if self.change_reports.sessions:
                self.change_reports.send()
        return appended

    def append_copies(self, records: Buffer, leader_epoch: LeaderEpoch) -> AppendResult:
        """Append the leader's batches (rules 7 and 8). Raises KafkaError; CorruptBatch if they do not fit."""
        appended = self._append(records, leader_epoch, Origin.REPLICA, self._host.now())
        if self.traffic is not None:
            self.traffic.replication_bytes_in += len(records)
        return appended

    def _append(
        self,
        records: Buffer,
        leader_epoch: LeaderEpoch,
        origin: Origin,
        now: Millis,
        batch: Prepared | None = None,
        header: BatchHeader | None = None,
    ) -> AppendResult:
        if self.log.is_failed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "an earlier sync of the log failed; restart the broker")
        try:
            appended = self.log.append(
                records, leader_epoch=leader_epoch, now=now, origin=origin, batch=batch, header=header
            )
        except OSError as error:
            self._host.due.changed(self)  # the rest of the write has to be synced
            raise self.errors.failed("append to", error) from error
        self._host.due.appended(self, appended, now)
        self.errors.has_complained = False
        return appended

    def advance_high_watermark(self, offset: int) -> None:
        """Take over the leader's high watermark as a follower (rule 10)."""
        if offset > self.high_watermark:
            self.high_watermark = Offset(offset)
            wake_all(self.watches)

    def advance_log_start(self, offset: int) -> bool:
        """Hide the records before an offset; return whether any were. Raises KafkaError (OFFSET_OUT_OF_RANGE)."""
        if not self.log.advance_log_start(offset):
            return False
        self.log_start_advanced()
        return True

    def log_start_advanced(self) -> None:
        """Tell followers that old records have left the log."""
        self.high_watermark = Offset(max(self.high_watermark, self.log.log_start_offset))
        self.change_reports.send()

    def _truncated(self, is_empty: bool) -> None:
        """Handle a truncation of the log, which may have dropped all of it."""
        end_offset = self.log.log_end_offset
        self.high_watermark = Offset(end_offset if is_empty else min(self.high_watermark, end_offset))
        self._host.due.changed(self)

    def moved(self, log: PartitionLog, log_directory: Directory, clean_until: Offset) -> PartitionLog:
        """Switch to a copy of the log in another directory; return the old log. Call it only within `undisturbed`."""
        old, self.log = self.log, log
        log.limits, log.checks_reads = old.limits, old.checks_reads
        self.log_directory, before = log_directory, self.log_directory
        self.syncs.moved(log, self._host.syncs.of(before.path))
        self._host.due.changed(self)
        self.operations.clean_until = Offset(min(clean_until, self.operations.clean_until))
        return old

    def outcome(self, end_offset: int, leadership: int) -> ErrorCode | None:
        """Return the outcome of an append with acks=all (rule 17); None while it is open."""
        if self.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.leading is None or self.leadership != leadership:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < end_offset:
            return None
        if not self.is_alone and not self.leading.has_enough_acks:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    async def committed(self, end_offset: int, leadership: int, deadline: float) -> ErrorCode:
        """Wait until everything before `end_offset` is committed, or cannot be.

        Returns REQUEST_TIMED_OUT if the event loop's time reaches `deadline` first.
        """
        outcome = self.outcome(end_offset, leadership)
        if outcome is not None:
            return outcome
        with Watch([self]) as watch:
            while (outcome := self.outcome(end_offset, leadership)) is None:
                if not await watch.wait_until(deadline):
                    outcome = self.outcome(end_offset, leadership)
                    return ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome
        return outcome

    async def flush(self, end_offset: int) -> None:
        """Sync everything before `end_offset`, in a round with others (`storage.group_commit`). Raises KafkaError."""
        await self.syncs.wait(end_offset)

    def _synced(self) -> None:
        self.flushed_at_ms = self._host.now()
        if self.leading is not None and self.syncs.comes_before_ack:
            self._perform(self.leading.synced(self.log.recovery_point, self._host.monotonic_ms()))

    async def release(self) -> None:
        """Close the files without writing anything, for a partition that is deleted."""
        self.stand_by(self.leader_epoch, self.partition_epoch)
        await self.operations.release()
