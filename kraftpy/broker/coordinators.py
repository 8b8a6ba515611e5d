"""The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads.

Each is the pure state machine of `groups`; this is the loop around it: requests become events, effects become replies,
appends and timers. A coordinator comes with the leadership of its partition and goes with it (who waits is told to look
elsewhere). It is loaded by replaying the partition up to the log's end at its election, and answers
COORDINATOR_LOAD_IN_PROGRESS until that is done and all of it is committed: what it says must not be undone by the next
election. One whose partition cannot be read goes on doing so, and the log says why.

An append is reported when it is committed (acks=all), and durable as far as the topic asks for it: `flush.messages` and
`kraftpy.flush.before.ack` hold here too. What did not commit within `offsets.commit.timeout.ms` is reported as failed,
though it may be in the log; the coordinator is then loaded anew.

Committed offsets are told once it is confirmed that nobody else has become coordinator meanwhile (`confirming`): one
that is cut off would tell what its successor has long moved on from. As long as that cannot be confirmed they are not
told, and the client asks again.

Left out: transactional and share coordinators.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.metadata import MetadataLog
from kraftpy.broker.replica import Replica
from kraftpy.broker.replicas import Replicas
from kraftpy.broker.request import RequestContext
from kraftpy.config import BrokerConfig
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer_group import TopicInfo
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
from kraftpy.groups.routing import merge, refuse, split
from kraftpy.log.partition_log import Origin
from kraftpy.metadata.records import PartitionChanged, PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Clock
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.types import Millis, Offset, TopicId

logger = logging.getLogger(__name__)

_LOAD_BYTES = 1 << 20
_LOOK_AGAIN_S = 60.0


class _Pending(NamedTuple):
    """An append that is not committed yet."""

    end_offset: int
    token: int
    deadline: float


class _Shard:
    """One coordinator with its partition and its timer."""

    def __init__(self, replica: Replica, coordinator: GroupCoordinator) -> None:
        self.replica = replica
        self.leadership = replica.leadership
        self.coordinator = coordinator
        self.pending: deque[_Pending] = deque()
        self.committing: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.tick_at = Millis(0)
        self.loading: asyncio.Task[None] | None = None


class _TopicsNow:
    """The topics of the metadata image, as groups want to know them."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self.version = 0

    def topic(self, name: str) -> TopicInfo | None:
        found = self._metadata.image.topic(name)
        return None if found is None else TopicInfo(found.topic_id, len(found.partitions))

    def name(self, topic_id: TopicId) -> str | None:
        found = self._metadata.image.topic_by_id(topic_id)
        return None if found is None else found.name

    def names(self) -> list[str]:
        return [topic.name for topic in self._metadata.image.topics()]


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
        self._topics = _TopicsNow(metadata)
        self._shards: dict[int, _Shard] = {}
        self._request_ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[GroupResponse]] = {}
        self._is_stopped = False

    # --- coming and going --------------------------------------------------------------------

    def reconcile(self) -> None:
        """Have a coordinator for each partition that is led here, and no other. The topics may be any by now."""
        self._topics.version += 1
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        count = 0 if topic is None else len(topic.partitions)
        for partition in sorted({*range(count), *self._shards}):
            self.follow_leadership(partition)

    def apply(self, records: Sequence[Record]) -> None:
        """Metadata has changed: leaderships come and go, deleted topics are forgotten by the groups."""
        touched: dict[int, None] = {}
        for record in records:
            if isinstance(record, PartitionCreated | TopicDeleted):
                self._topics.version += 1
            match record:
                case PartitionCreated(topic=topic) | PartitionChanged(topic=topic) if topic == CONSUMER_OFFSETS:
                    touched[record.partition] = None
                case TopicDeleted(name=name) if name == CONSUMER_OFFSETS:
                    touched.update(dict.fromkeys(self._shards))
                case TopicDeleted():
                    for shard in self._shards.values():
                        self._step(shard, TopicsDeleted(topics=(record.name,)))
                case _:
                    pass
        for partition in touched:
            self.follow_leadership(partition)

    def stop(self) -> None:
        """Let go of every group, for good; who waits is told to look elsewhere."""
        self._is_stopped = True
        for partition in list(self._shards):
            self._unload(partition)

    def follow_leadership(self, partition: int) -> None:
        """Have a coordinator for a partition of `__consumer_offsets` exactly while this broker leads it."""
        if self._is_stopped:
            return
        try:
            replica = self._replicas.leader(CONSUMER_OFFSETS, partition)
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:  # what is wrong with it was logged where that was found
                logger.info("%s-%d has no coordinator: %s", CONSUMER_OFFSETS, partition, error)
            self._unload(partition)
            return
        shard = self._shards.get(partition)
        if shard is not None and shard.replica is replica and shard.leadership == replica.leadership:
            return
        self._unload(partition)
        self._begin(partition, replica)

    def _begin(self, partition: int, replica: Replica) -> None:
        coordinator = GroupCoordinator(self._group_config, lambda: str(uuid.uuid4()), self._topics)
        shard = self._shards[partition] = _Shard(replica, coordinator)
        if replica.log.log_end_offset == replica.log.log_start_offset:
            self._loaded(shard)
        else:
            name = f"load {CONSUMER_OFFSETS}-{partition}"
            shard.loading = self._tasks.create_task(self._load(shard), name=name)

    def _unload(self, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is None:
            return
        for task in (shard.loading, shard.committing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._run(shard, shard.coordinator.unload())
        if shard.timer is not None:
            shard.timer.cancel()

    async def _load(self, shard: _Shard) -> None:
        replica = shard.replica
        end_offset = replica.log_end_offset
        try:
            await self._replay(shard, end_offset)
        except (KafkaError, ProtocolError) as error:
            logger.critical("%s cannot be read, its groups wait: %s", replica.topic_partition, error)
            return
        outcome = ErrorCode.REQUEST_TIMED_OUT
        while outcome == ErrorCode.REQUEST_TIMED_OUT:
            deadline = asyncio.get_running_loop().time() + _LOOK_AGAIN_S
            outcome = await replica.committed(end_offset, shard.leadership, deadline)
        if outcome != ErrorCode.NOT_LEADER_OR_FOLLOWER and self._is_current(shard):
            self._loaded(shard)

    def _is_current(self, shard: _Shard) -> bool:
        return self._shards.get(shard.replica.topic_partition.partition) is shard

    async def _replay(self, shard: _Shard, end_offset: int) -> None:
        replica = shard.replica
        offset = Offset(replica.log.log_start_offset)
        while offset < end_offset:
            records = replica.read_to_end(offset, _LOAD_BYTES, min_one_batch=True)
            if not records:  # compaction left nothing behind it
                return
            for header, batch in split_batches(records):
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
        if isinstance(message, OffsetFetchRequest):
            if not await self._is_up_to_date(shard):
                return refuse(message, context.api_version, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not self._is_current(shard):
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

    async def _is_up_to_date(self, shard: _Shard) -> bool:
        """Whether nobody else can have taken commits before this was called. Not asked of one that is being loaded:
        it answers with an error anyway."""
        if shard.loading is not None and not shard.loading.done():
            return True
        deadline = asyncio.get_running_loop().time() + self._config.offsets_commit_timeout_ms / 1000
        return await self._replicas.confirmations.confirm(shard.replica, shard.leadership, deadline)

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
        """Append the records; None where that is reported later, once they are committed and synced."""
        now = self._clock.now()
        batch = encode_batch(
            [(now, key, value, ()) for key, value in effect.records],
            compression=Compression(self._config.offsets_topic_compression_codec),
        )
        replica = shard.replica
        try:
            if replica.leadership != shard.leadership:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership was lost meanwhile")
            replica.check_in_sync()
            appended = replica.append(batch, Origin.COORDINATOR, now)
        except KafkaError as error:
            logger.warning("%s: %s", replica.topic_partition, error)
            return error.code
        end_offset = appended.last_offset + 1
        if not appended.flush_due and not shard.pending and replica.high_watermark >= end_offset:
            return ErrorCode.NONE
        deadline = asyncio.get_running_loop().time() + self._config.offsets_commit_timeout_ms / 1000
        shard.pending.append(_Pending(end_offset, effect.token, deadline))
        if shard.committing is None:
            name = f"commit {replica.topic_partition}"
            shard.committing = self._tasks.create_task(self._commit(shard), name=name)
        return None

    async def _commit(self, shard: _Shard) -> None:
        """Report what was appended, in order, as it is committed."""
        replica = shard.replica
        outcome = ErrorCode.NONE
        while shard.pending and self._is_current(shard):
            end_offset, token, deadline = shard.pending[0]
            try:
                if replica.syncs.is_due(end_offset):
                    await replica.flush(shard.pending[-1].end_offset)
                outcome = await replica.committed(end_offset, shard.leadership, deadline)
            except KafkaError as error:
                outcome = error.code
            if not self._is_current(shard):
                return
            if outcome != ErrorCode.NONE:
                logger.warning("%s: not committed: %s", replica.topic_partition, outcome.name)
            shard.pending.popleft()
            self._step(shard, Appended(token=token, error_code=outcome))
            if outcome not in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                break  # it may be in the log all the same
        shard.committing = None
        if outcome != ErrorCode.NONE and self._is_current(shard):
            partition = replica.topic_partition.partition
            self._unload(partition)
            self.follow_leadership(partition)

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
        group_consumer_assignors=tuple(config.group_consumer_assignors),
        group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_consumer_max_size=config.group_consumer_max_size,
        group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
