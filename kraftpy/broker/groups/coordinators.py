"""The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads.

Each is the pure state machine of `groups`, run by the loop in `coordinator_shards`. Here requests become events, and
effects become replies and appends.

Offsets committed in a transaction are appended as the producer's batch, and the marker is written to the partition
through `write_marker`: the state machine sees both in log order.

Committed offsets are returned only after confirming that no other broker has become coordinator
(`replication.leadership_check`): a broker that is cut off would return offsets that its successor has long moved past.
If this cannot be confirmed, the client gets an error and asks again.

Requests of share groups to the share coordinators are sent from tasks (`share.state_changes`). Large computations, such
as the assignment of thousands of partitions, are done in a thread (`groups.apart`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import assert_never

from kraftpy.broker.containment import Tasks
from kraftpy.broker.coordinator_shards import Shard, Shards
from kraftpy.broker.groups.settings import GroupSettingsNow
from kraftpy.broker.groups.streams_topics import create_internal_topics
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.request import RequestContext
from kraftpy.broker.rights import ASK_UNITS
from kraftpy.broker.slicing import PIECE, Slices
from kraftpy.config import BrokerConfig
from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import (
    Append,
    Appended,
    ChangeState,
    Compute,
    Computed,
    CreateInternalTopics,
    Deletion,
    Effect,
    GroupRequest,
    GroupResponse,
    Initialization,
    Note,
    Reply,
    Request,
    StateChanged,
    Survived,
    Tick,
    TopicRights,
    TopicsDeleted,
    TransactionEnded,
)
from kraftpy.groups.group import Group
from kraftpy.groups.memory import Room
from kraftpy.groups.registry import parse
from kraftpy.groups.routing import merge, partition_for_group, refuse, split
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.share.records import partitions_of
from kraftpy.groups.streams.topology import InternalTopic
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import TopicInfo
from kraftpy.metadata.acls import AclChanged
from kraftpy.metadata.records import PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Buffer, Clock
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.protocol.record_batch import (
    BatchHeader,
    ControlType,
    decode_control_record,
    encode_batch,
)
from kraftpy.protocol.record_batch import Record as BatchRecord
from kraftpy.types import TopicId, TopicPartition

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 100
_MOST_CREATORS = 10_000
"""The most streams groups whose creator of internal topics is remembered."""
_MOST_REFUSED = 20
"""How many topics that may not be created a group's members are told of."""
_MAY_CREATE_UNITS = 2 * ASK_UNITS
"""The cost of finding out whether a topic may be created, in units of `slicing`."""
_LISTED_UNITS = 1
"""The cost of listing a group, in units of `slicing`, rounded up generously."""
_MERGED_AT_ONCE = 20
"""Lists of up to this many pieces are merged on the event loop."""

ChangeShareState = Callable[[str, Initialization | Deletion], Awaitable[dict[TopicIdPartition, ErrorCode]]]
"""Asks share coordinators to initialize or delete state of a group's partitions; returns the errors by partition."""


class _TopicsNow:
    """The topics of the metadata image, in the form groups need."""

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


class Coordinators(Shards[GroupCoordinator]):
    """All groups whose partition of `__consumer_offsets` this broker leads."""

    topic = CONSUMER_OFFSETS

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: Replicas,
        change_state: ChangeShareState,
        slices: Slices,
    ) -> None:
        super().__init__(clock, tasks, metadata, replicas, slices)
        self.commit_timeout_ms = config.offsets_commit_timeout_ms
        self._config = config
        self._group_config = _group_config(config)
        self._room = Room(config.kraftpy_group_coordinator_max_bytes, self._refused)
        self._topics = _TopicsNow(metadata)
        self._matches = TopicMatches(self._topics, config.kraftpy_group_regex_cache_bytes)
        self.settings = GroupSettingsNow(config, lambda: metadata.image, tasks.incidents.complaints)
        self._ask_share_coordinators = change_state
        self._making: dict[str, asyncio.Task[None]] = {}  # by streams group
        self._creators: dict[str, TopicRights] = {}
        self._not_created: dict[str, list[str]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    # --- the machines ------------------------------------------------------------------------

    def _make(self, replica: Replica) -> GroupCoordinator:
        return GroupCoordinator(
            self._group_config, lambda: str(uuid.uuid4()), self._topics, self.settings, self._matches, self._room
        )

    def _tick(self) -> Tick:
        return Tick()

    def _parse(self, key: Buffer | None, value: Buffer | None) -> object:
        return parse(key, value)

    def _replay_record(
        self, machine: GroupCoordinator, header: BatchHeader, record: BatchRecord, parsed: object
    ) -> None:
        if header.is_control:
            marker = decode_control_record(record)
            if marker.type in (ControlType.COMMIT, ControlType.ABORT):
                machine.replay_end(header.producer_id, is_commit=marker.type == ControlType.COMMIT)
        elif header.is_transactional:
            machine.replay_pending(header.producer_id, record.key, record.value)
        else:
            machine.replay(record.key, record.value, record.offset, parsed)

    def _replay_on(self, machine: GroupCoordinator) -> bool:
        return machine.replay_on()

    def _restore_on(self, machine: GroupCoordinator) -> bool:
        return machine.restore(self._monotonic(), self._clock.now())

    def reconcile(self) -> None:
        """Make sure there is a coordinator for each partition led here, and no other. All topics may have changed."""
        self._topics.version += 1
        super().reconcile()

    def apply(self, records: Sequence[Record]) -> None:
        """React to changed metadata: leaderships come and go, groups forget deleted topics."""
        if any(isinstance(record, PartitionCreated | TopicDeleted | AclChanged) for record in records):
            self._topics.version += 1
        deleted = [each for each in records if isinstance(each, TopicDeleted) and each.name != CONSUMER_OFFSETS]
        if deleted:
            event = TopicsDeleted(
                topics=tuple(record.name for record in deleted), topic_ids=tuple(record.topic_id for record in deleted)
            )
            for shard in list(self._shards.values()):
                self._step(shard, event)
        super().apply(records)

    def stop(self) -> None:
        """Shut down for good; waiting clients get an error that makes them look for the new coordinator."""
        super().stop()
        for task in self._asking:
            task.cancel()

    # --- requests ----------------------------------------------------------------------------

    async def ask(self, message: GroupRequest, context: RequestContext) -> GroupResponse:
        """Pass a request to its coordinator, or to several if it names several groups, and return the answer.

        Each coordinator does its part in one step: long requests are split before (`handlers.pieces`).
        """
        version = context.api_version
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return refuse(message, version, ErrorCode.NOT_COORDINATOR)
        parts = split(message, version, len(topic.partitions))
        if not parts:
            return refuse(message, version, ErrorCode.NONE)
        return merge([await self._ask_one(partition, part, context) for partition, part in parts.items()])

    async def list_groups(
        self, message: ListGroupsRequest, context: RequestContext, slices: Slices
    ) -> ListGroupsResponse:
        """List every group of this broker, in slices."""
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        answers: list[GroupResponse] = []
        for partition in range(0 if topic is None else len(topic.partitions)):
            shard = self._serving(partition)
            if shard is None or not shard.machine.groups:
                answers.append(await self._ask_one(partition, message, context))
                continue
            async for among in slices.pieces(list(shard.machine.groups), _LISTED_UNITS):
                some = await self._ask_one(partition, message, context, among)
                answers.append(some)
        if not answers:
            return ListGroupsResponse(groups=[])
        listed = merge(answers) if len(answers) <= _MERGED_AT_ONCE else await slices.apart(merge, answers)
        assert isinstance(listed, ListGroupsResponse)
        return listed

    def _known(self, group_id: str) -> Group | None:
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        shard = None if topic is None else self._serving(partition_for_group(group_id, len(topic.partitions)))
        return None if shard is None else shard.machine.groups.get(group_id)

    def size_of(self, group_id: str) -> int:
        """Return the number of members and committed offsets of a group coordinated here: roughly the cost of
        describing it.

        Returns 0 for other groups.
        """
        group = self._known(group_id)
        return 0 if group is None else group.size

    def committed(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions for which a group has committed offsets, in no particular order."""
        group = self._known(group_id)
        return [] if group is None else list(group.offsets)

    async def _ask_one(
        self, partition: int, message: GroupRequest, context: RequestContext, among: Sequence[str] | None = None
    ) -> GroupResponse:
        shard = self._serving(partition)
        if shard is None:
            return refuse(message, context.api_version, ErrorCode.NOT_COORDINATOR)
        if isinstance(message, OffsetFetchRequest):
            if not await self._is_up_to_date(shard):
                return refuse(message, context.api_version, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not self._is_current(shard):
                return refuse(message, context.api_version, ErrorCode.NOT_COORDINATOR)
        request_id = next(self._request_ids)
        request = Request(
            request_id=request_id,
            api_version=context.api_version,
            message=message,
            client_id=context.client_id,
            client_host=context.client_host,
            among=among,
            rights=context.rights.of_topics,
        )
        if isinstance(message, StreamsGroupHeartbeatRequest):
            self._note_creator(message.group_id, request.rights)
        answer: GroupResponse | ErrorCode = await self._asked(shard, request_id, request)
        return refuse(message, context.api_version, answer) if isinstance(answer, ErrorCode) else answer

    async def _is_up_to_date(self, shard: Shard[GroupCoordinator]) -> bool:
        """Return True if no other broker can have accepted commits before this call.

        Not checked for a coordinator that is still loading: it answers with an error anyway.
        """
        if shard.loading is not None and not shard.loading.done():
            return True
        deadline = asyncio.get_running_loop().time() + self._config.offsets_commit_timeout_ms / 1000
        return await self._replicas.confirmations.confirm(shard.replica, shard.leadership, deadline)

    def check_ready(self, partition: int) -> ErrorCode:
        """Return NONE if this broker coordinates the groups of that partition and has loaded them all."""
        shard = self._serving(partition)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if shard.machine.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def write_marker(
        self, partition: int, marker: bytes, producer_id: int, *, is_commit: bool, raised_epoch: int | None
    ) -> ErrorCode:
        """Append a transaction's marker to a partition; the groups act on it once it is committed.

        `raised_epoch` is the epoch to which the transaction's end raised the producer, if it did. The error is one of a
        partition's leader, which the transaction's coordinator retries, not one of a group coordinator.
        """
        shard = self._serving(partition)
        if shard is None or not shard.machine.is_loaded:  # loading ends before this marker
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def reported(outcome: ErrorCode) -> TransactionEnded | None:
            if not written.done():
                written.set_result(outcome)
            is_written = outcome == ErrorCode.NONE
            return TransactionEnded(producer_id=producer_id, is_commit=is_commit) if is_written else None

        producers = shard.replica.log.producers
        with nullcontext() if raised_epoch is None else producers.raising_epoch(producer_id, raised_epoch):
            error_code = self._append(shard, marker, reported)
        if error_code is None:
            return await written
        event = reported(error_code)
        if event is not None:
            self._step(shard, event)
        return error_code

    def shared_partitions(self, group_id: str) -> Assignment | ErrorCode:
        """Return the partitions of a group that have state at the share coordinators; none if it does not exist."""
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return ErrorCode.NOT_COORDINATOR
        shard = self._serving(partition_for_group(group_id, len(topic.partitions)))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if not shard.machine.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        group = shard.machine.groups.get(group_id)
        if group is None or not isinstance(group.kind, ShareGroup):
            return NOTHING
        return partitions_of(group.kind.partitions.initialized)

    # --- effects -----------------------------------------------------------------------------

    def _carry_out(self, shard: Shard[GroupCoordinator], effect: Effect) -> Sequence[Effect]:
        match effect:
            case Reply():
                self._answer(shard, effect.request_id, effect.response)
            case Append():
                token = effect.token

                def reported(outcome: ErrorCode) -> Appended:
                    return Appended(token=token, error_code=outcome)

                if effect.producer_id >= 0:  # verified with its coordinator; a marker may have been written since
                    try:
                        shard.replica.log.producers.check_confirmed(effect.producer_id, effect.producer_epoch)
                    except KafkaError as error:
                        return self._stepped(shard, reported(error.code))
                return self._write(shard, lambda: self._encoded(effect), reported)
            case ChangeState():
                task = self._tasks.create_task(self._change_state(shard, effect), name="share group state")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case CreateInternalTopics():
                self._create_topics(effect)
            case Compute():
                task = self._tasks.create_task(self._compute(shard, effect), name="group assignment")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case Survived():
                name = f" of group {effect.group_id[:_SHOWN_CHARACTERS]!r}" if effect.group_id else ""
                self._tasks.survive(f"{effect.kind}{name}", effect.error, kind=effect.kind)
            case Note():
                logger.info("group %s: %s", effect.group_id, effect.text)
            case _:
                assert_never(effect)
        return ()

    def _note_creator(self, group_id: str, rights: TopicRights | None) -> None:
        """Note the member that asked last: a group's internal topics are created with its rights."""
        self._creators.pop(group_id, None)
        if rights is not None:
            self._creators[group_id] = rights
            if len(self._creators) > _MOST_CREATORS:
                del self._creators[next(iter(self._creators))]

    def not_created(self, group_id: str) -> list[str]:
        """Return internal topics, at most 20, that are missing because a member lacks the right to create them."""
        return self._not_created.get(group_id, [])

    def _create_topics(self, effect: CreateInternalTopics) -> None:
        """Start creating internal topics, unless already in progress; the group repeats this while they are missing."""
        rights = self._creators.get(effect.group_id)
        is_long = rights is not None and len(effect.topics) > PIECE // _MAY_CREATE_UNITS
        if not is_long:
            self._note_refused(effect.group_id, _not_allowed(rights, effect.topics))
            if effect.group_id in self._not_created:
                return
        if effect.group_id in self._making:
            return
        work = self._create_topics_task(effect, rights if is_long else None)
        task = self._tasks.create_task(work, name="streams group topics")
        self._making[effect.group_id] = task
        task.add_done_callback(lambda _: self._making.pop(effect.group_id, None))

    def _note_refused(self, group_id: str, refused: list[str]) -> None:
        self._not_created.pop(group_id, None)
        if refused:
            self._not_created[group_id] = refused[:_MOST_REFUSED]
            if len(self._not_created) > _MOST_CREATORS:
                del self._not_created[next(iter(self._not_created))]

    async def _create_topics_task(self, effect: CreateInternalTopics, rights: TopicRights | None) -> None:
        """Create internal topics; if `rights` are given, only if they allow all of them."""
        if rights is not None:
            refused: list[str] = []
            async for some in self._slices.pieces(effect.topics, _MAY_CREATE_UNITS):
                refused += _not_allowed(rights, some)
            self._note_refused(effect.group_id, refused)
            if refused:
                return
        failed = await create_internal_topics(effect.topics, self._metadata, self._config, self._clock)
        for name, why in failed.items():
            text = "group %s: cannot create its internal topic %s: %s"
            self._complaints.write(logger, logging.WARNING, "internal topics", "", text, effect.group_id, name, why)

    async def _change_state(self, shard: Shard[GroupCoordinator], effect: ChangeState) -> None:
        try:
            failed = await self._ask_share_coordinators(effect.group_id, effect.change)
        except Exception as error:
            self._tasks.survive("asking share coordinators", error)
            change = effect.change
            partitions = change.start_offsets if isinstance(change, Initialization) else change.partitions
            failed = dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        if self._is_current(shard):
            self._step(shard, StateChanged(token=effect.token, failed=failed))

    async def _compute(self, shard: Shard[GroupCoordinator], effect: Compute) -> None:
        result, failure = None, None
        try:
            result = await self._slices.apart(effect.function)
        except Exception as error:
            failure = error
        if self._is_current(shard):
            self._step(shard, Computed(group_id=effect.group_id, token=effect.token, result=result, error=failure))

    def _encoded(self, effect: Append) -> bytes:
        now = self._clock.now()
        return encode_batch(
            [(now, key, value, ()) for key, value in effect.records],
            compression=Compression(self._config.offsets_topic_compression_codec),
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            is_transactional=effect.producer_id >= 0,
        )


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        has_authorizer=bool(config.authorizer_class_name),
        kraftpy_group_coordinator_max_bytes=config.kraftpy_group_coordinator_max_bytes,
        kraftpy_group_max_bytes=config.kraftpy_group_max_bytes,
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_max_size=config.group_max_size,
        group_consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        group_share_assignment_interval_ms=config.group_share_assignment_interval_ms,
        group_streams_assignment_interval_ms=config.group_streams_assignment_interval_ms,
        group_consumer_assignors=tuple(config.group_consumer_assignors),
        group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_consumer_migration_policy=config.group_consumer_migration_policy,
        group_consumer_max_size=config.group_consumer_max_size,
        group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        group_share_assignors=tuple(config.group_share_assignors),
        group_share_heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
        group_share_initialize_retry_interval_ms=config.group_share_initialize_retry_interval_ms,
        group_share_max_size=config.group_share_max_size,
        group_share_session_timeout_ms=config.group_share_session_timeout_ms,
        group_streams_heartbeat_interval_ms=config.group_streams_heartbeat_interval_ms,
        group_streams_initial_rebalance_delay_ms=config.group_streams_initial_rebalance_delay_ms,
        group_streams_max_size=config.group_streams_max_size,
        group_streams_num_standby_replicas=config.group_streams_num_standby_replicas,
        group_streams_session_timeout_ms=config.group_streams_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def _not_allowed(rights: TopicRights | None, topics: Sequence[InternalTopic]) -> list[str]:
    """Return the topics that may not be created."""
    return [] if rights is None else [each.name for each in topics if not rights.may_create(each.name)]
