"""The consumer of a share group: a queue over topics (KIP-932).

    async with ShareConsumer("jobs", group_id="workers", bootstrap_servers="...") as consumer:
        async for record in consumer:      # never ends
            ...                            # asking for the next record accepts this one

The members of a share group read the same partitions; there may be more members than partitions. Each record is handed
to one member at a time, which holds it for the duration of a lock (the group's `share.record.lock.duration.ms`) and
acknowledges it. A record that is not acknowledged is handed out again, to any member that asks, until its deliveries
are used up (`share.delivery.count.limit`). So order is kept only among records that are handed out together.

With `share_acknowledgement_mode="implicit"` (the default), asking for more accepts the records handed out before, apart
from those that `acknowledge` was called for. With "explicit", `acknowledge` is called for every record, in any order.
Acknowledgements are sent with the next request for records or within a second, and at once by `commit_sync` and
`commit_async`. `acknowledgement_commit_callback` gets their outcome.

Differences from the Java client: in explicit mode the application may ask for records while others are still
unacknowledged; a renewed record (RENEW) stays in hand and is not handed out a second time. KIP-932, KIP-1206
(`share_acquire_mode`), KIP-1222 (RENEW).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kraftpy.client.cluster import Cluster, Measured
from kraftpy.client.metrics import ClientMetrics
from kraftpy.client.model import AcknowledgeType, ShareRecord
from kraftpy.client.options import ShareConsumerOptions
from kraftpy.client.runtime import Runtime
from kraftpy.client.share.fetcher import Held, ShareFetcher
from kraftpy.client.share.member import ShareMember
from kraftpy.client.share.session import Outcome
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.tracing import Tracing

logger = logging.getLogger(__name__)

AcknowledgementCallback = Callable[[TopicPartition, tuple[int, ...], KafkaError | None], None]
"""Called with a partition, the offsets that were acknowledged, and the error, if any."""


class ShareConsumer(Measured):
    """Read records as a member of a share group. Options are those of `ShareConsumerOptions`."""

    def __init__(
        self,
        *topics: str,
        acknowledgement_commit_callback: AcknowledgementCallback | None = None,
        tracing: Tracing | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.options = ShareConsumerOptions(**options)
        self._cluster = Cluster(self.options, runtime, ClientMetrics("consumer-share", self.options.client_id))
        self._runtime = self._cluster.runtime
        self._tracing = tracing
        member_id = "".join(f"{int(self._runtime.random() * 2**32):08x}" for _ in range(4))
        self._changed = asyncio.Event()
        self._fetcher = ShareFetcher(self._cluster, self.options, member_id, self._changed.set, self._outcome)
        self._member = ShareMember(self._cluster, self.options, member_id, self._assign, self._failed)
        self._callback = acknowledgement_commit_callback
        self._topics: tuple[str, ...] = ()
        self._assignment: tuple[TopicPartition, ...] = ()
        self._in_hand: dict[tuple[str, int, int], Held] = {}  # handed out and not finally acknowledged yet
        self._collectors: list[dict[TopicPartition, KafkaError | None]] = []
        self._failure: KafkaError | None = None
        self._started = self._closed = False
        if topics:
            self.subscribe(topics)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the client. `async with` does this."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_failure.append(lambda failure: self._changed.set())
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
        """Accept what was handed out (in implicit mode), release the rest, and leave the group. An `async for` ends.

        If an exception leaves the `async with`, the records handed out last are released.
        """
        await self._end(accepts=True, timeout_ms=timeout_ms)

    async def _end(self, *, accepts: bool, timeout_ms: float = 30_000) -> None:
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        if accepts:
            self._accept_handed_out()
        self._in_hand.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._started and self._cluster.tasks.failure is None:
                    await self._fetcher.close()
                    await self._member.close()
        except TimeoutError:
            pass  # locks and the session will time out
        finally:
            await self._cluster.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics, replacing the previous subscription."""
        self._topics = tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
        if self._started:
            self._cluster.want(self._topics)
            self._member.subscribe(self._topics)

    def unsubscribe(self) -> None:
        """Drop the subscription: read nothing and leave the group."""
        self.subscribe(())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return frozenset(self._topics)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions being read; other members may read them as well."""
        return frozenset(self._assignment)

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._assignment = partitions
        self._fetcher.assign(partitions)

    def _failed(self, error: KafkaError) -> None:
        self._failure = error
        self._changed.set()

    # --- reading --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShareRecord:
        """Return the next record, waiting for it. The iteration ends only when the consumer is closed."""
        records = await self._take(None, 1, is_batch=False)
        if not records:
            raise StopAsyncIteration
        return records[0]

    async def getmany(self, *, timeout_ms: float | None = 0, max_records: int | None = None) -> list[ShareRecord]:
        """Return up to `max_records` records (default: all that arrived together), waiting `timeout_ms` for the first.

        None waits until there is one; the list is empty only after `timeout_ms` or once the consumer is closed.
        """
        return await self._take(timeout_ms, max_records, is_batch=True)

    async def _take(self, timeout_ms: float | None, max_records: int | None, *, is_batch: bool) -> list[ShareRecord]:
        began_ns = 0 if self._tracing is None else self._tracing.now_ns()
        if not self._closed:
            await self.start()
        self._accept_handed_out()
        try:
            async with asyncio.timeout(None if timeout_ms is None else max(timeout_ms, 0) / 1000):
                await self._until_records()
        except TimeoutError:
            pass
        records = self._hand_out(max_records)
        if self._tracing is not None:
            found: dict[TopicPartition, list[ShareRecord]] = {}
            for record in records:
                found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            options = self.options
            self._tracing.polled(found, began_ns, options.client_id, options.group_id, is_batch=is_batch)
        return records

    async def _until_records(self) -> None:
        fetcher = self._fetcher
        while not self._closed:
            self._raise_failure()
            if fetcher.records:
                return
            fetcher.wants_records = True
            fetcher.wake()
            self._changed.clear()
            await self._changed.wait()

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
        """Acknowledge a record that was handed out. It is sent later (`commit_sync`, `commit_async`).

        Raises ValueError if the record is not in hand: it was not handed out here, or was acknowledged before. If its
        lock has expired, another member may have it; the outcome then is INVALID_RECORD_STATE.
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

    def _accept_handed_out(self) -> None:
        """In implicit mode, accept everything handed out so far: the application asks for more."""
        if not self.options.is_explicit:
            for record, _ in list(self._in_hand.values()):
                self.acknowledge(record, AcknowledgeType.ACCEPT)

    def commit_async(self) -> None:
        """Send pending acknowledgements now. In implicit mode, first accepts all that was handed out."""
        self._accept_handed_out()
        self._fetcher.flush()

    async def commit_sync(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Like `commit_async`, but wait. Returns the outcome by partition (the first error of each).

        Raises REQUEST_TIMED_OUT if the outcome is not known in time; the request continues.
        """
        await self.start()
        results: dict[TopicPartition, KafkaError | None] = {}
        self._collectors.append(results)
        wait_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            self.commit_async()
            async with asyncio.timeout(wait_ms / 1000):
                while self._fetcher.awaits_outcomes:
                    self._changed.clear()
                    self._fetcher.flush()
                    await self._changed.wait()
        except TimeoutError:
            text = f"acknowledgements were not answered within {wait_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        finally:
            self._collectors.remove(results)
        return results

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long records stay locked for this consumer; None before the first fetch."""
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
        self._changed.set()


def _lost(record: ShareRecord) -> Outcome:
    return Outcome(TopicPartition(record.topic, record.partition), (record.offset,), ErrorCode.INVALID_RECORD_STATE)
