"""A follower of one partition in one leader epoch: where to fetch, and what an answer means.

Everything it knows it reads from the log (`LogView`), so the log and it cannot disagree. An answer counts only if the
log still stands where the fetch was made from; everything else is late or a repetition and is ignored (rule 7). Where
the logs part, it cuts by epochs and never by high watermark: to the end of the largest epoch both know (KIP-101,
KIP-279, KIP-595).

What is asked for may be answered by a leader that has been deposed since, so batches of a later epoch than the asked
one are not taken (KAFKA-18723; `AppendRecords.leader_epoch`).

One per leader epoch: when the metadata names another leader or leader epoch, make a new one.

A leader tells the end of an epoch truly only behind its log start, where it has records of it. So a follower that would
keep nothing the leader still has keeps nothing.

The leader says its log start with OFFSET_OUT_OF_RANGE. A log that ends before that starts over there. Where it does
not, what this log has of epochs above the leader's own goes first; if that is nothing, it starts over as well.

Invariants: truncations only below the log's end or for epochs that begin there; back-off is bounded.

Left out: leaders that leave their log start out of OFFSET_OUT_OF_RANGE (Kafka's do; they are asked again with
ListOffsets there); tiered storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import HEADER_BYTES, read_header
from kraftpy.replication.events import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendRecords,
    BackOff,
    FollowerEffect,
    NeedsMetadata,
    StartOver,
    TruncateTo,
)
from kraftpy.types import BrokerId, Millis

BACK_OFF_MS: Final = 50
BACK_OFF_MAX_MS: Final = 1_000
"""The delay after an error doubles from the first to the second (`replica.fetch.backoff.ms`)."""

_METADATA_IS_BEHIND: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class LogView(Protocol):
    """The part of its own log that a follower reads."""

    @property
    def log_start_offset(self) -> int:
        """Its first record."""
        ...

    @property
    def log_end_offset(self) -> int:
        """One past its last record."""
        ...

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch it knows, -1 for none."""
        ...

    @property
    def high_watermark(self) -> int:
        """The end of what is known to be committed."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above (`PartitionLog.end_offset_for_epoch`); (-1, -1) for an
        epoch above all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPosition:
    """One partition in a Fetch request: the position to fetch from."""

    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int


class DivergingEpoch(NamedTuple):
    """The largest epoch of the leader's not above the follower's last, and where it ends."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """One partition in a Fetch response; -1 for fields that are absent."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    records: Buffer = b""
    diverging_epoch: DivergingEpoch | None = None
    current_leader_id: int = -1
    current_leader_epoch: int = -1
    preferred_read_replica: int = -1


class Follower:
    """One partition that is copied from `leader` during `leader_epoch`."""

    def __init__(
        self,
        *,
        leader: BrokerId,
        leader_epoch: int,
        log: LogView,
        back_off_ms: int = BACK_OFF_MS,
        back_off_max_ms: int = BACK_OFF_MAX_MS,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.retry_at: Millis | None = None
        """`next_fetch` returns None until this time; if None, there is no back-off."""
        self._log = log
        self._back_off_ms = self._first_back_off_ms = back_off_ms
        self._back_off_max_ms = back_off_max_ms
        self._parted_at: FetchPosition | None = None

    def next_fetch(self, now: Millis) -> FetchPosition | None:
        """Return what to ask the leader for; None while backing off."""
        if self.retry_at is not None:
            if now < self.retry_at:
                return None
            self.retry_at = None
        return self._position()

    def _position(self) -> FetchPosition:
        log = self._log
        return FetchPosition(
            offset=log.log_end_offset,
            last_fetched_epoch=log.latest_epoch,
            leader_epoch=self.leader_epoch,
            log_start_offset=log.log_start_offset,
        )

    def answered(self, asked: FetchPosition, answer: FetchAnswer, now: Millis) -> list[FollowerEffect]:
        """Return what to do about the answer to a fetch: nothing if the log has moved since the fetch was made."""
        log = self._log
        if (
            asked.leader_epoch != self.leader_epoch
            or asked.offset != log.log_end_offset
            or asked.last_fetched_epoch != log.latest_epoch
        ):
            return []
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(answer, now)
        if answer.error is not ErrorCode.NONE:
            return self.failed(answer.error, now)
        if answer.diverging_epoch is not None:
            return self._parted(asked, answer, answer.diverging_epoch, now)
        if len(answer.records) >= HEADER_BYTES and log.log_start_offset < log.log_end_offset:
            first = read_header(answer.records)
            if first.base_offset < asked.offset <= first.last_offset:
                # A batch across this log's end was never this log's leader's: they parted where it begins. Epochs do
                # not tell where the leader's log starts within it.
                return [TruncateTo(offset=first.base_offset)]
        self._back_off_ms = self._first_back_off_ms
        self._parted_at = None
        effects: list[FollowerEffect] = []
        if answer.records:
            effects.append(AppendRecords(records=answer.records, leader_epoch=asked.leader_epoch))
        if answer.log_start_offset > log.log_start_offset:  # first: below it the logs may differ for good
            effects.append(AdvanceLogStart(offset=answer.log_start_offset))
        if answer.high_watermark > log.high_watermark and (answer.records or log.high_watermark < log.log_end_offset):
            effects.append(AdvanceHighWatermark(offset=answer.high_watermark))
        return effects

    def failed(self, error: ErrorCode, now: Millis) -> list[FollowerEffect]:
        """Back off, because a fetch failed or one of the effects of its answer did."""
        self.retry_at = Millis(now + self._back_off_ms)
        self._back_off_ms = min(self._back_off_ms * 2, self._back_off_max_ms)
        effects: list[FollowerEffect] = [BackOff(reason=error)]
        if error in _METADATA_IS_BEHIND:
            effects.append(NeedsMetadata())
        return effects

    def _parted(
        self, asked: FetchPosition, answer: FetchAnswer, diverging: DivergingEpoch, now: Millis
    ) -> list[FollowerEffect]:
        """Rule 4: cut to the end of the epoch the leader named, as far as both have it; or of the largest below it, and
        ask again."""
        if asked == self._parted_at:  # the cut has changed nothing: no reason to ask as fast as the wire allows
            return self.failed(ErrorCode.UNKNOWN_SERVER_ERROR, now)
        self._parted_at = asked
        log = self._log
        epoch, end_offset = log.end_offset_for_epoch(diverging.leader_epoch)
        if epoch < 0:  # this log knows no epochs, or none that new: the leader's word is all there is
            end_offset = diverging.end_offset
        elif epoch == diverging.leader_epoch:
            end_offset = min(end_offset, diverging.end_offset)
        end_offset = max(0, min(end_offset, log.log_end_offset))
        if end_offset <= answer.log_start_offset and log.log_start_offset < log.log_end_offset:
            # The leader has nothing left of what both had. Where its log begins it does not know epochs' true ends.
            return [StartOver(offset=answer.log_start_offset)]
        return [TruncateTo(offset=end_offset)]

    def _out_of_range(self, answer: FetchAnswer, now: Millis) -> list[FollowerEffect]:
        log = self._log
        if answer.log_start_offset < 0:
            return self.failed(ErrorCode.OFFSET_OUT_OF_RANGE, now)
        if answer.log_start_offset <= log.log_end_offset and log.latest_epoch > self.leader_epoch:
            end_offset = log.end_offset_for_epoch(self.leader_epoch)[1]
            if end_offset >= 0:
                return [TruncateTo(offset=min(end_offset, log.log_end_offset))]
        if answer.log_start_offset == log.log_end_offset == log.log_start_offset and log.latest_epoch < 0:
            return self.failed(ErrorCode.OFFSET_OUT_OF_RANGE, now)  # it is as empty as it can be already
        return [StartOver(offset=answer.log_start_offset)]
