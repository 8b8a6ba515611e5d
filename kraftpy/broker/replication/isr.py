"""Submits the ISR changes that this broker's leaders propose to the metadata log (our AlterPartition).

A leader proposes once and waits for the answer (rule 14), so each partition has one proposal in flight at most. All
proposals pending at a time share one command: a follower that stops is dropped from hundreds of partitions. Accepted
changes reach the leaders like any change of the metadata; a refusal goes to the leader that proposed it, which decides
whether to try again (rule 15).

Left out: concurrent proposals. While one command is in flight the next ones are collected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.containment import Tasks
from kraftpy.metadata.commands import ChangePartitions, IsrChange, IsrMember
from kraftpy.metadata.decision import Decision, PartitionResult
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import Leader
from kraftpy.types import BrokerId, LeaderEpoch, TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.metrics.traffic import Traffic

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 250
"""The most proposals in one command: deciding it takes some 10 ms on every node."""
_ANSWER = "answer to a proposal of in-sync replicas"

_Key = tuple[TopicId, int]


class Metadata(Protocol):
    """The metadata log, which decides about in-sync replicas."""

    async def submit(self, command: ChangePartitions, /) -> Decision[tuple[PartitionResult, ...]]:
        """Submit a command and return its decision. Raises KafkaError."""


class Proposer(Protocol):
    """A replica that leads; `Replica` is one."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""

    @property
    def topic_id(self) -> TopicId:
        """The id of its topic."""

    @property
    def leading(self) -> Leader | None:
        """The leader's state; None if this replica does not lead."""

    def proposal_agreed(self, leader: Leader, proposal: ProposeIsr, /) -> None:
        """Handle acceptance of the leader's proposal."""

    def proposal_refused(self, leader: Leader, proposal: ProposeIsr, error: ErrorCode, /) -> None:
        """Handle a refusal of the leader's proposal, or an unknown outcome."""


class IsrProposals:
    """The pending ISR proposals of one broker's leaders."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        metadata: Metadata,
        clock: Clock,
        tasks: Tasks,
        traffic: Traffic | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._clock = clock
        self._tasks = tasks
        self._traffic = traffic
        self._waiting: dict[_Key, tuple[Proposer, Leader, ProposeIsr]] = {}
        self._submitting: asyncio.Task[None] | None = None
        self._is_stopped = False

    def propose(self, replica: Proposer, proposal: ProposeIsr) -> None:
        """Submit a proposal; the result is reported to the replica."""
        leader = replica.leading
        if leader is None or self._is_stopped:
            return
        self._waiting[replica.topic_id, replica.topic_partition.partition] = (replica, leader, proposal)
        if self._submitting is None:
            self._submitting = self._tasks.create_task(self._submit_all(), name="in-sync replicas")

    def stop(self) -> None:
        """Submit nothing more."""
        self._is_stopped = True
        if self._submitting is not None:
            self._submitting.cancel()

    async def _submit_all(self) -> None:
        try:
            while self._waiting:
                batch = {key: self._waiting.pop(key) for key in [*islice(self._waiting, _MOST_AT_ONCE)]}
                await self._submit({key: each for key, each in batch.items() if each[0].leading is each[1]})
        finally:
            self._submitting = None

    async def _submit(self, batch: dict[_Key, tuple[Proposer, Leader, ProposeIsr]]) -> None:
        if not batch:
            return
        changes = tuple(
            IsrChange(
                topic_id=topic_id,
                partition=partition,
                leader_epoch=LeaderEpoch(proposal.leader_epoch),
                partition_epoch=proposal.partition_epoch,
                isr=tuple(IsrMember(broker_id=broker_id, broker_epoch=epoch) for broker_id, epoch in proposal.isr),
                is_recovering=proposal.is_recovering,
            )
            for (topic_id, partition), (_, _, proposal) in batch.items()
        )
        before = {key: len(leader.state.isr) for key, (_, leader, _) in batch.items()} if self._traffic else {}
        command = ChangePartitions(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), changes=changes, time_ms=self._clock.now()
        )
        try:
            decision = await self._metadata.submit(command)
        except KafkaError as error:
            logger.warning("%d partitions: ISR change failed: %s", len(batch), error)
            self._refuse(batch, error.code)
            return
        except Exception as error:
            self._tasks.incidents.note("in-sync replicas", error)
            self._refuse(batch, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        if decision.error != ErrorCode.NONE:
            logger.warning("%d partitions: ISR change refused: %s", len(batch), decision.message)
            self._refuse(batch, decision.error)
            return
        answered = {(result.topic_id, result.partition): result for result in decision.result or ()}
        for key, (replica, leader, proposal) in batch.items():
            result = answered.get(key)
            error_code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error
            with self._tasks.incidents.contained_in(replica.topic_partition, _ANSWER):
                if error_code == ErrorCode.NONE:
                    replica.proposal_agreed(leader, proposal)
                    if key in before:
                        self._count(len(proposal.isr) - before[key])
                    in_sync = sorted(member for member, _ in proposal.isr)
                    logger.info("%s: in sync: %s", replica.topic_partition, in_sync)
                else:
                    logger.info("%s: in-sync replicas refused: %s", replica.topic_partition, error_code.name)
                    replica.proposal_refused(leader, proposal, error_code)
                    self._count_failed()

    def _count(self, growth: int) -> None:
        if self._traffic is not None:
            self._traffic.isr_expands += growth > 0
            self._traffic.isr_shrinks += growth < 0

    def _count_failed(self) -> None:
        if self._traffic is not None:
            self._traffic.failed_isr_updates += 1

    def _refuse(self, batch: dict[_Key, tuple[Proposer, Leader, ProposeIsr]], error: ErrorCode) -> None:
        """Refuse proposals whose outcome is unknown; each leader will propose again."""
        for replica, leader, proposal in batch.values():
            self._count_failed()
            with self._tasks.incidents.contained_in(replica.topic_partition, _ANSWER):
                replica.proposal_refused(leader, proposal, error)
