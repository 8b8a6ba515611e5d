"""A broker: what it is made of, in which order it starts, in which order it stops.

Start: bind the listeners (a taken port is known before anything is touched), lock and open the log directories, replay
the metadata, open the partitions, register, load the coordinators, listen. Stop is the reverse, and ends with the
marker of a clean shutdown. Whatever fails in between leaves what a crash would leave, which the next start recovers.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import random
import socket
import uuid
from collections import Counter
from collections.abc import Sequence

from kraftpy.broker import apis
from kraftpy.broker.connection import RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.coordinators import Coordinators
from kraftpy.broker.directories import DirectoryError, LogDirectories
from kraftpy.broker.fetch_sessions import FetchSessions
from kraftpy.broker.maintenance import Maintenance
from kraftpy.broker.metadata import MetadataLog
from kraftpy.broker.producer_ids import ProducerIds
from kraftpy.broker.replicas import Replicas
from kraftpy.config import BrokerConfig, Listener
from kraftpy.log.layout import CorruptFile
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import (
    AllocateProducerIds,
    Endpoint,
    FormatCluster,
    RegisterBroker,
)
from kraftpy.metadata.decision import ProducerIdBlock
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import JournalError
from kraftpy.metadata.records import Record
from kraftpy.ports import Clock
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import BrokerId

logger = logging.getLogger(__name__)


class StartupError(Exception):
    """Why the broker cannot start; the message is one line.

    `is_damage`: what is on the disk is not what was written, or cannot be read, rather than a setting to be changed.
    """

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


class Broker:
    """One node: broker and controller in one process.

    `tasks` owns every task; when one of them fails, the broker goes down with it, loudly.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.config = config
        self.clock = clock
        self.tasks = tasks
        self.node_id = BrokerId(config.node_id)
        self.random = random.SystemRandom()
        self.directories = LogDirectories(config, clock)
        self.metadata = MetadataLog(self._metadata_changed, tasks)
        self.replicas = Replicas(config, clock, self.directories)
        self.coordinators = Coordinators(config, clock, tasks, self.metadata, self.replicas)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, lambda: self.random.randrange(1, 2**31)
        )
        self.maintenance = Maintenance(config, clock, self.replicas, self.coordinators, lambda: self.connections)
        self.advertised: list[Listener] = []
        self._broker_epoch = -1
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._connections_by_host: Counter[str] = Counter()
        self._receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._background: list[asyncio.Task[None]] = []

    # --- what handlers ask of it -------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The cluster's metadata as of now. Look it up again after every await."""
        return self.metadata.image

    @property
    def controller_id(self) -> BrokerId:
        """Who decides on the metadata: this node, as long as there is one."""
        return self.node_id

    @property
    def connections(self) -> Sequence[Connection]:
        """Every open client connection."""
        return list(self._connections)

    def endpoints(self, listener: str) -> list[tuple[BrokerId, str, int, str | None]]:
        """(id, host, port, rack) of every live broker that has this listener."""
        found = []
        for broker in self.image.brokers():
            endpoint = broker.endpoint(listener)
            if endpoint is not None and not broker.fenced:
                found.append((broker.broker_id, endpoint.host, endpoint.port, broker.rack))
        return found

    # --- start and stop ----------------------------------------------------------------------

    async def start(self) -> None:
        """Serve clients. Raises StartupError for whatever stands in the way."""
        await self._bind()
        try:
            await asyncio.to_thread(self.directories.open)
            await self.metadata.start(self.directories.metadata_directory)
            await self._format()
            await self.replicas.start(self.image)
            await self._register()
        except DirectoryError as error:
            raise StartupError(str(error)) from error
        except (JournalError, CodecError, CorruptFile, OSError) as error:
            raise StartupError(f"log.dirs: {error}", is_damage=True) from error
        except KafkaError as error:
            raise StartupError(f"log.dirs: {error.message}", is_damage=True) from error
        self.coordinators.start()
        for task in self.maintenance.tasks():
            self._background.append(self.tasks.create_task(task, name="maintenance"))
        for server in self._servers:
            await server.start_serving()

    async def stop(self) -> bool:
        """Stop serving, make everything durable, and say that it was a clean stop; whether it was one."""
        for server in self._servers:
            server.close()
        for connection in self.connections:
            connection.abort()
        for task in self._background:
            task.cancel()
        self.coordinators.stop()
        is_clean = True
        try:
            await self.metadata.stop()
        except OSError as error:
            logger.critical("the metadata journal cannot be closed cleanly: %s", error)
            is_clean = False
        is_clean = await self.replicas.stop() and is_clean
        await asyncio.to_thread(self.directories.close, self._broker_epoch, is_clean=is_clean)
        return is_clean

    async def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        for listener, advertised in zip(self.config.client_listeners, self.config.advertised_listeners, strict=True):
            try:
                server = await loop.create_server(
                    functools.partial(self._connection, listener.name),
                    listener.host or None,
                    listener.port,
                    backlog=self.config.socket_listen_backlog_size,
                    start_serving=False,
                )
            except OSError as error:
                for bound in self._servers:
                    bound.close()
                raise StartupError(f"listeners: cannot listen on {listener}: {_reason(error)}") from error
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
            host = advertised.host or socket.gethostname()
            self.advertised.append(Listener(advertised.name, host, advertised.port or port))

    async def _format(self) -> None:
        cluster_id = self.directories.cluster_id
        if self.image.cluster_id is None:
            await self.metadata.submit(FormatCluster(cluster_id=cluster_id, time_ms=self.clock.now()))
        elif self.image.cluster_id != cluster_id:
            raise StartupError(
                f"log.dirs: {self.directories.paths[0]} belongs to cluster {cluster_id}, "
                f"its metadata to cluster {self.image.cluster_id}"
            )

    async def _register(self) -> None:
        decision = await self.metadata.submit(
            RegisterBroker(
                broker_id=self.node_id,
                incarnation_id=uuid.uuid4().bytes,
                endpoints=tuple(
                    Endpoint(listener=listener.name, host=listener.host, port=listener.port)
                    for listener in self.advertised
                ),
                time_ms=self.clock.now(),
                rack=self.config.broker_rack,
                fenced=False,  # it is its own quorum: there is nothing to catch up with
                previous_session_expired=True,  # the lock on the directories says that no other is alive
            )
        )
        if decision.result is None:
            raise StartupError(f"node.id={self.node_id}: {decision.message}")
        self._broker_epoch = decision.result.broker_epoch

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        command = AllocateProducerIds(broker_id=self.node_id, broker_epoch=self._broker_epoch, time_ms=self.clock.now())
        decision = await self.metadata.submit(command)
        if decision.result is None:
            raise KafkaError(decision.error, decision.message or "no producer ids")
        return decision.result

    async def _metadata_changed(self, records: Sequence[Record]) -> None:
        await self.replicas.apply(records, self.image)
        self.coordinators.apply(records)

    # --- connections -------------------------------------------------------------------------

    def _connection(self, listener: str) -> Connection:
        return Connection(
            functools.partial(self._answer, listener),
            tasks=self.tasks,
            max_frame_bytes=self.config.socket_request_max_bytes,
            receive_buffer=self._receive_buffer,
            opened=self._connection_opened,
            closed=self._connection_closed,
        )

    async def _answer(self, listener: str, frame: bytearray, connection: Connection) -> bytes | None:
        return await apis.answer(self, frame, connection.client_host, listener)

    def _connection_opened(self, connection: Connection) -> bool:
        host = connection.client_host
        if len(self._connections) >= self.config.max_connections:
            logger.warning("connection %s refused: max.connections=%d", host, self.config.max_connections)
            return False
        if self._connections_by_host[host] >= self.config.max_connections_per_ip:
            logger.warning("connection %s refused: max.connections.per.ip=%d", host, self.config.max_connections_per_ip)
            return False
        self._connections.add(connection)
        self._connections_by_host[host] += 1
        return True

    def _connection_closed(self, connection: Connection) -> None:
        if connection not in self._connections:  # it was refused
            return
        self._connections.discard(connection)
        self._connections_by_host[connection.client_host] -= 1
        if not self._connections_by_host[connection.client_host]:
            del self._connections_by_host[connection.client_host]


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is taken"
    return error.strerror or str(error)
