"""The consumer: reads records from topics, alone or as a member of a group.

    async with Consumer("flights", group_id="delays", bootstrap_servers="...") as consumer:
        async for record in consumer:      # never ends
            ...

With a `group_id`, the members of the group share the topics and commit offsets; without one, the consumer reads all
partitions of the topics. `assign` reads chosen partitions, with or without a group to commit to.

Records are fetched ahead in the background and decoded when asked for. Asking for more says that the earlier records
are finished, and automatic commits go no further than that. A group's partitions change hands only while the
application asks for records.

Left out: deserializers (keys and values are bytes), regular expressions on the broker (KIP-848), nearest replicas
(KIP-392).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kraftpy.client.cluster import Cluster, Measured
from kraftpy.client.consumer.auto_commit import AutoCommit
from kraftpy.client.consumer.buffer import RecordBuffer
from kraftpy.client.consumer.group_member import GroupMember
from kraftpy.client.consumer.metrics import ConsumerMetrics
from kraftpy.client.consumer.observers import Observers
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.consumer.rebalance_listener import RebalanceListener
from kraftpy.client.consumer.subscription import Subscription
from kraftpy.client.interceptors import Interceptors
from kraftpy.client.model import ConsumerGroupMetadata, ConsumerRecord, OffsetAndMetadata, OffsetSpec, TopicInfo
from kraftpy.client.offsets import Found, commit_offsets, fetch_committed, list_offsets
from kraftpy.client.options import ConsumerOptions
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.tracing import Tracing

__all__ = ["Consumer", "RebalanceListener"]


class Consumer(Measured):
    """Read records from topics. Every option of `ConsumerOptions` is a keyword argument."""

    def __init__(
        self,
        *topics: str,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        interceptors: Iterable[object] = (),
        tracing: Tracing | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self._interceptors = Interceptors(interceptors, ("on_consume", "on_commit"))
        self.options = ConsumerOptions(**options)
        self._observers = Observers(self._interceptors, tracing, self.options)
        self._is_observed = bool(self._observers)
        self._metrics = ConsumerMetrics(self.options.client_id, lambda: self._readers.values())
        self._cluster = Cluster(self.options, runtime, self._metrics)
        self._cluster.tracing = tracing
        self._runtime = self._cluster.runtime
        committed = self._look_up_committed if self.options.group_id is not None else None
        self._buffer = RecordBuffer(self._cluster, self.options, committed, self._metrics)
        self._readers = self._buffer.readers
        self._member: GroupMember | None = None
        self._listener = listener
        self._subscription = Subscription(exclude_internal_topics=self.options.exclude_internal_topics)
        self._auto_commit = AutoCommit(self._cluster, self._buffer, self.options, self._interceptors)
        self._started = self._closed = False
        if topics or pattern is not None:
            self.subscribe(topics, pattern=pattern, listener=listener)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the client. `async with` does this."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_metadata.append(self._metadata_changed)
            self._cluster.on_failure.append(lambda failure: self._buffer.wake())
            await self._cluster.start()
            self._buffer.fetcher.start()
            self._apply_subscription()
            self._cluster.request_refresh()
            if self._auto_commit.is_active:
                self._cluster.tasks.spawn(self._auto_commit.run(), "commit of what is assigned")
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._buffer.interrupt()  # the record that the application failed on is not finished
            self._buffer.forget_handed_out()
        await self.close()

    async def close(self, *, timeout_ms: float = 30_000) -> None:
        """Commit what was handed out (with auto-commit), leave the group, and close. An `async for` ends.

        If an exception leaves the `async with`, only what was finished before it is committed.
        """
        if self._closed:
            return
        self._closed = True
        self._buffer.end()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._member is not None and self._cluster.tasks.failure is None:
                    await self._member.close()
                elif self._started:
                    await self._auto_commit.commit()
        except (TimeoutError, KafkaError):
            pass  # the session will time out
        finally:
            await self._cluster.close()
            self._interceptors.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to these topics, or to those whose whole name matches a regular expression.

        Replaces the previous subscription.
        """
        self._subscription.subscribe(topics, pattern)
        self._listener = listener or self._listener
        if self.options.group_id is not None and self._member is None:
            self._member = GroupMember(self._cluster, self.options, self._buffer, self._interceptors.on_commit)
            self._auto_commit.stop()
        if self._member is not None:
            self._member.listener = self._listener
        if self._started:
            self._apply_subscription()

    def unsubscribe(self) -> None:
        """Drop the subscription: read nothing and leave the group."""
        self._subscription.clear()
        if self._member is not None and self._started:
            self._member.subscribe(())
        else:
            self._buffer.revoked(list(self._readers))
        self._cluster.want_all(False)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without any rebalancing. Partitions that stay keep their positions."""
        self._subscription.assign()
        wanted = {TopicPartition(*name) for name in partitions}
        self._buffer.revoked([name for name in self._readers if name not in wanted])
        self._buffer.assigned(sorted(wanted))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions being read."""
        return frozenset(self._readers)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; for a pattern, the matching topics known so far."""
        return frozenset(self._subscription.matching(self._cluster.metadata.topics.values()))

    def _apply_subscription(self) -> None:
        wanted = self._subscription
        if not wanted.is_to_topics:
            return
        self._cluster.want(wanted.topics)
        self._cluster.want_all(wanted.pattern is not None)
        if self._member is not None:
            self._member.start()
            matching = wanted.matching(self._cluster.metadata.topics.values())
            if matching or wanted.pattern is None:
                self._member.subscribe(matching)
        else:
            self._assign_all()

    def _assign_all(self) -> None:
        """Without a group, read all partitions of the topics."""
        found = self._cluster.metadata.topics
        topics = self._subscription.matching(found.values())
        wanted = [info.topic_partition for name in topics if name in found for info in found[name].partitions]
        gone = [name for name in self._readers if name.topic not in topics]
        self._buffer.revoked(gone)
        self._buffer.assigned(name for name in wanted if name not in self._readers)

    def _metadata_changed(self) -> None:
        for name in self._subscription.topics:
            error = self._cluster.metadata.errors.get(name)
            if error is not None and not error.retriable:
                self._buffer.failed(self._cluster.unknown(name))
        if self._member is None:
            if self._subscription.is_to_topics:
                self._assign_all()
        elif self._subscription.pattern is not None:
            self._apply_subscription()

    # --- reading --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record, waiting for it. The iteration ends only when the consumer is closed."""
        if self._is_observed:
            record = await self.getone()
            if record is None:
                raise StopAsyncIteration
            return record
        buffer = self._buffer
        current = buffer.current
        current.done = current.position
        decoded = current.decoded
        if decoded:
            record = decoded.popleft()
            current.position = record.offset + 1
            current.leader_epoch = record.leader_epoch
            buffer.asked = True
            return record
        reader = await self._next_reader(None)
        if reader is None:
            raise StopAsyncIteration
        buffer.current = reader
        return buffer.hand_out(reader, 1)[0]

    async def getone(self, *, timeout_ms: float | None = None) -> ConsumerRecord | None:
        """Return the next record, or None if none came in time."""
        started = self._runtime.monotonic_ms()
        began_ns = self._observers.now_ns()
        while True:
            left_ms = None
            if timeout_ms is not None:
                left_ms = max(timeout_ms - (self._runtime.monotonic_ms() - started), 0)
            reader = await self._next_reader(left_ms)
            if reader is None:
                return None
            records = self._buffer.hand_out(reader, 1)
            if self._is_observed:
                left = self._observers.consumed({reader.name: records}, began_ns, is_batch=False)
                records = left.get(reader.name, [])
            if records:
                return records[0]

    async def getmany(
        self, *, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return up to `max_records` (default: `max_poll_records`) by partition, waiting `timeout_ms` for the first."""
        left = self.options.max_poll_records if max_records is None else max_records
        began_ns = self._observers.now_ns()
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        reader = await self._next_reader(timeout_ms)
        while reader is not None and left > 0:
            records = self._buffer.hand_out(reader, left)
            found.setdefault(reader.name, []).extend(records)
            left -= len(records)
            try:
                reader = self._buffer.find_reader()
            except KafkaError:
                break  # return what was found; the failure will be raised by the next call
        return self._observers.consumed(found, began_ns, is_batch=True) if found and self._is_observed else found

    async def _next_reader(self, timeout_ms: float | None) -> PartitionReader | None:
        if not self._started and not self._closed:
            await self.start()
        return await self._buffer.next_reader(timeout_ms)

    # --- where to read --------------------------------------------------------------------------------------------

    def _reader(self, partition: TopicPartition) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not assigned to this consumer")
        return reader

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue at `offset`. If there is no record at that offset, the next one after it follows."""
        place = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        if place.offset < 0:
            raise ValueError(f"offset must not be negative: {place.offset}")
        self._buffer.interrupt()
        self._reader(partition).seek(place.offset, place.leader_epoch)
        self._buffer.fetcher.wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first available offset; of all partitions by default."""
        self._lose_positions(partitions, OffsetSpec.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the end; of all partitions by default."""
        self._lose_positions(partitions, OffsetSpec.LATEST)

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the committed offset, or according to `auto_offset_reset`; of all partitions by default."""
        self._lose_positions(partitions, None)

    def _lose_positions(self, partitions: Iterable[TopicPartition] | None, spec: OffsetSpec | None) -> None:
        self._buffer.interrupt()
        for name in list(self._readers) if partitions is None else partitions:
            self._reader(name).lose_position(spec)
        self._buffer.fetcher.wake()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`. Records already fetched are kept."""
        self._buffer.interrupt()
        for name in partitions:
            self._reader(name).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again."""
        for name in partitions:
            self._reader(name).paused = False
        self._buffer.fetcher.wake()
        self._buffer.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(name for name, reader in self._readers.items() if reader.paused)

    async def position(self, partition: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """Return the offset of the next record to be handed out, looking it up first if it is unknown."""
        wait_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self.start()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while True:
                    self._buffer.raise_failure()
                    position = self._reader(partition).position
                    if position is not None:
                        return position
                    await self._buffer.wait_for_change()
        except TimeoutError:
            text = f"the position of {partition} was not found within {wait_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the number of records from the position to the end, as of the last fetch; None before the first."""
        return self._reader(partition).lag

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last that all in-sync replicas have, as of the last fetch; None before it."""
        mark = self._reader(partition).high_watermark
        return mark if mark >= 0 else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._offsets(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return one past the last offset of each partition that this consumer may read."""
        return await self._offsets(partitions, OffsetSpec.LATEST)

    async def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        found = await self.offsets_for_times(dict.fromkeys(partitions, int(spec)))
        return {name: offset.offset if offset is not None else 0 for name, offset in found.items()}

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Found:
        """Return each partition's first record at or after a time in ms (or for an `OffsetSpec`); None without one."""
        await self.start()
        return await list_offsets(self._cluster, times, isolation=self.options.isolation)

    async def partitions_for(self, topic: str) -> TopicInfo:
        """Return a topic's partitions. Raises `KafkaError` if it does not exist."""
        await self.start()
        self._cluster.want((topic,))

        async def attempt() -> TopicInfo:
            info = self._cluster.metadata.topics.get(topic) or (await self._cluster.refresh()).topics.get(topic)
            if info is None:
                raise self._cluster.unknown(topic)
            return info

        return await self._cluster.retry(attempt, final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    # --- committed offsets ----------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit offsets; by default the positions, that is, everything handed out so far. Raises `KafkaError`.

        REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID mean that another member may own the partitions
        by now.
        """
        group_id = self._group_id()
        await self.start()
        if offsets is None:
            wanted = {
                name: OffsetAndMetadata(reader.position, "", reader.leader_epoch)
                for name, reader in self._readers.items()
                if reader.position is not None
            }
        else:
            wanted = {
                TopicPartition(*name): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
                for name, offset in offsets.items()
            }
        if not wanted:
            return
        if self._member is not None:
            await self._member.commit(wanted)
        else:
            await self._cluster.retry(lambda: commit_offsets(self._cluster, group_id, wanted), group_id=group_id)
            self._interceptors.on_commit(wanted)
        self._buffer.finish(wanted)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets, or None if there is none; of the assigned partitions by default."""
        group_id = self._group_id()
        await self.start()
        names = list(self._readers) if partitions is None else list(partitions)
        found = await fetch_committed(self._cluster, group_id, names)
        return {name: found.get(name) for name in names}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this member's identity, for `Producer.send_offsets_to_transaction` (KIP-447)."""
        group_id = self._group_id()
        member = self._member
        if member is None:
            return ConsumerGroupMetadata(group_id, group_instance_id=self.options.group_instance_id)
        return ConsumerGroupMetadata(group_id, member.generation_id, member.member_id, self.options.group_instance_id)

    def _group_id(self) -> str:
        if self.options.group_id is None:
            raise RuntimeError("commits need a group_id")
        return self.options.group_id

    async def _look_up_committed(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await fetch_committed(self._cluster, self._group_id(), partitions, require_stable=True)
