"""The shell around `membership`: sends the heartbeats, and resolves the topic ids that the answers assign."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from kraftpy.client.cluster import COORDINATOR_MOVED, Cluster
from kraftpy.client.options import ShareConsumerOptions
from kraftpy.client.share.membership import (
    LEAVING_EPOCH,
    Answered,
    Assigned,
    Close,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    SendHeartbeat,
    SendLeave,
    ShareMembership,
    Subscribe,
    Tick,
)
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupTopicPartitions,
)
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)


class ShareMember:
    """One consumer's membership in its share group. `assigned` is called with the partitions to read."""

    def __init__(
        self,
        cluster: Cluster,
        options: ShareConsumerOptions,
        member_id: str,
        assigned: Callable[[tuple[TopicPartition, ...]], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self.group_id = options.group_id
        self.member_id = member_id
        self._cluster = cluster
        self._options = options
        self._assigned = assigned
        self._failed = failed
        self._machine = ShareMembership(retry_backoff_ms=options.retry_backoff_ms)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._leaving: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    def start(self) -> None:
        """Start the member's task."""
        self._cluster.tasks.spawn(self._run(), f"member of {self.group_id}")

    @property
    def member_epoch(self) -> int:
        """The epoch that the coordinator gave; 0 outside the group."""
        return self._machine.member_epoch

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics; with no topics, leave the group."""
        self._events.put_nowait(Subscribe(topics=tuple(topics)))

    async def close(self) -> None:
        """Leave the group."""
        self._events.put_nowait(Close())
        await self._closed.wait()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    # --- the loop -------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._cluster.runtime.monotonic_ms()

    async def _run(self) -> None:
        while True:
            event = await self._next_event()
            for effect in self._machine.step(event, self._now()):
                self._carry_out(effect)
            if isinstance(event, Close):
                self._closed.set()

    async def _next_event(self) -> Event:
        deadline = self._machine.deadline_ms
        if deadline is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(deadline - self._now(), 0) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendHeartbeat():
                self._cluster.tasks.spawn(self._heartbeat(effect), f"heartbeat to {self.group_id}")
            case SendLeave():
                self._leaving = self._cluster.tasks.spawn(self._leave(), f"leave {self.group_id}")
            case ForgetCoordinator():
                self._cluster.forget_coordinator(self.group_id)
            case Assigned():
                logger.debug("share group %s: assigned %s", self.group_id, effect.partitions)
                self._assigned(effect.partitions)
            case Fail():
                self._failed(effect.error)

    async def _heartbeat(self, effect: SendHeartbeat) -> None:
        is_first = effect.topics is not None
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=effect.member_epoch,
            rack_id=(self._options.client_rack or None) if is_first else None,
            subscribed_topic_names=None if effect.topics is None else list(effect.topics),
        )
        answer, error = await self._ask(request)
        if answer is None or error is not ErrorCode.NONE:
            self._events.put_nowait(Answered(number=effect.number, error=error))
            return
        assignment = None
        if answer.assignment is not None:
            assignment = await self._named(answer.assignment.topic_partitions)
            if assignment is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID  # created or deleted just now: ask again
        self._events.put_nowait(
            Answered(
                number=effect.number,
                error=error,
                member_epoch=answer.member_epoch,
                heartbeat_interval_ms=answer.heartbeat_interval_ms,
                assignment=assignment,
            )
        )

    async def _leave(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVING_EPOCH
        )
        _, error = await self._ask(request)
        if error is not ErrorCode.NONE:
            logger.info("leaving share group %s: %s", self.group_id, error.name)  # the session will time out

    async def _ask(self, request: ShareGroupHeartbeatRequest) -> tuple[ShareGroupHeartbeatResponse | None, ErrorCode]:
        try:
            connection = await self._cluster.connect_coordinator(self.group_id)
            answer: ShareGroupHeartbeatResponse = await connection.request(ApiKey.SHARE_GROUP_HEARTBEAT, request)
        except KafkaError as failed:
            logger.debug("share group %s: %s", self.group_id, failed)
            if failed.code in COORDINATOR_MOVED:
                self._cluster.forget_coordinator(self.group_id)
            return None, failed.code
        error = ErrorCode.of(answer.error_code)
        if error is not ErrorCode.NONE:
            logger.debug("share group %s: %s", self.group_id, answer.error_message or error.name)
        return answer, error

    async def _named(self, topics: list[ShareGroupTopicPartitions]) -> tuple[TopicPartition, ...] | None:
        """Return the partitions under their topics' names; None if a topic is unknown even after asking."""
        if any(topic.topic_id not in self._cluster.metadata.names for topic in topics):
            try:
                await self._cluster.refresh()
            except KafkaError as failed:
                logger.debug("share group %s: cannot resolve topic ids: %s", self.group_id, failed)
        names = self._cluster.metadata.names
        if any(topic.topic_id not in names for topic in topics):
            return None
        return tuple(
            TopicPartition(names[topic.topic_id], partition) for topic in topics for partition in topic.partitions
        )
