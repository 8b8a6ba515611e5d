"""The shell around `classic_membership`: carries out the machine's effects and feeds the results back as events.

One task steps the machine. Another carries out the effects of a step in order, so that heartbeats continue while the
application is waited for. The assignment changes in the order of the steps. Partitions are taken away only while the
application is asking for records (or has ended): it is never in the middle of a record of a partition that another
member already reads. It has `max_poll_interval_ms` to come back.

Automatic commits cover what the application has finished with; it says so by asking for more.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, assert_never

from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.cluster import COORDINATOR_MOVED, Cluster
from kraftpy.client.consumer.classic_membership import Membership, MembershipOptions, State
from kraftpy.client.consumer.heartbeat_membership import HeartbeatMembership
from kraftpy.client.consumer.membership_events import (
    Assign,
    Close,
    CommitRefused,
    ConsumerHeartbeatAnswered,
    DescribeTopics,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    HeartbeatAnswered,
    Joined,
    JoinedMember,
    Left,
    MetadataChanged,
    PollOverdue,
    Resume,
    Revoke,
    Revoked,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    Subscribed,
    Synced,
    Tick,
    TopicsDescribed,
)
from kraftpy.client.consumer.rebalance_listener import RebalanceListener
from kraftpy.client.model import OffsetAndMetadata
from kraftpy.client.offsets import by_topic, commit_offsets, partition_counts
from kraftpy.client.options import ConsumerOptions
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.consumer_protocol import PROTOCOL_TYPE
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupTopicPartitions,
)
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

_JOIN_SLACK_MS = 5_000
_BY_MEMBER_LIST = 3
_MEMBERSHIP_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)


class Application(Protocol):
    """The consumer and its application, as the group sees them."""

    @property
    def is_asking(self) -> bool:
        """True if the application is waiting for records right now."""
        ...

    def take_asked(self) -> bool:
        """Return whether the application has asked for records since the last call."""
        ...

    def hold(self) -> None:
        """Hand out nothing until `release`."""
        ...

    async def until_asking(self) -> None:
        """Wait until the application asks for records, or will never ask again."""
        ...

    def release(self) -> None:
        """Hand out records again."""
        ...

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Start reading these partitions too."""
        ...

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        ...

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets up to which the application has finished."""
        ...

    def failed(self, error: KafkaError) -> None:
        """Raise this error when the application next asks for records."""
        ...


class GroupMember:
    """One consumer's membership in its group."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        application: Application,
        on_commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None],
    ) -> None:
        assert options.group_id is not None, "only consumers with a group have a place in one"
        self.group_id = options.group_id
        self.listener: RebalanceListener | None = None
        self._cluster = cluster
        self._options = options
        self._application = application
        self._on_commit = on_commit
        membership = MembershipOptions(
            assignors=tuple(ASSIGNORS[name] for name in options.partition_assignment_strategy),
            group_instance_id=options.group_instance_id,
            rack_id=options.client_rack or None,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            session_timeout_ms=options.session_timeout_ms,
            retry_backoff_ms=options.retry_backoff_ms,
        )
        self._machine: Membership | HeartbeatMembership
        if options.group_protocol == "consumer":
            self._machine = HeartbeatMembership(membership, self._new_member_id)
        else:
            self._machine = Membership(membership)
        self._topic_ids: dict[str, bytes] = {}  # of the topics that the coordinator assigned (KIP-848)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._moving = asyncio.Lock()  # one change of assignment at a time
        self._committing = asyncio.Lock()
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._commit_at_ms = self._now() + options.auto_commit_interval_ms
        self._asked_at_ms = self._now()
        self._overdue = False
        self._left = asyncio.Event()
        self._closing = False
        self._running = False

    def _new_member_id(self) -> str:
        """Make a unique id from the runtime's random numbers."""
        random = self._cluster.runtime.random
        return "".join(f"{int(random() * 2**32):08x}" for _ in range(4))

    def start(self) -> None:
        """Start the member's task."""
        if not self._running:
            self._running = True
            self._cluster.on_metadata.append(self._metadata_changed)
            self._cluster.tasks.spawn(self._run(), f"member of {self.group_id}")

    @property
    def member_id(self) -> str:
        """The member id that the coordinator knows; empty outside the group."""
        return self._machine.member_id

    @property
    def generation_id(self) -> int:
        """The group's generation; -1 outside the group."""
        return self._machine.generation_id

    @property
    def is_stable(self) -> bool:
        """True if an assignment is in force."""
        return self._machine.state is State.STABLE

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from the next rebalance on; with no topics, leave the group."""
        self._post(Subscribed(topics=tuple(topics)))

    async def close(self) -> None:
        """Commit what is finished, give up all partitions, and leave."""
        if self._running and not self._closing:
            self._closing = True
            self._post(Close())
            await self._left.wait()

    # --- the loop -------------------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        self._events.put_nowait(event)

    def _now(self) -> float:
        return self._cluster.runtime.monotonic_ms()

    async def _run(self) -> None:
        while True:
            event = await self._next_event()
            effects = self._machine.step(event, self._now())
            if effects and logger.isEnabledFor(logging.DEBUG):
                names = ", ".join(type(effect).__name__ for effect in effects)
                logger.debug(
                    "group %s: %s, so %s; now %s", self.group_id, type(event).__name__, names, self._machine.state.value
                )
            self._start(effects)
            self._watch_application()
            self._commit_when_due()

    async def _next_event(self) -> Event:
        now = self._now()
        deadlines = [now + 1_000.0]
        if self._machine.deadline_ms is not None:
            deadlines.append(self._machine.deadline_ms)
        if self._auto_commits:
            deadlines.append(self._commit_at_ms)
        try:
            async with asyncio.timeout(max(min(deadlines) - now, 1) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _watch_application(self) -> None:
        """Leave the group if the application has not asked for records in time; rejoin when it does (KIP-62)."""
        now = self._now()
        if self._application.take_asked() or self._application.is_asking:
            self._asked_at_ms = now
            if self._overdue:
                self._overdue = False
                self._post(Resume())
            return
        late = now - self._asked_at_ms > self._options.max_poll_interval_ms
        if late and self._machine.held and not self._overdue:
            logger.warning(
                "%s left group %s: no poll within max_poll_interval_ms (%d)",
                self._options.client_id,
                self.group_id,
                self._options.max_poll_interval_ms,
            )
            self._overdue = True
            self._post(PollOverdue())

    def _metadata_changed(self) -> None:
        topics = self._cluster.metadata.topics
        self._post(MetadataChanged(partition_counts={name: len(info.partitions) for name, info in topics.items()}))

    # --- effects --------------------------------------------------------------------------------------------------

    def _start(self, effects: list[Effect]) -> None:
        slow, leaving = list[Effect](), list[Effect]()
        for effect in effects:
            match effect:
                case ForgetCoordinator():
                    self._cluster.forget_coordinator(self.group_id)
                case SendHeartbeat():
                    self._cluster.tasks.spawn(self._heartbeat(effect), f"heartbeat to {self.group_id}")
                case SendConsumerHeartbeat():
                    self._cluster.tasks.spawn(self._consumer_heartbeat(effect), f"heartbeat to {self.group_id}")
                case SendLeave() | SendConsumerLeave() | Left():
                    leaving.append(effect)
                case _:
                    slow.append(effect)
        # A change of assignment never waits for the answer to a request to leave: the next might then overtake it.
        for each in filter(None, (slow, leaving)):
            self._cluster.tasks.spawn(self._carry_out(each), f"rebalance of {self.group_id}")

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            await self._do(effect)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case SendJoin():
                self._post(await self._join(effect))
            case DescribeTopics():
                self._post(TopicsDescribed(partition_counts=await partition_counts(self._cluster, effect.topics)))
            case SendSync():
                self._post(await self._sync(effect))
            case SendLeave():
                await self._leave(effect)
            case SendConsumerLeave():
                await self._consumer_leave(effect)
            case Revoke():
                await self._revoke(effect)
                self._post(Revoked())
            case Assign():
                await self._assign(effect)
            case Fail():
                self._application.failed(effect.error)
            case Left():
                if self._closing:
                    self._left.set()
            case ForgetCoordinator() | SendHeartbeat() | SendConsumerHeartbeat():
                raise AssertionError("done at once in _start")
            case _:
                assert_never(effect)

    async def _join(self, effect: SendJoin) -> Joined:
        """Send JoinGroup. The answer comes once all members have joined, within their rebalance timeout."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._options.session_timeout_ms,
            rebalance_timeout_ms=self._options.max_poll_interval_ms,
            member_id=effect.member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in effect.protocols],
            reason=effect.reason,
        )
        wait_ms = max(self._options.max_poll_interval_ms, self._options.request_timeout_ms) + _JOIN_SLACK_MS
        low = 5 if self._options.group_instance_id is not None else 0
        answer: JoinGroupResponse | None
        answer, error = await self._ask(ApiKey.JOIN_GROUP, request, timeout_ms=wait_ms, low=low)
        if answer is None:
            return Joined(error=error)
        return Joined(
            error=error,
            generation_id=answer.generation_id,
            protocol_name=answer.protocol_name,
            leader=answer.leader,
            member_id=answer.member_id,
            skip_assignment=answer.skip_assignment,
            members=tuple(
                JoinedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=bytes(member.metadata),
                )
                for member in answer.members
            ),
        )

    async def _sync(self, effect: SendSync) -> Synced:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=effect.generation_id,
            member_id=effect.member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=effect.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in effect.assignments
            ],
        )
        wait_ms = max(self._options.max_poll_interval_ms, self._options.request_timeout_ms) + _JOIN_SLACK_MS
        answer: SyncGroupResponse | None
        answer, error = await self._ask(ApiKey.SYNC_GROUP, request, timeout_ms=wait_ms)
        return Synced(error=error, assignment=bytes(answer.assignment) if answer is not None else b"")

    async def _heartbeat(self, effect: SendHeartbeat) -> None:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=effect.generation_id,
            member_id=effect.member_id,
            group_instance_id=self._options.group_instance_id,
        )
        _answer: HeartbeatResponse | None
        _answer, error = await self._ask(ApiKey.HEARTBEAT, request)
        self._post(HeartbeatAnswered(error=error))

    async def _consumer_heartbeat(self, effect: SendConsumerHeartbeat) -> None:
        """Report what has changed, and translate the answer's topic ids to names."""
        full = effect.is_full
        owned = None
        if effect.owned is not None:
            owned = [
                ConsumerGroupTopicPartitions(topic_id=self._topic_ids[topic], partitions=partitions)
                for topic, partitions in by_topic(effect.owned).items()
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=effect.member_id,
            member_epoch=effect.member_epoch,
            instance_id=self._options.group_instance_id,
            rack_id=(self._options.client_rack or None) if full else None,
            rebalance_timeout_ms=self._options.max_poll_interval_ms if full else -1,
            subscribed_topic_names=None if effect.topics is None else list(effect.topics),
            server_assignor=self._options.group_remote_assignor if full else None,
            topic_partitions=owned,
        )
        answer: ConsumerGroupHeartbeatResponse | None
        answer, error = await self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if answer is None or error is not ErrorCode.NONE:
            self._post(ConsumerHeartbeatAnswered(number=effect.number, error=error))
            return
        assignment = None
        if answer.assignment is not None:
            assignment = await self._named(answer.assignment.topic_partitions)
            if assignment is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID  # created or deleted just now: ask again
        self._post(
            ConsumerHeartbeatAnswered(
                number=effect.number,
                error=error,
                member_epoch=answer.member_epoch,
                heartbeat_interval_ms=answer.heartbeat_interval_ms,
                assignment=assignment,
            )
        )

    async def _named(self, topics: list[ConsumerGroupTopicPartitions]) -> tuple[TopicPartition, ...] | None:
        """Return the partitions under their topics' names; None if a topic is unknown even after asking."""
        if any(topic.topic_id not in self._cluster.metadata.names for topic in topics):
            try:
                await self._cluster.refresh()
            except KafkaError as failed:
                logger.debug("group %s: cannot resolve topic ids: %s", self.group_id, failed)
        names = self._cluster.metadata.names
        if any(topic.topic_id not in names for topic in topics):
            return None
        self._topic_ids.update({names[topic.topic_id]: topic.topic_id for topic in topics})
        return tuple(
            TopicPartition(names[topic.topic_id], partition) for topic in topics for partition in topic.partitions
        )

    async def _consumer_leave(self, effect: SendConsumerLeave) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=effect.member_id,
            member_epoch=effect.member_epoch,
            instance_id=self._options.group_instance_id,
        )
        _, error = await self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if error is not ErrorCode.NONE:
            logger.info("leaving group %s: %s", self.group_id, error.name)  # the session will time out

    async def _leave(self, effect: SendLeave) -> None:
        try:
            connection = await self._cluster.connect_coordinator(self.group_id)
            version = connection.version(ApiKey.LEAVE_GROUP)
            if version >= _BY_MEMBER_LIST:
                identity = MemberIdentity(member_id=effect.member_id, reason=effect.reason)
                request = LeaveGroupRequest(group_id=self.group_id, members=[identity])
            else:
                request = LeaveGroupRequest(group_id=self.group_id, member_id=effect.member_id)
            await connection.send(ApiKey.LEAVE_GROUP, request, version)
        except KafkaError as failed:
            logger.info("leaving group %s: %s", self.group_id, failed)  # the session will time out

    async def _ask(
        self, key: ApiKey, request: Any, *, timeout_ms: float | None = None, low: int = 0
    ) -> tuple[Any, ErrorCode]:
        """Ask the coordinator; return its answer and error, or (None, error) if there was no answer."""
        try:
            connection = await self._cluster.connect_coordinator(self.group_id)
            answer = await connection.request(key, request, timeout_ms=timeout_ms, low=low)
        except KafkaError as failed:
            logger.debug("group %s, %s: %s", self.group_id, key.name, failed)
            if failed.code in COORDINATOR_MOVED:
                self._cluster.forget_coordinator(self.group_id)
            return None, failed.code
        error = ErrorCode.of(answer.error_code)
        if error is not ErrorCode.NONE:
            logger.debug("group %s, %s: %s", self.group_id, key.name, error.name)
        return answer, error

    # --- partitions come and go -----------------------------------------------------------------------------------

    async def _revoke(self, effect: Revoke) -> None:
        async with self._moving:
            self._application.hold()
            try:
                await self._application.until_asking()
                partitions = list(effect.partitions)
                if self._auto_commits and not effect.lost:
                    await self._commit_finished(partitions)
                if self.listener is not None:
                    callback = self.listener.on_partitions_lost if effect.lost else self.listener.on_partitions_revoked
                    await self._notify(callback, partitions)
                self._application.revoked(partitions)
                for name in partitions:
                    self._committed.pop(name, None)
            finally:
                self._application.release()

    async def _assign(self, effect: Assign) -> None:
        async with self._moving:
            if self._closing:
                return
            self._application.hold()  # the listener may want to seek first
            try:
                self._application.assigned(effect.added)
                if self.listener is not None:
                    await self._notify(self.listener.on_partitions_assigned, list(effect.added))
            finally:
                self._application.release()

    async def _notify(
        self, callback: Callable[[list[TopicPartition]], Awaitable[None] | None], partitions: list[TopicPartition]
    ) -> None:
        """Call the application's listener. An exception it raises is raised again when records are next asked for."""
        try:
            outcome = callback(partitions)
            if inspect.isawaitable(outcome):
                await outcome
        except KafkaError as failed:
            self._application.failed(failed)
        except Exception as failed:
            logger.exception("the rebalance listener failed")
            self._application.failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"rebalance listener: {failed!r}"))

    # --- commits --------------------------------------------------------------------------------------------------

    @property
    def _auto_commits(self) -> bool:
        return self._options.enable_auto_commit

    def _commit_when_due(self) -> None:
        now = self._now()
        if self._auto_commits and now >= self._commit_at_ms:
            self._commit_at_ms = now + self._options.auto_commit_interval_ms
            if self._machine.state is State.STABLE and not self._committing.locked():
                self._cluster.tasks.spawn(self._commit_finished(None), f"commit of {self.group_id}")

    async def _commit_finished(self, partitions: Iterable[TopicPartition] | None) -> None:
        """Commit what is finished and not committed yet. A failure is logged; the next commit makes up for it."""
        finished = self._application.finished()
        wanted = set(finished if partitions is None else partitions)
        offsets = {
            name: offset for name, offset in finished.items() if name in wanted and self._committed.get(name) != offset
        }
        if not offsets:
            return
        try:
            await self.commit(offsets, timeout_ms=self._options.request_timeout_ms)
        except KafkaError as failed:
            logger.warning("group %s: automatic commit failed: %s", self.group_id, failed)

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: float | None = None
    ) -> None:
        """Commit as this member. Raises `KafkaError`; an error about membership also makes it join again."""
        async with self._committing:
            try:
                await self._cluster.retry(
                    lambda: self._commit_once(offsets), timeout_ms=timeout_ms, group_id=self.group_id
                )
            except KafkaError as failed:
                if failed.code in _MEMBERSHIP_ERRORS and self._running:
                    self._post(CommitRefused(error=failed.code))
                raise
            self._committed.update(offsets)
        self._on_commit(offsets)

    async def _commit_once(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit under the current generation, or under the next if its epoch was just on its way to us (KIP-848)."""
        epoch = self._machine.generation_id
        try:
            await commit_offsets(
                self._cluster,
                self.group_id,
                offsets,
                generation_id=epoch,
                member_id=self._machine.member_id,
                group_instance_id=self._options.group_instance_id,
            )
        except KafkaError as failed:
            if failed.code is not ErrorCode.STALE_MEMBER_EPOCH:
                raise
            self._post(CommitRefused(error=failed.code))
            deadline = self._now() + self._options.request_timeout_ms
            while self._machine.generation_id == epoch:
                if self._now() >= deadline:
                    raise
                await asyncio.sleep(self._options.retry_backoff_ms / 1000)
            await self._commit_once(offsets)
