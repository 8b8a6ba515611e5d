"""The producer's one task: takes batches from the accumulator, sends them to the leaders, and records the answers.

A batch is encoded here, when it is first sent. Answers are handled in the callbacks of their futures, so a request
costs no task. At most `max_in_flight_requests_per_connection` requests are open per broker.

Left out: KIP-951's leader in the answer; a refused batch triggers a metadata refresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from kraftpy.client.cluster import STALE_METADATA, Cluster
from kraftpy.client.connection import Connection
from kraftpy.client.options import ProducerOptions
from kraftpy.client.producer.accumulator import Accumulator, Batch, Failure, PartitionQueue
from kraftpy.client.producer.metrics import ProducerMetrics
from kraftpy.client.producer.transaction_manager import Transactions
from kraftpy.client.producer.transaction_state import CONCURRENT_BACKOFF_MS, EPOCH_BUMPS
from kraftpy.client.runtime import backoff_ms
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
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import ZERO_UUID

logger = logging.getLogger(__name__)

_FIRST_VERSION = 3  # the first version with batches of format 2
_ZSTD_VERSION = 7  # KIP-110
_ADDS_PARTITIONS_VERSION = 12  # KIP-890
_TOPIC_ID_VERSION = 13
_LOOK_AGAIN_MS = 1_000.0


class Sender:
    """Sends what the accumulator has ready. Set `wake` to make it look; it calls `on_completed` after deliveries."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        accumulator: Accumulator,
        on_completed: Callable[[], None],
        metrics: ProducerMetrics,
        transactions: Transactions | None = None,
    ) -> None:
        self.accumulator = accumulator
        self._metrics = metrics
        accumulator.on_given_up = lambda batch: metrics.given_up(batch, cluster.runtime.monotonic_ms())
        self.wake = asyncio.Event()
        self.flushing = 0  # the number of calls that wait for everything to be delivered
        self.fatal: KafkaError | None = None  # set once no more records can be sent
        self._cluster = cluster
        self._runtime = cluster.runtime
        self._options = options
        self._on_completed = on_completed
        self._transactions = transactions
        self._compression = Compression[options.compression_type.upper()]
        self._requests: dict[int, int] = {}  # Produce requests in flight, by broker
        self._connecting: set[int] = set()
        self._getting_id = False

    async def run(self) -> None:
        """Drain the accumulator whenever something may have become possible."""
        while True:
            self.wake.clear()
            next_ms = self._send_ready()
            if next_ms is None:
                await self.wake.wait()
            else:
                pause_ms = next_ms - self._runtime.monotonic_ms()
                try:
                    async with asyncio.timeout(max(pause_ms, 0) / 1000):
                        await self.wake.wait()
                except TimeoutError:
                    pass

    @property
    def in_flight(self) -> int:
        """The number of Produce requests that are not answered yet."""
        return sum(self._requests.values())

    def _send_ready(self) -> float | None:
        """Send all that can be sent. Returns when to look again, or None for not before an event."""
        now = self._runtime.monotonic_ms()
        accumulator = self.accumulator
        if accumulator.expire(now):
            self._completed_some()
        if self.flushing:
            accumulator.close_open_batches()
        queues, next_ms = accumulator.ready(now)
        if not queues:
            return self._with_expiry(next_ms)
        if self._options.idempotent and accumulator.producer_id < 0:
            self._get_producer_id()
            return self._with_expiry(next_ms)
        if self._transactions is not None:  # the others wait until they are part of the transaction
            queues = [queue for queue in queues if self._transactions.may_send(queue.partition)]
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
        if self._options.idempotent and accumulator.producer_id < 0:
            self._get_producer_id()  # the last epoch was used up
        return self._with_expiry(next_ms)

    def _with_expiry(self, next_ms: float | None) -> float | None:
        """Look at least once a second while anything is undelivered, so that expired batches are noticed."""
        if not self.accumulator.incomplete:
            return next_ms
        soon = self._runtime.monotonic_ms() + min(_LOOK_AGAIN_MS, self._options.delivery_timeout_ms)
        return soon if next_ms is None else min(next_ms, soon)

    def _send_to(self, node_id: int, ready: list[PartitionQueue], now: float) -> float | None:
        connection = self._cluster.connected(node_id)
        if connection is None:
            self._connect(node_id)
            return None
        if connection.throttled_until_ms > now:
            return connection.throttled_until_ms
        limit = self._options.max_in_flight_requests_per_connection
        while self._requests.get(node_id, 0) < limit:
            batches = self.accumulator.drain(ready, self._options.max_request_size, now)
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
            self.wake.set()

    def _backoff_ms(self, attempts: int) -> float:
        return backoff_ms(
            attempts,
            base_ms=self._options.retry_backoff_ms,
            max_ms=self._options.retry_backoff_max_ms,
            random=self._runtime.random,
        )

    def _produce(self, node_id: int, connection: Connection, batches: list[Batch]) -> None:
        """Encode and send one request; `_answered` gets its answer."""
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = batch.partition
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=self._encode(batch)))
        self._metrics.sending(batches, self._runtime.monotonic_ms())
        try:
            version = self._version(connection, topics)
            request = ProduceRequest(
                transactional_id=self._options.transactional_id,
                acks=self._options.acks_number,
                timeout_ms=int(self._options.request_timeout_ms),
                topic_data=[
                    TopicProduceData(name=name, topic_id=self._topic_id(name), partition_data=data)
                    for name, data in topics.items()
                ],
            )
            if self._options.acks_number == 0:
                connection.send_without_answer(ApiKey.PRODUCE, request, version)
                for batch in batches:
                    self.accumulator.succeeded(batch, -1)
                self._completed_some()
                return
            if self._transactions is not None:
                self._transactions.sent()
            future = connection.send(ApiKey.PRODUCE, request, version)
        except KafkaError as failed:
            self._failed(batches, failed)
            return
        self._requests[node_id] = self._requests.get(node_id, 0) + 1
        future.add_done_callback(partial(self._answered, node_id, batches))

    def _version(self, connection: Connection, topics: dict[str, list[PartitionProduceData]]) -> int:
        low = _ZSTD_VERSION if self._compression is Compression.ZSTD else _FIRST_VERSION
        high = 0x7FFF
        if self._transactions is not None:
            # The version tells the broker whether it has to add the partition to the transaction.
            if self._transactions.version >= EPOCH_BUMPS:
                low = _ADDS_PARTITIONS_VERSION
            else:
                high = _ADDS_PARTITIONS_VERSION - 1
        if not all(any(self._topic_id(name)) for name in topics):
            high = min(high, _TOPIC_ID_VERSION - 1)
        return connection.version(ApiKey.PRODUCE, low=low, high=high)

    def _encode(self, batch: Batch) -> bytes:
        if batch.encoded is None:
            batch.encoded = encode_batch(
                batch.records,
                compression=self._compression,
                level=self._options.compression_level,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                is_transactional=self._transactions is not None,
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
            stale = self._record_outcome(batch, answer) or stale
        if stale:
            self._cluster.request_refresh()
        self._completed_some()

    def _record_outcome(self, batch: Batch, answer: PartitionProduceResponse | None) -> bool:
        """Take one partition's answer. Returns whether metadata looks stale."""
        if answer is None:
            self._refused(batch, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no answer for {batch.partition}"))
            return True
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            self.accumulator.succeeded(batch, answer.base_offset, answer.log_append_time_ms)
        elif code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.accumulator.succeeded(batch, -1)  # an earlier attempt was written; the broker no longer knows where
        else:
            detail = answer.error_message or code.meaning
            self._refused(batch, KafkaError(code, f"{batch.partition}: {detail}"))
        return code in STALE_METADATA

    def _failed(self, batches: list[Batch], error: KafkaError) -> None:
        """Fail all batches of a request."""
        for batch in batches:
            self._refused(batch, error)
        if error.code in STALE_METADATA:
            self._cluster.request_refresh()
        self._completed_some()

    def _refused(self, batch: Batch, error: KafkaError) -> None:
        pause_ms = self._backoff_ms(batch.attempts - 1)
        if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            pause_ms = min(pause_ms, CONCURRENT_BACKOFF_MS)
        now = self._runtime.monotonic_ms()
        verdict = self.accumulator.failed(batch, error, now, pause_ms)
        if verdict is Failure.RETRY:
            self._metrics.retried(batch, now)
        elif verdict is Failure.SPLIT:
            self._metrics.split(now)
        logger.debug("batch for %s, attempt %d: %s: %s", batch.partition, batch.attempts, error, verdict.value)

    def _completed_some(self) -> None:
        if self._transactions is not None:
            self._transactions.look_for_failures()
        self.wake.set()
        self._on_completed()

    # --- the producer id ------------------------------------------------------------------------------------------

    def _get_producer_id(self) -> None:
        if not self._getting_id and self._transactions is None:  # with transactions, init_transactions gets it
            self._getting_id = True
            self._cluster.tasks.spawn(self._init_producer_id(), "producer id")

    async def _init_producer_id(self) -> None:
        try:
            answer = await self._cluster.retry(self._ask_producer_id, timeout_ms=self._options.delivery_timeout_ms)
        except KafkaError as failed:
            if not failed.code.retriable:
                self.fatal = failed
            self.accumulator.fail_all(failed)
            self._completed_some()
        else:
            self.accumulator.set_producer(answer.producer_id, answer.producer_epoch)
        finally:
            self._getting_id = False
            self.wake.set()

    async def _ask_producer_id(self) -> InitProducerIdResponse:
        connection = await self._cluster.any_connection()
        answer: InitProducerIdResponse = await connection.request(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)
        )
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"cannot get a producer id: {code.meaning}")
        return answer

    def _topic_id(self, name: str) -> bytes:
        info = self._cluster.metadata.topics.get(name)
        return ZERO_UUID if info is None else info.topic_id
