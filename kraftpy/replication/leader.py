"""The leader's view of one partition: follower progress, high watermark, ISR.

high_watermark = the smallest log end offset in the *maximal* ISR: the committed ISR and every replica it may have grown
by (one we asked to add, until the quorum has said no), never minus one we asked to drop. Until the quorum answers, both
outcomes must be safe (KIP-497). It waits also for a replica that is caught up and may join the ISR but is not in it
yet, and stands still while the committed ISR is smaller than the effective min.insync.replicas (KIP-966), for acks=1
alike. Where records are synced before they are acknowledged, this broker's own log counts as far as it is synced
(`synced`), as a follower's does.

The ISR shrinks by a replica that has not been caught up for `replica.lag.time.max.ms`, and grows by one whose fetch
reaches the high watermark and the start of this leader epoch, if the broker it fetches for is the one that is
registered now: unfenced, not shutting down, of the broker epoch its fetch came with (KIP-841, KIP-903). One proposal at
a time is under way. A proposal whose fate is unknown is made again until the partition's epoch has moved on; each
partition epoch decides at most one.

Call `tick` about every half of `replica.lag.time.max.ms`, and at `retry_at` where that is set. Follower lag is measured
with the `now` that is given: use one clock for all calls.

Invariants: the high watermark never falls; the leader is always in the maximal ISR, the committed ISR always within
it; nobody is in `maximal_isr` who is no replica.

Left out: unclean election and the order of candidates (metadata decides those), throttling of lagging followers.
KIP-392 (reading from the nearest replica), KIP-497, KIP-841, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.events import HighWatermarkAdvanced, LeaderEffect, ProposeIsr
from kraftpy.types import BrokerId, Millis

UNKNOWN_OFFSET: Final = -1
NO_BROKER_EPOCH: Final = -1

RETRY_MS: Final = 50
RETRY_MAX_MS: Final = 1_000
"""The delay before a refused or lost proposal is made again doubles from the first to the second."""

_CERTAINLY_NOT: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""Refusals that rule the proposal out, so another may follow at the same partition epoch; others leave it open."""

_NOTHING: Final[tuple[LeaderEffect, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The metadata of a partition that this broker leads."""

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    is_recovering: bool = False
    """Elected uncleanly; the leader says when that is over, with its next proposal."""


class FollowerProgress(NamedTuple):
    """One follower as its leader knows it. Offsets are -1 until it has fetched in this leader epoch."""

    broker_id: BrokerId
    log_start_offset: int
    log_end_offset: int
    last_fetch_at: Millis
    last_caught_up_at: Millis
    is_in_isr: bool


class _Follower:
    __slots__ = (
        "broker_epoch",
        "broker_id",
        "counts",
        "last_caught_up_at",
        "last_fetch_at",
        "leader_end_offset_at_fetch",
        "log_end_offset",
        "log_start_offset",
        "wants_in",
    )

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.reset(0)

    def reset(self, last_caught_up_at: int) -> None:
        """A leader epoch begins: nothing is known of it (rule 16)."""
        self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_offset_at_fetch = UNKNOWN_OFFSET
        self.last_fetch_at = 0
        self.last_caught_up_at = last_caught_up_at
        self.broker_epoch: int | None = None
        self.counts = False  # is in the maximal ISR
        self.wants_in = False  # its last fetch was good enough, while another proposal was under way


class Leader:
    """One partition as its leader sees it. After any call `high_watermark` may have risen."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        state: PartitionState,
        log_end_offset: int,
        high_watermark: int,
        min_insync_replicas: int,
        lag_time_max_ms: int,
        brokers: Mapping[BrokerId, int],
        now: Millis,
        synced_end_offset: int | None = None,
    ) -> None:
        """Lead from here on: the caller has assigned the leader epoch at the log's end (`PartitionLog.assign_epoch`).

        `high_watermark` is what this broker knew of it until now: no more than a hint. `min_insync_replicas` is the
        topic's setting. `brokers` are those whose replicas may join an ISR: registered, unfenced, not shutting
        down, with their broker epochs; the mapping may be shared by all leaders, and must be replaced, not changed.
        `synced_end_offset` is as for `synced`.
        """
        self.broker_id = broker_id
        self.state = state
        self.log_end_offset = log_end_offset
        self.high_watermark = min(high_watermark, log_end_offset)
        self.epoch_start_offset = log_end_offset
        """Where this leader epoch begins: nobody joins the ISR with less (rule 13), and offsets of the end are not
        answered before the high watermark is here (rule 11)."""
        self.retry_at: Millis | None = None
        """The latest time at which `tick` must be called, besides its regular times."""
        self.maximal_isr: frozenset[BrokerId] = frozenset()
        self._min_insync_replicas = min_insync_replicas
        self._lag_time_max_ms = lag_time_max_ms
        self._brokers = brokers
        self._synced_end_offset = synced_end_offset
        self._followers: dict[BrokerId, _Follower] = {}
        self._proposal: ProposeIsr | None = None
        self._is_sent = False
        self._is_doubtful = False  # an earlier sending of the proposal may yet be decided
        self._may_join: frozenset[BrokerId] = (
            frozenset()
        )  # by proposals of this partition epoch nobody knows the end of
        self._doubt_ends_at = 0
        self._retry_ms = RETRY_MS
        self._take_replicas(now, is_new_epoch=True)
        self._advance(now)

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def effective_min_insync_replicas(self) -> int:
        """min.insync.replicas, but no more than there are replicas."""
        return min(self._min_insync_replicas, len(self.state.replicas))

    @property
    def is_under_min_insync_replicas(self) -> bool:
        """Whether the committed ISR is too small: acks=all is refused before the append (NOT_ENOUGH_REPLICAS), and the
        high watermark stands still."""
        return len(self.state.isr) < self.effective_min_insync_replicas

    @property
    def has_enough_acks(self) -> bool:
        """Whether an acks=all append that the high watermark has reached may be called a success (rule 17); else it is
        NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
        return len(self.maximal_isr) >= self.effective_min_insync_replicas

    @property
    def is_proposing(self) -> bool:
        """True while a proposal is in flight, or waits to be made again."""
        return self._proposal is not None

    def progress(self) -> list[FollowerProgress]:
        """The followers in the order of the replicas."""
        return [
            FollowerProgress(
                follower.broker_id,
                follower.log_start_offset,
                follower.log_end_offset,
                Millis(follower.last_fetch_at),
                Millis(follower.last_caught_up_at),
                follower.broker_id in self.state.isr,
            )
            for follower in self._followers.values()
        ]

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the smallest log start of this replica and the live followers, which DeleteRecords waits for and
        returns. -1 while one of them is unknown."""
        return min(
            [log_start_offset] + [f.log_start_offset for f in self._followers.values() if f.broker_id in self._brokers],
        )

    def nearest(self, rack: str | None, racks: Mapping[BrokerId, str | None], fetch_offset: int) -> BrokerId | None:
        """Return the follower that a consumer in `rack` should read from; None to read here (KIP-392, rule 48).

        It is the most advanced follower in the rack that is alive, in the ISR and whose log holds the offset; None if
        this broker is in the rack itself.
        """
        if not rack or racks.get(self.broker_id) == rack:
            return None
        best: _Follower | None = None
        for follower in self._followers.values():
            if (
                racks.get(follower.broker_id) == rack
                and follower.broker_id in self.state.isr
                and follower.broker_id in self._brokers
                and 0 <= follower.log_start_offset <= fetch_offset <= follower.log_end_offset
                and (best is None or follower.log_end_offset > best.log_end_offset)
            ):
                best = follower
        return None if best is None else best.broker_id

    # --- what happens -------------------------------------------------------------------------------------------------

    def appended(self, log_end_offset: int, now: Millis) -> Sequence[LeaderEffect]:
        """The log has grown. With one replica nothing is returned: `high_watermark` has moved along."""
        self.log_end_offset = log_end_offset
        if self._synced_end_offset is not None:
            return _NOTHING  # it waits for the sync
        if not self._followers:
            self.high_watermark = log_end_offset
            return _NOTHING
        if len(self.maximal_isr) > 1:
            return _NOTHING  # it waits for somebody's fetch
        return self._advance(now)

    def synced(self, end_offset: int | None, now: Millis) -> Sequence[LeaderEffect]:
        """Count this broker's own log only up to `end_offset`, or all that it holds if None."""
        self._synced_end_offset = end_offset
        return self._advance(now)

    def fetched(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        log_end_offset: int,
        now: Millis,
    ) -> Sequence[LeaderEffect]:
        """A follower's fetch was answered with records or with none: it holds everything before `fetch_offset`.

        To be told of neither where the answer is an error or a diverging epoch (rule 3). `log_start_offset` is the
        follower's, `log_end_offset` this log's when it was read. Raises KafkaError: UNKNOWN_LEADER_EPOCH for a broker
        that is no follower (rule 49: call `check_follower` before reading), NOT_LEADER_OR_FOLLOWER for a broker epoch
        that is over (rule 13).
        """
        follower = self.check_follower(broker_id, broker_epoch)
        # Rule 12: caught up now, or when it fetched last if this fetch has all that the log held then.
        if fetch_offset >= log_end_offset:
            follower.last_caught_up_at = max(follower.last_caught_up_at, now)
        elif fetch_offset >= follower.leader_end_offset_at_fetch >= 0:
            follower.last_caught_up_at = max(follower.last_caught_up_at, follower.last_fetch_at)
        has_moved = fetch_offset != follower.log_end_offset
        follower.log_end_offset = fetch_offset
        follower.log_start_offset = log_start_offset
        follower.broker_epoch = broker_epoch
        follower.last_fetch_at = now
        if log_end_offset > follower.leader_end_offset_at_fetch:
            follower.leader_end_offset_at_fetch = log_end_offset
        effects: Sequence[LeaderEffect] = _NOTHING
        if broker_id not in self.state.isr:
            follower.wants_in = self._may_join_isr(follower)
            if follower.wants_in:
                effects = self._propose_joining(now)
        if has_moved:
            advanced = self._advance(now)
            return [*effects, *advanced] if advanced else effects
        return effects

    def check_follower(self, broker_id: BrokerId, broker_epoch: int) -> _Follower:
        """Check that this broker may replicate from here. Raises KafkaError as `fetched` does; changes nothing."""
        follower = self._followers.get(broker_id)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is no follower that is known here")
        if 0 <= broker_epoch < self._brokers.get(broker_id, NO_BROKER_EPOCH):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} fetches with broker epoch {broker_epoch}"
            )
        return follower

    def changed(self, state: PartitionState, now: Millis) -> Sequence[LeaderEffect]:
        """Take the partition's metadata, whether or not it is new. A state of an older partition epoch is ignored.

        With a new leader epoch everything known of the followers is forgotten; the caller has assigned it at the log's
        end.
        """
        if state.partition_epoch < self.state.partition_epoch or state.leader_epoch < self.state.leader_epoch:
            return _NOTHING
        is_new_epoch = state.leader_epoch > self.state.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.state.partition_epoch:
            return _NOTHING
        self.state = state
        self._proposal, self._is_sent, self._is_doubtful = None, False, False
        self._may_join = frozenset()
        self.retry_at, self._retry_ms = None, RETRY_MS
        if is_new_epoch:
            self.epoch_start_offset = self.log_end_offset
        self._take_replicas(now, is_new_epoch=is_new_epoch)
        return [*self._propose_joining(now), *self._advance(now)]

    def brokers_changed(self, brokers: Mapping[BrokerId, int], now: Millis) -> Sequence[LeaderEffect]:
        """Replace the set of brokers that may join ISRs."""
        self._brokers = brokers
        return self._advance(now)

    def min_insync_replicas_changed(self, min_insync_replicas: int, now: Millis) -> Sequence[LeaderEffect]:
        """Take a new value of the topic's min.insync.replicas."""
        self._min_insync_replicas = min_insync_replicas
        return self._advance(now)

    def lag_time_max_changed(self, lag_time_max_ms: int) -> None:
        """Take a new value of `replica.lag.time.max.ms`."""
        self._lag_time_max_ms = lag_time_max_ms

    def proposal_refused(
        self, error: ErrorCode, now: Millis, *, partition_epoch: int | None = None
    ) -> Sequence[LeaderEffect]:
        """The quorum refused the proposal, or it is not known what became of it (any error, a timeout for instance).

        `partition_epoch` is the proposal's own; without it the newest one is meant. Tell `changed` first where the
        partition has changed meanwhile. What comes next comes from `tick`, from `retry_at` on.
        """
        proposal = self._proposal
        if proposal is None or not self._is_sent:
            return _NOTHING
        if partition_epoch is not None and partition_epoch != proposal.partition_epoch:
            return _NOTHING
        self._is_sent = False
        self.retry_at = Millis(now + self._retry_ms)
        self._retry_ms = min(self._retry_ms * 2, RETRY_MAX_MS)
        if error not in _CERTAINLY_NOT:
            self._is_doubtful = True
            return _NOTHING
        if self._is_doubtful:
            # This attempt failed, but an earlier one may still succeed: the replicas it would add keep counting until
            # the partition's epoch has moved on, or until the earlier attempt must have been lost. At most one proposal
            # of an epoch succeeds, so others may follow.
            return self._drop_proposal(now, still=frozenset(broker for broker, _ in proposal.isr))
        return self._drop_proposal(now, still=frozenset())

    def tick(self, now: Millis) -> Sequence[LeaderEffect]:
        """Time has passed: a proposal is made again, lagging replicas are dropped, recovering is over."""
        effects: list[LeaderEffect] = []
        if self._may_join and now >= self._doubt_ends_at:
            self._may_join = frozenset()
            self._count()
        if not self._is_sent and (self.retry_at is None or now >= self.retry_at):
            self.retry_at = None
            if self._proposal is not None:
                self._is_sent = True
                effects.append(self._proposal)
            else:
                effects += self._propose_leaving(now)
                if not effects:
                    effects += self._propose_joining(now)
                if not effects and self.state.is_recovering:
                    effects += self._propose(self.state.isr)
        effects += self._advance(now)
        return effects

    # --- how ----------------------------------------------------------------------------------------------------------

    def _take_replicas(self, now: int, *, is_new_epoch: bool) -> None:
        """Followers as the state names them; those known already keep what is known of them within an epoch."""
        known, self._followers = self._followers, {}
        for broker_id in self.state.replicas:
            if broker_id == self.broker_id:
                continue
            follower = known.get(broker_id)
            if follower is None or is_new_epoch:
                follower = _Follower(broker_id)
                follower.reset(now if broker_id in self.state.isr else 0)  # rule 16
            elif broker_id in self.state.isr:
                follower.wants_in = False
            self._followers[broker_id] = follower
        self._count()

    def _count(self) -> None:
        """Recompute the maximal ISR and mark the followers that belong to it."""
        members = self._may_join.union(self.state.isr)
        if self._proposal is not None:
            members = members.union(broker_id for broker_id, _ in self._proposal.isr)
        self.maximal_isr = members
        for follower in self._followers.values():
            follower.counts = follower.broker_id in members

    def _advance(self, now: int) -> Sequence[LeaderEffect]:
        """Raise the high watermark as far as it may go (rule 9)."""
        if self.is_under_min_insync_replicas:
            return _NOTHING
        offset = self.log_end_offset
        if self._synced_end_offset is not None:
            offset = min(offset, self._synced_end_offset)
        for follower in self._followers.values():
            if follower.log_end_offset < offset and (
                follower.counts or (self._is_caught_up(follower, now) and self._is_eligible(follower))
            ):
                offset = follower.log_end_offset
        if offset <= self.high_watermark:
            return _NOTHING
        self.high_watermark = offset
        return (HighWatermarkAdvanced(offset=offset),)

    def _is_caught_up(self, follower: _Follower, now: int) -> bool:
        return (
            follower.log_end_offset == self.log_end_offset or now - follower.last_caught_up_at <= self._lag_time_max_ms
        )

    def _is_eligible(self, follower: _Follower) -> bool:
        """Return True if the follower's broker may be in an ISR at all (rule 13)."""
        epoch = self._brokers.get(follower.broker_id)
        if epoch is None or follower.broker_epoch is None:
            return False
        return follower.broker_epoch in (NO_BROKER_EPOCH, epoch)

    def _may_join_isr(self, follower: _Follower) -> bool:
        end_offset = follower.log_end_offset
        return (
            end_offset >= self.high_watermark and end_offset >= self.epoch_start_offset and self._is_eligible(follower)
        )

    def _propose_joining(self, now: int) -> Sequence[LeaderEffect]:
        """Ask for an ISR with those whose last fetch was good enough and still is."""
        if self._proposal is not None or (self.retry_at is not None and now < self.retry_at):
            return _NOTHING
        joining = []
        for follower in self._followers.values():
            if follower.wants_in:
                follower.wants_in = self._may_join_isr(follower)
                if follower.wants_in:
                    joining.append(follower.broker_id)
        return self._propose([*self.state.isr, *joining]) if joining else _NOTHING

    def _propose_leaving(self, now: int) -> Sequence[LeaderEffect]:
        """Ask for an ISR without those that have lagged for too long (rule 12)."""
        staying = [
            broker_id
            for broker_id in self.state.isr
            if (follower := self._followers.get(broker_id)) is None or self._is_caught_up(follower, now)
        ]
        return self._propose(staying) if len(staying) < len(self.state.isr) else _NOTHING

    def _propose(self, isr: Iterable[BrokerId]) -> Sequence[LeaderEffect]:
        members = frozenset(isr)
        self._proposal = ProposeIsr(
            isr=tuple(
                (broker_id, self._broker_epoch(broker_id)) for broker_id in self.state.replicas if broker_id in members
            ),
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
        )
        self._is_sent, self._is_doubtful = True, False
        self.retry_at = None
        self._count()
        return (self._proposal,)

    def _broker_epoch(self, broker_id: BrokerId) -> int:
        """The one its last fetch came with, so that the quorum can tell a broker that has been restarted since."""
        if broker_id == self.broker_id:
            return self._brokers.get(broker_id, NO_BROKER_EPOCH)
        epoch = self._followers[broker_id].broker_epoch
        return NO_BROKER_EPOCH if epoch is None else epoch

    def _drop_proposal(self, now: int, *, still: frozenset[BrokerId]) -> Sequence[LeaderEffect]:
        self._proposal = None
        self._is_doubtful = False
        if still:
            self._may_join |= still
            self._doubt_ends_at = now + self._lag_time_max_ms
        for follower in self._followers.values():
            follower.wants_in = False  # its next fetch asks again, after the rest
        self._count()
        return self._advance(now)
