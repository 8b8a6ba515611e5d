"""Keeps every assigned partition supplied: finds positions, fetches ahead, notices truncation.

At most one Fetch is open per broker. It asks for all partitions that this broker leads, except those that are paused or
have enough buffered. Answers are handled in callbacks; one task decides what to do next, another looks up missing
positions.

If a partition's leader epoch has grown, OffsetForLeaderEpoch checks the position before reading continues (KIP-320). If
the new leader's log ends before the position, the reader goes back to that end rather than read another history
unnoticed.

If a leader points to a nearer replica (KIP-392), the partition is read there until that ends (`NearestReplicas`).

Failures that the application must learn of (no offset to start at, a corrupt batch, no permission) wait in `failures`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from kraftpy.client.cluster import STALE_METADATA, Cluster
from kraftpy.client.connection import Connection, ResponseTooLarge, UnsupportedVersion
from kraftpy.client.consumer.fetch_session import FetchPosition, FetchSession, SessionRequest
from kraftpy.client.consumer.metrics import ConsumerMetrics
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.model import AutoOffsetReset, IsolationLevel, OffsetAndMetadata, OffsetSpec
from kraftpy.client.nearest import NearestReplicas
from kraftpy.client.offsets import ask_offsets, by_topic, leaders
from kraftpy.client.options import ConsumerOptions
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from kraftpy.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

CommittedLookup = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]

_TOPIC_ID_VERSION = 13
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_SPEC = {AutoOffsetReset.EARLIEST: OffsetSpec.EARLIEST, AutoOffsetReset.LATEST: OffsetSpec.LATEST}


class PartitionRefused(KafkaError):
    """A leader's refusal to let a partition be read."""

    def __init__(self, partition: TopicPartition, code: ErrorCode) -> None:
        super().__init__(code, f"{partition}: {code.meaning}")
        self.partition = partition


class _Broker:
    """The state of fetching from one broker."""

    __slots__ = ("busy", "connecting", "session")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.busy = False
        self.connecting = False


class Fetcher:
    """The readers of all assigned partitions. Calls `on_change` when there may be something to hand out or to raise."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        committed: CommittedLookup | None,
        on_change: Callable[[], None],
        metrics: ConsumerMetrics,
    ) -> None:
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self._metrics = metrics
        self.failures: deque[KafkaError] = deque()
        self._cluster = cluster
        self._options = options
        self._committed = committed
        self._on_change = on_change
        self._isolation = options.isolation
        self._brokers: dict[int, _Broker] = {}
        self._nearest = NearestReplicas(options.client_rack, options.metadata_max_age_ms)
        self._wake = asyncio.Event()
        self._finding = False

    def start(self) -> None:
        """Start the fetching task."""
        self._cluster.on_metadata.append(self._wake.set)
        self._cluster.tasks.spawn(self._run(), "fetcher")

    def wake(self) -> None:
        """Check again what can be fetched."""
        self._wake.set()

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Start reading these partitions too, from positions still to be looked up."""
        for name in partitions:
            if name not in self.readers:
                self.readers[name] = PartitionReader(name, self._metrics.tally(name.topic))
        self._cluster.want({name.topic for name in self.readers})
        self._wake.set()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions and drop what was fetched of them."""
        for name in partitions:
            self.readers.pop(name, None)
            self._nearest.forget(name)
        self._wake.set()

    # --- deciding -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._find_positions()
            next_ms = self._fetch_ready()
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

    def _later(self) -> float:
        return self._now() + self._options.retry_backoff_ms

    def _fetch_ready(self) -> float | None:
        """Open a Fetch to every idle broker that has something wanted. Returns when to look again."""
        now = self._now()
        next_ms: float | None = None
        wanted: dict[int, dict[TopicPartition, FetchPosition]] = {}
        buffered = sum(reader.buffered_bytes for reader in self.readers.values())
        if buffered >= self._options.fetch_max_bytes:
            return None  # handing out makes room and wakes this task
        for name, reader in self.readers.items():
            if reader.retry_at_ms > now:
                next_ms = reader.retry_at_ms if next_ms is None else min(next_ms, reader.retry_at_ms)
                continue
            if reader.position is None or reader.paused:
                continue
            if reader.buffered_bytes >= self._options.max_partition_fetch_bytes:
                continue
            info = self._cluster.metadata.partition(name)
            topic = self._cluster.metadata.topics.get(name.topic)
            if info is None or topic is None or info.leader < 0 or self._is_ahead(reader, info.leader_epoch):
                self._cluster.request_refresh()  # which wakes this task, and has a pace of its own
                continue
            if self._needs_check(reader, info.leader_epoch):
                continue
            position = FetchPosition(
                topic.topic_id, reader.fetch_offset, info.leader_epoch, self._options.max_partition_fetch_bytes
            )
            source = self._nearest.source(name, info.leader, self._cluster.metadata.nodes, now)
            wanted.setdefault(source, {})[name] = position
        for node_id, positions in wanted.items():
            again_ms = self._fetch_from(node_id, positions, now)
            if again_ms is not None:
                next_ms = again_ms if next_ms is None else min(next_ms, again_ms)
        return next_ms

    def _fetch_from(self, node_id: int, positions: dict[TopicPartition, FetchPosition], now: float) -> float | None:
        broker = self._brokers.setdefault(node_id, _Broker())
        if broker.busy:
            return None
        connection = self._cluster.connected(node_id)
        if connection is None:
            broker.session.reset()
            if not broker.connecting:
                broker.connecting = True
                self._cluster.tasks.spawn(self._connect(node_id, broker), f"connect to broker {node_id}")
            return None
        if connection.throttled_until_ms > now:
            return connection.throttled_until_ms
        self._fetch(connection, broker, positions)
        return None

    async def _connect(self, node_id: int, broker: _Broker) -> None:
        try:
            await self._cluster.connect(node_id)
        except KafkaError as failed:
            logger.debug("broker %d: %s", node_id, failed)
            self._nearest.unreachable(node_id, self._now())
            self._cluster.request_refresh()
            await asyncio.sleep(self._options.retry_backoff_ms / 1000)
        finally:
            broker.connecting = False
            self._wake.set()

    # --- fetching -------------------------------------------------------------------------------------------------

    def _fetch(self, connection: Connection, broker: _Broker, positions: dict[TopicPartition, FetchPosition]) -> None:
        asked = {name: (self.readers[name], self.readers[name].seeks) for name in positions}
        by_id = all(any(position.topic_id) for position in positions.values())
        session = broker.session.build(positions)
        try:
            low = 4
            version = connection.version(ApiKey.FETCH, low=low, high=0x7FFF if by_id else _TOPIC_ID_VERSION - 1)
            timeout_ms = self._options.request_timeout_ms + self._options.fetch_max_wait_ms
            future = connection.send(ApiKey.FETCH, self._request(session), version, timeout_ms=timeout_ms)
        except KafkaError as failed:
            self._fetch_failed(broker, asked, failed)
            return
        broker.busy = True
        future.add_done_callback(partial(self._answered, broker, asked))

    def _request(self, session: SessionRequest) -> FetchRequest:
        topics = []
        for topic, indexes in by_topic(session.partitions).items():
            partitions = []
            for index in indexes:
                position = session.partitions[TopicPartition(topic, index)]
                partitions.append(
                    FetchPartition(
                        partition=index,
                        current_leader_epoch=position.leader_epoch,
                        fetch_offset=position.offset,
                        partition_max_bytes=position.max_bytes,
                    )
                )
            topics.append(FetchTopic(topic=topic, topic_id=position.topic_id, partitions=partitions))
        forgotten: dict[tuple[str, bytes], list[int]] = {}
        for name, topic_id in session.forgotten:
            forgotten.setdefault((name.topic, topic_id), []).append(name.partition)
        return FetchRequest(
            max_wait_ms=self._options.fetch_max_wait_ms,
            min_bytes=self._options.fetch_min_bytes,
            max_bytes=self._options.fetch_max_bytes,
            isolation_level=self._isolation,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=topics,
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in forgotten.items()
            ],
            rack_id=self._nearest.rack(self._now()),
        )

    def _answered(
        self,
        broker: _Broker,
        asked: dict[TopicPartition, tuple[PartitionReader, int]],
        future: asyncio.Future[FetchResponse],
    ) -> None:
        broker.busy = False
        self._wake.set()
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, KafkaError):
            self._fetch_failed(broker, asked, error)
            return
        answer = future.result()
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            broker.session.reset()
            if code not in _SESSION_ERRORS:
                self._fetch_failed(broker, asked, KafkaError(code, f"fetch: {code.meaning}"))
            return
        broker.session.answered(answer.session_id)
        names, now, sizes = self._cluster.metadata.names, self._now(), dict[str, int]()
        for topic in answer.responses:
            topic_name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                name = TopicPartition(topic_name, data.partition_index)
                reader, seeks = asked.get(name, (None, -1))
                if reader is not None and self.readers.get(name) is reader and reader.seeks == seeks:
                    self._take(reader, data)
                    self._metrics.behind(reader, now)
                    sizes[topic_name] = sizes.get(topic_name, 0) + len(data.records or b"")
        self._metrics.fetched(sizes, now)
        self._on_change()

    def _fetch_failed(
        self, broker: _Broker, asked: dict[TopicPartition, tuple[PartitionReader, int]], error: KafkaError
    ) -> None:
        logger.debug("fetch: %s", error)
        broker.session.reset()
        later = self._later()
        for reader, _ in asked.values():
            reader.retry_at_ms = later
            self._nearest.forget(reader.name)
        if error.code in STALE_METADATA:
            self._cluster.request_refresh()
        if not error.code.retriable or isinstance(error, ResponseTooLarge):
            self._fail(error)

    def _take(self, reader: PartitionReader, data: PartitionData) -> None:
        """Take in one partition's part of an answer."""
        code = ErrorCode.of(data.error_code)
        if code is ErrorCode.NONE:
            if data.preferred_read_replica >= 0:
                self._nearest.point(reader.name, data.preferred_read_replica, self._now())
            reader.high_watermark = data.high_watermark
            reader.last_stable_offset = data.last_stable_offset if self._isolation else -1
            reader.log_start_offset = data.log_start_offset
            aborted = None
            if self._isolation is IsolationLevel.READ_COMMITTED:
                aborted = [(item.producer_id, item.first_offset) for item in data.aborted_transactions or ()]
            if data.records:
                try:
                    reader.received(data.records, aborted)
                except KafkaError as corrupt:
                    reader.refetch()
                    reader.retry_at_ms = self._later()
                    self._fail(corrupt)
            return
        reader.retry_at_ms = self._later()
        if self._nearest.forget(reader.name) and code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return  # only the leader knows which offsets there are
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(reader)
        elif code in STALE_METADATA:
            self._cluster.request_refresh()
        elif code.retriable:
            logger.debug("%s: %s", reader.name, code.name)
        else:
            self._fail(PartitionRefused(reader.name, code))

    def _out_of_range(self, reader: PartitionReader) -> None:
        if reader.buffered_bytes or reader.decoded:
            return  # the buffered records are still good; once they are used up, the broker will answer the same
        offset = reader.fetch_offset
        spec = _SPEC.get(self._options.reset)
        if spec is None:
            text = f"{reader.name} has no offset {offset}, and auto_offset_reset is none"
            self._fail(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text))
            return
        logger.info(
            "%s has no offset %d: continuing at the %s one", reader.name, offset, self._options.auto_offset_reset
        )
        reader.lose_position(spec)

    def _fail(self, error: KafkaError) -> None:
        if all(str(known) != str(error) for known in self.failures):
            self.failures.append(error)
        self._on_change()

    # --- positions ------------------------------------------------------------------------------------------------

    def _needs_check(self, reader: PartitionReader, leader_epoch: int) -> bool:
        """Return whether the leader changed since the position was last known to exist in its log."""
        if leader_epoch < 0 or reader.leader_epoch < 0 or reader.checked_epoch < 0:
            reader.checked_epoch = max(reader.checked_epoch, leader_epoch)
            return False
        return leader_epoch > reader.checked_epoch

    def _is_ahead(self, reader: PartitionReader, leader_epoch: int) -> bool:
        """Return whether the position's epoch is later than that of the leader named by metadata (KIP-320).

        This can happen with a committed offset. The leader has been replaced, and would answer that it has no such
        offset.
        """
        if 0 <= leader_epoch < reader.sought_epoch:
            return True
        reader.sought_epoch = -1
        return False

    def _find_positions(self) -> None:
        if self._finding:
            return
        now = self._now()
        missing = [r for r in self.readers.values() if r.position is None and r.retry_at_ms <= now]
        unchecked = []
        for reader in self.readers.values():
            info = self._cluster.metadata.partition(reader.name)
            if reader.position is None or reader.retry_at_ms > now or info is None:
                continue
            if self._is_ahead(reader, info.leader_epoch):
                continue
            if self._needs_check(reader, info.leader_epoch):
                unchecked.append(reader)
        if missing or unchecked:
            self._finding = True
            self._cluster.tasks.spawn(self._find(missing, unchecked), "positions")

    async def _find(self, missing: list[PartitionReader], unchecked: list[PartitionReader]) -> None:
        later = self._later()
        for reader in (*missing, *unchecked):
            reader.retry_at_ms = later  # in case the requests below fail
        try:
            await self._find_committed([reader for reader in missing if reader.reset_to is None])
            await self._find_by_spec([reader for reader in missing if reader.reset_to is not None])
            await self._check(unchecked)
        except KafkaError as failed:
            logger.debug("positions: %s", failed)
            if not failed.code.retriable:
                self._fail(failed)
        finally:
            self._finding = False
            self._wake.set()
            self._on_change()

    async def _find_committed(self, readers: list[PartitionReader]) -> None:
        if not readers:
            return
        seeks = {reader.name: reader.seeks for reader in readers}
        names = [reader.name for reader in readers]
        committed = {} if self._committed is None else await self._committed(names)
        for reader in readers:
            if not self._still(reader, seeks):
                continue
            found = committed.get(reader.name)
            if found is not None:
                reader.seek(found.offset, found.leader_epoch)
                continue
            reader.reset_to = _SPEC.get(self._options.reset)
            if reader.reset_to is None:
                text = f"{reader.name} has no committed offset, and auto_offset_reset is none"
                self._fail(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text))

    def _still(self, reader: PartitionReader, seeks: Mapping[TopicPartition, int]) -> bool:
        """Return whether the partition is still assigned and has not been sought since."""
        return self.readers.get(reader.name) is reader and reader.seeks == seeks[reader.name]

    async def _find_by_spec(self, readers: list[PartitionReader]) -> None:
        wanted = {reader.name: reader.reset_to for reader in readers if reader.reset_to is not None}
        if not wanted:
            return
        seeks = {reader.name: reader.seeks for reader in readers}
        results = await ask_offsets(self._cluster, wanted, self._isolation)
        for reader in readers:
            result = results.get(reader.name)
            if not self._still(reader, seeks):
                continue
            if isinstance(result, KafkaError):
                if not result.code.retriable:
                    self._fail(result)
            elif result is not None:
                reader.seek(result.offset, -1)
            else:
                reader.reset_to = OffsetSpec.LATEST  # no record is that late

    async def _check(self, readers: list[PartitionReader]) -> None:
        """Ask the new leaders whether they have what was read so far (KIP-320)."""
        by_leader: dict[int, list[PartitionReader]] = {}
        found = await leaders(self._cluster, [reader.name for reader in readers])
        for reader in readers:
            leader = found[reader.name]
            if not isinstance(leader, KafkaError):
                by_leader.setdefault(leader, []).append(reader)
        for node_id, group in by_leader.items():
            await self._check_at(node_id, group)

    async def _check_at(self, node_id: int, readers: list[PartitionReader]) -> None:
        by_name = {reader.name: reader for reader in readers}
        seeks = {reader.name: reader.seeks for reader in readers}
        asked = {reader.name: (reader.position, reader.leader_epoch) for reader in readers}
        epochs = {}
        for name in by_name:
            info = self._cluster.metadata.partition(name)
            epochs[name] = info.leader_epoch if info is not None else -1
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=index,
                            current_leader_epoch=epochs[TopicPartition(topic, index)],
                            leader_epoch=asked[TopicPartition(topic, index)][1],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(by_name).items()
            ],
        )
        connection = await self._cluster.connect(node_id)
        try:
            answer: OffsetForLeaderEpochResponse = await connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        except UnsupportedVersion:
            for name, reader in by_name.items():
                reader.checked_epoch = epochs[name]
            return
        for topic in answer.topics:
            for part in topic.partitions:
                name = TopicPartition(topic.topic, part.partition)
                code = ErrorCode.of(part.error_code)
                if code in STALE_METADATA:
                    self._cluster.request_refresh()
                elif code is ErrorCode.NONE and self._still(by_name[name], seeks):
                    reader = by_name[name]
                    # Records fetched earlier may have been handed out since, and may be of later epochs. The answer
                    # does not cover those, so it is asked for again.
                    if (reader.position, reader.leader_epoch) == asked[name]:
                        self._checked(reader, epochs[name], part.leader_epoch, part.end_offset)

    def _checked(self, reader: PartitionReader, epoch: int, end_epoch: int, end_offset: int) -> None:
        reader.checked_epoch = epoch
        reader.retry_at_ms = 0.0
        if reader.position is None or end_offset < 0 or end_offset >= reader.position:
            return
        text = f"{reader.name} was truncated: read up to {reader.position}, the log now diverges at {end_offset}"
        logger.warning("%s", text)
        if self._options.reset is AutoOffsetReset.NONE:
            self._fail(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text))
        reader.seek(end_offset, end_epoch)
