"""The quorum as the simulation of replication needs it: one object that never fails, and elects by Kafka's rules.

It keeps one partition's state and the brokers' registrations: rule 15 (what may be proposed), rule 18 (who may lead,
KIP-966), rule 20 (what an unclean registration costs), rule 21 (fencing). Nothing here is the project's own controller:
an independent, small one is the point.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from kraftpy.protocol.errors import ErrorCode
from kraftpy.replication.events import ProposeIsr
from kraftpy.types import BrokerId

NOBODY = BrokerId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The partition and the brokers, as of one version."""

    version: int
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: frozenset[BrokerId]
    is_recovering: bool
    brokers: dict[BrokerId, int] = field(default_factory=dict)
    """The brokers that may be in an ISR: unfenced, with the broker epoch."""
    epochs: dict[BrokerId, int] = field(default_factory=dict)
    """Every registered broker's epoch."""


class Controller:
    def __init__(
        self, replicas: tuple[BrokerId, ...], min_insync_replicas: int, rng: Random, *, checks_broker_epochs: bool
    ) -> None:
        self.min_insync_replicas = min(min_insync_replicas, len(replicas))
        self.rng = rng
        self.checks_broker_epochs = checks_broker_epochs
        self.last_epoch = 0
        self.heard_at: dict[BrokerId, int] = {}
        self.leaderless_since: int | None = None
        self.target: tuple[BrokerId, ...] | None = None
        """The replicas of the reassignment in progress."""
        self.now = Metadata(
            version=0,
            leader=NOBODY,
            leader_epoch=0,
            partition_epoch=0,
            replicas=replicas,
            isr=replicas,
            elr=frozenset(),
            is_recovering=False,
        )

    # --- changes ---

    def _change(self, **changes: object) -> None:
        self.now = replace(self.now, version=self.now.version + 1, **changes)  # type: ignore[arg-type]

    def _set_partition(
        self, isr: tuple[BrokerId, ...], *, leader: BrokerId | None = None, is_recovering: bool | None = None
    ) -> None:
        old = self.now
        if leader is None:
            leader = old.leader
        lost = frozenset(old.isr) | old.elr
        elr = lost - frozenset(isr) if len(isr) < self.min_insync_replicas else frozenset()
        recovering = old.is_recovering if is_recovering is None else is_recovering
        if (isr, leader, elr, recovering) == (old.isr, old.leader, old.elr, old.is_recovering):
            return
        self._change(
            isr=isr,
            elr=elr,
            leader=leader,
            leader_epoch=old.leader_epoch + (leader != old.leader),
            partition_epoch=old.partition_epoch + 1,
            is_recovering=recovering,
        )

    def _elect(self, isr: tuple[BrokerId, ...]) -> None:
        """A leader for an ISR, by rule 18."""
        old = self.now
        alive = [broker for broker in old.replicas if broker in old.brokers]
        if old.leader in isr and old.leader in alive:
            self._set_partition(isr)
            return
        candidates = [broker for broker in alive if broker in isr]
        if candidates:
            self._set_partition(isr, leader=candidates[0])
            return
        eligible = [broker for broker in alive if broker in old.elr] if not isr else []
        if eligible:
            self._set_partition((eligible[0],), leader=eligible[0])
            return
        self._set_partition(isr, leader=NOBODY)

    # --- brokers ---

    def register(self, broker: BrokerId, previous_epoch: int, now: int) -> int:
        """A new incarnation; `previous_epoch` proves a clean stop (rule 20). It is fenced until it is heard of."""
        self._fence(broker)
        is_clean = previous_epoch == self.now.epochs.get(broker)
        if not is_clean:
            isr = tuple(member for member in self.now.isr if member != broker)
            if isr != self.now.isr or broker in self.now.elr:
                self._change(elr=self.now.elr - {broker}, isr=isr, partition_epoch=self.now.partition_epoch + 1)
        self.last_epoch += 1
        self._change(epochs={**self.now.epochs, broker: self.last_epoch})
        self.heard_at[broker] = now
        return self.last_epoch

    def heartbeat(self, broker: BrokerId, epoch: int, now: int) -> None:
        if self.now.epochs.get(broker) != epoch:
            return
        self.heard_at[broker] = now
        if broker not in self.now.brokers:
            self._change(brokers={**self.now.brokers, broker: epoch})
            if self.now.leader == NOBODY:
                self._elect(self.now.isr)

    def _fence(self, broker: BrokerId) -> None:
        if broker in self.now.brokers:
            self._change(brokers={other: epoch for other, epoch in self.now.brokers.items() if other != broker})
            self._elect(tuple(member for member in self.now.isr if member != broker))

    def tick(self, now: int, session_timeout_ms: int) -> None:
        for broker in sorted(self.now.brokers):
            if now - self.heard_at[broker] > session_timeout_ms:
                self._fence(broker)
        if self.now.leader != NOBODY:
            self.leaderless_since = None
        elif self.leaderless_since is None:
            self.leaderless_since = now

    def stop_cleanly(self, broker: BrokerId) -> None:
        """Controlled shutdown: leadership and ISR first."""
        self._fence(broker)

    # --- the partition ---

    def alter_partition(self, sender: BrokerId, sender_epoch: int, proposal: ProposeIsr) -> ErrorCode:
        """Rule 15, in its order."""
        state = self.now
        if state.epochs.get(sender) != sender_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if proposal.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if sender != state.leader:
            return ErrorCode.INVALID_REQUEST
        if proposal.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = tuple(broker for broker, _ in proposal.isr)
        if sender not in isr or not set(isr) <= set(state.replicas):
            return ErrorCode.INVALID_REQUEST
        if proposal.is_recovering and (not state.is_recovering or len(isr) > 1):
            return ErrorCode.INVALID_REQUEST
        for broker, epoch in proposal.isr:
            if broker not in state.brokers:
                return ErrorCode.INELIGIBLE_REPLICA
            if self.checks_broker_epochs and epoch not in (-1, state.epochs[broker]):
                return ErrorCode.INELIGIBLE_REPLICA
        self._set_partition(isr, is_recovering=proposal.is_recovering)
        if self.target is not None and set(self.target) <= set(isr):
            self._finish_reassignment(self.target)
        return ErrorCode.NONE

    def reassign(self, adding: BrokerId, removing: BrokerId) -> None:
        """One replica for another: first both, then without the old one."""
        if self.target is None and adding not in self.now.replicas and removing in self.now.replicas:
            replicas = (*self.now.replicas, adding)
            self.target = tuple(broker for broker in replicas if broker != removing)
            self._change(replicas=replicas, partition_epoch=self.now.partition_epoch + 1)

    def _finish_reassignment(self, target: tuple[BrokerId, ...]) -> None:
        """The new ones are in sync: the old ones go, and the leader epoch tells them so (rule 22)."""
        state = self.now
        leader = state.leader
        if leader not in target:
            leader = next(broker for broker in target if broker in state.brokers)
        self.target = None
        self._change(
            replicas=target,
            isr=target,
            elr=state.elr & frozenset(target),
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            partition_epoch=state.partition_epoch + 1,
        )

    def prefer(self, broker: BrokerId) -> None:
        """A preferred leader election: any live member of the ISR will do."""
        if broker in self.now.isr and broker in self.now.brokers:
            self._set_partition(self.now.isr, leader=broker)

    def elect_uncleanly(self, broker: BrokerId) -> None:
        """An operator has chosen (rule 19)."""
        self._set_partition((broker,), leader=broker, is_recovering=True)
