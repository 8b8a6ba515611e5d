"""Reads fixed ranges of offsets as raw batches, for Spark's tasks and batch programs. Blocking, no event loop.

`RangeReader.read` asks for the next part of a range before it hands out the one just received, so the broker and the
kernel work while the caller decodes (client/ranges/columns.py decodes to positions without an object per record). After
a lost connection or a moved leader, it retries from the next offset; nothing is delivered twice and nothing left out.

A gap within a range (compaction, transaction markers, control batches) is no loss. An offset below the log's start is:
it raises `OffsetOutOfRange`, as does an end beyond what the log holds once `default_api_timeout_ms` have passed.

With a `client_rack`, ranges are read from the nearest replicas to which leaders point (KIP-392).

Left out: following a log as it grows (`wait_beyond` only tells that it has; use `Consumer`), fetch sessions (one
partition at a time has nothing to save).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kraftpy.client.connection import BrokerUnreachable, ResponseTooLarge
from kraftpy.client.model import IsolationLevel, OffsetSpec
from kraftpy.client.nearest import NearestReplicas
from kraftpy.client.offsets import Found, list_offsets_request, read_list_offsets
from kraftpy.client.options import one_of, whole
from kraftpy.client.ranges.cluster import BlockingCluster
from kraftpy.client.ranges.cluster import UnknownTopic as UnknownTopic
from kraftpy.client.ranges.connection import BlockingConnection, readable
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kraftpy.protocol.messages.list_offsets import ListOffsetsResponse
from kraftpy.protocol.record_batch import BatchHeader, split_batches
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.types import TopicPartition

_TOPIC_ID_VERSION = 13
_FETCH_BYTES = 8 << 20


class OffsetOutOfRange(KafkaError):
    """An offset that the log does not hold. `log_start_offset` and `log_end_offset` are -1 if unknown."""

    def __init__(self, partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} has no offset {offset}: its log holds {log_start_offset} to {log_end_offset}",
        )
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class _Pointed(Exception):
    """A leader has pointed to a replica that is nearer."""


class Chunk(NamedTuple):
    """Some whole batches of a range, as the broker sent them."""

    records: memoryview
    """Batches one after another; the last may be cut short, and the first and last may reach beyond the range."""
    start_offset: int
    """The first offset wanted of this chunk."""
    end_offset: int
    """One past the last offset wanted: the next chunk's start, or the range's end."""
    aborted: tuple[tuple[int, int], ...] | None
    """Under read_committed the aborted transactions as (producer id, first offset), for `columns.decode_columns`."""


class RangeReader(BlockingCluster):
    """Look up offsets and read ranges of records. A context manager; use it from one thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        isolation_level: str = "read_uncommitted",
        max_partition_fetch_bytes: int = _FETCH_BYTES,
        fetch_max_wait_ms: int = 500,
        client_rack: str = "",
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bootstrap_servers, runtime=runtime, **options)
        one_of("isolation_level", isolation_level, ("read_uncommitted", "read_committed"))
        whole("max_partition_fetch_bytes", max_partition_fetch_bytes, low=1)
        whole("fetch_max_wait_ms", fetch_max_wait_ms)
        self._isolation = IsolationLevel[isolation_level.upper()]
        self._fetch_bytes = max_partition_fetch_bytes
        self._wait_ms = fetch_max_wait_ms
        self._nearest = NearestReplicas(client_rack, self.options.metadata_max_age_ms)
        self._waiting: dict[int, BlockingConnection] = {}
        """By node, connections that owe `wait_beyond` an answer."""

    # --- offsets --------------------------------------------------------------------------------------------------

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Found:
        """Return each partition's offset for an `OffsetSpec`, or its first record at or after a time in ms.

        None if no record is that late. Under read_committed `LATEST` is the last stable offset.
        """
        found: Found = {}

        def attempt() -> None:
            missing = [partition for partition in sorted(wanted) if partition not in found]
            by_leader: dict[int, list[TopicPartition]] = {}
            for partition in missing:
                by_leader.setdefault(self._leader(partition), []).append(partition)
            for node_id, partitions in by_leader.items():
                found.update(self._ask_offsets(node_id, {partition: wanted[partition] for partition in partitions}))

        self._retry(attempt)
        return {partition: found[partition] for partition in wanted}

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._plain(partitions, OffsetSpec.EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return one past the last offset of each partition that a reader may see."""
        return self._plain(partitions, OffsetSpec.LATEST)

    def _plain(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        answers = self.offsets(dict.fromkeys(partitions, int(spec)))
        return {partition: answer.offset if answer is not None else 0 for partition, answer in answers.items()}

    def _ask_offsets(self, node_id: int, wanted: Mapping[TopicPartition, int]) -> Found:
        request, low = list_offsets_request(wanted, self._isolation, self._metadata, self.options.request_timeout_ms)
        with self._lent(self._to(node_id)) as connection:
            answer: ListOffsetsResponse = connection.request(ApiKey.LIST_OFFSETS, request, low=low)
        found: Found = {}
        for partition, result in read_list_offsets(answer):
            if isinstance(result, KafkaError):
                raise result
            found[partition] = result
        return found

    def wait_beyond(self, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> bool:
        """Wait until a partition has a record at or after its offset; return False if time is up, or sooner.

        Each leader has one Fetch, which it answers when there is a record. Requests that are still unanswered in the
        end stay for the next call. Raises `UnknownTopic`, `BrokerUnreachable`, another `KafkaError`.
        """
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in offsets.items():
            by_leader.setdefault(self._leader(partition), {})[partition] = offset
        for node_id in [each for each in self._waiting if each not in by_leader]:
            self._waiting.pop(node_id).close()
        try:
            for node_id, wanted in by_leader.items():
                if node_id not in self._waiting:
                    self._waiting[node_id] = connection = self._to(node_id)
                    request, high = self._request(wanted, timeout_ms, 1)
                    connection.send(ApiKey.FETCH, request, connection.version(ApiKey.FETCH, high=high))
            return self._take_answers(readable(self._waiting, timeout_ms / 1000))
        except BaseException:
            self._stop_waiting()
            raise

    def _take_answers(self, nodes: Iterable[int]) -> bool:
        """Return whether one of these nodes has sent records. Raises the errors they have sent."""
        found = False
        for node_id in nodes:
            with self._lent(self._waiting.pop(node_id)) as connection:
                answer: FetchResponse = connection.receive()
            parts = [data for topic in answer.responses for data in topic.partitions]
            for error in (answer.error_code, *(data.error_code for data in parts)):
                code = ErrorCode.of(error)
                if code is not ErrorCode.NONE:
                    self._metadata = replace(self._metadata, topics={})
                    raise KafkaError(code)
            found = found or any(data.records for data in parts)
        return found

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting.values():
            connection.close()

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._stop_waiting()
        super().close()

    # --- ranges ---------------------------------------------------------------------------------------------------

    def read(
        self,
        partition: TopicPartition,
        start_offset: int,
        end_offset: int,
        *,
        topic_id: bytes = ZERO_UUID,
        fetch_bytes: int | None = None,
    ) -> Iterator[Chunk]:
        """Yield the batches that hold `[start_offset, end_offset)`, in order.

        Each request asks for `fetch_bytes`, by default `max_partition_fetch_bytes`; a larger batch comes all the same.
        With a `topic_id`, reads only that topic: if it was deleted and created again, raises `UnknownTopic`, provided
        that the broker has topic ids. Raises `OffsetOutOfRange`, `UnknownTopic`, `BrokerUnreachable`, another
        `KafkaError`.
        """
        if not 0 <= start_offset <= end_offset:
            raise ValueError(f"not a range of offsets: {start_offset} to {end_offset}")
        return self._read(partition, start_offset, end_offset, topic_id, fetch_bytes or self._fetch_bytes)

    def _read(
        self, partition: TopicPartition, start_offset: int, end_offset: int, topic_id: bytes, fetch_bytes: int
    ) -> Iterator[Chunk]:
        """Read over one connection after another until the range is complete."""
        deadline, failures = self._deadline(), 0
        offset, source = start_offset, -1
        while offset < end_offset:
            try:
                leader = self._leader(partition)
                self._require_id(partition.topic, topic_id)
                source = self._nearest.source(partition, leader, self._metadata.nodes, self._runtime.monotonic_ms())
                with self._lent(self._to(source)) as connection:
                    for chunk in self._stream(connection, partition, offset, end_offset, fetch_bytes):
                        if chunk.end_offset > offset:
                            offset, failures, deadline = chunk.end_offset, 0, self._deadline()
                            yield chunk
                        elif self._runtime.monotonic_ms() >= deadline:
                            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            except (UnknownTopic, ResponseTooLarge):
                raise
            except _Pointed as pointed:
                if self._runtime.monotonic_ms() >= deadline:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{partition}: {pointed}") from None
            except KafkaError as failed:
                was_nearest = self._left_nearest(partition, source, failed)
                pause_ms = self._pause_ms(failures)
                failures += 1
                is_late = self._runtime.monotonic_ms() + pause_ms >= deadline
                if failed.code is ErrorCode.OFFSET_OUT_OF_RANGE and (is_late or not was_nearest):
                    raise self._out_of_range(partition, offset, end_offset) from failed
                if is_late or not (failed.code.retriable or was_nearest):
                    raise
                self._metadata = replace(self._metadata, topics={})
                self._runtime.pause(pause_ms / 1000)

    def _left_nearest(self, partition: TopicPartition, source: int, failed: KafkaError) -> bool:
        """Turn to the leader after a failure; return whether the failed read was from a nearer replica."""
        if isinstance(failed, BrokerUnreachable):
            return self._nearest.unreachable(source, self._runtime.monotonic_ms())
        return self._nearest.forget(partition)

    def _require_id(self, topic: str, topic_id: bytes) -> None:
        """Check the topic's id in the metadata. Errors about topic ids lead to new metadata, and so back to here."""
        info = self._metadata.topics.get(topic)
        if info is not None and any(topic_id) and any(info.topic_id) and info.topic_id != topic_id:
            self._metadata = replace(self._metadata, topics={})  # the broker that answered may lag: ask again next time
            raise UnknownTopic(f"topic {topic!r} was deleted and created again")

    def _out_of_range(self, partition: TopicPartition, offset: int, end_offset: int) -> OffsetOutOfRange:
        """Return the error for an offset that was refused, or did not appear in time, with the log's actual range."""
        start, end = self.earliest([partition])[partition], self.latest([partition])[partition]
        missing = offset if not start <= offset < end else end_offset - 1
        return OffsetOutOfRange(partition, missing, start, end)

    def _stream(
        self, connection: BlockingConnection, partition: TopicPartition, offset: int, end_offset: int, fetch_bytes: int
    ) -> Generator[Chunk, None, None]:
        """Yield one answer after another, sending the next request before handing out an answer.

        A chunk that ends where it starts brought nothing. Raises the broker's errors as `KafkaError`, and `_Pointed`.
        """
        self._ask(connection, partition, offset, fetch_bytes)
        while True:
            data = self._part(connection.receive(), partition)
            code = ErrorCode.of(data.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"{partition}: {code.meaning}")
            if data.preferred_read_replica >= 0:
                self._nearest.point(partition, data.preferred_read_replica, self._runtime.monotonic_ms())
                raise _Pointed(f"broker {data.preferred_read_replica} is said to be nearer")
            records = memoryview(data.records or b"").cast("B")
            batches = split_batches(records, allow_partial=True)
            self._count(partition.topic, batches, len(records))
            next_offset = max(batches[-1][0].next_offset, offset) if batches else offset
            if not batches and len(records):
                fetch_bytes = min(fetch_bytes * 2, 2**30)  # a broker before KIP-74 cut even the first batch short
            done = next_offset >= end_offset
            if not done:
                self._ask(connection, partition, next_offset, fetch_bytes)
            aborted = None
            if self._isolation:
                aborted = tuple((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
            yield Chunk(records, offset, min(next_offset, end_offset), aborted)
            if done:
                return
            offset = next_offset

    def _count(self, topic: str, batches: Sequence[tuple[BatchHeader, memoryview]], size: int) -> None:
        records = sum(header.records_count for header, _ in batches if not header.is_control)
        self._metrics.fetched(topic, records, size, self._runtime.monotonic_ms())

    def _ask(self, connection: BlockingConnection, partition: TopicPartition, offset: int, fetch_bytes: int) -> None:
        rack = self._nearest.rack(self._runtime.monotonic_ms())
        request, high = self._request({partition: offset}, self._wait_ms, fetch_bytes, rack)
        connection.send(ApiKey.FETCH, request, connection.version(ApiKey.FETCH, high=high))

    def _request(
        self, offsets: Mapping[TopicPartition, int], wait_ms: int, fetch_bytes: int, rack: str = ""
    ) -> tuple[FetchRequest, int]:
        """Return a request for these partitions, and the highest version that can name their topics."""
        topics: dict[str, FetchTopic] = {}
        for (name, index), offset in offsets.items():
            info = self._metadata.partition(TopicPartition(name, index))
            topic = self._metadata.topics.get(name)
            topic_id = topic.topic_id if topic is not None else ZERO_UUID
            wanted = topics.setdefault(name, FetchTopic(topic=name, topic_id=topic_id, partitions=[]))
            wanted.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=info.leader_epoch if info is not None else -1,
                    fetch_offset=offset,
                    partition_max_bytes=fetch_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=fetch_bytes,
            isolation_level=self._isolation,
            topics=list(topics.values()),
            rack_id=rack,
        )
        have_ids = all(any(topic.topic_id) for topic in topics.values())
        return request, 0x7FFF if have_ids else _TOPIC_ID_VERSION - 1

    def _part(self, answer: FetchResponse, partition: TopicPartition) -> PartitionData:
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"{partition}: {code.meaning}")
        for topic in answer.responses:
            for data in topic.partitions:
                return data
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the broker's answer lacks {partition}")
