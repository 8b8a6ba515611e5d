"""The client's view of the cluster, and its connections to it.

Metadata is one immutable snapshot, replaced as a whole. A partition's leader is believed only if its leader epoch is
not older than the one known for the same topic id (KIP-320), so a lagging broker cannot lead us back. Coordinators get
a connection of their own: a long poll for records must not hold up a heartbeat (brokers answer in order).

Retries: `retry` repeats what failed with a retriable code, with exponential backoff and jitter, until the time is up.
Metadata or a coordinator that may have caused the failure is looked up again first.

Left out: nearest-replica lookups (KIP-392), rebootstrapping when a broker demands it (KIP-1102); the bootstrap servers
are tried whenever no known broker can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from kraftpy.client.connection import BrokerUnreachable, Connection, ResponseLimit
from kraftpy.client.metrics import ClientMetrics, Metrics
from kraftpy.client.model import CoordinatorType, Node, PartitionInfo, TopicInfo
from kraftpy.client.options import ClientOptions
from kraftpy.client.runtime import RealRuntime, Runtime, backoff_ms
from kraftpy.client.tasks import ClientTasks
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.tracing import Tracing

T = TypeVar("T")
logger = logging.getLogger(__name__)

STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""Errors after which metadata is fetched again."""

COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors after which a coordinator is looked up again."""


class Purpose(Enum):
    """The use of a connection; a broker gets one connection for each."""

    DATA = "data"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """One snapshot of the cluster's metadata."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)
    """Topics that were asked for and cannot be described, with the reason."""
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic id to name."""

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        """Return the partition's metadata, or None if it is unknown."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]


def read_metadata(answer: MetadataResponse, known: ClusterMetadata) -> ClusterMetadata:
    """Turn the answer into a snapshot, keeping a partition of `known` if its leader epoch is newer."""
    topics: dict[str, TopicInfo] = {}
    errors: dict[str, ErrorCode] = {}
    for topic in answer.topics:
        name = topic.name
        if name is None:
            continue
        error = ErrorCode.of(topic.error_code)
        if error is not ErrorCode.NONE:
            errors[name] = error
            continue
        before = known.topics.get(name)
        if before is not None and before.topic_id != topic.topic_id:
            before = None
        partitions = []
        for index, partition in enumerate(sorted(topic.partitions, key=lambda item: item.partition_index)):
            info = PartitionInfo(
                topic=name,
                partition=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                in_sync_replicas=tuple(partition.isr_nodes),
                offline_replicas=tuple(partition.offline_replicas),
            )
            if before is not None and index < len(before.partitions):
                old = before.partitions[index]
                if info.leader_epoch >= 0 and old.leader_epoch > info.leader_epoch:
                    info = old
            partitions.append(info)
        topics[name] = TopicInfo(
            name=name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=tuple(partitions)
        )
    nodes = {
        broker.node_id: Node(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in answer.brokers
    }
    return ClusterMetadata(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        nodes=nodes,
        topics=topics,
        errors=errors,
        names={topic.topic_id: topic.name for topic in topics.values() if any(topic.topic_id)},
    )


def metadata_request(topics: Iterable[str] | None, *, create: bool) -> MetadataRequest:
    """Ask for `topics` by name, or for all of them (None)."""
    listed = None if topics is None else [MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    return MetadataRequest(topics=listed, allow_auto_topic_creation=create)


@dataclass(slots=True)
class _Endpoint:
    """The record of failed attempts to connect to one address."""

    failures: int = 0
    not_before_ms: float = 0.0


class Cluster:
    """The connections and metadata of one client. Call `start` inside its event loop, and `close` once."""

    def __init__(
        self, options: ClientOptions, runtime: Runtime | None = None, metrics: ClientMetrics | None = None
    ) -> None:
        self.options = options
        self.tracing: Tracing | None = None
        self.metrics = metrics or ClientMetrics("admin-client", options.client_id)
        self._security = options.security
        self.runtime: Runtime = runtime or RealRuntime()
        self.tasks = ClientTasks(options.client_id, on_failure=self._tasks_failed)
        self.metadata = ClusterMetadata()
        self.features: Mapping[str, int] = {}  # the cluster's, from the broker that knew most when it was connected to
        self._features_epoch = -1
        self.on_metadata: list[Callable[[], None]] = []
        self.on_failure: list[Callable[[BaseException], None]] = []
        self._wanted: set[str] = set()
        self._want_all = False
        self._connections: dict[tuple[str, int, Purpose], Connection] = {}
        self._opening: dict[tuple[str, int, Purpose], asyncio.Lock] = {}
        self._endpoints: dict[tuple[str, int], _Endpoint] = {}
        self._coordinator_nodes: dict[int, Node] = {}
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        self._refresh_needed = asyncio.Event()
        self._topics_added = asyncio.Event()
        """Set from the first time that a topic is wanted until the next round begins."""
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_ms = 0.0
        self._rounds_started = 0
        self._rounds_done = 0
        self._round_done = asyncio.Event()
        self._round_error: KafkaError | None = None
        self._closed = False

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start keeping metadata fresh. Sends nothing yet."""
        await self.tasks.start()
        if self._refreshing is None:
            self._refreshing = self.tasks.spawn(self._keep_fresh(), "metadata")

    async def close(self) -> None:
        """End all tasks and connections. A second call does nothing."""
        self._closed = True
        self.metrics.retire()
        await self.tasks.close()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    def _tasks_failed(self, failure: BaseException) -> None:
        logger.error("%s stopped: %r", self.options.client_id, failure)
        for listener in self.on_failure:
            listener(failure)

    # --- connections ----------------------------------------------------------------------------------------------

    async def connect(self, node_id: int, purpose: Purpose = Purpose.DATA) -> Connection:
        """Return the open connection to a broker, or open it.

        Raises `KafkaError` (`BrokerUnreachable` if it is unknown).
        """
        node = self._node(node_id)
        if node is None:
            raise BrokerUnreachable(f"broker {node_id} is unknown")
        return await self._connect_to(node.host, node.port, purpose)

    def connected(self, node_id: int, purpose: Purpose = Purpose.DATA) -> Connection | None:
        """Return the connection to a broker if it is open already."""
        node = self._node(node_id)
        if node is None:
            return None
        connection = self._connections.get((node.host, node.port, purpose))
        return connection if connection is not None and not connection.closed else None

    def _node(self, node_id: int) -> Node | None:
        return self.metadata.nodes.get(node_id) or self._coordinator_nodes.get(node_id)

    async def _connect_to(self, host: str, port: int, purpose: Purpose) -> Connection:
        place = (host, port, purpose)
        connection = self._connections.get(place)
        if connection is not None and not connection.closed:
            return connection
        async with self._opening.setdefault(place, asyncio.Lock()):
            connection = self._connections.get(place)
            if connection is not None and not connection.closed:
                return connection
            if self._closed:
                raise BrokerUnreachable("the client is closed")
            return await self._open(host, port, purpose)

    async def _open(self, host: str, port: int, purpose: Purpose) -> Connection:
        endpoint = self._endpoints.setdefault((host, port), _Endpoint())
        pause_ms = endpoint.not_before_ms - self.runtime.monotonic_ms()
        if pause_ms > 0:
            await asyncio.sleep(pause_ms / 1000)
        try:
            connection = await Connection.open(
                self.runtime,
                host,
                port,
                client_id=self.options.client_id,
                request_timeout_ms=self.options.request_timeout_ms,
                setup_timeout_ms=self.options.socket_connection_setup_timeout_ms,
                limit=ResponseLimit(self.options.receive_message_max_bytes),
                security=self._security,
                metrics=self.metrics,
            )
        except KafkaError:
            endpoint.not_before_ms = self.runtime.monotonic_ms() + backoff_ms(
                endpoint.failures,
                base_ms=self.options.reconnect_backoff_ms,
                max_ms=self.options.reconnect_backoff_max_ms,
                random=self.runtime.random,
            )
            endpoint.failures += 1
            raise
        endpoint.failures, endpoint.not_before_ms = 0, 0.0
        if connection.features_epoch >= self._features_epoch:
            self._features_epoch, self.features = connection.features_epoch, connection.features
        if self._closed:
            connection.close()
            raise BrokerUnreachable("the client is closed")
        self._connections[(host, port, purpose)] = connection
        return connection

    async def any_connection(self) -> Connection:
        """Return a connection to the first broker that accepts one. Raises the last `KafkaError`."""
        usable = [c for (_, _, purpose), c in self._connections.items() if purpose is Purpose.DATA and not c.closed]
        if usable:
            return min(usable, key=lambda connection: connection.in_flight)
        known = [(node.host, node.port) for node in self.metadata.nodes.values()]
        known.sort(key=lambda _: self.runtime.random())
        bootstrap = [address for address in self.options.addresses if address not in known]
        bootstrap.sort(key=lambda _: self.runtime.random())
        last: KafkaError = BrokerUnreachable("no broker is known")
        for host, port in known + bootstrap:
            try:
                return await self._connect_to(host, port, Purpose.DATA)
            except KafkaError as failed:
                last = failed
        raise last

    async def request(
        self,
        node_id: int,
        key: ApiKey,
        message: Any,
        *,
        high: int = 0x7FFF,
        purpose: Purpose = Purpose.DATA,
        timeout_ms: float | None = None,
    ) -> Any:
        """Ask one broker once."""
        connection = await self.connect(node_id, purpose)
        return await connection.request(key, message, high=high, timeout_ms=timeout_ms)

    # --- metadata -------------------------------------------------------------------------------------------------

    def want(self, topics: Collection[str]) -> None:
        """Add topics to the snapshot. If any of them is new, request a refresh, which does not wait for a pause."""
        if not self._wanted.issuperset(topics):
            self._wanted.update(topics)
            self._topics_added.set()
            self.request_refresh()

    def want_all(self, wanted: bool) -> None:
        """Set if the snapshot holds every topic, which subscriptions by pattern need."""
        if wanted and not self._want_all:
            self.request_refresh()
        self._want_all = wanted

    def learn_nodes(self, known: ClusterMetadata) -> None:
        """Take brokers and controller from metadata that was fetched elsewhere."""
        self.metadata = replace(
            self.metadata, cluster_id=known.cluster_id, controller_id=known.controller_id, nodes=known.nodes
        )
        self._name_nodes()

    def leader_of(self, partition: TopicPartition) -> Node | None:
        """Return the partition's leader by the current snapshot, if it is known."""
        info = self.metadata.partition(partition)
        return None if info is None else self.metadata.nodes.get(info.leader)

    def _name_nodes(self) -> None:
        self.metrics.node_ids = {f"{node.host}:{node.port}": node.node_id for node in self.metadata.nodes.values()}

    @property
    def metadata_age_ms(self) -> float:
        """How long ago metadata were last asked for."""
        return self.runtime.monotonic_ms() - self._refreshed_ms

    def request_refresh(self) -> None:
        """Request a metadata refresh soon, without waiting."""
        self._refresh_needed.set()

    async def refresh(self) -> ClusterMetadata:
        """Fetch metadata, wait for it, and return it. Raises the `KafkaError` of that round."""
        wanted = self._rounds_started + 1
        self.request_refresh()
        while self._rounds_done < wanted:
            self._check_running()
            await self._round_done.wait()
        if self._round_error is not None:
            raise self._round_error
        return self.metadata

    def _check_running(self) -> None:
        if self.tasks.failure is not None:
            raise RuntimeError(f"the client has stopped: {self.tasks.failure!r}") from self.tasks.failure
        if self._closed:
            raise RuntimeError("the client is closed")

    async def _keep_fresh(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(max(self.options.metadata_max_age_ms - self.metadata_age_ms, 1) / 1000):
                    await self._refresh_needed.wait()
            except TimeoutError:
                if not (self._wanted or self._want_all):
                    self._refreshed_ms = self.runtime.monotonic_ms()
                    continue
            self._refresh_needed.clear()
            self._topics_added.clear()
            self._rounds_started += 1
            error: KafkaError | None = None
            try:
                await self._fetch_metadata()
                failures = 0
            except KafkaError as failed:
                error = failed
                failures += 1
            self._refreshed_ms = self.runtime.monotonic_ms()
            self._round_error = error
            self._rounds_done = self._rounds_started
            done, self._round_done = self._round_done, asyncio.Event()
            done.set()
            if error is None:
                for listener in self.on_metadata:
                    listener()
            else:
                self._refresh_needed.set()
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        """Pause between two rounds. Topics that are wanted meanwhile end it, unless the last round failed."""
        seconds = self._backoff_ms(failures) / 1000
        if failures:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._topics_added.wait()

    async def _fetch_metadata(self) -> None:
        connection = await self.any_connection()
        topics = None if self._want_all else frozenset(self._wanted)
        version = connection.version(ApiKey.METADATA)
        if topics is not None and not topics and version == 0:
            topics = None  # version 0 cannot ask for no topics
        request = metadata_request(topics, create=self.options.allow_auto_create_topics and version >= 4)
        answer: MetadataResponse = await connection.send(ApiKey.METADATA, request, version)
        error = ErrorCode.of(answer.error_code)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        self.metadata = read_metadata(answer, self.metadata)
        self._name_nodes()

    def _backoff_ms(self, failures: int) -> float:
        return backoff_ms(
            failures,
            base_ms=self.options.retry_backoff_ms,
            max_ms=self.options.retry_backoff_max_ms,
            random=self.runtime.random,
        )

    async def leader(self, partition: TopicPartition) -> PartitionInfo:
        """Return the partition with its leader, from the snapshot or after one refresh. Raises `KafkaError`."""
        self.want((partition.topic,))
        info = self.metadata.partition(partition)
        if info is None or info.leader < 0:
            await self.refresh()
            info = self.metadata.partition(partition)
        if info is None:
            raise self.unknown(partition.topic, partition.partition)
        if info.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return info

    def unknown(self, topic: str, partition: int | None = None) -> KafkaError:
        """Return the error that says why a topic or partition is not in the snapshot."""
        error = self.metadata.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        what = (
            f"topic {topic!r}"
            if partition is None or topic not in self.metadata.topics
            else (f"partition {partition} of topic {topic!r}")
        )
        return KafkaError(error, f"{what}: {error.meaning}")

    # --- coordinators ---------------------------------------------------------------------------------------------

    async def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> int:
        """Return the broker that coordinates a group or transactional id. Raises `KafkaError`."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        connection = await self.any_connection()
        version = connection.version(ApiKey.FIND_COORDINATOR, low=1 if kind else 0)
        request = FindCoordinatorRequest(key_type=kind)
        request = (
            FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            if version >= 4
            else FindCoordinatorRequest(key_type=kind, key=key)
        )
        answer: FindCoordinatorResponse = await connection.send(ApiKey.FIND_COORDINATOR, request, version)
        found = answer.coordinators[0] if version >= 4 and answer.coordinators else answer
        error = ErrorCode.of(found.error_code)
        if error is not ErrorCode.NONE:
            raise KafkaError(error, found.error_message or f"no coordinator for {key!r}: {error.meaning}")
        self._coordinator_nodes[found.node_id] = Node(node_id=found.node_id, host=found.host, port=found.port)
        self._coordinators[(kind, key)] = found.node_id
        return found.node_id

    def forget_coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> None:
        """Look the coordinator up again next time."""
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self, group_id: str, key: ApiKey, message: Any, *, high: int = 0x7FFF, timeout_ms: float | None = None
    ) -> Any:
        """Ask a group's coordinator once, over its own connection. After a failure it is looked up again."""
        connection = await self.connect_coordinator(group_id)
        try:
            return await connection.request(key, message, high=high, timeout_ms=timeout_ms)
        except KafkaError as failed:
            if failed.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
                self.forget_coordinator(group_id)
            raise

    async def connect_coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> Connection:
        """Return the connection to the coordinator of a group or transactional id, looking it up if it is unknown."""
        node_id = await self.coordinator(key, kind)
        try:
            return await self.connect(node_id, Purpose.COORDINATOR)
        except KafkaError:
            self.forget_coordinator(key, kind)
            raise

    # --- retries --------------------------------------------------------------------------------------------------

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: float | None = None,
        group_id: str | None = None,
        final: frozenset[ErrorCode] = frozenset(),
    ) -> T:
        """Repeat `attempt` while it fails with a retriable code not in `final` and time is left; then raise that."""
        wait_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self.runtime.monotonic_ms() + wait_ms
        failures = 0
        while True:
            self._check_running()
            try:
                async with asyncio.timeout(max(deadline - self.runtime.monotonic_ms(), 1) / 1000):
                    return await attempt()
            except TimeoutError as late:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer within {wait_ms:g} ms") from late
            except KafkaError as failed:
                pause_ms = self._backoff_ms(failures)
                failures += 1
                passing = failed.code.retriable and failed.code not in final
                if not passing or self.runtime.monotonic_ms() + pause_ms >= deadline:
                    raise
                if failed.code in STALE_METADATA:
                    self.request_refresh()
                if group_id is not None and failed.code in COORDINATOR_MOVED:
                    self.forget_coordinator(group_id)
            await asyncio.sleep(pause_ms / 1000)


class Measured:
    """A client with a cluster, whose metrics can be read."""

    _cluster: Cluster

    def metrics(self) -> Metrics:
        """Return what the client has measured, under the names of Kafka's Java clients (`kraftpy.client.metrics`)."""
        return self._cluster.metrics.values(self._cluster.runtime.monotonic_ms())
