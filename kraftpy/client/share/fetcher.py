"""The shell around `session`: one session with every broker that leads assigned partitions.

Records are asked for only when the application wants some and none are here: a record fetched ahead is locked, and its
time runs. Acknowledgements go with the next fetch. They get a request of their own if the application wants that
(`commit`), if locks have to be renewed, or after `ACKNOWLEDGE_AFTER_MS`.

A partition that a broker refuses is left out for a back-off while metadata is refreshed, and so is a broker that cannot
be reached or refuses the session. This way no broker is asked over and over for what it does not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kraftpy.client.cluster import STALE_METADATA, Cluster
from kraftpy.client.connection import Connection, ResponseTooLarge
from kraftpy.client.model import AcknowledgeType, ShareRecord
from kraftpy.client.offsets import by_topic
from kraftpy.client.options import ShareConsumerOptions
from kraftpy.client.runtime import backoff_ms
from kraftpy.client.share.reading import acquired_offsets, acquired_records
from kraftpy.client.share.session import GAP, AcknowledgementRun, Outcome, ShareRequest, ShareSession
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from kraftpy.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kraftpy.protocol.record_batch import CorruptBatch
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

ACKNOWLEDGE_AFTER_MS = 1_000.0
_RENEW_VERSION = 2
_SESSION_ERRORS = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})

Held = tuple[ShareRecord, ShareSession]


class _Backoff:
    """The time at which something that failed may be tried again."""

    __slots__ = ("at_ms", "failures")

    def __init__(self) -> None:
        self.failures = 0
        self.at_ms = 0.0


class ShareFetcher:
    """All sessions of one member. `on_change`: records, failures or outcomes came; `on_outcome`: an outcome."""

    def __init__(
        self,
        cluster: Cluster,
        options: ShareConsumerOptions,
        member_id: str,
        on_change: Callable[[], None],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self.records: deque[Held] = deque()
        self.failures: deque[KafkaError] = deque()
        self.wants_records = False
        self.lock_timeout_ms: int | None = None
        self._cluster = cluster
        self._options = options
        self._member_id = member_id
        self._on_change = on_change
        self._on_outcome = on_outcome
        self._assigned: tuple[TopicPartition, ...] = ()
        self._topic_ids: dict[str, bytes] = {}
        self._sessions: dict[int, ShareSession] = {}
        self._connecting: set[int] = set()
        self._brokers: dict[int, _Backoff] = {}
        self._partitions: dict[TopicPartition, _Backoff] = {}
        self._flushing = False
        self._closing = False
        self._wake = asyncio.Event()
        self._answer_came = asyncio.Event()

    def start(self) -> None:
        """Start the fetching task."""
        self._cluster.on_metadata.append(self._wake.set)
        self._cluster.tasks.spawn(self._run(), "share fetcher")

    def wake(self) -> None:
        """Check again what has to be requested."""
        self._wake.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""
        self._assigned = tuple(partitions)
        self._cluster.want({name.topic for name in self._assigned})
        self._wake.set()

    # --- what the application says --------------------------------------------------------------------------------

    def acknowledge(self, held: Held, kind: int) -> None:
        """Acknowledge a record."""
        record, session = held
        self._report(
            [session.acknowledge(TopicPartition(record.topic, record.partition), record.offset, kind, self._now())]
        )

    def flush(self) -> None:
        """Send the pending acknowledgements now."""
        self._flushing = True
        self._wake.set()

    @property
    def awaits_outcomes(self) -> bool:
        """True if the outcome of some acknowledgement is unknown."""
        return any(session.awaits_outcomes for session in self._sessions.values())

    async def close(self) -> None:
        """Release what was not acknowledged, and end the sessions."""
        self._closing = True
        self.wants_records = False
        now = self._now()
        for session in self._sessions.values():
            session.release_held(now)
        self.records.clear()
        async with asyncio.TaskGroup() as tasks:
            for node_id, session in list(self._sessions.items()):
                tasks.create_task(self._close(node_id, session), name=f"end of the share session with {node_id}")

    async def _close(self, node_id: int, session: ShareSession) -> None:
        while session.is_busy:
            self._answer_came.clear()
            await self._answer_came.wait()
        session.release_held(self._now())  # records that arrived meanwhile
        request = session.close()
        connection = self._cluster.connected(node_id)
        if request is None:
            return
        try:
            if connection is None:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {node_id} is not connected")
            answer = await connection.request(ApiKey.SHARE_ACKNOWLEDGE, self._acknowledge_request(request))
        except KafkaError as failed:
            logger.debug("share session with %d: %s", node_id, failed)
            self._report(session.ended(failed.code))
        else:
            self._acknowledge_answer(session, answer)

    # --- deciding -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            next_ms = self._act()
            if next_ms is None:
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(max(next_ms - self._now(), 0) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _now(self) -> float:
        return self._cluster.runtime.monotonic_ms()

    def _act(self) -> float | None:
        """Send every request that is due. Returns when to look again."""
        if self._closing:
            return None
        now = self._now()
        wanted, next_ms = self._wanted(now)
        for node_id in sorted({*wanted, *self._sessions}):
            session = self._sessions.get(node_id)
            if session is not None and session.is_busy:
                continue
            backoff = self._brokers.get(node_id)
            if backoff is not None and backoff.at_ms > now:
                next_ms = _sooner(next_ms, backoff.at_ms)
                continue
            fetches = self.wants_records and node_id in wanted
            due_ms = self._due(session, now)
            if not fetches and (due_ms is None or due_ms > now):
                next_ms = _sooner(next_ms, due_ms)
                continue
            connection = self._cluster.connected(node_id)
            if connection is None:
                self._connect(node_id)
            elif connection.throttled_until_ms > now:
                next_ms = _sooner(next_ms, connection.throttled_until_ms)
            else:
                self._ask(node_id, connection, wanted.get(node_id, []), fetches=fetches)
        if not self.awaits_outcomes:
            self._flushing = False
        return next_ms

    def _due(self, session: ShareSession | None, now: float) -> float | None:
        """Return when the pending acknowledgements should get a request of their own."""
        if session is None or not session.has_pending or session.pending_since_ms is None:
            return None
        return now if self._flushing or session.renews else session.pending_since_ms + ACKNOWLEDGE_AFTER_MS

    def _wanted(self, now: float) -> tuple[dict[int, list[TopicPartition]], float | None]:
        """Return the assigned partitions by leader, without those in back-off, and when to look again."""
        found: dict[int, list[TopicPartition]] = {}
        next_ms: float | None = None
        for name in self._assigned:
            backoff = self._partitions.get(name)
            if backoff is not None and backoff.at_ms > now:
                next_ms = _sooner(next_ms, backoff.at_ms)
                continue
            info = self._cluster.metadata.partition(name)
            topic = self._cluster.metadata.topics.get(name.topic)
            if info is None or topic is None or info.leader < 0:
                self._cluster.request_refresh()
                next_ms = _sooner(next_ms, self._wait_with(name))
                continue
            if self._topic_ids.get(name.topic, topic.topic_id) != topic.topic_id:
                self._end_sessions_of(name.topic)  # the topic was deleted and created again
            self._topic_ids[name.topic] = topic.topic_id
            found.setdefault(info.leader, []).append(name)
        return found, next_ms

    def _end_sessions_of(self, topic: str) -> None:
        for node_id, session in list(self._sessions.items()):
            if any(name.topic == topic for name in session.partitions):
                self._end_session(node_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{topic} has another id now"))

    def _wait_with(self, name: TopicPartition) -> float:
        return self._later(self._partitions.setdefault(name, _Backoff()))

    def _later(self, backoff: _Backoff) -> float:
        backoff.at_ms = self._now() + backoff_ms(
            backoff.failures,
            base_ms=self._options.retry_backoff_ms,
            max_ms=self._options.retry_backoff_max_ms,
            random=self._cluster.runtime.random,
        )
        backoff.failures += 1
        return backoff.at_ms

    def _connect(self, node_id: int) -> None:
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._cluster.tasks.spawn(self._open(node_id), f"connect to broker {node_id}")

    async def _open(self, node_id: int) -> None:
        try:
            await self._cluster.connect(node_id)
        except KafkaError as failed:
            logger.debug("broker %d: %s", node_id, failed)
            self._end_session(node_id, failed)
        finally:
            self._connecting.discard(node_id)
            self._wake.set()

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, node_id: int, connection: Connection, wanted: Sequence[TopicPartition], *, fetches: bool) -> None:
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = ShareSession()
        answered: Callable[[ShareSession, Any], None]
        try:
            if session.has_pending and (session.renews or not fetches):
                low = _RENEW_VERSION if session.renews else 0
                version = connection.version(ApiKey.SHARE_ACKNOWLEDGE, low=low)
                request = session.acknowledge_now()
                future = connection.send(ApiKey.SHARE_ACKNOWLEDGE, self._acknowledge_request(request), version)
                answered = self._acknowledge_answer
            else:
                version = connection.version(ApiKey.SHARE_FETCH, low=2 if self._options.acquire_mode else 0)
                request = session.fetch(wanted)
                timeout_ms = self._options.request_timeout_ms + self._options.fetch_max_wait_ms
                message = self._fetch_request(request)
                future = connection.send(ApiKey.SHARE_FETCH, message, version, timeout_ms=timeout_ms)
                answered = self._fetch_answer
        except KafkaError as failed:
            self._end_session(node_id, failed)
            return
        future.add_done_callback(partial(self._answered, node_id, session, answered))

    def _answered(
        self,
        node_id: int,
        session: ShareSession,
        answered: Callable[[ShareSession, Any], None],
        future: asyncio.Future[Any],
    ) -> None:
        self._wake.set()
        self._answer_came.set()
        if future.cancelled() or session.is_over:
            return
        error = future.exception()
        if error is None:
            code = ErrorCode.of(future.result().error_code)
            if code is ErrorCode.NONE:
                self._brokers.pop(node_id, None)
                answered(session, future.result())
                self._on_change()
                return
            error = KafkaError(code, future.result().error_message or code.meaning)
        if not isinstance(error, KafkaError):
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        self._end_session(node_id, error)

    def _end_session(self, node_id: int, error: KafkaError) -> None:
        """End the session because the broker cannot be reached, or refuses it. Another is opened after a back-off."""
        logger.debug("share session with %d: %s", node_id, error)
        session = self._sessions.pop(node_id, None)
        if session is not None:
            self._report(session.ended(error.code))
            self.records = deque(held for held in self.records if held[1] is not session)  # these go to others now
        self._later(self._brokers.setdefault(node_id, _Backoff()))
        if error.code in STALE_METADATA:
            self._cluster.request_refresh()
        if isinstance(error, ResponseTooLarge) or not (error.code.retriable or error.code in _SESSION_ERRORS):
            self._fail(error)
        self._on_change()

    def _fail(self, error: KafkaError) -> None:
        if all(str(known) != str(error) for known in self.failures):
            self.failures.append(error)
        self._on_change()

    def _report(self, outcomes: Iterable[Outcome | None]) -> None:
        for outcome in outcomes:
            if outcome is not None:
                self._on_outcome(outcome)
        self._on_change()

    def _fetch_request(self, request: ShareRequest) -> ShareFetchRequest:
        partitions = {name: request.acknowledgements.get(name, ()) for name in request.added}
        partitions.update(request.acknowledgements)
        return ShareFetchRequest(
            group_id=self._options.group_id,
            member_id=self._member_id,
            share_session_epoch=request.session_epoch,
            max_wait_ms=self._options.fetch_max_wait_ms,
            min_bytes=self._options.fetch_min_bytes,
            max_bytes=self._options.fetch_max_bytes,
            max_records=self._options.max_poll_records,
            batch_size=self._options.max_poll_records,
            share_acquire_mode=self._options.acquire_mode,
            topics=[
                FetchTopic(
                    topic_id=self._topic_ids[topic],
                    partitions=[
                        FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=_batches(partitions[TopicPartition(topic, index)]),
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(partitions).items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=self._topic_ids[topic], partitions=indexes)
                for topic, indexes in by_topic(request.forgotten).items()
            ],
        )

    def _acknowledge_request(self, request: ShareRequest) -> ShareAcknowledgeRequest:
        said = request.acknowledgements
        return ShareAcknowledgeRequest(
            group_id=self._options.group_id,
            member_id=self._member_id,
            share_session_epoch=request.session_epoch,
            is_renew_ack=request.is_renew,
            topics=[
                AcknowledgeTopic(
                    topic_id=self._topic_ids[topic],
                    partitions=[
                        AcknowledgePartition(
                            partition_index=index, acknowledgement_batches=_batches(said[TopicPartition(topic, index)])
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(said).items()
            ],
        )

    # --- answers --------------------------------------------------------------------------------------------------

    def _named(self, topics: Iterable[Any]) -> Iterable[tuple[TopicPartition, Any]]:
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        for topic in topics:
            for part in topic.partitions:
                yield TopicPartition(names.get(topic.topic_id, ""), part.partition_index), part

    def _acknowledge_answer(self, session: ShareSession, answer: ShareAcknowledgeResponse) -> None:
        if answer.acquisition_lock_timeout_ms:
            self.lock_timeout_ms = answer.acquisition_lock_timeout_ms
        errors = {name: ErrorCode.of(part.error_code) for name, part in self._named(answer.responses)}
        self._report(session.answered(errors))
        if any(error in STALE_METADATA for error in errors.values()):
            self._cluster.request_refresh()

    def _fetch_answer(self, session: ShareSession, answer: ShareFetchResponse) -> None:
        self.wants_records = False  # a caller that still waits asks again
        self.lock_timeout_ms = answer.acquisition_lock_timeout_ms or self.lock_timeout_ms
        parts = list(self._named(answer.responses))
        self._report(session.answered({name: ErrorCode.of(part.acknowledge_error_code) for name, part in parts}))
        for name, part in parts:
            code = ErrorCode.of(part.error_code)
            if code is ErrorCode.NONE:
                if part.acquired_records:
                    self._partitions.pop(name, None)
                    self._take(session, name, part)
                continue
            self._wait_with(name)
            if code in STALE_METADATA:
                self._cluster.request_refresh()
            elif not code.retriable:
                self._fail(KafkaError(code, f"{name}: {part.error_message or code.meaning}"))

    def _take(self, session: ShareSession, name: TopicPartition, part: PartitionData) -> None:
        now = self._now()
        try:
            offsets = acquired_offsets(part.acquired_records)
        except CorruptBatch as corrupt:
            self._wait_with(name)
            self._fail(CorruptBatch(f"{name}: {corrupt.message}", corrupt.code))
            return
        session.acquired(name, offsets)
        try:
            records = acquired_records(name, part.records, part.acquired_records, check_crcs=self._options.check_crcs)
        except CorruptBatch as corrupt:  # another replica may be intact
            for offset in offsets:
                session.acknowledge(name, offset, AcknowledgeType.RELEASE, now)
            self._wait_with(name)
            self._fail(corrupt)
            return
        self.records.extend((record, session) for record in records)
        there = {record.offset for record in records}
        for offset in offsets:
            if offset not in there:
                session.acknowledge(name, offset, GAP, now)


def _batches(said: Sequence[AcknowledgementRun]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=run.first_offset, last_offset=run.last_offset, acknowledge_types=[run.type])
        for run in said
    ]


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
