"""What a consumer hands out, when, and how far its application has come.

Asking for records says that those before are finished. While partitions change hands nothing is handed out: the group
holds, waits until the application asks, moves partitions, and releases. Partitions take turns.

Invariants: a record is handed out only of a partition held at that moment; what failed is raised once, where records
are asked for, and takes no record with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer.fetcher import CommittedLookup, Fetcher
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.model import ConsumerRecord, OffsetAndMetadata
from kraftpy.client.options import ConsumerOptions
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

NOBODY = PartitionReader(TopicPartition("", -1))
"""A reader without records: who reads it looks around."""


class Supply:
    """Between a fetcher and an application; also what the group sees of the application (group.Application)."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions, committed: CommittedLookup | None) -> None:
        self.fetcher = Fetcher(cluster, options, committed, self.news_came)
        self.readers = self.fetcher.readers
        self.current = NOBODY  # whose records are being handed out one by one
        self.asked = False  # since `take_asked`
        self._cluster = cluster
        self._check_crcs = options.check_crcs
        self._news = asyncio.Event()
        self._asking = 0  # calls that wait for records right now
        self._asking_began = asyncio.Event()
        self._held = 0  # nothing is handed out while above 0
        self._ended = False
        self._handed_out: dict[PartitionReader, None] = {}
        self._turn: deque[TopicPartition] = deque()
        self._failures: deque[KafkaError] = deque()

    # --- handing out ----------------------------------------------------------------------------------------------

    async def next_reader(self, timeout_ms: float | None) -> PartitionReader | None:
        """A reader with a decoded record, waiting for it; None after `timeout_ms` or once ended."""
        self.settle()
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
            await self.wait_for_news()
        return None

    async def wait_for_news(self) -> None:
        """Until there may be something to hand out or to raise."""
        self._news.clear()
        await self._news.wait()

    def find_reader(self) -> PartitionReader | None:
        """A reader with a decoded record, if there is one now. Raises where its next batch is corrupt."""
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
        """Up to `limit` decoded records of a reader."""
        self._handed_out[reader] = None
        return reader.hand_out(limit)

    def settle(self) -> None:
        """The application asks for more: it has finished what it was given."""
        self.current = NOBODY
        for reader in self._handed_out:
            reader.done = reader.position
        self._handed_out.clear()

    def forget_handed_out(self) -> None:
        """What was handed out last will not be finished."""
        self._handed_out.clear()

    def interrupt(self) -> None:
        """Look around before the next record is handed out."""
        self.current = NOBODY

    # --- news and failures ----------------------------------------------------------------------------------------

    def news_came(self) -> None:
        """There may be something to hand out or to raise."""
        self._news.set()

    def failed(self, error: KafkaError) -> None:
        """Raise this when records are next asked for."""
        if all(str(known) != str(error) for known in self._failures):
            self._failures.append(error)
        self.interrupt()
        self._news.set()

    def raise_failure(self) -> None:
        """Raise what went wrong since, if anything did."""
        if self._cluster.tasks.failure is not None:
            raise RuntimeError("the consumer has stopped") from self._cluster.tasks.failure
        for failures in (self._failures, self.fetcher.failures):
            if failures:
                raise failures.popleft()

    # --- what the group sees (group.Application) ------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """Whether the application is waiting for records right now, or never will again."""
        return self._asking > 0 or self._ended

    def take_asked(self) -> bool:
        """Whether it has asked for records since this was last called."""
        asked, self.asked = self.asked, False
        return asked

    def end(self) -> None:
        """It will not ask for records any more."""
        self.settle()
        self._ended = True
        self._asking_began.set()
        self._news.set()

    def hold(self) -> None:
        """Hand nothing out until `release`."""
        self._held += 1
        self.interrupt()

    async def until_asking(self) -> None:
        """Until it asks for records, or never will again."""
        while not self.is_asking:
            self._asking_began.clear()
            await self._asking_began.wait()

    def release(self) -> None:
        """Hand out again."""
        self._held -= 1
        self._news.set()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these too."""
        self.fetcher.add(partitions)
        self._news.set()

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        self.interrupt()
        names = list(partitions)
        for name in names:
            reader = self.readers.get(name)
            if reader is not None:
                self._handed_out.pop(reader, None)
        self.fetcher.remove(names)

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets up to which it has finished."""
        return {
            name: OffsetAndMetadata(reader.done, "", reader.leader_epoch if reader.done == reader.position else -1)
            for name, reader in self.readers.items()
            if reader.done is not None
        }
