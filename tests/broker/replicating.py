"""Brokers' data paths in one process: real logs, sockets, fetchers and handlers around metadata that the test decides.

Each broker leaves out the quorum and the life cycle: `Cluster` is one image, changed by commands or by
hand, and every running node receives every record. `Node.stop(clean=False)` has the effect of a kill: nothing is
flushed or written down, connections break. A node may have a `MemoryDisk`, which `lose_power` takes its un-synced
writes from.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from kraftpy.broker import apis
from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.broker.connection import RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.encoded_answers import EncodedAnswers
from kraftpy.broker.groups.coordinators import Coordinators
from kraftpy.broker.peers import Outgoing
from kraftpy.broker.quotas.clients import ClientQuotaManager
from kraftpy.broker.replication.fetch_sessions import FetchSessions
from kraftpy.broker.replication.fetchers import Fetchers
from kraftpy.broker.replication.isr import IsrProposals
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.response_writer import Response
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.share.coordinator_client import ShareStates
from kraftpy.broker.share.coordinators import ShareCoordinators
from kraftpy.broker.share.state_changes import change_state
from kraftpy.broker.slicing import Slices
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.client.connection import Connection as ClientConnection
from kraftpy.client.runtime import RealRuntime
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.metadata.commands import ChangeBroker, Endpoint, FormatCluster, RegisterBroker, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import ConfigChanged, PartitionChanged, PartitionCreated, Record, TopicCreated
from kraftpy.metrics.registry import NodeMetrics
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import BrokerId, LeaderEpoch, TopicId

BOUND_SECONDS = 20.0
LISTENER = "PLAINTEXT"


async def until(condition: Callable[[], bool], seconds: float = BOUND_SECONDS) -> None:
    """Wait for something that will come about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)


class Cluster:
    """Metadata that all nodes share, and the nodes."""

    def __init__(
        self,
        directory: Path,
        tasks: asyncio.TaskGroup,
        disks: Mapping[int, MemoryDisk] | None = None,
        **settings: str,
    ) -> None:
        self.machine = MetadataStateMachine()
        self.disks = disks or {}
        self.nodes: dict[int, Node] = {}
        self.proofs: dict[int, BrokerProof] = {}
        """The proof of each node's latest life, also after it has ended."""
        self.refuse: Callable[[Any], Decision[Any] | None] = lambda command: None
        self._directory = directory
        self._tasks = tasks
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._applying = asyncio.Lock()
        self._index = 0

    @property
    def image(self) -> Image:
        return self.machine.image

    async def submit(self, command: Any) -> Decision[Any]:
        """Decide a command; every node has acted on it when this returns."""
        refused = self.refuse(command)
        if refused is not None:
            return refused
        async with self._applying:
            self._index += 1
            decision = self.machine.apply(self._index, 1, encode_command(command)).decision
            await self._tell(decision.records)
        return decision

    async def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Metadata are never behind here."""
        return condition()

    async def catch_up(self) -> None:
        """Every node has acted on what was decided when this returns."""
        async with self._applying:
            pass

    async def decide(self, *records: Record) -> None:
        """Apply these records directly, without any command that would decide them."""
        async with self._applying:
            self._index += 1
            for record in records:
                self.image.replay(record, self._index)
            await self._tell(records)

    async def _tell(self, records: Sequence[Record]) -> None:
        await asyncio.gather(*(node.changed(records) for node in list(self.nodes.values())))

    async def start(self, *numbers: int, **settings: str) -> None:
        """Start nodes; each is registered, and active."""
        await self.submit(FormatCluster(cluster_id="replicating", time_ms=0))  # type: ignore[arg-type]
        for number in numbers:
            own = {name.replace("_", "."): value for name, value in settings.items()}
            node = Node(self, number, self._directory / str(number), self._tasks, {**self._settings, **own})
            await node.start()

    async def stop(self, number: int, *, clean: bool = True) -> None:
        """Stop a node. The metadata says nothing of it: that is another decision."""
        await self.nodes.pop(number).stop(clean=clean)

    async def lose_power(self, *numbers: int, random: Random, loss: Loss = Loss.EVERYTHING) -> None:
        """Nodes lose their power at the same moment, and with it what they had not synced."""
        for number in numbers:
            self.disks[number].crash(random, loss)
        for number in numbers:
            await self.stop(number, clean=False)

    async def fence(self, number: int, *, fenced: bool = True) -> None:
        """The controller takes a broker for dead, or for well again."""
        broker = self.image.broker(BrokerId(number))
        assert broker is not None
        await self.submit(
            ChangeBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced, time_ms=0)  # type: ignore[arg-type]
        )

    async def create(self, name: str, *assignments: tuple[int, ...], **configs: str) -> TopicId:
        """A topic whose partitions have these replicas; the first of each leads."""
        topic_id = TopicId(name.encode().ljust(16, b"_")[:16])
        records: list[Record] = [TopicCreated(name=name, topic_id=topic_id, created_ms=0)]  # type: ignore[arg-type]
        records += [
            ConfigChanged(resource_type=2, resource_name=name, name=key.replace("_", "."), value=value)  # type: ignore[arg-type]
            for key, value in configs.items()
        ]
        for number, assigned in enumerate(assignments):
            replicas = tuple(BrokerId(each) for each in assigned)
            records.append(
                PartitionCreated(
                    topic=name,
                    topic_id=topic_id,
                    partition=number,
                    replicas=replicas,
                    isr=replicas,
                    leader=replicas[0],
                )
            )
        await self.decide(*records)
        return topic_id

    async def configure(self, topic: str, **configs: str) -> None:
        """Other settings for a topic."""
        await self.decide(
            *(
                ConfigChanged(resource_type=2, resource_name=topic, name=key.replace("_", "."), value=value)  # type: ignore[arg-type]
                for key, value in configs.items()
            )
        )

    async def change(self, topic: str, partition: int = 0, *, new_epoch: bool = True, **changes: Any) -> None:
        """Change the named fields of a partition: its leader, its ISR, its replicas."""
        found = self.image.topic(topic)
        assert found is not None
        before = found.partitions[partition]
        after = replace(
            before,
            leader_epoch=LeaderEpoch(before.leader_epoch + new_epoch),
            partition_epoch=before.partition_epoch + 1,
            **changes,
        )
        names = [name for name in PartitionChanged.__dataclass_fields__ if hasattr(after, name)]
        await self.decide(
            PartitionChanged(
                topic=topic,
                topic_id=found.topic_id,
                partition=partition,
                **{name: getattr(after, name) for name in names},
            )
        )

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The in-sync replicas according to the metadata."""
        found = self.image.partition(topic, partition)
        assert found is not None
        return found.isr

    def replica(self, number: int, topic: str, partition: int = 0) -> Replica:
        """A node's replica, leader or follower."""
        found = self.image.topic(topic)
        assert found is not None
        replica = self.nodes[number].replicas.held_by_id(found.topic_id, partition)
        assert replica is not None, f"node {number} holds no {topic}-{partition}"
        return replica

    async def caught_up(self, topic: str, partition: int = 0, *, nodes: Sequence[int] = ()) -> None:
        """Wait until every replica has all that the leader has, and knows it to be committed."""
        numbers = nodes or list(self.nodes)

        def is_so() -> bool:
            held = [self.replica(number, topic, partition) for number in numbers]
            end_offset = held[0].log.log_end_offset
            return all(each.log.log_end_offset == end_offset == each.high_watermark for each in held)

        await until(is_so)


class _Unlimited:
    """Lets every connection in (`connection_limits`)."""

    def must_prove(self, connection: Connection) -> bool:
        return False

    def proved(self, connection: Connection) -> None:
        pass


class Node:
    """The part of a broker that deals with partitions, under the names that handlers use on a `Broker`."""

    def __init__(
        self, cluster: Cluster, number: int, directory: Path, group: asyncio.TaskGroup, settings: dict[str, str]
    ) -> None:
        self.cluster = cluster
        self.metadata = cluster
        self.request_memory = RequestMemory()
        self.slices = Slices()
        self.metadata_answers = EncodedAnswers(1 << 20)
        self.node_id = BrokerId(number)
        self.clock = SystemClock()
        self.config = BrokerConfig.of({"node.id": str(number), "log.dirs": str(directory), **settings})
        self.directories = LogDirectories(self.config, self.clock)
        if number in cluster.disks:
            self.directories = _MemoryDirectories(self.config, cluster.disks[number])
        self.broker_epoch = -1
        self.authorizer = None
        self.metrics = NodeMetrics(are_counted=False)
        self.client_quotas = ClientQuotaManager(self.config, self.clock, lambda: cluster.image.quotas.limits)
        self.complaints = Complaints()
        self.incidents = incidents = Incidents(self.complaints)
        self.tasks = tasks = Tasks(group, incidents)
        self.proof = BrokerProof(
            number,
            image=lambda: cluster.image,
            broker_epoch=lambda: self.broker_epoch,
            incarnation_id=id(self).to_bytes(16, "big"),
            key=lambda: bytes(32),
        )
        proposals = IsrProposals(self.node_id, lambda: self.broker_epoch, cluster, self.clock, tasks)  # type: ignore[arg-type]
        self.proposals = proposals
        self.outgoing = Outgoing(self.config)
        self.fetchers = Fetchers(
            self.config,
            self.clock,
            tasks,
            image=lambda: cluster.image,
            broker_epoch=lambda: self.broker_epoch,
            checkpoint=lambda: self.replica_manager.checkpoints.write(),
            proof=self.proof,
            outgoing=self.outgoing,
        )
        self.replica_manager = ReplicaManager(
            self.config, self.clock, self.directories, proposals.propose, self.fetchers, cluster.catch_up, incidents
        )
        self.replicas = self.replica_manager.replicas
        share_coordinators = ShareCoordinators(self.config, self.clock, tasks, cluster, self.replicas, Slices())  # type: ignore[arg-type]
        share_states = ShareStates(
            self.config,
            self.clock,
            cluster,  # type: ignore[arg-type]
            share_coordinators,
            self.proof,
            self.outgoing,
        )
        self.coordinators = Coordinators(
            self.config,
            self.clock,
            tasks,
            cluster,  # type: ignore[arg-type]
            self.replicas,
            functools.partial(change_state, share_states),
            Slices(),
        )
        ids = iter(range(1, 1 << 30))
        self.connection_limits = _Unlimited()
        self.fetch_sessions = FetchSessions(1000, lambda: next(ids))
        self.port = 0
        self._receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def image(self) -> Image:
        return self.cluster.image

    def endpoints(self, listener: str) -> list[tuple[BrokerId, str, int, str | None]]:
        return [
            (broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in self.image.brokers()
            if (endpoint := broker.endpoint(listener)) is not None and not broker.fenced
        ]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        known = self.image.broker(self.node_id)
        port = known.endpoints[0].port if known is not None else 0
        self._server = await loop.create_server(self._connection, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.directories.open()
        await self.replica_manager.start(self.image)
        self.cluster.nodes[self.node_id] = self
        decision = await self.cluster.submit(
            RegisterBroker(
                broker_id=self.node_id,
                incarnation_id=id(self).to_bytes(16, "big"),
                endpoints=(Endpoint(listener=LISTENER, host="127.0.0.1", port=self.port),),
                time_ms=self.clock.now(),
                rack=self.config.broker_rack,
                fenced=False,
                previous_session_expired=True,
            )
        )
        assert decision.result is not None, decision
        self.broker_epoch = decision.result.broker_epoch
        self.cluster.proofs[self.node_id] = self.proof
        self.fetchers.start()
        self.coordinators.reconcile()

    async def stop(self, *, clean: bool) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        self.proposals.stop()
        self.coordinators.stop()
        await self.fetchers.stop()
        if clean:
            assert await self.replica_manager.stop()
            self.directories.close(self.broker_epoch, is_clean=True)
        else:
            for replica in self.replicas:
                await replica.release()
            self.directories.close(self.broker_epoch, is_clean=False)

    async def changed(self, records: Sequence[Record]) -> None:
        await self.replica_manager.apply(records, self.image)
        self.coordinators.apply(records)

    def _connection(self) -> Connection:
        return Connection(
            self._answer,
            tasks=self.tasks,
            memory=self.request_memory,
            complaints=self.complaints,
            incidents=self.incidents,
            max_frame_bytes=1 << 27,
            receive_buffer=self._receive_buffer,
            opened=self._opened,
            closed=self._connections.discard,
        )

    def _opened(self, connection: Connection) -> bool:
        self._connections.add(connection)
        return True

    async def _answer(self, frame: bytearray, connection: Connection) -> Response | None:
        return await apis.answer(self, frame, connection.client_host, LISTENER, connection)  # type: ignore[arg-type]

    async def ask(
        self, key: ApiKey, request: Any, *, high: int = 0x7FFF, software: tuple[str, str] | None = None
    ) -> Any:
        """The answer to a request, over the wire; of a broker, if `software` proves that."""
        connection = await ClientConnection.open(
            RealRuntime(),
            "127.0.0.1",
            self.port,
            client_id="test",
            request_timeout_ms=BOUND_SECONDS * 1000,
            setup_timeout_ms=BOUND_SECONDS * 1000,
            software=software,
        )
        try:
            return await connection.request(key, request, high=high)
        finally:
            connection.close()
            await connection.wait_closed()

    async def produce(
        self, topic: str, *values: bytes, partition: int = 0, acks: int = -1, timeout_ms: int = 10_000, **batch: Any
    ) -> Any:
        """Append records as one batch; the partition's answer."""
        records = encode_batch([(1_700_000_000_000, None, value, ()) for value in values], **batch)
        data = PartitionProduceData(index=partition, records=records)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        answered = await self.ask(ApiKey.PRODUCE, request, high=12)
        return answered.responses[0].partition_responses[0]

    def log_bytes(self, topic: str, partition: int = 0) -> bytes:
        """Every batch in the log of a partition."""
        replica = self.cluster.replica(self.node_id, topic, partition)
        found, offset = b"", replica.log.log_start_offset
        while offset < replica.log.log_end_offset:
            read = replica.log.read(offset, 1 << 24)
            found += bytes(read.records)
            offset = read.next_offset
        return found


class _MemoryDirectories(LogDirectories):
    """Two log directories on a disk in memory, without locks and identity; the node can do without either."""

    def __init__(self, config: BrokerConfig, disk: MemoryDisk) -> None:
        super().__init__(config, SystemClock())
        self._disk = disk
        self.paths = ["/log", "/other"]

    def is_needed(self, path: str) -> bool:
        return False

    def open(self) -> None:
        self.opened = [self._disk.root.child(path.strip("/")) for path in self.paths]  # type: ignore[misc]
        self._disk.root.sync()
        self.clean = [layout.take_clean_shutdown(directory) is not None for directory in self.opened]

    def close(self, broker_epoch: int, *, is_clean: bool) -> None:
        for directory in self.opened if is_clean else []:
            layout.mark_clean_shutdown(directory, broker_epoch)


class running:  # noqa: N801 - used as a function
    """`async with running(tmp_path, 1, 2, 3) as cluster`: nodes that are stopped at the end."""

    def __init__(
        self, directory: Path, *numbers: int, disks: Mapping[int, MemoryDisk] | None = None, **settings: str
    ) -> None:
        self._disks = disks
        self._directory = directory
        self._numbers = numbers
        self._settings = settings
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Cluster:
        await self._tasks.__aenter__()
        self._cluster = Cluster(self._directory, self._tasks, self._disks, **self._settings)
        await self._cluster.start(*self._numbers)
        return self._cluster

    async def __aexit__(self, *error: Any) -> None:
        for number in list(self._cluster.nodes):
            await self._cluster.stop(number, clean=False)
        await self._tasks.__aexit__(*error)
