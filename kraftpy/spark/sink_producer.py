"""The producer of a sink's task: send rows of Arrow columns to their leaders, blocking, without an event loop.

Every partition has at most one batch in flight, so records stay in order, and a retry sends the same bytes with the
same sequence number, which a broker that already has them recognizes (KIP-98). A round sends to all partitions, one
request after another to each leader, and collects the answers when the next round is due: while the brokers write, the
task computes and encodes its next rows.

A batch that is too large for its topic is halved. Outside a transaction, a producer id that the broker no longer knows
is replaced by a new one, and unanswered batches are sent again: at least once. Inside a transaction that is a failure.

Left out: several batches of one partition in flight, lingering, a memory limit (a task passes on a few megabytes at a
time and waits).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kraftpy.client.cluster import STALE_METADATA
from kraftpy.client.ranges.cluster import BlockingCluster
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.runtime import Runtime
from kraftpy.ports import Buffer
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
from kraftpy.protocol.record_batch import encode_payload
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.spark.sink_options import ProducerSettings
from kraftpy.spark.sink_records import Int64s, Rows, encode_rows
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.spark.sink_rows import PartitionRows
    from kraftpy.spark.sink_transactions import Transaction

_FIRST_VERSION = 3  # the first to carry batches of format 2
_ZSTD_VERSION = 7  # KIP-110
_LAST_VERSION_BEFORE_TRANSACTIONS_V2 = 11  # from 12 on, brokers add partitions to transactions implicitly (KIP-890)
_TOPIC_ID_VERSION = 13
_SEQUENCE_MASK = 0x7FFFFFFF
_ANOTHER_PRODUCER_ID_HELPS = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """Rows that are sent together. `payload` is their records; `encoded` the batch as it was first sent."""

    partition: TopicPartition
    rows: Rows
    payload: Buffer
    timestamp_ms: int
    encoded: bytes | None = None
    sent_first_ms: float | None = None


@dataclass(slots=True, eq=False)
class _Asked:
    """The requests in flight on one connection, in order."""

    connection: BlockingConnection
    requests: deque[list[Batch]] = field(default_factory=deque)


def cut(part: PartitionRows, *, batch_size: int, max_bytes: int, timestamp_ms: int) -> list[Batch]:
    """Split rows into batches of about `batch_size` bytes, at least a row each. Raises KafkaError above `max_bytes`."""
    rows, partition = part.rows, part.partition
    sizes = rows.size_bounds()
    if int(sizes.max()) > max_bytes:
        text = f"{partition}: a record of about {int(sizes.max())} bytes exceeds kafka.max.request.size={max_bytes}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    ends = np.cumsum(sizes)
    starts = [0]
    while True:
        done = int(ends[starts[-1] - 1]) if starts[-1] else 0
        stop = max(int(np.searchsorted(ends, done + batch_size, side="right")), starts[-1] + 1)
        if stop >= len(rows):
            break
        starts.append(stop)
    return _batches(partition, rows, np.array(starts), timestamp_ms)


def _batches(partition: TopicPartition, rows: Rows, starts: Int64s, timestamp_ms: int) -> list[Batch]:
    stops = np.append(starts[1:], len(rows))
    deltas = np.arange(len(rows)) - np.repeat(starts, stops - starts)
    records, places = encode_rows(rows, deltas)
    return [
        Batch(
            partition=partition,
            rows=rows.slice(start, stop),
            payload=records[places[start] : places[stop]],
            timestamp_ms=timestamp_ms,
        )
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


class ColumnProducer(BlockingCluster):
    """Writes rows. The context manager does not flush; `rows_written` counts acknowledged rows."""

    def __init__(
        self, settings: ProducerSettings, *, transaction: Transaction | None = None, runtime: Runtime | None = None
    ) -> None:
        super().__init__(
            settings.bootstrap_servers,
            runtime=runtime,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            default_api_timeout_ms=settings.max_block_ms,
            **dict(settings.security),
        )
        self.rows_written = 0
        self.times: dict[tuple[str, int], int] = {}
        """Per topic, how many rows have each time in ms; there is one time per call of `write`, or per append."""
        self._settings = settings
        self._transaction = transaction
        self._producer_id = self._producer_epoch = -1
        self._partitions: dict[str, int] = {}
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._asked: list[_Asked] = []
        self._failures = 0

    def close(self) -> None:
        """Close all connections. Rows in flight may or may not be written."""
        for asked in self._asked:
            asked.connection.close()
        self._asked = []
        super().close()

    def partitions_of(self, topic: str) -> int:
        """Return a topic's number of partitions; asking may create it. Raises KafkaError after `max_block_ms`."""
        found = self._partitions.get(topic)
        if found is None:
            found = self._partitions[topic] = len(self._retry(lambda: self._described(topic)))
        return found

    def _described(self, topic: str) -> Sequence[object]:
        metadata = self._ask_metadata([topic], create=True)
        error = metadata.errors.get(topic)
        if error is not None:  # also while the topic is being created
            raise KafkaError(error, f"topic {topic!r}: {error.meaning}")
        return metadata.topics[topic].partitions

    # --- rows ---------------------------------------------------------------------------------------------------------

    def write(self, rows_by_partition: Iterable[PartitionRows]) -> None:
        """Send rows, and leave the last of them in flight. Raises KafkaError if some cannot be delivered."""
        now_ms = self._runtime.now_ms()
        for each in rows_by_partition:
            batches = cut(
                each,
                batch_size=self._settings.batch_size,
                max_bytes=self._settings.max_request_size,
                timestamp_ms=now_ms,
            )
            self._queues.setdefault(each.partition, deque()).extend(batches)
        while self._queues:
            self._collect()
            self._ask()
            if all(len(queue) == 1 for queue in self._queues.values()):
                return  # everything left is in flight; the caller can compute meanwhile

    def flush(self) -> None:
        """Wait until everything is delivered. Raises KafkaError if something cannot be."""
        while self._queues:
            self._collect()
            self._ask()
        self._collect()

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Send the first batch of every partition. Nothing may be in flight."""
        assert not self._asked, "the last round's answers must be collected first"
        if not self._queues:
            return
        try:
            self._identify()
            if self._transaction is not None:
                self._transaction.add(self._queues)
            by_leader: dict[int, list[Batch]] = {}
            for partition, queue in self._queues.items():
                by_leader.setdefault(self._leader(partition), []).append(queue[0])
        except KafkaError as failed:
            self._back_off([queue[0] for queue in self._queues.values()], failed)
            return
        now = self._runtime.monotonic_ms()
        for node_id, batches in by_leader.items():
            for batch in batches:
                if batch.sent_first_ms is None:
                    batch.sent_first_ms = now
            self._ask_leader(node_id, batches)

    def _ask_leader(self, node_id: int, batches: list[Batch]) -> None:
        try:
            asked = _Asked(self._to(node_id))
        except KafkaError as failed:
            self._back_off(batches, failed)
            return
        self._asked.append(asked)
        for together in self._requests(batches):
            asked.requests.append(together)
            try:
                self._send(asked.connection, together)
            except KafkaError:
                return  # the connection is closed: collecting reports the failure of all its batches

    def _requests(self, batches: list[Batch]) -> list[list[Batch]]:
        """Group batches of different partitions into requests of up to `max_request_size`, at least one batch each."""
        requests: list[list[Batch]] = []
        room = 0
        for batch in batches:
            size = len(self._encoded(batch))
            if not requests or size > room:
                requests.append([])
                room = self._settings.max_request_size
            requests[-1].append(batch)
            room -= size
        return requests

    def _send(self, connection: BlockingConnection, batches: list[Batch]) -> None:
        low = _ZSTD_VERSION if self._settings.compression is Compression.ZSTD else _FIRST_VERSION
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.partition.partition, records=self._encoded(batch))
            topics.setdefault(batch.partition.topic, []).append(data)
        high = 0x7FFF if all(any(self._topic_id(name)) for name in topics) else _TOPIC_ID_VERSION - 1
        if self._transaction is not None:
            high = _LAST_VERSION_BEFORE_TRANSACTIONS_V2
        request = ProduceRequest(
            transactional_id=None if self._transaction is None else self._transaction.transactional_id,
            acks=self._settings.acks,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=name, topic_id=self._topic_id(name), partition_data=data)
                for name, data in topics.items()
            ],
        )
        connection.send(ApiKey.PRODUCE, request, connection.version(ApiKey.PRODUCE, low=low, high=high))

    def _encoded(self, batch: Batch) -> bytes:
        if batch.encoded is None:
            idempotent = self._producer_id >= 0
            batch.encoded = encode_payload(
                batch.payload,
                records_count=len(batch.rows),
                base_timestamp=batch.timestamp_ms,
                max_timestamp=batch.timestamp_ms,
                compression=self._settings.compression,
                level=self._settings.compression_level,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._sequences.get(batch.partition, 0) if idempotent else -1,
                is_transactional=self._transaction is not None,
            )
        return batch.encoded

    def _topic_id(self, name: str) -> bytes:
        info = self._metadata.topics.get(name)
        return ZERO_UUID if info is None else info.topic_id

    # --- answers ------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Collect all answers of the round in flight. Raises KafkaError for rows that cannot be delivered."""
        asked, self._asked = self._asked, []
        refused: list[Batch] = []
        why: KafkaError | None = None
        try:
            while asked:
                each = asked[-1]
                failed = self._collect_from(each)
                asked.pop()
                self._give_back(each.connection)
                if failed is not None:
                    refused += failed[0]
                    why = failed[1]
        finally:
            for each in asked:
                each.connection.close()
        if why is not None:
            self._back_off(refused, why)

    def _collect_from(self, asked: _Asked) -> tuple[list[Batch], KafkaError] | None:
        """Return the batches of one connection that have to be sent again, and why."""
        refused: list[Batch] = []
        why: KafkaError | None = None
        while asked.requests:
            batches = asked.requests[0]
            try:
                if asked.connection.closed:
                    raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the connection to {asked.connection.name} broke")
                answers = self._answers(asked.connection.receive())
            except KafkaError as failed:
                if not failed.code.retriable:
                    raise
                refused += [batch for left in asked.requests for batch in left]
                return refused, failed
            asked.requests.popleft()
            for batch in batches:
                failure = self._handle_answer(batch, answers.get(batch.partition))
                if failure is not None:
                    refused.append(batch)
                    why = failure
        return None if why is None else (refused, why)

    def _answers(self, response: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
        names = self._metadata.names
        return {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }

    def _handle_answer(self, batch: Batch, answer: PartitionProduceResponse | None) -> KafkaError | None:
        """Apply a leader's answer. Return the error if the batch must be sent again; raise it if that is pointless."""
        if answer is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no answer for {batch.partition}")
        code = ErrorCode.of(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._delivered(batch, answer.log_append_time_ms)
            return None
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.rows) > 1:
            self._halve(batch)
            return None
        failure = KafkaError(code, f"{batch.partition}: {answer.error_message or code.meaning}")
        if code in _ANOTHER_PRODUCER_ID_HELPS and self._transaction is None and self._settings.idempotent:
            self._producer_id = -1
            return failure
        if not code.retriable:
            raise failure
        return failure

    def _delivered(self, batch: Batch, log_append_time_ms: int) -> None:
        partition, queue = batch.partition, self._queues[batch.partition]
        queue.popleft()
        if not queue:
            del self._queues[partition]
        self._sequences[partition] = (self._sequences.get(partition, 0) + len(batch.rows)) & _SEQUENCE_MASK
        self.rows_written += len(batch.rows)
        time_ms = log_append_time_ms if log_append_time_ms >= 0 else batch.timestamp_ms
        self.times[partition.topic, time_ms] = self.times.get((partition.topic, time_ms), 0) + len(batch.rows)
        self._failures = 0

    def _halve(self, batch: Batch) -> None:
        queue = self._queues[batch.partition]
        queue.popleft()
        starts = np.array([0, (len(batch.rows) + 1) // 2])
        queue.extendleft(reversed(_batches(batch.partition, batch.rows, starts, batch.timestamp_ms)))

    def _back_off(self, batches: list[Batch], why: KafkaError) -> None:
        """Wait a little before the next round. Raises `why` if it is permanent, or has lasted too long."""
        is_passing = why.code.retriable or (why.code in _ANOTHER_PRODUCER_ID_HELPS and self._transaction is None)
        if not is_passing:
            raise why
        now = self._runtime.monotonic_ms()
        for batch in batches:
            if batch.sent_first_ms is None:
                batch.sent_first_ms = now
            if now - batch.sent_first_ms >= self._settings.delivery_timeout_ms:
                text = (
                    f"{len(batch.rows)} record(s) for {batch.partition} were not delivered within "
                    f"{self._settings.delivery_timeout_ms} ms: {why.message}"
                )
                raise KafkaError(why.code, text)
        if why.code in STALE_METADATA:
            self._metadata = replace(self._metadata, topics={})
        self._runtime.pause(self._pause_ms(self._failures) / 1000)
        self._failures += 1

    # --- the producer id ----------------------------------------------------------------------------------------------

    def _identify(self) -> None:
        """Make sure there is a producer id, and that no batch carries an abandoned one."""
        if not self._settings.idempotent or self._producer_id >= 0:
            return
        if self._transaction is not None:
            self._producer_id, self._producer_epoch = self._transaction.producer_id, self._transaction.producer_epoch
        else:
            answer = self._retry(self._ask_producer_id)
            self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        for queue in self._queues.values():
            queue[0].encoded = None

    def _ask_producer_id(self) -> InitProducerIdResponse:
        with self._lent(self._any()) as connection:
            answer: InitProducerIdResponse = connection.request(
                ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)
            )
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"cannot get a producer id: {code.meaning}")
        return answer
