"""The consumer of a share group: a queue over topics (KIP-932).

    async with ShareConsumer("jobs", group_id="workers", bootstrap_servers="...") as consumer:
        async for record in consumer:      # never ends by itself
            ...                            # asking for the next says that this one is done

The members of a share group read the same partitions, more members than partitions if need be. Each record is handed
to one of them at a time, which has it for the duration of a lock (the group's `share.record.lock.duration.ms`) and says
what became of it. What nobody speaks for is handed out again, to whoever asks, until its deliveries are used up
(`share.delivery.count.limit`). So order is kept only within what is handed out together.

With `share_acknowledgement_mode="implicit"` (the default) asking for more accepts what was handed out before, apart
from what was acknowledged otherwise; with "explicit" nothing is accepted unless `acknowledge` says so, at any time and
in any order. What was acknowledged is sent with the next request for records or within a second, and at once by
`commit_sync` and `commit_async`. Its outcome is told to `acknowledgement_commit_callback`.

Where this differs from the Java client: in explicit mode records may be asked for while others are not acknowledged
yet; a record that was renewed (RENEW) stays in hand and is not handed out a second time.
KIP-932, KIP-1206 (`share_acquire_mode`), KIP-1222 (RENEW).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from kraftpy.client.cluster import Cluster
from kraftpy.client.model import AcknowledgeType, ShareRecord
from kraftpy.client.options import ShareConsumerOptions
from kraftpy.client.runtime import Runtime
from kraftpy.client.share.fetcher import Held, ShareFetcher
from kraftpy.client.share.member import ShareMember
from kraftpy.client.share.session import Outcome
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

AcknowledgementCallback = Callable[[TopicPartition, tuple[int, ...], KafkaError | None], None]
"""Called with a partition, the offsets that were acknowledged, and what went wrong."""


class ShareConsumer:
    """Reads records as a member of a share group. Options are those of `ShareConsumerOptions`."""

    def __init__(
        self,
        *topics: str,
        acknowledgement_commit_callback: AcknowledgementCallback | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.options = ShareConsumerOptions(**options)
        self._cluster = Cluster(self.options, runtime)
        self._runtime = self._cluster.runtime
        member_id = "".join(f"{int(self._runtime.random() * 2**32):08x}" for _ in range(4))
        self._news = asyncio.Event()
        self._fetcher = ShareFetcher(self._cluster, self.options, member_id, self._news.set, self._outcome)
        self._member = ShareMember(self._cluster, self.options, member_id, self._assign, self._failed)
        self._callback = acknowledgement_commit_callback
        self._topics: tuple[str, ...] = ()
        self._assignment: tuple[TopicPartition, ...] = ()
        self._in_hand: dict[tuple[str, int, int], Held] = {}  # handed out, and nothing said for good yet
        self._collectors: list[dict[TopicPartition, KafkaError | None]] = []
        self._failure: KafkaError | None = None
        self._started = self._closed = False
        if topics:
            self.subscribe(topics)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Begin. `async with` does it."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_failure.append(lambda failure: self._news.set())
            await self._cluster.start()
            self._fetcher.start()
            self._member.start()
            if self._topics:
                self.subscribe(self._topics)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(accepts=kind is None)

    async def close(self, *, timeout_ms: float = 30_000) -> None:
        """Accept what was handed out (in implicit mode), give back the rest, leave the group. An `async for` ends.

        Leaving `async with` by an exception gives back what was handed out last.
        """
        await self._end(accepts=True, timeout_ms=timeout_ms)

    async def _end(self, *, accepts: bool, timeout_ms: float = 30_000) -> None:
        if self._closed:
            return
        self._closed = True
        self._news.set()
        if accepts:
            self._settle()
        self._in_hand.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._started and self._cluster.tasks.failure is None:
                    await self._fetcher.close()
                    await self._member.close()
        except TimeoutError:
            pass  # locks and the session run out in their own time
        finally:
            await self._cluster.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics, in place of what was subscribed."""
        self._topics = tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
        if self._started:
            self._cluster.want(self._topics)
            self._member.subscribe(self._topics)

    def unsubscribe(self) -> None:
        """Read nothing; leave the group."""
        self.subscribe(())

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return frozenset(self._topics)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions read now; others may read them as well."""
        return frozenset(self._assignment)

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._assignment = partitions
        self._fetcher.assign(partitions)

    def _failed(self, error: KafkaError) -> None:
        self._failure = error
        self._news.set()

    # --- reading --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShareRecord:
        """The next record, waiting for it. Ends only when the consumer is closed."""
        records = await self.getmany(timeout_ms=None, max_records=1)
        if not records:
            raise StopAsyncIteration
        return records[0]

    async def getmany(self, *, timeout_ms: float | None = 0, max_records: int | None = None) -> list[ShareRecord]:
        """Up to `max_records` records (default: all that came together), waiting `timeout_ms` for the first.

        None waits until there is one; the list is empty only after `timeout_ms` or once the consumer is closed.
        """
        if not self._closed:
            await self.start()
        self._settle()
        try:
            async with asyncio.timeout(None if timeout_ms is None else max(timeout_ms, 0) / 1000):
                await self._until_records()
        except TimeoutError:
            pass
        return self._hand_out(max_records)

    async def _until_records(self) -> None:
        fetcher = self._fetcher
        while not self._closed:
            self._raise_failure()
            if fetcher.records:
                return
            fetcher.wants_records = True
            fetcher.wake()
            self._news.clear()
            await self._news.wait()

    def _raise_failure(self) -> None:
        if self._cluster.tasks.failure is not None:
            raise RuntimeError("the consumer has stopped") from self._cluster.tasks.failure
        if self._failure is not None:
            raise KafkaError(self._failure.code, self._failure.message)
        if self._fetcher.failures:
            raise self._fetcher.failures.popleft()

    def _hand_out(self, max_records: int | None) -> list[ShareRecord]:
        waiting = self._fetcher.records
        records: list[ShareRecord] = []
        while waiting and not self._closed and (max_records is None or len(records) < max_records):
            held = waiting.popleft()
            record = held[0]
            self._in_hand[(record.topic, record.partition, record.offset)] = held
            records.append(record)
        return records

    # --- acknowledging --------------------------------------------------------------------------------------------

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record that was handed out; it is sent later (`commit_sync`, `commit_async`).

        Raises ValueError where the record is not in hand: it was not handed out here, or acknowledged before. One whose
        lock has run out may be somebody else's; that is an outcome (INVALID_RECORD_STATE).
        """
        key = (record.topic, record.partition, record.offset)
        held = self._in_hand.get(key)
        if held is None:
            raise ValueError(f"offset {record.offset} of {record.topic}-{record.partition} is not in hand")
        kind = AcknowledgeType(kind)
        if kind is not AcknowledgeType.RENEW:
            del self._in_hand[key]
        if held[1].holds(TopicPartition(record.topic, record.partition), record.offset):
            self._fetcher.acknowledge(held, kind)
        else:  # its lock was not renewed
            self._outcome(_lost(record))
        if kind is AcknowledgeType.RENEW:
            self._fetcher.wake()

    def _settle(self) -> None:
        """The application asks for more: it has finished what it was given (implicit mode)."""
        if not self.options.is_explicit:
            for record, _ in list(self._in_hand.values()):
                self.acknowledge(record, AcknowledgeType.ACCEPT)

    def commit_async(self) -> None:
        """Send what was acknowledged now; in implicit mode all that was handed out is accepted first."""
        self._settle()
        self._fetcher.flush()

    async def commit_sync(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """As `commit_async`, and wait: what came of it, by partition (the first error of each).

        Raises REQUEST_TIMED_OUT where the outcome is not known in time; it goes on.
        """
        await self.start()
        results: dict[TopicPartition, KafkaError | None] = {}
        self._collectors.append(results)
        wait_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            self.commit_async()
            async with asyncio.timeout(wait_ms / 1000):
                while self._fetcher.is_unsettled:
                    self._news.clear()
                    self._fetcher.flush()
                    await self._news.wait()
        except TimeoutError:
            text = f"acknowledgements were not answered within {wait_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        finally:
            self._collectors.remove(results)
        return results

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long records are this consumer's; None before the first were fetched."""
        return self._fetcher.lock_timeout_ms

    def _outcome(self, outcome: Outcome) -> None:
        partition, offsets, code = outcome
        error = None if code is ErrorCode.NONE else KafkaError(code, f"{partition}: {code.meaning}")
        for results in self._collectors:
            results[partition] = results.get(partition) or error
        if self._callback is not None:
            try:
                self._callback(partition, offsets, error)
            except Exception:
                logger.exception("the acknowledgement callback failed")
        self._news.set()


def _lost(record: ShareRecord) -> Outcome:
    return Outcome(TopicPartition(record.topic, record.partition), (record.offset,), ErrorCode.INVALID_RECORD_STATE)
