"""The producer: records in, deliveries out.

`await send(...)` only waits when there is no room (`buffer_memory`) or the topic is met for the first time, and gives
a `Delivery` to await later. No task is made per record or per request: one sender task drains the accumulator, and
answers are handled in the callbacks of their futures.

Ordering: within a partition records arrive in the order they were sent. With idempotence (the default) that holds
through retries, and nothing is written twice; without it only `max_in_flight_requests_per_connection=1` keeps the
order.

`flush` raises the first failure nobody was waiting for, so that a program that never looks at its deliveries still
learns of a loss.

Left out: transactions (KIP-98's transactional id), interceptors, serializers (keys and values are bytes). KIP-91
(delivery timeout), KIP-480 and KIP-794 (sticky partitioner), KIP-951 (the new leader in the answer is used as a hint
to look metadata up again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from kraftpy.client.accumulator import (
    SMALL_RECORD_BYTES,
    SMALL_RECORD_OVERHEAD,
    Accumulator,
    AccumulatorOptions,
    Batch,
    PartitionQueue,
)
from kraftpy.client.cluster import STALE_METADATA, Cluster
from kraftpy.client.connection import Connection
from kraftpy.client.delivery import Delivery
from kraftpy.client.model import RecordMetadata, TopicInfo
from kraftpy.client.options import ProducerOptions
from kraftpy.client.partitioner import Partitioner
from kraftpy.client.runtime import Runtime, backoff_ms
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kraftpy.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kraftpy.protocol.record_batch import encode_batch, record_size_bound

logger = logging.getLogger(__name__)

_FIRST_VERSION = 3  # the first to carry batches of format 2
_TOPIC_ID_VERSION = 13
_NO_HEADERS: tuple[tuple[str, bytes | None], ...] = ()


class BufferFull(KafkaError):
    """There is no room for a record: `buffer_memory` is used up."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, text)


class _Topic:
    """What sending to one topic needs at hand."""

    __slots__ = ("info", "partitioner", "queues")

    def __init__(self, info: TopicInfo, partitioner: Partitioner) -> None:
        self.info = info
        self.partitioner = partitioner
        self.queues: list[PartitionQueue] = []


class Producer:
    """Sends records. `async with Producer(bootstrap_servers=...) as producer:`; options as in `ProducerOptions`."""

    def __init__(self, *, runtime: Runtime | None = None, **options: Any) -> None:
        self.options = ProducerOptions(**options)
        self._cluster = Cluster(self.options, runtime)
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
            )
        )
        self._compression = Compression[self.options.compression_type.upper()]
        self._topics: dict[str, _Topic] = {}
        self._wake = asyncio.Event()
        self._wake_asked = False
        self._room = asyncio.Event()
        self._short_of_room = 0
        self._requests: dict[int, int] = {}  # Produce requests in flight, by broker
        self._connecting: set[int] = set()
        self._getting_id = False
        self._flushing = 0
        self._started = self._closing = False
        self._filled_batches_seen = 0
        self._fatal: KafkaError | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Begin. `async with` does it; a first `send` too."""
        if self._closing:
            raise RuntimeError("the producer is closed")
        if not self._started:
            self._started = True
            self._cluster.on_metadata.append(self._metadata_changed)
            self._cluster.on_failure.append(self._stopped)
            await self._cluster.start()
            self._cluster.tasks.spawn(self._run_sender(), "sender")
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Deliver what is under way (at most `timeout_ms`; default: as long as deliveries may take), then end.

        What is still undelivered fails. Does not raise for failed deliveries; `flush` before it does.
        """
        if self._closing:
            return
        self._closing = True
        wait_ms = (
            self.options.delivery_timeout_ms + self.options.request_timeout_ms if timeout_ms is None else timeout_ms
        )
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._drained()
        except TimeoutError:
            pass
        finally:
            self._accumulator.fail_all(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed first"))
            self._report_unseen()
            await self._cluster.close()

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
        """Hand over a record; the `Delivery` returned can be awaited for its `RecordMetadata`.

        Waits, at most `max_block_ms`, while the topic is unknown or the buffer is full; then raises `KafkaError` or
        `BufferFull`. A record above `max_request_size` raises `KafkaError` with MESSAGE_TOO_LARGE.
        """
        found = self._topics.get(topic)
        if found is None:
            found = await self._topic(topic)
        accumulator = self._accumulator
        if accumulator.batches_filled != self._filled_batches_seen:
            # A batch was filled: let the sender and the sockets have their turn before filling the next.
            self._filled_batches_seen = accumulator.batches_filled
            self._wake.set()
            await asyncio.sleep(0)
        if accumulator.free_bytes < self.options.max_request_size + SMALL_RECORD_OVERHEAD:
            size = self._size(key, value, headers)
            if accumulator.free_bytes < size:
                await self._wait_for_room(size)
        return self._append(found, value, key, partition, timestamp_ms, headers)

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
        """As `send`, without waiting: raises `BufferFull` for want of room, LookupError for a topic not met before."""
        found = self._topics.get(topic)
        if found is None:
            raise LookupError(f"topic {topic!r} is not known yet: use send, or await partitions_for({topic!r}) first")
        if self._accumulator.free_bytes < self._size(key, value, headers):
            self._starve()
            raise BufferFull(f"buffer_memory ({self.options.buffer_memory} bytes) is used up")
        return self._append(found, value, key, partition, timestamp_ms, headers)

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
        """Send everything now and wait for it. Raises the first `KafkaError` of a delivery nobody else looked at."""
        await self._drained()
        unseen = self._accumulator.unseen
        if unseen:
            lost = sum(len(batch.records) for batch in unseen)
            error = unseen[0].error
            assert error is not None, "only batches given up are listed"
            unseen.clear()
            raise KafkaError(error.code, f"{lost} record(s) were not delivered: {error.message}")

    async def partitions_for(self, topic: str) -> TopicInfo:
        """The topic's partitions. Raises `KafkaError` where it does not exist and is not created."""
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
        if self._closing or self._fatal is not None:
            raise self._fatal or RuntimeError("the producer is closed")
        size = self._size(key, value, headers)
        if size > self.options.max_request_size:
            text = f"a record of {size} bytes; max_request_size is {self.options.max_request_size}"
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
        accumulator = self._accumulator
        batch = accumulator.append(queue, timestamp_ms, key, value, headers, size, runtime.monotonic_ms)
        index = len(batch.records) - 1
        if not index:
            self._wake.set()  # a new batch: its linger time begins, and the one before it is ready
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
        """Take up a topic's partitions as metadata tells them."""
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
            text = f"a record of {size} bytes; buffer_memory is {self.options.buffer_memory}"
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
                f"buffer_memory ({self.options.buffer_memory} bytes) was used up for {self.options.max_block_ms:g} ms"
            )
            raise BufferFull(text) from None
        finally:
            self._short_of_room -= 1
            self._accumulator.starving = self._short_of_room > 0

    def _starve(self) -> None:
        self._accumulator.starving = True
        self._wake.set()

    async def _drained(self) -> None:
        self._flushing += 1
        try:
            while self._accumulator.incomplete and self._started:
                self._accumulator.close_open_batches()
                self._wake.set()
                self._room.clear()
                await self._room.wait()
        finally:
            self._flushing -= 1

    # --- the sender -----------------------------------------------------------------------------------------------

    async def _run_sender(self) -> None:
        """Drain the accumulator whenever something may have become possible."""
        while True:
            self._wake.clear()
            next_ms = self._send_ready()
            if next_ms is None:
                await self._wake.wait()
            else:
                pause_ms = next_ms - self._runtime.monotonic_ms()
                try:
                    async with asyncio.timeout(max(pause_ms, 0) / 1000):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _send_ready(self) -> float | None:
        """Send all that can be sent; when to look again, or None for not before an event."""
        now = self._runtime.monotonic_ms()
        accumulator = self._accumulator
        if accumulator.expire(now):
            self._completed_some()
        if self._flushing:
            accumulator.close_open_batches()
        queues, next_ms = accumulator.ready(now)
        if not queues:
            return self._with_expiry(next_ms)
        if self.options.idempotent and accumulator.producer_id < 0:
            self._get_producer_id()
            return self._with_expiry(next_ms)
        by_leader: dict[int, list[PartitionQueue]] = {}
        metadata = self._cluster.metadata
        for queue in queues:
            info = metadata.partition(queue.partition)
            if info is None or info.leader < 0:
                self._cluster.request_refresh()
                continue
            by_leader.setdefault(info.leader, []).append(queue)
        for node_id, ready in by_leader.items():
            again_ms = self._send_to(node_id, ready, now)
            if again_ms is not None:
                next_ms = again_ms if next_ms is None else min(next_ms, again_ms)
        if self.options.idempotent and accumulator.producer_id < 0:
            self._get_producer_id()  # the last epoch was used up
        return self._with_expiry(next_ms)

    def _with_expiry(self, next_ms: float | None) -> float | None:
        """Look at least once a second while anything is undelivered, so that what is late is noticed."""
        if not self._accumulator.incomplete:
            return next_ms
        soon = self._runtime.monotonic_ms() + min(1_000.0, self.options.delivery_timeout_ms)
        return soon if next_ms is None else min(next_ms, soon)

    def _send_to(self, node_id: int, ready: list[PartitionQueue], now: float) -> float | None:
        connection = self._cluster.connected(node_id)
        if connection is None:
            self._connect(node_id)
            return None
        if connection.throttled_until_ms > now:
            return connection.throttled_until_ms
        limit = self.options.max_in_flight_requests_per_connection
        while self._requests.get(node_id, 0) < limit:
            batches = self._accumulator.drain(ready, self.options.max_request_size, now)
            if not batches:
                return None
            self._produce(node_id, connection, batches)
        return None

    def _connect(self, node_id: int) -> None:
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._cluster.tasks.spawn(self._open(node_id), f"connect to broker {node_id}")

    async def _open(self, node_id: int) -> None:
        try:
            await self._cluster.connect(node_id)
        except KafkaError as failed:
            logger.debug("broker %d: %s", node_id, failed)
            self._cluster.request_refresh()
            await asyncio.sleep(self._backoff_ms(0) / 1000)
        finally:
            self._connecting.discard(node_id)
            self._wake.set()

    def _backoff_ms(self, attempts: int) -> float:
        return backoff_ms(
            attempts,
            base_ms=self.options.retry_backoff_ms,
            max_ms=self.options.retry_backoff_max_ms,
            random=self._runtime.random,
        )

    def _produce(self, node_id: int, connection: Connection, batches: list[Batch]) -> None:
        """Encode and send one request; its answer comes to `_answered`."""
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = batch.partition
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=self._encode(batch)))
        try:
            version = self._version(connection, topics)
            request = ProduceRequest(
                acks=self.options.acks_number,
                timeout_ms=int(self.options.request_timeout_ms),
                topic_data=[
                    TopicProduceData(name=name, topic_id=self._topics[name].info.topic_id, partition_data=data)
                    for name, data in topics.items()
                ],
            )
            if self.options.acks_number == 0:
                connection.send_without_answer(ApiKey.PRODUCE, request, version)
                for batch in batches:
                    self._accumulator.succeeded(batch, -1)
                self._completed_some()
                return
            future = connection.send(ApiKey.PRODUCE, request, version)
        except KafkaError as failed:
            self._failed(batches, failed)
            return
        self._requests[node_id] = self._requests.get(node_id, 0) + 1
        future.add_done_callback(partial(self._answered, node_id, batches))

    def _version(self, connection: Connection, topics: dict[str, list[PartitionProduceData]]) -> int:
        low = 7 if self._compression is Compression.ZSTD else _FIRST_VERSION  # KIP-110
        if all(any(self._topics[name].info.topic_id) for name in topics):
            return connection.version(ApiKey.PRODUCE, low=low)
        return connection.version(ApiKey.PRODUCE, low=low, high=_TOPIC_ID_VERSION - 1)

    def _encode(self, batch: Batch) -> bytes:
        if batch.encoded is None:
            batch.encoded = encode_batch(
                batch.records,
                compression=self._compression,
                level=self.options.compression_level,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
            )
        return batch.encoded

    # --- answers --------------------------------------------------------------------------------------------------

    def _answered(self, node_id: int, batches: list[Batch], future: asyncio.Future[ProduceResponse]) -> None:
        self._requests[node_id] -= 1
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if not isinstance(error, KafkaError):
                error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
            self._failed(batches, error)
            return
        names = self._cluster.metadata.names
        answers: dict[tuple[str, int], PartitionProduceResponse] = {}
        for topic in future.result().responses:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partition_responses:
                answers[(name, partition.index)] = partition
        stale = False
        for batch in batches:
            answer = answers.get(batch.partition)
            stale = self._settle(batch, answer) or stale
        if stale:
            self._cluster.request_refresh()
        self._completed_some()

    def _settle(self, batch: Batch, answer: PartitionProduceResponse | None) -> bool:
        """Take one partition's answer. Whether metadata looks old."""
        if answer is None:
            self._refused(batch, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no answer for {batch.partition}"))
            return True
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            self._accumulator.succeeded(batch, answer.base_offset, answer.log_append_time_ms)
        elif code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._accumulator.succeeded(batch, -1)  # an earlier attempt was written; where, the broker forgot
        else:
            detail = answer.error_message or code.meaning
            self._refused(batch, KafkaError(code, f"{batch.partition}: {detail}"))
        return code in STALE_METADATA

    def _failed(self, batches: list[Batch], error: KafkaError) -> None:
        """A whole request failed."""
        for batch in batches:
            self._refused(batch, error)
        if error.code in STALE_METADATA:
            self._cluster.request_refresh()
        self._completed_some()

    def _refused(self, batch: Batch, error: KafkaError) -> None:
        verdict = self._accumulator.failed(
            batch, error, self._runtime.monotonic_ms(), self._backoff_ms(batch.attempts - 1)
        )
        logger.debug("batch for %s, attempt %d: %s: %s", batch.partition, batch.attempts, error, verdict.value)

    def _completed_some(self) -> None:
        self._wake.set()
        self._room.set()

    # --- the producer id ------------------------------------------------------------------------------------------

    def _get_producer_id(self) -> None:
        if not self._getting_id:
            self._getting_id = True
            self._cluster.tasks.spawn(self._init_producer_id(), "producer id")

    async def _init_producer_id(self) -> None:
        try:
            answer = await self._cluster.retry(self._ask_producer_id, timeout_ms=self.options.delivery_timeout_ms)
        except KafkaError as failed:
            if not failed.code.retriable:
                self._fatal = failed
            self._accumulator.fail_all(failed)
            self._completed_some()
        else:
            self._accumulator.set_producer(answer.producer_id, answer.producer_epoch)
        finally:
            self._getting_id = False
            self._wake.set()

    async def _ask_producer_id(self) -> InitProducerIdResponse:
        connection = await self._cluster.any_connection()
        answer: InitProducerIdResponse = await connection.request(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)
        )
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"no producer id: {code.meaning}")
        return answer

    # --- ends -----------------------------------------------------------------------------------------------------

    def _stopped(self, failure: BaseException) -> None:
        """A task of ours died: fail everything rather than keep anybody waiting."""
        self._fatal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer has stopped: {failure!r}")
        self._accumulator.fail_all(self._fatal)
        self._room.set()

    def _report_unseen(self) -> None:
        unseen = self._accumulator.unseen
        if unseen:
            lost = sum(len(batch.records) for batch in unseen)
            logger.error("%s: %d record(s) were not delivered: %s", self.options.client_id, lost, unseen[0].error)
