"""The consumer: records out of topics, alone or as a member of a group.

    async with Consumer("flights", group_id="delays", bootstrap_servers="...") as consumer:
        async for record in consumer:      # never ends by itself
            ...

With a `group_id`, topics are shared with the other members and offsets are committed; without one all partitions of the
topics are read. `assign` reads chosen partitions, with or without a group to commit to.

Records are fetched ahead in the background and decoded when asked for. Asking for more says that the records before
are finished: automatic commits go no further than that. The partitions of a group change hands only while the
application asks.

Left out: deserializers (keys and values are bytes), regular expressions on the broker (KIP-848), nearest replicas
(KIP-392).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.group import GroupMember, RebalanceListener
from kraftpy.client.model import ConsumerRecord, OffsetAndMetadata, OffsetSpec, TopicInfo
from kraftpy.client.offsets import Found, commit_offsets, fetch_committed, list_offsets
from kraftpy.client.options import ConsumerOptions
from kraftpy.client.reading import PartitionReader
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

__all__ = ["Consumer", "RebalanceListener"]

logger = logging.getLogger(__name__)

_NOBODY = PartitionReader(TopicPartition("", -1))


class _Application:
    """What a `GroupMember` sees of its consumer (group.Application)."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._asking_began = asyncio.Event()
        self.asking = 0  # calls that wait for records right now
        self.asked = False
        self.held = 0  # hands nothing out while above 0
        self.ended = False

    @property
    def is_asking(self) -> bool:
        """Whether the application is waiting for records right now, or will never again."""
        return self.asking > 0 or self.ended

    def take_asked(self) -> bool:
        """Whether it has asked for records since this was last called."""
        asked, self.asked = self.asked, False
        return asked

    def begin_asking(self) -> None:
        """It asks for records."""
        self.asked = True
        self.asking += 1
        self._asking_began.set()

    def end(self) -> None:
        """It will not ask for records any more."""
        self.ended = True
        self._asking_began.set()

    def hold(self) -> None:
        """Hand nothing out until `release`."""
        self.held += 1
        self._consumer._interrupt()

    async def until_asking(self) -> None:
        """Until it asks for records."""
        while not self.is_asking:
            self._asking_began.clear()
            await self._asking_began.wait()

    def release(self) -> None:
        """Hand out again."""
        self.held -= 1
        self._consumer._news.set()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these too."""
        self._consumer._add(partitions)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        self._consumer._remove(partitions)

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets up to which it has finished."""
        return self._consumer._finished()

    def failed(self, error: KafkaError) -> None:
        """Raise this when it next asks."""
        self._consumer._fail(error)


class Consumer:
    """Reads records. Options are those of `ConsumerOptions`; every option is a keyword argument."""

    def __init__(
        self,
        *topics: str,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.options = ConsumerOptions(**options)
        self._cluster = Cluster(self.options, runtime)
        self._runtime = self._cluster.runtime
        committed = self._look_up_committed if self.options.group_id is not None else None
        self._fetcher = Fetcher(self._cluster, self.options, committed, self._news_came)
        self._readers = self._fetcher.readers
        self._member: GroupMember | None = None
        self._listener = listener
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._manual = False
        self._news = asyncio.Event()
        self._application = _Application(self)
        self._current = _NOBODY  # whose records `__anext__` is at
        self._handed_out: dict[PartitionReader, None] = {}
        self._turn: deque[TopicPartition] = deque()
        self._failures: deque[KafkaError] = deque()
        self._committed_alone: dict[TopicPartition, OffsetAndMetadata] = {}
        self._started = self._closed = False
        if topics or pattern is not None:
            self.subscribe(topics, pattern=pattern, listener=listener)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Begin. `async with` does it."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_metadata.append(self._metadata_changed)
            self._cluster.on_failure.append(self._stopped)
            await self._cluster.start()
            self._fetcher.start()
            self._apply_subscription()
            self._cluster.request_refresh()
            if self.options.group_id is not None and self.options.enable_auto_commit:
                self._cluster.tasks.spawn(self._keep_committing_alone(), "commit of what is assigned")
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, timeout_ms: float = 30_000) -> None:
        """Commit what is finished (with auto-commit), leave the group, hang up. An `async for` ends."""
        if self._closed:
            return
        self._settle()
        self._closed = True
        self._application.end()
        self._news.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._member is not None and self._cluster.tasks.failure is None:
                    await self._member.close()
                elif self._commits_alone and self._started:
                    await self._commit_alone()
        except (TimeoutError, KafkaError):
            pass  # the session times out in its own time
        finally:
            await self._cluster.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those a regular expression matches as a whole, in place of what was subscribed."""
        if self._manual:
            raise RuntimeError("assign() was used: unsubscribe() first")
        names = frozenset((topics,) if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise ValueError("topics: give names of topics or a pattern")
        self._topics = names
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._listener = listener or self._listener
        if self.options.group_id is not None and self._member is None:
            self._member = GroupMember(self._cluster, self.options, self._application)
        if self._member is not None:
            self._member.listener = self._listener
        if self._started:
            self._apply_subscription()

    def unsubscribe(self) -> None:
        """Read nothing; leave the group."""
        self._topics, self._pattern, self._manual = frozenset(), None, False
        if self._member is not None and self._started:
            self._member.subscribe(())
        else:
            self._fetcher.remove(list(self._readers))
        self._cluster.want_all(False)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of any rebalancing. Positions of those kept are kept."""
        if self._topics or self._pattern is not None:
            raise RuntimeError("subscribe() was used: unsubscribe() first")
        wanted = {TopicPartition(*name) for name in partitions}
        self._manual = True
        self._remove([name for name in self._readers if name not in wanted])
        self._add(sorted(wanted))

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being read."""
        return frozenset(self._readers)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, those of a pattern as far as they are known."""
        return frozenset(self._matching()) if self._pattern is not None else self._topics

    def _matching(self) -> list[str]:
        pattern = self._pattern
        if pattern is None:
            return sorted(self._topics)
        return sorted(
            info.name
            for info in self._cluster.metadata.topics.values()
            if pattern.fullmatch(info.name) and not (info.is_internal and self.options.exclude_internal_topics)
        )

    def _apply_subscription(self) -> None:
        if not (self._topics or self._pattern is not None):
            return
        self._cluster.want(self._topics)
        self._cluster.want_all(self._pattern is not None)
        if self._member is not None:
            self._member.start()
            matching = self._matching()
            if matching or self._pattern is None:
                self._member.subscribe(matching)
        else:
            self._assign_all()

    def _assign_all(self) -> None:
        """Without a group: all partitions of the topics."""
        found = self._cluster.metadata.topics
        wanted = [info.topic_partition for name in self._matching() if name in found for info in found[name].partitions]
        gone = [name for name in self._readers if name.topic not in self._matching()]
        self._remove(gone)
        self._add(name for name in wanted if name not in self._readers)

    def _metadata_changed(self) -> None:
        for name in self._topics:
            error = self._cluster.metadata.errors.get(name)
            if error is not None and not error.retriable:
                self._fail(self._cluster.unknown(name))
        if self._member is None:
            if self._topics or self._pattern is not None:
                self._assign_all()
        elif self._pattern is not None:
            self._apply_subscription()

    # --- reading --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record, waiting for it. Ends only when the consumer is closed."""
        current = self._current
        current.done = current.position
        decoded = current.decoded
        if decoded:
            record = decoded.popleft()
            current.position = record.offset + 1
            current.leader_epoch = record.leader_epoch
            self._application.asked = True
            return record
        reader = await self._next_reader(None)
        if reader is None:
            raise StopAsyncIteration
        self._current = reader
        record = reader.hand_out(1)[0]
        self._handed_out[reader] = None
        return record

    async def getone(self, *, timeout_ms: float | None = None) -> ConsumerRecord | None:
        """The next record, or None where none came in time."""
        reader = await self._next_reader(timeout_ms)
        if reader is None:
            return None
        self._handed_out[reader] = None
        return reader.hand_out(1)[0]

    async def getmany(
        self, *, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `max_records` (default: `max_poll_records`) by partition, waiting `timeout_ms` for the first."""
        left = self.options.max_poll_records if max_records is None else max_records
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        reader = await self._next_reader(timeout_ms)
        while reader is not None and left > 0:
            records = reader.hand_out(left)
            self._handed_out[reader] = None
            found.setdefault(reader.name, []).extend(records)
            left -= len(records)
            reader = self._find_reader()
        return found

    async def _next_reader(self, timeout_ms: float | None) -> PartitionReader | None:
        """A reader with a decoded record, waiting for it; None after `timeout_ms` or when the consumer is closed."""
        if not self._started and not self._closed:
            await self.start()
        self._settle()
        self._application.begin_asking()
        try:
            if timeout_ms is None:
                return await self._wait_for_reader()
            if timeout_ms <= 0:
                await asyncio.sleep(0)
                self._raise_failure()
                return self._find_reader()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    return await self._wait_for_reader()
            except TimeoutError:
                return None
        finally:
            self._application.asking -= 1

    async def _wait_for_reader(self) -> PartitionReader | None:
        while not self._closed:
            self._raise_failure()
            reader = self._find_reader()
            if reader is not None:
                return reader
            self._news.clear()
            await self._news.wait()
        return None

    def _find_reader(self) -> PartitionReader | None:
        """A reader with a decoded record, all partitions getting their turn."""
        if self._application.held or self._closed:
            return None
        if len(self._turn) != len(self._readers) or not all(name in self._readers for name in self._turn):
            self._turn = deque(self._readers)
        for _ in range(len(self._turn)):
            reader = self._readers[self._turn[0]]
            if not reader.paused:
                if reader.decoded:
                    return reader
                try:
                    if reader.decode_next(check_crcs=self.options.check_crcs):
                        self._fetcher.wake()  # there is room again
                        self._turn.rotate(-1)
                        return reader
                except KafkaError:
                    reader.refetch()
                    raise
            self._turn.rotate(-1)
        return None

    def _settle(self) -> None:
        """The application asks for more: it has finished what it was given."""
        self._current = _NOBODY
        for reader in self._handed_out:
            reader.done = reader.position
        self._handed_out.clear()

    def _raise_failure(self) -> None:
        if self._cluster.tasks.failure is not None:
            raise RuntimeError("the consumer has stopped") from self._cluster.tasks.failure
        for failures in (self._failures, self._fetcher.failures):
            if failures:
                raise failures.popleft()

    def _news_came(self) -> None:
        self._news.set()

    def _stopped(self, failure: BaseException) -> None:
        self._news.set()

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        self._fetcher.add(partitions)
        self._news.set()

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        self._interrupt()
        names = list(partitions)
        for name in names:
            reader = self._readers.get(name)
            if reader is not None:
                self._handed_out.pop(reader, None)
        self._fetcher.remove(names)

    def _finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets up to which the application has finished."""
        return {
            name: OffsetAndMetadata(reader.done, "", reader.leader_epoch if reader.done == reader.position else -1)
            for name, reader in self._readers.items()
            if reader.done is not None
        }

    def _fail(self, error: KafkaError) -> None:
        if all(str(known) != str(error) for known in self._failures):
            self._failures.append(error)
        self._interrupt()
        self._news.set()

    def _interrupt(self) -> None:
        """Make the next `__anext__` look around rather than go on with the partition it is at."""
        self._current = _NOBODY

    # --- where to read --------------------------------------------------------------------------------------------

    def _reader(self, partition: TopicPartition) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not assigned to this consumer")
        return reader

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on at `offset`. The next record from there may be at a later one."""
        place = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        if place.offset < 0:
            raise ValueError(f"offset must not be negative: {place.offset}")
        self._interrupt()
        self._reader(partition).seek(place.offset, place.leader_epoch)
        self._fetcher.wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the first offset there is; of all partitions by default."""
        self._lose_positions(partitions, OffsetSpec.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the end; of all partitions by default."""
        self._lose_positions(partitions, OffsetSpec.LATEST)

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the committed offset, or where `auto_offset_reset` says; of all partitions by default."""
        self._lose_positions(partitions, None)

    def _lose_positions(self, partitions: Iterable[TopicPartition] | None, spec: OffsetSpec | None) -> None:
        self._interrupt()
        for name in list(self._readers) if partitions is None else partitions:
            self._reader(name).lose_position(spec)
        self._fetcher.wake()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`; what was fetched is kept."""
        self._interrupt()
        for name in partitions:
            self._reader(name).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these again."""
        for name in partitions:
            self._reader(name).paused = False
        self._fetcher.wake()
        self._news.set()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions paused."""
        return frozenset(name for name, reader in self._readers.items() if reader.paused)

    async def position(self, partition: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """The offset of the next record to be handed out; looked up first where it is not known."""
        wait_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self.start()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while True:
                    self._raise_failure()
                    position = self._reader(partition).position
                    if position is not None:
                        return position
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            text = f"the position of {partition} was not found within {wait_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    def lag(self, partition: TopicPartition) -> int | None:
        """Records from the position to the end, as of the last fetch; None before it."""
        return self._reader(partition).lag

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """One past the last offset all in-sync replicas have, as of the last fetch; None before it."""
        mark = self._reader(partition).high_watermark
        return mark if mark >= 0 else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last offset this consumer may read of each partition."""
        return await self._offsets(partitions, OffsetSpec.LATEST)

    async def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        found = await self.offsets_for_times(dict.fromkeys(partitions, int(spec)))
        return {name: offset.offset if offset is not None else 0 for name, offset in found.items()}

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Found:
        """The first record at or after a time in ms of each partition, or None. An `OffsetSpec` does as well."""
        await self.start()
        return await list_offsets(self._cluster, times, isolation=self.options.isolation)

    async def partitions_for(self, topic: str) -> TopicInfo:
        """A topic's partitions. Raises `KafkaError` where it does not exist."""
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
        """Commit; by default the positions: everything handed out so far. Raises `KafkaError`.

        REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID say that the partitions may be somebody else's
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

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; of the assigned partitions by default."""
        group_id = self._group_id()
        await self.start()
        names = list(self._readers) if partitions is None else list(partitions)
        found = await fetch_committed(self._cluster, group_id, names)
        return {name: found.get(name) for name in names}

    def _group_id(self) -> str:
        if self.options.group_id is None:
            raise RuntimeError("commits need a group_id")
        return self.options.group_id

    async def _look_up_committed(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await fetch_committed(self._cluster, self._group_id(), partitions, require_stable=True)

    async def _keep_committing_alone(self) -> None:
        while True:
            await asyncio.sleep(self.options.auto_commit_interval_ms / 1000)
            if self._commits_alone:
                try:
                    await self._commit_alone()
                except KafkaError as failed:
                    logger.warning("group %s: automatic commit failed: %s", self.options.group_id, failed)

    @property
    def _commits_alone(self) -> bool:
        """Whether assigned partitions are committed automatically, outside of any membership."""
        return self._member is None and self.options.group_id is not None and self.options.enable_auto_commit

    async def _commit_alone(self) -> None:
        finished = self._finished()
        if finished and finished != self._committed_alone:
            self._committed_alone = finished
            await commit_offsets(self._cluster, self._group_id(), finished)
