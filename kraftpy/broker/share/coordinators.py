"""The share coordinators of this broker: one for each partition of `__share_group_state` that it leads.

Each is the pure state machine of `share.coordinator`; `coordinator_shards` is the loop around it. A read is answered
only after this broker has confirmed that it is still the coordinator (`replication.leadership_check`): a leader that
trusted the state of a cut-off coordinator would hand out acknowledged records again.

Records that are no longer needed are deleted every `share.coordinator.state.topic.prune.interval.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import assert_never

from kraftpy.broker.containment import Tasks
from kraftpy.broker.coordinator_shards import Shard, Shards
from kraftpy.broker.internal_topics import SHARE_GROUP_STATE
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.share.state_requests import state_partition
from kraftpy.broker.slicing import Slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.records import Record, TopicDeleted
from kraftpy.ports import Buffer, Clock
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import BatchHeader, encode_batch
from kraftpy.protocol.record_batch import Record as BatchRecord
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.coordinator import ShareCoordinator, ShareState, StateChange, parse
from kraftpy.share.events import (
    Append,
    Appended,
    Command,
    Delete,
    Effect,
    Initialize,
    Read,
    ReadSummary,
    Reply,
    Request,
    Result,
    Survived,
    Tick,
    TopicsDeleted,
    Write,
)
from kraftpy.share.memory import Room
from kraftpy.share.records import ShareKey
from kraftpy.types import Offset

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 100


class ShareCoordinators(Shards[ShareCoordinator]):
    """The coordinators of all share partitions whose partition of `__share_group_state` this broker leads."""

    topic = SHARE_GROUP_STATE

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: Replicas,
        slices: Slices,
    ) -> None:
        super().__init__(clock, tasks, metadata, replicas, slices)
        self.commit_timeout_ms = config.share_coordinator_write_timeout_ms
        self._config = config
        self._machine_config = ShareCoordinatorConfig(
            snapshot_update_records_per_snapshot=config.share_coordinator_snapshot_update_records_per_snapshot,
            kraftpy_share_coordinator_max_bytes=config.kraftpy_share_coordinator_max_bytes,
            cold_partition_snapshot_interval_ms=config.share_coordinator_cold_partition_snapshot_interval_ms,
        )
        self._room = Room(config.kraftpy_share_coordinator_max_bytes, self._refused)

    # --- the machines ------------------------------------------------------------------------

    def _make(self, replica: Replica) -> ShareCoordinator:
        return ShareCoordinator(self._machine_config, self._room)

    def _tick(self) -> Tick:
        return Tick()

    def _parse(self, key: Buffer | None, value: Buffer | None) -> ShareState | StateChange | None:
        return parse(key, value)

    def _replay_record(
        self,
        machine: ShareCoordinator,
        header: BatchHeader,
        record: BatchRecord,
        parsed: ShareState | StateChange | None,
    ) -> None:
        if not header.is_control:
            machine.replay(record.key, record.value, record.offset, parsed)

    def _loaded(self, shard: Shard[ShareCoordinator]) -> None:
        super()._loaded(shard)
        image = self._metadata.image
        known = {key.topic_id for key in shard.machine.states}
        gone = {topic_id for topic_id in known if image.topic_by_id(topic_id) is None}
        if gone:
            self._step(shard, TopicsDeleted(topic_ids=frozenset(gone)))

    def apply(self, records: Sequence[Record]) -> None:
        """Follow a metadata change: leaderships begin or end, and the state of deleted topics is dropped."""
        gone = frozenset(record.topic_id for record in records if isinstance(record, TopicDeleted))
        if gone:
            for shard in list(self._shards.values()):
                if shard.machine.is_loaded:
                    self._step(shard, TopicsDeleted(topic_ids=gone))
        super().apply(records)

    # --- requests ----------------------------------------------------------------------------

    async def ask(self, command: Command) -> Result:
        """Have this broker's coordinator handle a command, and return its result."""
        if not self._is_known(command):
            return Result(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        shard = self._shard_of(command.key)
        if shard is None:
            return Result(error_code=ErrorCode.NOT_COORDINATOR)
        if isinstance(command, Read | ReadSummary) and shard.machine.is_loaded:
            deadline = asyncio.get_running_loop().time() + self.commit_timeout_ms / 1000
            if not await self._replicas.confirmations.confirm(shard.replica, shard.leadership, deadline):
                return Result(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not self._is_current(shard):
                return Result(error_code=ErrorCode.NOT_COORDINATOR)
        request_id = next(self._request_ids)
        answer: Result | ErrorCode = await self._asked(
            shard, request_id, Request(request_id=request_id, command=command)
        )
        return Result(error_code=answer) if isinstance(answer, ErrorCode) else answer

    def _is_known(self, command: Command) -> bool:
        """Return whether the command's partition exists or need not: a deleted partition's state can still be read."""
        match command:
            case Initialize() | Read() | Write():
                topic = self._metadata.image.topic_by_id(command.key.topic_id)
                return topic is not None and command.key.partition < len(topic.partitions)
            case Delete() | ReadSummary():
                return True
            case _:
                assert_never(command)

    def _shard_of(self, key: ShareKey) -> Shard[ShareCoordinator] | None:
        topic = self._metadata.image.topic(SHARE_GROUP_STATE)
        return None if topic is None else self._serving(state_partition(key, len(topic.partitions)))

    # --- effects -----------------------------------------------------------------------------

    def _carry_out(self, shard: Shard[ShareCoordinator], effect: Effect) -> Sequence[Effect]:
        match effect:
            case Reply():
                self._answer(shard, effect.request_id, effect.result)
            case Append():
                offset, token = shard.replica.log_end_offset, effect.token

                def reported(outcome: ErrorCode) -> Appended:
                    return Appended(token=token, offset=offset, error_code=outcome)

                return self._write(shard, lambda: self._encoded(effect), reported)
            case Survived():
                name = f"{effect.name[:_SHOWN_CHARACTERS]!r}"
                self._tasks.survive(f"{effect.kind} of share group {name}", effect.error, kind=effect.kind)
            case _:
                assert_never(effect)
        return ()

    def _encoded(self, effect: Append) -> bytes:
        key, value = effect.record
        return encode_batch(
            [(self._clock.now(), key, value, ())],
            compression=Compression(self._config.share_coordinator_state_topic_compression_codec),
        )

    # --- pruning -----------------------------------------------------------------------------

    async def prune_forever(self) -> None:
        """Prune periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._config.share_coordinator_state_topic_prune_interval_ms / 1000)
            await self.prune()

    async def prune(self) -> None:
        """Delete the records that are no longer needed, in every partition that this broker leads."""
        for shard in list(self._shards.values()):
            before = shard.machine.prune_offset
            if before is None or before <= shard.replica.log_start_offset:
                continue
            with self._tasks.incidents.contained_in(shard.replica.topic_partition, "pruning"):
                await self._prune(shard, Offset(before))

    async def _prune(self, shard: Shard[ShareCoordinator], before: Offset) -> None:
        try:
            await shard.replica.delete_records(before)
        except KafkaError as error:
            logger.warning("cannot prune %s: %s", shard.replica.topic_partition, error)
        else:
            shard.machine.pruned()
