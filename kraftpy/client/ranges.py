"""Reading fixed ranges of offsets as raw batches: what Spark's tasks and batch programs need. Blocking, no event loop.

`RangeReader.read` asks for the next part of a range before it hands out the one just received, so the broker and the
kernel work while the caller decodes (client/columns.py decodes to positions without an object per record). A lost
connection or a moved leader is retried from the next offset; nothing is given twice and nothing left out.

A gap within a range (compaction, transaction markers, control batches) is no loss. An offset below the log's start
is: it raises `OffsetOutOfRange`, as does an end beyond what the log holds once `default_api_timeout_ms` have passed.

Left out: following a log as it grows (that is `Consumer`), nearest replicas (KIP-392), fetch sessions (one partition
at a time has nothing to save).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from kraftpy.client.blocking import BlockingConnection
from kraftpy.client.cluster import STALE_METADATA, ClusterMetadata, metadata_request, read_metadata
from kraftpy.client.connection import BrokerUnreachable
from kraftpy.client.model import IsolationLevel, OffsetSpec, TopicInfo
from kraftpy.client.offsets import Found, list_offsets_request, read_list_offsets
from kraftpy.client.options import ClientOptions, one_of, whole
from kraftpy.client.runtime import RealRuntime, Runtime, backoff_ms
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kraftpy.protocol.messages.list_offsets import ListOffsetsResponse
from kraftpy.protocol.record_batch import split_batches
from kraftpy.types import TopicPartition

T = TypeVar("T")

_TOPIC_ID_VERSION = 13
_FETCH_BYTES = 8 << 20


class UnknownTopic(KafkaError):
    """A topic or partition that does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


class OffsetOutOfRange(KafkaError):
    """An offset the log does not hold. `log_start_offset` and `log_end_offset` are -1 where not known."""

    def __init__(self, partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} has no offset {offset}: its log holds {log_start_offset} to {log_end_offset}",
        )
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


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


class RangeReader:
    """Offsets and ranges of records. A context manager; use it from one thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        isolation_level: str = "read_uncommitted",
        max_partition_fetch_bytes: int = _FETCH_BYTES,
        fetch_max_wait_ms: int = 500,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.options = ClientOptions(bootstrap_servers=bootstrap_servers, **options)
        one_of("isolation_level", isolation_level, ("read_uncommitted", "read_committed"))
        whole("max_partition_fetch_bytes", max_partition_fetch_bytes, low=1)
        whole("fetch_max_wait_ms", fetch_max_wait_ms)
        self._isolation = IsolationLevel[isolation_level.upper()]
        self._fetch_bytes = max_partition_fetch_bytes
        self._wait_ms = fetch_max_wait_ms
        self._runtime = runtime or RealRuntime()
        self._metadata = ClusterMetadata()
        self._idle: dict[tuple[str, int], list[BlockingConnection]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up everywhere. A second call does nothing."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    # --- metadata -------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """The topics of these names, or all. Raises `UnknownTopic`, `BrokerUnreachable`, another `KafkaError`."""
        wanted = None if names is None else sorted(set(names))
        metadata = self._retry(lambda: self._ask_metadata(wanted))
        for name in wanted or ():
            error = metadata.errors.get(name)
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (error is None and name not in metadata.topics):
                raise UnknownTopic(f"topic {name!r} does not exist")
            if error is not None:
                raise KafkaError(error, f"topic {name!r}: {error.meaning}")
        return dict(metadata.topics)

    def _ask_metadata(self, names: list[str] | None) -> ClusterMetadata:
        with self._lent(self._any()) as connection:
            version = connection.version(ApiKey.METADATA)
            answer = connection.request(ApiKey.METADATA, metadata_request(names, create=version < 4), high=version)
        metadata = read_metadata(answer, self._metadata)
        if names is not None:  # keep what is known of other topics
            metadata = replace(
                metadata,
                topics={**self._metadata.topics, **metadata.topics},
                names={**self._metadata.names, **metadata.names},
            )
        self._metadata = metadata
        transient = [error for error in metadata.errors.values() if error is ErrorCode.LEADER_NOT_AVAILABLE]
        if transient:
            raise KafkaError(transient[0])
        asked_for = {name: info for name, info in metadata.topics.items() if names is None or name in names}
        return replace(metadata, topics=asked_for)

    # --- offsets --------------------------------------------------------------------------------------------------

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Found:
        """The offset of each partition for an `OffsetSpec`, or for a time in ms: its first record at or after that.

        None where no record is that late. Under read_committed `LATEST` is the last stable offset.
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
        """The first offset of each partition."""
        return self._plain(partitions, OffsetSpec.EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last offset a reader may see of each partition."""
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

    # --- ranges ---------------------------------------------------------------------------------------------------

    def read(self, partition: TopicPartition, start_offset: int, end_offset: int) -> Iterator[Chunk]:
        """The batches that hold `[start_offset, end_offset)`, in order.

        Raises `OffsetOutOfRange`, `UnknownTopic`, `BrokerUnreachable`, another `KafkaError`.
        """
        if not 0 <= start_offset <= end_offset:
            raise ValueError(f"not a range of offsets: {start_offset} to {end_offset}")
        return self._read(partition, start_offset, end_offset)

    def _read(self, partition: TopicPartition, start_offset: int, end_offset: int) -> Iterator[Chunk]:
        """Read over one connection after another until the range is through."""
        deadline, failures = self._deadline(), 0
        offset = start_offset
        while offset < end_offset:
            try:
                with self._lent(self._to(self._leader(partition))) as connection:
                    for chunk in self._stream(connection, partition, offset, end_offset):
                        if chunk.end_offset > offset:
                            offset, failures, deadline = chunk.end_offset, 0, self._deadline()
                            yield chunk
                        elif self._runtime.monotonic_ms() >= deadline:
                            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            except UnknownTopic:
                raise
            except KafkaError as failed:
                if failed.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise self._out_of_range(partition, offset, end_offset) from failed
                pause_ms = self._pause_ms(failures)
                failures += 1
                if not failed.code.retriable or self._runtime.monotonic_ms() + pause_ms >= deadline:
                    raise
                self._metadata = replace(self._metadata, topics={})
                self._runtime.pause(pause_ms / 1000)

    def _out_of_range(self, partition: TopicPartition, offset: int, end_offset: int) -> OffsetOutOfRange:
        """The broker has refused `offset`, or held nothing from there on for too long: say what its log does hold."""
        start, end = self.earliest([partition])[partition], self.latest([partition])[partition]
        missing = offset if not start <= offset < end else end_offset - 1
        return OffsetOutOfRange(partition, missing, start, end)

    def _stream(
        self, connection: BlockingConnection, partition: TopicPartition, offset: int, end_offset: int
    ) -> Generator[Chunk, None, None]:
        """One answer after another, the next request sent before an answer is handed out.

        A chunk that ends where it starts brought nothing. Raises what the broker answers as `KafkaError`.
        """
        fetch_bytes = self._fetch_bytes
        self._ask(connection, partition, offset, fetch_bytes)
        while True:
            data = self._part(connection.receive(), partition)
            code = ErrorCode.of(data.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"{partition}: {code.meaning}")
            records = memoryview(data.records or b"").cast("B")
            batches = split_batches(records, allow_partial=True)
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

    def _ask(self, connection: BlockingConnection, partition: TopicPartition, offset: int, fetch_bytes: int) -> None:
        info = self._metadata.partition(partition)
        topic = self._metadata.topics.get(partition.topic)
        topic_id = topic.topic_id if topic is not None else bytes(16)
        high = 0x7FFF if any(topic_id) else _TOPIC_ID_VERSION - 1
        request = FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=fetch_bytes,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(
                    topic=partition.topic,
                    topic_id=topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition.partition,
                            current_leader_epoch=info.leader_epoch if info is not None else -1,
                            fetch_offset=offset,
                            partition_max_bytes=fetch_bytes,
                        )
                    ],
                )
            ],
        )
        connection.send(ApiKey.FETCH, request, connection.version(ApiKey.FETCH, high=high))

    def _part(self, answer: FetchResponse, partition: TopicPartition) -> PartitionData:
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"{partition}: {code.meaning}")
        for topic in answer.responses:
            for data in topic.partitions:
                return data
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the broker's answer left {partition} out")

    def _deadline(self) -> float:
        return self._runtime.monotonic_ms() + self.options.default_api_timeout_ms

    # --- connections ----------------------------------------------------------------------------------------------

    def _leader(self, partition: TopicPartition) -> int:
        info = self._metadata.partition(partition)
        if info is None or info.leader < 0:
            topics = self._ask_metadata([partition.topic])
            error = topics.errors.get(partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            info = self._metadata.partition(partition)
            if info is None and error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"{partition} does not exist")
            if info is None:
                raise KafkaError(error, f"{partition}: {error.meaning}")
            if info.leader < 0:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at present")
        return info.leader

    def _to(self, node_id: int) -> BlockingConnection:
        node = self._metadata.nodes.get(node_id)
        if node is None:
            raise BrokerUnreachable(f"broker {node_id} is not known")
        return self._take(node.host, node.port)

    def _any(self) -> BlockingConnection:
        known = [(node.host, node.port) for node in self._metadata.nodes.values()]
        failures = []
        for host, port in [*known, *(address for address in self.options.addresses if address not in known)]:
            try:
                return self._take(host, port)
            except KafkaError as failed:
                failures.append(failed.message)
        raise BrokerUnreachable("; ".join(failures))

    def _take(self, host: str, port: int) -> BlockingConnection:
        """A connection of the caller's own, to be used under `_lent`."""
        idle = self._idle.get((host, port), [])
        while idle:
            connection = idle.pop()
            if connection.idle:
                return connection
        return BlockingConnection(
            host,
            port,
            client_id=self.options.client_id,
            request_timeout_ms=self.options.request_timeout_ms,
            setup_timeout_ms=self.options.socket_connection_setup_timeout_ms,
        )

    @contextmanager
    def _lent(self, connection: BlockingConnection) -> Iterator[BlockingConnection]:
        """Keep the connection for the next caller where nothing is outstanding at the end, else hang up."""
        try:
            yield connection
        finally:
            if connection.idle:
                self._idle.setdefault(connection.address, []).append(connection)
            else:
                connection.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Repeat what fails for a passing reason until `default_api_timeout_ms` are over."""
        deadline = self._runtime.monotonic_ms() + self.options.default_api_timeout_ms
        failures = 0
        while True:
            try:
                return attempt()
            except UnknownTopic:
                raise
            except KafkaError as failed:
                pause_ms = self._pause_ms(failures)
                failures += 1
                if failed.code in STALE_METADATA:
                    self._metadata = replace(self._metadata, topics={})  # look leaders up before asking them again
                if not failed.code.retriable or self._runtime.monotonic_ms() + pause_ms >= deadline:
                    raise
            self._runtime.pause(pause_ms / 1000)

    def _pause_ms(self, failures: int) -> float:
        return backoff_ms(
            failures,
            base_ms=self.options.retry_backoff_ms,
            max_ms=self.options.retry_backoff_max_ms,
            random=self._runtime.random,
        )
