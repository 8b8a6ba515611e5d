"""The producer: sends records and reports each delivery.

`await send(...)` waits only if the buffer (`buffer_memory`) is full or the topic is new to this producer. It returns a
`Delivery` to await later. No task is made per record or per request: one sender task drains the accumulator, and
answers are handled in the callbacks of their futures.

Ordering: within a partition records arrive in the order they were sent. With idempotence (the default) that holds
through retries, and nothing is written twice; without it only `max_in_flight_requests_per_connection=1` keeps the
order.

`flush` raises the first failure that was not looked at, so that a program that ignores its deliveries still learns of a
loss.

With a `transactional_id` every record belongs to a transaction, and is read with it or not at all:

    async with Producer(transactional_id="transfer-1") as producer:
        await producer.init_transactions()      # once; fences any earlier producer with this id
        async with producer.transaction():      # commits at the end, aborts on an exception
            await producer.send("accounts", b"-5", key=b"a")
            await producer.send("accounts", b"+5", key=b"b")

If a record fails, its transaction can only be aborted (`TransactionAbortable`).

Left out: serializers (keys and values are bytes). KIP-98 and KIP-890 (transactions), KIP-91 (delivery timeout), KIP-480
and KIP-794 (sticky partitioner).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kraftpy.client.cluster import Cluster, Measured
from kraftpy.client.interceptors import Interceptors
from kraftpy.client.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicInfo,
)
from kraftpy.client.options import ProducerOptions
from kraftpy.client.producer.accumulator import (
    SMALL_RECORD_BYTES,
    SMALL_RECORD_OVERHEAD,
    Accumulator,
    AccumulatorOptions,
    PartitionQueue,
)
from kraftpy.client.producer.delivery import Delivery
from kraftpy.client.producer.metrics import ProducerMetrics
from kraftpy.client.producer.partitioner import Partitioner
from kraftpy.client.producer.sender import Sender
from kraftpy.client.producer.transaction_manager import Transactions
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import record_size_bound
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.tracing import SendSpan, Tracing

logger = logging.getLogger(__name__)

_NO_HEADERS: tuple[tuple[str, bytes | None], ...] = ()


class BufferFull(KafkaError):
    """There is no room for a record: `buffer_memory` is used up."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, text)


class _Topic:
    """The partitioner and queues of one topic, kept at hand for sending."""

    __slots__ = ("info", "partitioner", "queues")

    def __init__(self, info: TopicInfo, partitioner: Partitioner) -> None:
        self.info = info
        self.partitioner = partitioner
        self.queues: list[PartitionQueue] = []


class _Observed(NamedTuple):
    """A record that interceptors have seen, and its span."""

    record: ProducerRecord
    span: SendSpan | None


class Producer(Measured):
    """Send records: `async with Producer(bootstrap_servers=...) as producer:`. Options: `ProducerOptions`."""

    def __init__(
        self,
        *,
        interceptors: Iterable[object] = (),
        tracing: Tracing | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self._interceptors = Interceptors(interceptors, ("on_send", "on_acknowledgement"))
        self._tracing = tracing
        self._is_observed = bool(self._interceptors) or tracing is not None
        self.options = ProducerOptions(**options)
        self._metrics = ProducerMetrics(self.options.client_id, self.options.buffer_memory)
        self._cluster = Cluster(self.options, runtime, self._metrics)
        self._runtime = self._cluster.runtime
        self._accumulator = Accumulator(
            AccumulatorOptions(
                batch_size=self.options.batch_size,
                linger_ms=self.options.linger_ms,
                buffer_memory=self.options.buffer_memory,
                delivery_timeout_ms=self.options.delivery_timeout_ms,
                retries=self.options.retries,
                idempotent=self.options.idempotent,
                max_in_flight=self.options.max_in_flight_requests_per_connection,
                transactional=self.options.transactional_id is not None,
            )
        )
        self._topics: dict[str, _Topic] = {}
        self._room = asyncio.Event()
        self._short_of_room = 0
        self._transactions: Transactions | None = None
        if self.options.transactional_id is not None:
            self._transactions = Transactions(
                self._cluster, self.options, self._accumulator, self._on_transaction_progress
            )
        self._sender = Sender(
            self._cluster, self.options, self._accumulator, self._room.set, self._metrics, self._transactions
        )
        self._metrics.free_bytes = lambda: self._accumulator.free_bytes
        self._metrics.waiting = lambda: self._short_of_room
        self._metrics.in_flight = lambda: self._sender.in_flight
        self._metrics.metadata_age_s = lambda: self._cluster.metadata_age_ms / 1000
        self._wake = self._sender.wake
        self._started = self._closing = False
        self._filled_batches_seen = 0

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the client. `async with` and the first `send` do this."""
        if self._closing:
            raise RuntimeError("the producer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_metadata.append(self._metadata_changed)
            self._cluster.on_failure.append(self._stopped)
            await self._cluster.start()
            self._cluster.tasks.spawn(self._sender.run(), "sender")
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._transactions is None:  # a commit has reported on its records
                await self.flush()
        finally:
            await self.close()

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Deliver what is outstanding, within `timeout_ms` (default: as long as a delivery may take), then close.

        Records still undelivered fail. Failed deliveries do not raise; call `flush` first if they should. An open
        transaction is aborted.
        """
        if self._closing:
            return
        self._closing = True
        wait_ms = (
            self.options.delivery_timeout_ms + self.options.request_timeout_ms if timeout_ms is None else timeout_ms
        )
        try:
            async with asyncio.timeout(wait_ms / 1000):
                if self._transactions is not None and self._transactions.is_abortable:
                    logger.warning("%s: closed with an open transaction, which is aborted", self.options.client_id)
                    await self._abort_because()
                await self._drained()
        except TimeoutError:
            pass
        finally:
            self._accumulator.fail_all(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed before the record was delivered")
            )
            self._report_unseen()
            await self._cluster.close()
            self._interceptors.close()

    # --- sending --------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = _NO_HEADERS,
    ) -> Delivery:
        """Send a record. Await the returned `Delivery` for its `RecordMetadata`.

        Waits up to `max_block_ms` while the topic is unknown or the buffer is full, then raises `KafkaError` or
        `BufferFull`. A record above `max_request_size` raises `KafkaError` with MESSAGE_TOO_LARGE.
        """
        sent: _Observed | None = None
        if self._is_observed:
            sent = self._observe(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))
            topic, value, key, partition, timestamp_ms, headers = sent.record
        try:
            found = self._topics.get(topic)
            if found is None:
                found = await self._topic(topic)
            accumulator = self._accumulator
            if accumulator.batches_filled != self._filled_batches_seen:
                # A batch is full: let the sender and the sockets run before filling the next.
                self._filled_batches_seen = accumulator.batches_filled
                self._wake.set()
                await asyncio.sleep(0)
            if accumulator.free_bytes < self.options.max_request_size + SMALL_RECORD_OVERHEAD:
                size = self._size(key, value, headers)
                if accumulator.free_bytes < size:
                    await self._wait_for_room(size)
            delivery = self._append(found, value, key, partition, timestamp_ms, headers)
        except BaseException as failed:
            if sent is not None:
                self._notify_refused(sent, failed)
            raise
        if sent is not None:
            self._notify_outcome(sent, delivery)
        return delivery

    def send_nowait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = _NO_HEADERS,
    ) -> Delivery:
        """Like `send`, without waiting. Raises `BufferFull` if there is no room, LookupError for a topic new to it."""
        sent: _Observed | None = None
        if self._is_observed:
            sent = self._observe(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))
            topic, value, key, partition, timestamp_ms, headers = sent.record
        try:
            found = self._topics.get(topic)
            if found is None:
                raise LookupError(
                    f"topic {topic!r} is not known yet: use send, or await partitions_for({topic!r}) first"
                )
            if self._accumulator.free_bytes < self._size(key, value, headers):
                self._starve()
                raise BufferFull(f"buffer_memory ({self.options.buffer_memory} bytes) is used up")
            delivery = self._append(found, value, key, partition, timestamp_ms, headers)
        except BaseException as failed:
            if sent is not None:
                self._notify_refused(sent, failed)
            raise
        if sent is not None:
            self._notify_outcome(sent, delivery)
        return delivery

    def _observe(self, record: ProducerRecord) -> _Observed:
        """Show a record to the interceptors, and begin its span."""
        record = self._interceptors.on_send(record)
        if self._tracing is None:
            return _Observed(record, None)
        return _Observed(*self._tracing.sending(record, self.options.client_id))

    def _notify_refused(self, sent: _Observed, error: BaseException) -> None:
        """Notify the interceptors of a record that was not accepted, and end its span."""
        record = sent.record
        partition = -1 if record.partition is None else record.partition
        metadata = RecordMetadata(record.topic, partition, -1, -1)
        if isinstance(error, KafkaError):
            self._interceptors.on_acknowledgement(metadata, error)
        if sent.span is not None:
            sent.span.end(metadata, None, error)

    def _notify_outcome(self, sent: _Observed, delivery: Delivery) -> None:
        """Notify the interceptors of a record's outcome once it is known, and end its span."""

        def tell(delivery: Delivery) -> None:
            metadata, error = delivery.outcome()
            self._interceptors.on_acknowledgement(metadata, error)
            if sent.span is not None:
                sent.span.end(metadata, self._cluster.leader_of(TopicPartition(*metadata[:2])), error)

        delivery.tell(tell)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = _NO_HEADERS,
    ) -> RecordMetadata:
        """Send one record and wait for its delivery."""
        sent = self.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        return await (await sent)

    async def flush(self) -> None:
        """Send everything now and wait for it. Raises the first `KafkaError` of a delivery that was not looked at.

        In a transaction, raises the error that the transaction failed with.
        """
        await self._drained()
        if self._transactions is not None:
            self._transactions.raise_failure()
        unseen = self._accumulator.unseen
        if unseen:
            lost = sum(len(batch.records) for batch in unseen)
            error = unseen[0].error
            assert error is not None, "only batches given up are listed"
            unseen.clear()
            raise KafkaError(error.code, f"{lost} record(s) were not delivered: {error.message}")

    async def partitions_for(self, topic: str) -> TopicInfo:
        """Return the topic's partitions. Raises `KafkaError` if it neither exists nor gets created."""
        return (await self._topic(topic)).info

    def _append(
        self,
        found: _Topic,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> Delivery:
        if self._closing or self._sender.fatal is not None:
            raise self._sender.fatal or RuntimeError("the producer is closed")
        size = self._size(key, value, headers)
        if size > self.options.max_request_size:
            text = f"a record of {size} bytes exceeds max_request_size of {self.options.max_request_size}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        if partition is None:
            partition = found.partitioner.for_none(size) if key is None else found.partitioner.for_key(key)
        try:
            queue = found.queues[partition]
        except IndexError:
            raise self._no_partition(found, partition) from None
        if partition < 0:
            raise self._no_partition(found, partition)
        runtime = self._runtime
        if timestamp_ms is None:
            timestamp_ms = runtime.now_ms()
        if self._transactions is not None:
            self._transactions.use(queue.partition)
        accumulator = self._accumulator
        batch = accumulator.append(queue, timestamp_ms, key, value, headers, size, runtime.monotonic_ms)
        index = len(batch.records) - 1
        if not index:
            self._wake.set()  # a new batch: its linger time starts, and the previous one is ready
        return Delivery(batch, index)

    @staticmethod
    def _size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
        if (type(value) is bytes or value is None) and (type(key) is bytes or key is None):
            size = (len(value) if value else 0) + (len(key) if key else 0)
            if size < SMALL_RECORD_BYTES and not headers:
                return size + SMALL_RECORD_OVERHEAD
        else:
            for name, data in (("value", value), ("key", key)):
                if data is not None and not isinstance(data, bytes):
                    raise TypeError(f"{name} must be bytes or None, not {type(data).__name__}")
        return record_size_bound(key, value, headers)

    def _no_partition(self, found: _Topic, partition: int) -> KafkaError:
        text = f"topic {found.info.name!r} has partitions 0 to {len(found.queues) - 1}, not {partition}"
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Acquire the transactional id. Call it once, before the first transaction.

        Fences any earlier producer with this id and aborts a transaction it left open. Raises `TransactionError`, or
        REQUEST_TIMED_OUT after `max_block_ms`; the request then continues, and another call waits for it.
        """
        transactions = self._transactional()
        await self.start()
        await transactions.initialize()

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on belong to it. Raises RuntimeError if one is open."""
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commit these positions of a group (`consumer.group_metadata()`) as part of the transaction.

        The consumer must not commit automatically (`enable_auto_commit=False`). If the group has moved on without that
        consumer, raises `TransactionAbortable`; otherwise another `TransactionError`, or REQUEST_TIMED_OUT after
        `max_block_ms`: abort then.
        """
        transactions = self._transactional()
        wanted = {
            TopicPartition(*name): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for name, offset in offsets.items()
        }
        if wanted:
            await transactions.send_offsets(wanted, group_metadata)

    async def commit_transaction(self) -> None:
        """Deliver every record, then commit.

        Raises `TransactionAbortable` if a record failed: then abort. REQUEST_TIMED_OUT (after `max_block_ms`) means
        that the outcome is not known yet; another call waits for it. Any other `TransactionError` ends this producer.
        """
        await self._transactional().commit(self._drained)

    async def abort_transaction(self) -> None:
        """Drop unsent records and abort the transaction. Raises the same errors as `commit_transaction`."""
        await self._transactional().abort(self._drained)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that commits at the end of its block and aborts if the block raises.

        If the commit fails with `TransactionAbortable`, aborts and raises that error: try the block again.
        """
        self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException:
            if self._transactional().is_abortable:
                await self._abort_because()
            raise

    async def _abort_because(self) -> None:
        """Abort after a failure. An error of the abort is logged, so that it does not hide the failure."""
        try:
            await self.abort_transaction()
        except KafkaError as failed:
            logger.warning("%s: the transaction was not aborted: %s", self.options.client_id, failed)

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise RuntimeError("transactions need a transactional_id")
        return self._transactions

    def _on_transaction_progress(self) -> None:
        self._wake.set()
        self._room.set()

    # --- waiting --------------------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> _Topic:
        await self.start()
        deadline = self._runtime.monotonic_ms() + self.options.max_block_ms
        self._cluster.want((name,))
        attempt = 0
        while name not in self._topics:
            info = self._cluster.metadata.topics.get(name)
            if info is not None and info.partitions:
                self._learn(info)
                break
            left_ms = deadline - self._runtime.monotonic_ms()
            error = self._cluster.metadata.errors.get(name)
            if error is not None and not error.retriable:
                raise self._cluster.unknown(name)
            try:
                async with asyncio.timeout(max(left_ms, 1) / 1000):
                    await self._refresh_quietly()
            except TimeoutError:
                raise KafkaError(
                    self._cluster.metadata.errors.get(name, ErrorCode.REQUEST_TIMED_OUT),
                    f"topic {name!r} is not in the cluster's metadata after {self.options.max_block_ms:g} ms",
                ) from None
            attempt += 1
        return self._topics[name]

    async def _refresh_quietly(self) -> None:
        try:
            await self._cluster.refresh()
        except KafkaError as failed:
            if not failed.code.retriable:
                raise

    def _learn(self, info: TopicInfo) -> None:
        """Adopt a topic's partitions from metadata."""
        found = self._topics.get(info.name)
        if found is None:
            partitioner = Partitioner(sticky_bytes=self.options.batch_size, random=self._runtime.random)
            found = self._topics[info.name] = _Topic(info, partitioner)
        found.info = info
        for index in range(len(found.queues), len(info.partitions)):
            found.queues.append(self._accumulator.queue(info.name, index))
        found.partitioner.update(
            len(info.partitions), [partition.partition for partition in info.partitions if partition.leader >= 0]
        )

    def _metadata_changed(self) -> None:
        for name in self._topics:
            info = self._cluster.metadata.topics.get(name)
            if info is not None and info.partitions:
                self._learn(info)
        self._wake.set()

    async def _wait_for_room(self, size: int) -> None:
        if size > self.options.buffer_memory:
            text = f"a record of {size} bytes exceeds buffer_memory of {self.options.buffer_memory}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        self._short_of_room += 1
        self._starve()
        try:
            async with asyncio.timeout(self.options.max_block_ms / 1000):
                while self._accumulator.free_bytes < size and not self._closing:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            text = (
                f"buffer_memory ({self.options.buffer_memory} bytes) has been full for {self.options.max_block_ms:g} ms"
            )
            raise BufferFull(text) from None
        finally:
            self._short_of_room -= 1
            self._accumulator.starving = self._short_of_room > 0

    def _starve(self) -> None:
        self._accumulator.starving = True
        self._wake.set()

    async def _drained(self) -> None:
        self._sender.flushing += 1
        try:
            while self._accumulator.incomplete and self._started:
                self._accumulator.close_open_batches()
                self._wake.set()
                self._room.clear()
                await self._room.wait()
        finally:
            self._sender.flushing -= 1

    # --- ends -----------------------------------------------------------------------------------------------------

    def _stopped(self, failure: BaseException) -> None:
        """Fail everything after one of our tasks died, rather than keep callers waiting."""
        self._sender.fatal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer has stopped: {failure!r}")
        self._accumulator.fail_all(self._sender.fatal)
        if self._transactions is not None:
            self._transactions.stopped(self._sender.fatal)
        self._room.set()

    def _report_unseen(self) -> None:
        unseen = self._accumulator.unseen
        if unseen:
            lost = sum(len(batch.records) for batch in unseen)
            logger.error("%s: %d record(s) were not delivered: %s", self.options.client_id, lost, unseen[0].error)
