"""The leader's view of one partition: follower progress, high watermark, ISR.

high_watermark = the smallest log end offset in the *maximal* ISR: the committed ISR plus every replica that the quorum
may have added (each one we asked to add, until the quorum refuses), and never minus one we asked to drop. Until the
quorum answers, both outcomes must be safe (KIP-497). The high watermark also waits for a replica that is caught up and
may join the ISR but is not in it yet. It does not advance while the committed ISR is smaller than the effective
min.insync.replicas (KIP-966), for acks=1 either. If records are synced before they are acknowledged, this broker's own
log counts only up to the synced offset (`synced`), as a follower's does.

A follower that has everything, and asks for the same again and again, need not be reported each time: `fetched` is
given a `Fetching`, which tells when it last asked. Only a follower outside the maximal ISR has to be reported, since it
joins by a fetch; `FollowerLeftIsr` tells when that becomes necessary.

The ISR loses a replica that has not been caught up for `replica.lag.time.max.ms`. It gains one whose fetch reaches the
high watermark and the start of this leader epoch, provided that the broker that fetches is the registered one:
unfenced, not shutting down, with the broker epoch that its fetch carried (KIP-841, KIP-903). One proposal is in flight
at a time. A proposal whose outcome is unknown is sent again until the partition epoch changes; each partition epoch
decides at most one.

Call `tick` about every half of `replica.lag.time.max.ms` unless `is_settled`, and at `retry_at` if that is set.
Follower lag is measured with the `now` that the caller passes: use one clock for all calls.

Invariants: the high watermark never falls; the leader is always in the maximal ISR, which contains the committed ISR;
`maximal_isr` contains only replicas of the partition.

Left out: unclean election and the order of candidates (metadata decides those), throttling of lagging followers.
KIP-392 (reading from the nearest replica), KIP-497, KIP-841, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.events import FollowerLeftIsr, HighWatermarkAdvanced, LeaderEffect, ProposeIsr
from kraftpy.types import BrokerId, Millis

UNKNOWN_OFFSET: Final = -1
NO_BROKER_EPOCH: Final = -1

RETRY_MS: Final = 50
RETRY_MAX_MS: Final = 1_000
"""The delay before a refused or lost proposal is sent again; it doubles from the first to the second."""

_DEFINITE_REFUSALS: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""Errors after which the proposal cannot have succeeded, so another may follow at the same partition epoch.

Any other error leaves the outcome open.
"""

_NOTHING: Final[tuple[LeaderEffect, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The metadata of a partition that this broker leads."""

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    is_recovering: bool = False
    """The leader was elected uncleanly, and has not ended the recovery with a proposal yet."""


class FollowerProgress(NamedTuple):
    """A follower's progress as its leader knows it. Offsets are -1 until it has fetched in this leader epoch."""

    broker_id: BrokerId
    log_start_offset: int
    log_end_offset: int
    last_fetch_at: Millis
    last_caught_up_at: Millis
    is_in_isr: bool


class Fetching(Protocol):
    """A follower's place in its fetch session, in which it asks for the same until it says otherwise."""

    @property
    def asked_at(self) -> Millis | None:
        """The time of the last request for the same as before; None if there is none such any more."""


class _Follower:
    __slots__ = (
        "broker_epoch",
        "broker_id",
        "fetching",
        "is_counted",
        "is_ready_to_join",
        "last_caught_up_at",
        "last_fetch_at",
        "leader_end_offset_at_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.reset(0)

    def reset(self, last_caught_up_at: int) -> None:
        """Forget its progress, because a leader epoch begins (rule 16)."""
        self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_offset_at_fetch = UNKNOWN_OFFSET
        self.last_fetch_at = 0
        self.last_caught_up_at = last_caught_up_at
        self.broker_epoch: int | None = None
        self.fetching: Fetching | None = None
        self.is_counted = False  # it is in the maximal ISR
        self.is_ready_to_join = False  # its last fetch was good enough, but another proposal was in flight

    def note_repetitions(self) -> None:
        """Take over when it last asked, if it was caught up at its last fetch and nothing was appended since."""
        asked_at = None if self.fetching is None else self.fetching.asked_at
        if asked_at is not None and asked_at > self.last_fetch_at:
            self.last_fetch_at = asked_at
            self.last_caught_up_at = max(self.last_caught_up_at, asked_at)


class Leader:
    """The leader of one partition. Any call may raise `high_watermark`."""

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
        """Lead from now on; the caller has assigned the leader epoch at the log's end (`PartitionLog.assign_epoch`).

        `high_watermark` is the last one that this broker knew: a hint, no more. `min_insync_replicas` is the topic's
        setting. `brokers` are the ones whose replicas may join an ISR (registered, unfenced, not shutting down), with
        their broker epochs; all leaders may share the mapping, so replace it and never change it. `synced_end_offset`
        is as for `synced`.
        """
        self.broker_id = broker_id
        self.state = state
        self.log_end_offset = log_end_offset
        self.high_watermark = min(high_watermark, log_end_offset)
        self.epoch_start_offset = log_end_offset
        """The start of this leader epoch.

        A follower joins the ISR only with everything before it (rule 13), and ListOffsets does not return the log's end
        until the high watermark has reached it (rule 11).
        """
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
        self._has_open_attempt = False  # an earlier attempt of the proposal may still succeed
        self._possibly_added: frozenset[BrokerId] = frozenset()  # by proposals of this epoch with an unknown outcome
        self._possibly_added_until = 0
        self._retry_ms = RETRY_MS
        self._set_followers(now, is_new_epoch=True)
        self._advance_high_watermark(now)

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def effective_min_insync_replicas(self) -> int:
        """min.insync.replicas, but at most the number of replicas."""
        return min(self._min_insync_replicas, len(self.state.replicas))

    @property
    def is_under_min_insync_replicas(self) -> bool:
        """True if the committed ISR is too small.

        Then acks=all is refused before the append (NOT_ENOUGH_REPLICAS), and the high watermark does not advance.
        """
        return len(self.state.isr) < self.effective_min_insync_replicas

    @property
    def has_enough_acks(self) -> bool:
        """True if an acks=all append that the high watermark has reached is a success (rule 17).

        If not, the answer is NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        return len(self.maximal_isr) >= self.effective_min_insync_replicas

    @property
    def is_settled(self) -> bool:
        """True if `tick` has nothing to do before another event: all followers are in sync, and have everything."""
        if self._proposal is not None or self._possibly_added or self.retry_at is not None or self.state.is_recovering:
            return False
        for follower in self._followers.values():
            if follower.log_end_offset != self.log_end_offset or follower.broker_id not in self.state.isr:
                return False
        return True

    def progress(self) -> list[FollowerProgress]:
        """Return the progress of each follower, in the order of the replicas."""
        self._note_repetitions()
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
        """Return the smallest log start offset of this replica and the live followers; -1 while one is unknown.

        DeleteRecords waits for it, and returns it.
        """
        return min(
            [log_start_offset] + [f.log_start_offset for f in self._followers.values() if f.broker_id in self._brokers],
        )

    def nearest(self, rack: str | None, racks: Mapping[BrokerId, str | None], fetch_offset: int) -> BrokerId | None:
        """Return the follower that a consumer in `rack` should read from; None to read here (KIP-392, rule 48).

        It is the most advanced of the followers in the rack that are alive, in the ISR, and have the offset in their
        log; None if this broker is in the rack itself.
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

    # --- events -------------------------------------------------------------------------------------------------------

    def appended(self, log_end_offset: int, now: Millis) -> Sequence[LeaderEffect]:
        """Handle an append to the log. With a single replica, nothing is returned: `high_watermark` has advanced."""
        self._note_repetitions()
        self.log_end_offset = log_end_offset
        if self._synced_end_offset is not None:
            return _NOTHING  # the high watermark waits for the sync
        if not self._followers:
            self.high_watermark = log_end_offset
            return _NOTHING
        if len(self.maximal_isr) > 1:
            return _NOTHING  # the high watermark waits for a follower's fetch
        return self._advance_high_watermark(now)

    def synced(self, end_offset: int | None, now: Millis) -> Sequence[LeaderEffect]:
        """Count this broker's own log only up to `end_offset`, or up to its end if None."""
        self._synced_end_offset = end_offset
        return self._advance_high_watermark(now)

    def fetched(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        log_end_offset: int,
        now: Millis,
        fetching: Fetching | None = None,
    ) -> Sequence[LeaderEffect]:
        """Handle a follower's fetch: the follower holds everything before `fetch_offset`.

        Call it for an answer with or without records, but not for an error or a diverging epoch (rule 3).
        `log_start_offset` is the follower's, `log_end_offset` this log's at the time of the read. `fetching` stands for
        later fetches of the same, which need no call while the follower is in the maximal ISR. Raises KafkaError:
        UNKNOWN_LEADER_EPOCH for a broker that is not a follower (rule 49: call `check_follower` before reading),
        NOT_LEADER_OR_FOLLOWER for a broker epoch that is over (rule 13).
        """
        follower = self.check_follower(broker_id, broker_epoch)
        # Rule 12: it is caught up now, or was at its last fetch if this fetch has everything the log held then.
        if fetch_offset >= log_end_offset:
            follower.last_caught_up_at = max(follower.last_caught_up_at, now)
        elif fetch_offset >= follower.leader_end_offset_at_fetch >= 0:
            follower.last_caught_up_at = max(follower.last_caught_up_at, follower.last_fetch_at)
        has_moved = fetch_offset != follower.log_end_offset
        follower.log_end_offset = fetch_offset
        follower.log_start_offset = log_start_offset
        follower.broker_epoch = broker_epoch
        follower.last_fetch_at = now
        follower.fetching = fetching
        if log_end_offset > follower.leader_end_offset_at_fetch:
            follower.leader_end_offset_at_fetch = log_end_offset
        effects: Sequence[LeaderEffect] = _NOTHING
        if broker_id not in self.state.isr:
            follower.is_ready_to_join = self._may_join_isr(follower)
            if follower.is_ready_to_join:
                effects = self._propose_expansion(now)
        if has_moved:
            advanced = self._advance_high_watermark(now)
            return [*effects, *advanced] if advanced else effects
        return effects

    def check_follower(self, broker_id: BrokerId, broker_epoch: int) -> _Follower:
        """Check that this broker may replicate from here. Raises KafkaError as `fetched` does; changes nothing."""
        follower = self._followers.get(broker_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {broker_id} is not recognized to be one of the assigned replicas",
            )
        if 0 <= broker_epoch < self._brokers.get(broker_id, NO_BROKER_EPOCH):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} fetches with broker epoch {broker_epoch}"
            )
        return follower

    def changed(self, state: PartitionState, now: Millis) -> Sequence[LeaderEffect]:
        """Apply the partition's metadata, which need not be new. The state of an older partition epoch is ignored.

        A new leader epoch, which the caller has assigned at the log's end, resets the progress of all followers.
        """
        if state.partition_epoch < self.state.partition_epoch or state.leader_epoch < self.state.leader_epoch:
            return _NOTHING
        is_new_epoch = state.leader_epoch > self.state.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.state.partition_epoch:
            return _NOTHING
        self.state = state
        self._proposal, self._is_sent, self._has_open_attempt = None, False, False
        self._possibly_added = frozenset()
        self.retry_at, self._retry_ms = None, RETRY_MS
        if is_new_epoch:
            self.epoch_start_offset = self.log_end_offset
        left = self._set_followers(now, is_new_epoch=is_new_epoch)
        return [*self._propose_expansion(now), *left, *self._advance_high_watermark(now)]

    def brokers_changed(self, brokers: Mapping[BrokerId, int], now: Millis) -> Sequence[LeaderEffect]:
        """Replace the set of brokers that may join an ISR."""
        self._brokers = brokers
        return self._advance_high_watermark(now)

    def min_insync_replicas_changed(self, min_insync_replicas: int, now: Millis) -> Sequence[LeaderEffect]:
        """Apply a new value of the topic's min.insync.replicas."""
        self._min_insync_replicas = min_insync_replicas
        return self._advance_high_watermark(now)

    def proposal_refused(
        self, error: ErrorCode, now: Millis, *, partition_epoch: int | None = None
    ) -> Sequence[LeaderEffect]:
        """Handle a refusal of the proposal by the quorum, or an unknown outcome (any error, such as a timeout).

        `partition_epoch` is the proposal's; the default is the newest one. If the partition has changed meanwhile, call
        `changed` first. `tick` returns the next attempt, from `retry_at` on.
        """
        proposal = self._proposal
        if proposal is None or not self._is_sent:
            return _NOTHING
        if partition_epoch is not None and partition_epoch != proposal.partition_epoch:
            return _NOTHING
        self._is_sent = False
        self.retry_at = Millis(now + self._retry_ms)
        self._retry_ms = min(self._retry_ms * 2, RETRY_MAX_MS)
        if error not in _DEFINITE_REFUSALS:
            self._has_open_attempt = True
            return _NOTHING
        if self._has_open_attempt:
            # This attempt failed, but an earlier one may still succeed: the replicas it would add keep counting until
            # the partition epoch changes, or until the earlier attempt must have been lost. At most one proposal of an
            # epoch succeeds, so others may follow.
            return self._drop_proposal(now, still=frozenset(broker for broker, _ in proposal.isr))
        return self._drop_proposal(now, still=frozenset())

    def tick(self, now: Millis) -> Sequence[LeaderEffect]:
        """Handle the passing of time: repeat a proposal, drop lagging replicas, or end the recovery."""
        effects: list[LeaderEffect] = []
        if self._possibly_added and now >= self._possibly_added_until:
            self._possibly_added = frozenset()
            effects += self._update_maximal_isr()
        if not self._is_sent and (self.retry_at is None or now >= self.retry_at):
            self.retry_at = None
            if self._proposal is not None:
                self._is_sent = True
                effects.append(self._proposal)
            else:
                effects += self._propose_shrink(now)
                if not effects:
                    effects += self._propose_expansion(now)
                if not effects and self.state.is_recovering:
                    effects += self._propose(self.state.isr)
        effects += self._advance_high_watermark(now)
        return effects

    # --- followers and the high watermark -----------------------------------------------------------------------------

    def _note_repetitions(self) -> None:
        for follower in self._followers.values():
            if follower.log_end_offset == self.log_end_offset:
                follower.note_repetitions()

    def _set_followers(self, now: int, *, is_new_epoch: bool) -> Sequence[LeaderEffect]:
        """Set the followers that the state names; within an epoch, known followers keep their progress."""
        known, self._followers = self._followers, {}
        for broker_id in self.state.replicas:
            if broker_id == self.broker_id:
                continue
            follower = known.get(broker_id)
            if follower is None or is_new_epoch:
                follower = _Follower(broker_id)
                follower.reset(now if broker_id in self.state.isr else 0)  # rule 16
            elif broker_id in self.state.isr:
                follower.is_ready_to_join = False
            self._followers[broker_id] = follower
        return self._update_maximal_isr()

    def _update_maximal_isr(self) -> Sequence[LeaderEffect]:
        """Recompute the maximal ISR and mark the followers that belong to it."""
        members = self._possibly_added.union(self.state.isr)
        if self._proposal is not None:
            members = members.union(broker_id for broker_id, _ in self._proposal.isr)
        self.maximal_isr, before = members, self.maximal_isr
        for follower in self._followers.values():
            follower.is_counted = follower.broker_id in members
        return _NOTHING if before <= members else (FollowerLeftIsr(),)

    def _advance_high_watermark(self, now: int) -> Sequence[LeaderEffect]:
        """Raise the high watermark to the highest offset that rule 9 allows."""
        if self.is_under_min_insync_replicas:
            return _NOTHING
        offset = self.log_end_offset
        if self._synced_end_offset is not None:
            offset = min(offset, self._synced_end_offset)
        for follower in self._followers.values():
            if follower.log_end_offset < offset and (
                follower.is_counted or (self._is_caught_up(follower, now) and self._is_eligible(follower))
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
        """Return whether the follower's broker may be in an ISR at all (rule 13)."""
        epoch = self._brokers.get(follower.broker_id)
        if epoch is None or follower.broker_epoch is None:
            return False
        return follower.broker_epoch in (NO_BROKER_EPOCH, epoch)

    def _may_join_isr(self, follower: _Follower) -> bool:
        end_offset = follower.log_end_offset
        return (
            end_offset >= self.high_watermark and end_offset >= self.epoch_start_offset and self._is_eligible(follower)
        )

    def _propose_expansion(self, now: int) -> Sequence[LeaderEffect]:
        """Propose to add the followers whose last fetch was good enough and still is."""
        if self._proposal is not None or (self.retry_at is not None and now < self.retry_at):
            return _NOTHING
        joining = []
        for follower in self._followers.values():
            if follower.is_ready_to_join:
                follower.is_ready_to_join = self._may_join_isr(follower)
                if follower.is_ready_to_join:
                    joining.append(follower.broker_id)
        return self._propose([*self.state.isr, *joining]) if joining else _NOTHING

    def _propose_shrink(self, now: int) -> Sequence[LeaderEffect]:
        """Propose to drop the followers that have lagged for too long (rule 12)."""
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
        self._is_sent, self._has_open_attempt = True, False
        self.retry_at = None
        self._update_maximal_isr()
        return (self._proposal,)

    def _broker_epoch(self, broker_id: BrokerId) -> int:
        """Return the epoch that its last fetch carried: it tells the quorum whether the broker was restarted since."""
        if broker_id == self.broker_id:
            return self._brokers.get(broker_id, NO_BROKER_EPOCH)
        epoch = self._followers[broker_id].broker_epoch
        return NO_BROKER_EPOCH if epoch is None else epoch

    def _drop_proposal(self, now: int, *, still: frozenset[BrokerId]) -> Sequence[LeaderEffect]:
        self._proposal = None
        self._has_open_attempt = False
        if still:
            self._possibly_added |= still
            self._possibly_added_until = now + self._lag_time_max_ms
        for follower in self._followers.values():
            follower.is_ready_to_join = False  # its next fetch may ask again
        return [*self._update_maximal_isr(), *self._advance_high_watermark(now)]
