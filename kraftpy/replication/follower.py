"""A follower of one partition in one leader epoch: where to fetch, and what an answer means.

The follower reads its whole state from the log (`LogView`), so the two cannot disagree. An answer counts only if the
log still ends where the fetch was made from; any other answer is late or repeated, and is ignored (rule 7). If the logs
diverge, the follower truncates by epochs and never by high watermark: to the end of the largest epoch that both logs
have (KIP-101, KIP-279, KIP-595).

The answer may come from a leader of a later epoch than the request named, so batches of a later epoch are not appended
(KAFKA-18723; `AppendRecords.leader_epoch`).

A `Follower` lives for one leader epoch: when the metadata names another leader or leader epoch, make a new one.

A leader knows the true end of an epoch only after its log start, while it still has records of that epoch. So a
follower that would keep nothing that the leader still has drops its whole log.

With OFFSET_OUT_OF_RANGE the leader sends its log start offset. A log that ends before that offset starts over there. A
longer one first truncates its records of epochs above the leader's; if it has none, it starts over as well.

Invariants: the log is truncated only below its end, or for epochs that begin there; back-off is bounded.

Left out: leaders that do not send their log start offset with OFFSET_OUT_OF_RANGE (Kafka's do not; Kafka's followers
then ask with ListOffsets); tiered storage.
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
"""The delay after an error; it doubles from the first to the second (`replica.fetch.backoff.ms`)."""

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
        """The offset of its first record."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset after its last record."""
        ...

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in it, or -1."""
        ...

    @property
    def high_watermark(self) -> int:
        """The offset before which everything is known to be committed."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch up to `leader_epoch` (`PartitionLog.end_offset_for_epoch`).

        Returns (-1, -1) if `leader_epoch` is above all epochs of the log.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPosition:
    """One partition in a Fetch request: the position to fetch from."""

    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int


class DivergingEpoch(NamedTuple):
    """The leader's largest epoch up to the follower's last fetched epoch, and the end offset of that epoch."""

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
    """A follower that copies one partition from `leader` during `leader_epoch`."""

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
        self.leader_high_watermark = -1
        """The leader's high watermark in its last answer; -1 before the first."""
        self._log = log
        self._back_off_ms = self._first_back_off_ms = back_off_ms
        self._back_off_max_ms = back_off_max_ms
        self._diverged_at: FetchPosition | None = None

    def next_fetch(self, now: Millis) -> FetchPosition | None:
        """Return the position to fetch from; None while backing off."""
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
        """Return the effects of an answer to a fetch; none if the log has changed since the fetch was made."""
        log = self._log
        if (
            asked.leader_epoch != self.leader_epoch
            or asked.offset != log.log_end_offset
            or asked.last_fetched_epoch != log.latest_epoch
        ):
            return []
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._on_out_of_range(answer, now)
        if answer.error is not ErrorCode.NONE:
            return self.failed(answer.error, now)
        if answer.diverging_epoch is not None:
            return self._on_divergence(asked, answer, answer.diverging_epoch, now)
        if len(answer.records) >= HEADER_BYTES and log.log_start_offset < log.log_end_offset:
            first = read_header(answer.records)
            if first.base_offset < asked.offset <= first.last_offset:
                # A batch that spans this log's end was never in it: the logs diverge at the start of the batch. Epochs
                # cannot show this if the leader's log starts within the batch.
                return [TruncateTo(offset=first.base_offset)]
        self._back_off_ms = self._first_back_off_ms
        self._diverged_at = None
        self.leader_high_watermark = answer.high_watermark
        effects: list[FollowerEffect] = []
        if answer.records:
            effects.append(AppendRecords(records=answer.records, leader_epoch=asked.leader_epoch))
        if answer.log_start_offset > log.log_start_offset:  # first: before it the logs may differ for good
            effects.append(AdvanceLogStart(offset=answer.log_start_offset))
        if answer.high_watermark > log.high_watermark and (answer.records or log.high_watermark < log.log_end_offset):
            effects.append(AdvanceHighWatermark(offset=answer.high_watermark))
        return effects

    def failed(self, error: ErrorCode, now: Millis) -> list[FollowerEffect]:
        """Back off after a failed fetch, or a failed effect of its answer."""
        self.retry_at = Millis(now + self._back_off_ms)
        self._back_off_ms = min(self._back_off_ms * 2, self._back_off_max_ms)
        effects: list[FollowerEffect] = [BackOff(reason=error)]
        if error in _METADATA_IS_BEHIND:
            effects.append(NeedsMetadata())
        return effects

    def _on_divergence(
        self, asked: FetchPosition, answer: FetchAnswer, diverging: DivergingEpoch, now: Millis
    ) -> list[FollowerEffect]:
        """Truncate to the end that the epoch named by the leader has in both logs (rule 4).

        If this log does not have the epoch, truncate to the end of its largest one below, and fetch again.
        """
        if asked == self._diverged_at:  # the truncation changed nothing: do not fetch as fast as the wire allows
            return self.failed(ErrorCode.UNKNOWN_SERVER_ERROR, now)
        self._diverged_at = asked
        log = self._log
        epoch, end_offset = log.end_offset_for_epoch(diverging.leader_epoch)
        if epoch < 0:  # this log has no epochs, or none that is new enough: only the leader can know
            end_offset = diverging.end_offset
        elif epoch == diverging.leader_epoch:
            end_offset = min(end_offset, diverging.end_offset)
        end_offset = max(0, min(end_offset, log.log_end_offset))
        if end_offset <= answer.log_start_offset and log.log_start_offset < log.log_end_offset:
            # The leader has deleted everything that both logs had, and does not know true epoch ends at its log start.
            return [StartOver(offset=answer.log_start_offset)]
        return [TruncateTo(offset=end_offset)]

    def _on_out_of_range(self, answer: FetchAnswer, now: Millis) -> list[FollowerEffect]:
        log = self._log
        if answer.log_start_offset < 0:
            return self.failed(ErrorCode.OFFSET_OUT_OF_RANGE, now)
        if answer.log_start_offset <= log.log_end_offset and log.latest_epoch > self.leader_epoch:
            end_offset = log.end_offset_for_epoch(self.leader_epoch)[1]
            if end_offset >= 0:
                return [TruncateTo(offset=min(end_offset, log.log_end_offset))]
        if answer.log_start_offset == log.log_end_offset == log.log_start_offset and log.latest_epoch < 0:
            return self.failed(ErrorCode.OFFSET_OUT_OF_RANGE, now)  # it is empty already
        return [StartOver(offset=answer.log_start_offset)]
