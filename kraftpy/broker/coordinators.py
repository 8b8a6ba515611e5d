"""The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads.

Each is the pure state machine of `groups`; this is the loop around it: requests become events, effects become replies,
appends and timers. A coordinator is loaded by replaying its partition and answers COORDINATOR_LOAD_IN_PROGRESS until
then; one whose partition cannot be read goes on doing so, and the log says why.

An append is reported when it is durable as far as the topic asks for it: `flush.messages` holds here too.

Left out: waiting for replication of what was appended (there is one replica); transactional and share coordinators.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Sequence
from typing import assert_never

from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.metadata import MetadataLog
from kraftpy.broker.replica import Replica
from kraftpy.broker.replicas import Replicas
from kraftpy.broker.request import RequestContext
from kraftpy.config import BrokerConfig
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import (
    Append,
    Appended,
    Effect,
    Event,
    GroupRequest,
    GroupResponse,
    Note,
    Reply,
    Request,
    Tick,
    TopicsDeleted,
)
from kraftpy.groups.routing import merge, partition_for_group, refuse, split
from kraftpy.log.partition_log import Origin
from kraftpy.metadata.records import PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Clock
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.types import Millis, Offset

logger = logging.getLogger(__name__)

_LOAD_BYTES = 1 << 20


class _Shard:
    """One coordinator with its partition and its timer."""

    def __init__(self, replica: Replica, coordinator: GroupCoordinator) -> None:
        self.replica = replica
        self.coordinator = coordinator
        self.timer: asyncio.TimerHandle | None = None
        self.tick_at = Millis(0)
        self.loading: asyncio.Task[None] | None = None


class Coordinators:
    """Every group whose partition of `__consumer_offsets` this broker leads."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        metadata: MetadataLog,
        replicas: Replicas,
    ) -> None:
        self._config = config
        self._group_config = _group_config(config)
        self._clock = clock
        self._tasks = tasks
        self._metadata = metadata
        self._replicas = replicas
        self._shards: dict[int, _Shard] = {}
        self._request_ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[GroupResponse]] = {}

    # --- coming and going --------------------------------------------------------------------

    def start(self) -> None:
        """Load a coordinator for each partition there is."""
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        for partition in range(len(topic.partitions) if topic is not None else 0):
            self.add(partition)

    def apply(self, records: Sequence[Record]) -> None:
        """Metadata has changed: new partitions get a coordinator, deleted topics are forgotten by the groups."""
        for record in records:
            match record:
                case PartitionCreated(topic=topic) if topic == CONSUMER_OFFSETS:
                    self.add(record.partition)
                case TopicDeleted(name=name) if name == CONSUMER_OFFSETS:
                    self.stop()
                case TopicDeleted():
                    for shard in self._shards.values():
                        self._step(shard, TopicsDeleted(topics=(record.name,)))
                case _:
                    pass

    def stop(self) -> None:
        """Let go of every group; who waits is told to look elsewhere."""
        for shard in self._shards.values():
            if shard.loading is not None:
                shard.loading.cancel()
            self._run(shard, shard.coordinator.unload())
            if shard.timer is not None:
                shard.timer.cancel()
        self._shards.clear()

    def add(self, partition: int) -> None:
        """A partition of `__consumer_offsets` is there: load its coordinator. Does nothing while it is offline."""
        try:
            replica = self._replicas.leader(CONSUMER_OFFSETS, partition)
        except KafkaError as error:
            logger.error("%s-%d has no coordinator: %s", CONSUMER_OFFSETS, partition, error)
            return
        coordinator = GroupCoordinator(self._group_config, lambda: str(uuid.uuid4()))
        shard = self._shards[partition] = _Shard(replica, coordinator)
        if replica.log.log_end_offset == replica.log.log_start_offset:
            self._loaded(shard)
        else:
            name = f"load {CONSUMER_OFFSETS}-{partition}"
            shard.loading = self._tasks.create_task(self._load(shard), name=name)

    async def _load(self, shard: _Shard) -> None:
        try:
            await self._replay(shard)
        except KafkaError as error:
            logger.critical("%s cannot be read, its groups wait: %s", shard.replica.topic_partition, error)
            return
        self._loaded(shard)

    async def _replay(self, shard: _Shard) -> None:
        replica = shard.replica
        offset = Offset(replica.log.log_start_offset)
        end_offset = replica.high_watermark
        while offset < end_offset:
            read = replica.read(offset, _LOAD_BYTES, read_committed=False, min_one_batch=True)
            for header, batch in split_batches(read.records):
                if not header.is_control:
                    for record in iter_records(batch):
                        try:
                            shard.coordinator.replay(record.key, record.value, record.offset)
                        except ProtocolError as error:
                            logger.error("%s: passed over: %s", replica.topic_partition, error)
                offset = Offset(header.next_offset)
            await asyncio.sleep(0)  # let clients be served between two pieces

    def _loaded(self, shard: _Shard) -> None:
        self._run(shard, shard.coordinator.loaded(self._monotonic(), self._clock.now()))

    # --- requests ----------------------------------------------------------------------------

    def coordinator_partition(self, group_id: str) -> int | None:
        """The partition of `__consumer_offsets` that the group belongs to; None while the topic does not exist."""
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        return None if topic is None else partition_for_group(group_id, len(topic.partitions))

    async def ask(self, message: GroupRequest, context: RequestContext) -> GroupResponse:
        """The answer of the coordinator, or of several for a request that names several groups."""
        version = context.api_version
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            if isinstance(message, ListGroupsRequest):
                return ListGroupsResponse(groups=[])
            return refuse(message, version, ErrorCode.NOT_COORDINATOR)
        parts = split(message, version, len(topic.partitions))
        if not parts:
            return refuse(message, version, ErrorCode.NONE)
        return merge([await self._ask_one(partition, part, context) for partition, part in parts.items()])

    async def _ask_one(self, partition: int, message: GroupRequest, context: RequestContext) -> GroupResponse:
        shard = self._shards.get(partition)
        if shard is None:
            return refuse(message, context.api_version, ErrorCode.NOT_COORDINATOR)
        request_id = next(self._request_ids)
        answer: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            self._step(
                shard,
                Request(
                    request_id=request_id,
                    api_version=context.api_version,
                    message=message,
                    client_id=context.client_id,
                    client_host=context.client_host,
                ),
            )
            return await answer
        finally:
            del self._waiting[request_id]

    # --- the loop around the machine ---------------------------------------------------------

    def _monotonic(self) -> Millis:
        return self._clock.monotonic_ms()

    def _step(self, shard: _Shard, event: Event) -> None:
        self._run(shard, shard.coordinator.step(event, self._monotonic(), self._clock.now()))

    def _run(self, shard: _Shard, effects: Sequence[Effect]) -> None:
        remaining = deque(effects)
        while remaining:
            effect = remaining.popleft()
            match effect:
                case Reply():
                    answer = self._waiting.get(effect.request_id)  # None: the client has gone meanwhile
                    if answer is not None and not answer.done():
                        answer.set_result(effect.response)
                case Append():
                    error_code = self._append(shard, effect)
                    if error_code is not None:
                        appended = Appended(token=effect.token, error_code=error_code)
                        now = self._clock.now()
                        remaining.extend(shard.coordinator.step(appended, self._monotonic(), now))
                case Note():
                    logger.info("group %s: %s", effect.group_id, effect.text)
                case _:
                    assert_never(effect)
        self._set_timer(shard)

    def _append(self, shard: _Shard, effect: Append) -> ErrorCode | None:
        """Append the records; None where that is reported later, once they are synced."""
        now = self._clock.now()
        batch = encode_batch(
            [(now, key, value, ()) for key, value in effect.records],
            compression=Compression(self._config.offsets_topic_compression_codec),
        )
        try:
            appended = shard.replica.append(batch, Origin.COORDINATOR, now)
        except KafkaError as error:
            logger.warning("%s: %s", shard.replica.topic_partition, error)
            return error.code
        if not appended.flush_due:
            return ErrorCode.NONE
        flushing = self._flush(shard, effect.token, appended.last_offset + 1)
        self._tasks.create_task(flushing, name=f"flush {shard.replica.topic_partition}")
        return None

    async def _flush(self, shard: _Shard, token: int, end_offset: int) -> None:
        error_code = ErrorCode.NONE
        try:
            await shard.replica.flush(end_offset, self._clock.now())
        except KafkaError as error:
            logger.warning("%s: %s", shard.replica.topic_partition, error)
            error_code = error.code
        if self._shards.get(shard.replica.topic_partition.partition) is shard:
            self._step(shard, Appended(token=token, error_code=error_code))

    def _set_timer(self, shard: _Shard) -> None:
        """Have a Tick when the next deadline comes. A timer that is early stays: every heartbeat moves deadlines back,
        and a Tick too many does nothing."""
        deadline = shard.coordinator.next_deadline()
        if deadline is None:
            return
        if shard.timer is not None:
            if shard.tick_at <= deadline:
                return
            shard.timer.cancel()
        shard.tick_at = deadline
        delay_ms = max(0, deadline - self._monotonic())
        shard.timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick, shard)

    def _tick(self, shard: _Shard) -> None:
        shard.timer = None
        self._step(shard, Tick())


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_max_size=config.group_max_size,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
