"""The records that wait for the application, and how far the application has come.

Asking for records says that the earlier ones are finished. Nothing is handed out while partitions change hands: the
group holds the buffer, waits until the application asks, moves partitions, and releases. Partitions take turns.

Invariants: a record is handed out only if its partition is held at that moment. A failure is raised once, when records
are next asked for, and no record is lost with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer.fetcher import CommittedLookup, Fetcher
from kraftpy.client.consumer.metrics import ConsumerMetrics
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.model import ConsumerRecord, OffsetAndMetadata
from kraftpy.client.options import ConsumerOptions
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

NO_READER = PartitionReader(TopicPartition("", -1))
"""A reader without records: it makes the consumer look for the next reader."""


class RecordBuffer:
    """The buffer between a fetcher and an application; also the group's view of the application (group.Application)."""

    def __init__(
        self, cluster: Cluster, options: ConsumerOptions, committed: CommittedLookup | None, metrics: ConsumerMetrics
    ) -> None:
        self.fetcher = Fetcher(cluster, options, committed, self.wake, metrics)
        self._metrics = metrics
        self.readers = self.fetcher.readers
        self.current = NO_READER  # the reader whose records are being handed out one by one
        self.asked = False  # since `take_asked`
        self._cluster = cluster
        self._check_crcs = options.check_crcs
        self._changed = asyncio.Event()
        self._asking = 0  # calls that wait for records right now
        self._asking_began = asyncio.Event()
        self._held = 0  # nothing is handed out while above 0
        self._ended = False
        self._handed_out: dict[PartitionReader, None] = {}
        self._turn: deque[TopicPartition] = deque()
        self._failures: deque[KafkaError] = deque()

    # --- handing out ----------------------------------------------------------------------------------------------

    async def next_reader(self, timeout_ms: float | None) -> PartitionReader | None:
        """Wait for a reader with a decoded record; None after `timeout_ms` or once the buffer has ended."""
        self.finish_handed_out()
        self._metrics.polled(self._cluster.runtime.monotonic_ms())
        self.asked = True
        self._asking += 1
        self._asking_began.set()
        try:
            if timeout_ms is None:
                return await self._wait_for_reader()
            if timeout_ms <= 0:
                await asyncio.sleep(0)
                self.raise_failure()
                return self.find_reader()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    return await self._wait_for_reader()
            except TimeoutError:
                return None
        finally:
            self._asking -= 1

    async def _wait_for_reader(self) -> PartitionReader | None:
        while not self._ended:
            self.raise_failure()
            reader = self.find_reader()
            if reader is not None:
                return reader
            await self.wait_for_change()
        return None

    async def wait_for_change(self) -> None:
        """Wait until there may be something to hand out or to raise."""
        self._changed.clear()
        await self._changed.wait()

    def find_reader(self) -> PartitionReader | None:
        """Return a reader with a decoded record, if there is one now. Raises an error if its next batch is corrupt."""
        if self._held or self._ended:
            return None
        if len(self._turn) != len(self.readers) or not all(name in self.readers for name in self._turn):
            self._turn = deque(self.readers)
        for _ in range(len(self._turn)):
            reader = self.readers[self._turn[0]]
            if reader.paused or not self._has_record(reader):
                self._turn.rotate(-1)
                continue
            return reader
        return None

    def _has_record(self, reader: PartitionReader) -> bool:
        if reader.decoded:
            return True
        try:
            found = reader.decode_next(check_crcs=self._check_crcs)
        except KafkaError:
            reader.refetch()
            raise
        if found:
            self._turn.rotate(-1)  # a batch each
            self.fetcher.wake()  # there is room again
        return found

    def hand_out(self, reader: PartitionReader, limit: int) -> list[ConsumerRecord]:
        """Hand out up to `limit` decoded records of a reader."""
        self._handed_out[reader] = None
        return reader.hand_out(limit)

    def finish_handed_out(self) -> None:
        """Mark everything handed out as finished, because the application asks for more."""
        self.current = NO_READER
        for reader in self._handed_out:
            reader.done = reader.position
        self._handed_out.clear()

    def finish(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Mark what the application has committed itself as finished, so that no automatic commit takes it back."""
        for name, committed in offsets.items():
            reader = self.readers.get(name)
            if reader is not None and reader.done is not None and reader.position is not None:
                reader.done = max(reader.done, min(committed.offset, reader.position))

    def forget_handed_out(self) -> None:
        """Forget what was handed out last: it will not be finished."""
        self._handed_out.clear()

    def interrupt(self) -> None:
        """Look for the next reader before another record is handed out."""
        self.current = NO_READER

    # --- news and failures ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the waiting calls: there may be something to hand out or to raise."""
        self._changed.set()

    def failed(self, error: KafkaError) -> None:
        """Raise this error when records are next asked for."""
        if all(str(known) != str(error) for known in self._failures):
            self._failures.append(error)
        self.interrupt()
        self._changed.set()

    def raise_failure(self) -> None:
        """Raise the oldest failure not raised yet, if there is one."""
        if self._cluster.tasks.failure is not None:
            raise RuntimeError("the consumer has stopped") from self._cluster.tasks.failure
        for failures in (self._failures, self.fetcher.failures):
            if failures:
                raise failures.popleft()

    # --- what the group sees (group.Application) ------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """True if the application is waiting for records right now, or will never ask again."""
        return self._asking > 0 or self._ended

    def take_asked(self) -> bool:
        """Return whether the application has asked for records since the last call."""
        asked, self.asked = self.asked, False
        return asked

    def end(self) -> None:
        """Note that the application will not ask for records any more."""
        self.finish_handed_out()
        self._ended = True
        self._asking_began.set()
        self._changed.set()

    def hold(self) -> None:
        """Hand out nothing until `release`: partitions change hands."""
        self._metrics.rebalancing(self._cluster.runtime.monotonic_ms())
        self._held += 1
        self.interrupt()

    async def until_asking(self) -> None:
        """Wait until the application asks for records, or will never ask again."""
        while not self.is_asking:
            self._asking_began.clear()
            await self._asking_began.wait()

    def release(self) -> None:
        """Undo one `hold`."""
        self._held -= 1
        self._changed.set()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Start reading these partitions too."""
        self.fetcher.add(partitions)
        self._changed.set()

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self.interrupt()
        names = list(partitions)
        for name in names:
            reader = self.readers.get(name)
            if reader is not None:
                self._handed_out.pop(reader, None)
        self.fetcher.remove(names)

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets up to which the application has finished."""
        return {
            name: OffsetAndMetadata(reader.done, "", reader.leader_epoch if reader.done == reader.position else -1)
            for name, reader in self.readers.items()
            if reader.done is not None
        }
