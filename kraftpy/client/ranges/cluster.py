"""Blocking access to a cluster: metadata, leaders and a pool of idle connections, for code without an event loop.

A connection belongs to the caller that took it until it is given back. If an answer is still outstanding then, the
connection is closed. Transient failures are retried until `default_api_timeout_ms` have passed.

Left out: use from two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from kraftpy.client.cluster import STALE_METADATA, ClusterMetadata, metadata_request, read_metadata
from kraftpy.client.connection import BrokerUnreachable, ResponseLimit, ResponseTooLarge
from kraftpy.client.metrics import Metrics
from kraftpy.client.model import TopicInfo
from kraftpy.client.options import ClientOptions
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.ranges.metrics import metrics_of
from kraftpy.client.runtime import RealRuntime, Runtime, backoff_ms
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

T = TypeVar("T")


class UnknownTopic(KafkaError):
    """A topic or partition that does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


class BlockingCluster:
    """Metadata and connections: a context manager, for one thread at a time. Options are those of `ClientOptions`."""

    def __init__(
        self, bootstrap_servers: str | Sequence[str], *, runtime: Runtime | None = None, **options: Any
    ) -> None:
        self.options = ClientOptions(bootstrap_servers=bootstrap_servers, **options)
        self._security = self.options.security
        self._runtime = runtime or RealRuntime()
        self._metadata = ClusterMetadata()
        self._metrics = metrics_of(self.options.client_id)
        self._idle: dict[tuple[str, int], list[BlockingConnection]] = {}
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; those in use, when they are given back. A second call does nothing."""
        self._is_closed = True
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def metrics(self) -> Metrics:
        """Return what all readers of this client id have measured in this process (`kraftpy.client.metrics`)."""
        return self._metrics.values(self._runtime.monotonic_ms())

    # --- metadata -------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None, *, create: bool = False) -> dict[str, TopicInfo]:
        """Return the topics of these names, or all; with `create` the broker may create missing ones.

        Raises `UnknownTopic`, `BrokerUnreachable`, another `KafkaError`.
        """
        wanted = None if names is None else sorted(set(names))
        metadata = self._retry(lambda: self._ask_metadata(wanted, create=create))
        for name in wanted or ():
            error = metadata.errors.get(name)
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (error is None and name not in metadata.topics):
                raise UnknownTopic(f"topic {name!r} does not exist")
            if error is not None:
                raise KafkaError(error, f"topic {name!r}: {error.meaning}")
        return dict(metadata.topics)

    def _ask_metadata(self, names: list[str] | None, *, create: bool = False) -> ClusterMetadata:
        with self._lent(self._any()) as connection:
            version = connection.version(ApiKey.METADATA)
            request = metadata_request(names, create=create or version < 4)
            answer = connection.request(ApiKey.METADATA, request, high=version)
        metadata = read_metadata(answer, self._metadata)
        if names is not None:  # keep the metadata of other topics
            metadata = replace(
                metadata,
                topics={**self._metadata.topics, **metadata.topics},
                names={**self._metadata.names, **metadata.names},
            )
        self._metadata = metadata
        self._metrics.node_ids = {f"{node.host}:{node.port}": node.node_id for node in metadata.nodes.values()}
        transient = [error for error in metadata.errors.values() if error is ErrorCode.LEADER_NOT_AVAILABLE]
        if transient:
            raise KafkaError(transient[0])
        asked_for = {name: info for name, info in metadata.topics.items() if names is None or name in names}
        return replace(metadata, topics=asked_for)

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
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return info.leader

    def _to(self, node_id: int) -> BlockingConnection:
        node = self._metadata.nodes.get(node_id)
        if node is None:
            raise BrokerUnreachable(f"broker {node_id} is unknown")
        try:
            return self._take(node.host, node.port)
        except BrokerUnreachable as failed:
            if (node.host, node.port) in self.options.addresses:
                raise
            raise BrokerUnreachable(f"{failed.message}; broker {node_id} advertises this address") from failed

    def _any(self) -> BlockingConnection:
        known = [(node.host, node.port) for node in self._metadata.nodes.values()]
        failures = []
        for host, port in [*known, *(address for address in self.options.addresses if address not in known)]:
            try:
                return self._take(host, port)
            except KafkaError as failed:
                if not failed.code.retriable:  # such as a wrong password, which no other broker would accept
                    raise
                failures.append(failed.message)
        raise BrokerUnreachable("; ".join(failures))

    def _take(self, host: str, port: int) -> BlockingConnection:
        """Take a connection for the caller alone, to be used under `_lent` or given back."""
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
            limit=ResponseLimit(self.options.receive_message_max_bytes),
            security=self._security,
            metrics=self._metrics,
        )

    @contextmanager
    def _lent(self, connection: BlockingConnection) -> Iterator[BlockingConnection]:
        """Keep the connection for the next caller if no answer is outstanding at the end, else close it."""
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: BlockingConnection) -> None:
        if connection.idle and not self._is_closed:
            self._idle.setdefault(connection.address, []).append(connection)
        else:
            connection.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Retry transient failures until `default_api_timeout_ms` have passed."""
        deadline = self._runtime.monotonic_ms() + self.options.default_api_timeout_ms
        failures = 0
        while True:
            try:
                return attempt()
            except (UnknownTopic, ResponseTooLarge):
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
