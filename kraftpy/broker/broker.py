"""A node: its parts, and the order in which they start and stop.

Start: bind the listeners (so that a taken port is noticed before anything is touched), lock and open the log
directories, connect to the other nodes, replay the metadata, find the quorum's leader and the cluster's id, register,
open the partitions, load the coordinators, listen, and wait for the controller to unfence this broker. Stop hands over
the leaderships first, undoes the start in reverse order, and ends by writing the marker of a clean shutdown. A failure
in between leaves the same state as a crash, which the next start recovers.

A node with `process.roles=controller` has no client listeners and no partitions: it only keeps the metadata.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import socket
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from kraftpy.broker import apis
from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.broker.connection import RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.connection_limits import ConnectionLimits
from kraftpy.broker.containment import Complaints, DirectoryFailed, Incidents, Tasks
from kraftpy.broker.coordination import Coordination
from kraftpy.broker.descriptors import ACCEPTED_AT_ONCE, shares_of
from kraftpy.broker.dynamic_settings import DynamicSettings
from kraftpy.broker.encoded_answers import EncodedAnswers
from kraftpy.broker.groups.settings import GroupSettingsNow
from kraftpy.broker.handlers.own_requests import OwnRequests
from kraftpy.broker.handlers.table import CONTROLLER_APIS
from kraftpy.broker.health import health_of
from kraftpy.broker.metadata.config_changes import ConfigRoom
from kraftpy.broker.metadata.controller import Controller
from kraftpy.broker.metadata.lifecycle import Lifecycle, RegistrationError
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metrics.starting import open_monitoring
from kraftpy.broker.peers import Outgoing, Peers
from kraftpy.broker.quotas.clients import ClientQuotaManager
from kraftpy.broker.quotas.connections import ConnectionQuotas
from kraftpy.broker.replication.fetch_sessions import FetchSessions
from kraftpy.broker.replication.fetchers import Fetchers
from kraftpy.broker.replication.isr import IsrProposals
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.response_writer import Response
from kraftpy.broker.runtime import open_files_limit
from kraftpy.broker.share.sessions import ShareSessions
from kraftpy.broker.slicing import Slices
from kraftpy.broker.slow_requests import SlowRequests
from kraftpy.broker.startup import StartupError, check_descriptors, let_many_wait, opening, reason
from kraftpy.broker.storage.directories import DirectoryError, LogDirectories
from kraftpy.broker.telemetry import Telemetry
from kraftpy.broker.transactions.producer_ids import ProducerIds
from kraftpy.broker.upkeep.directory_reports import ReplicaReports
from kraftpy.broker.upkeep.log_moves import LogMoves
from kraftpy.broker.upkeep.maintenance import Maintenance
from kraftpy.config import BrokerConfig, Listener
from kraftpy.config.controller_address import controller_address
from kraftpy.log.layout import CorruptFile
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import AllocateProducerIds
from kraftpy.metadata.decision import ProducerIdBlock
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import JournalError
from kraftpy.metadata.records import Record
from kraftpy.metrics.registry import NodeMetrics
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import KafkaError, ProtocolError
from kraftpy.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.console import ConsoleProcess
    from kraftpy.broker.groups.coordinators import Coordinators
    from kraftpy.broker.metadata.auto_join import AutoJoin
    from kraftpy.broker.metadata.transport import Links
    from kraftpy.broker.security.authorizer import Authorizer
    from kraftpy.broker.security.listeners import SecureListeners
    from kraftpy.broker.share.coordinator_client import ShareStates
    from kraftpy.broker.share.coordinators import ShareCoordinators
    from kraftpy.broker.share.partitions import SharePartitions
    from kraftpy.broker.transactions.coordinators import TransactionCoordinators
    from kraftpy.broker.transactions.markers import MarkerWriter

logger = logging.getLogger(__name__)

NO_CONTROLLER = BrokerId(-1)
_API_VERSIONS = int(ApiKey.API_VERSIONS).to_bytes(2, "big")
_LOOK_AROUND_MS = 500
_MOVES = "moves between log directories"


class Broker:
    """One node: broker, controller, or both in one process.

    `group` owns every task. An unexpected error in one of them is an incident, which the node survives (`containment`).
    A failed disk, or node state that cannot be trusted, ends the node.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, group: asyncio.TaskGroup, directories: LogDirectories | None = None
    ) -> None:
        self.settings = DynamicSettings(config, lambda: self.image)
        self.clock = clock
        self.complaints = Complaints()
        self.incidents = Incidents(self.complaints)
        self.tasks = tasks = Tasks(group, self.incidents)
        self.slices = Slices()
        self.metadata_answers = EncodedAnswers(config.kraftpy_metadata_cache_max_bytes)
        self.request_memory = RequestMemory(config.queued_max_request_bytes, config.socket_request_max_bytes)
        self.node_id = BrokerId(config.node_id)
        self._descriptors = shares_of(config, open_files_limit())
        self.random = random.SystemRandom()
        self.directories = LogDirectories(config, clock) if directories is None else directories
        self.links: Links | None = None
        if not config.is_alone:
            from kraftpy.broker.metadata.configured_links import configured_links

            self.links = configured_links(config, tasks, self.complaints, self.incidents)
        self.metrics = NodeMetrics(are_counted=config.kraftpy_metrics_listener is not None)
        self.metadata = MetadataLog(config, clock, self._metadata_changed, tasks, self.links)
        self.controller: Controller | None = None
        if config.is_controller:
            self.controller = Controller(config, clock, self.metadata, self.directories, tasks, self.links)
        self.lifecycle = Lifecycle(config, clock, self.metadata, self.controller, self.links, tasks)
        traffic = self.metrics.traffic
        self.isr_proposals = IsrProposals(self.node_id, lambda: self.broker_epoch, self.metadata, clock, tasks, traffic)
        self.proof = _proof(self)
        self.authorizer: Authorizer | None = None
        if config.authorizer_class_name:
            from kraftpy.broker.security.authorizer import authorizer_of  # here: many brokers do not need it

            self.authorizer = authorizer_of(config, lambda: self.image.acls)
        self.outgoing = Outgoing(config)
        self.fetchers = Fetchers(
            config,
            clock,
            tasks,
            image=lambda: self.image,
            broker_epoch=lambda: self.broker_epoch,
            checkpoint=lambda: self.replica_manager.checkpoints.write(),
            proof=self.proof,
            outgoing=self.outgoing,
        )
        self.replica_manager = ReplicaManager(
            config,
            clock,
            self.directories,
            self.isr_proposals.propose,
            self.fetchers,
            self.metadata.catch_up,
            self.incidents,
            self._directory_failed,
            descriptors=self._descriptors,
            traffic=traffic,
        )
        self.replicas = self.replica_manager.replicas
        self.log_moves = LogMoves(config, clock, lambda: self.image, self.replica_manager, self.incidents)
        self.reports = ReplicaReports(
            self.node_id, lambda: self.broker_epoch, self.metadata, clock, self.directories, self.replica_manager
        )
        self.producer_ids = ProducerIds(self._allocate_producer_ids, tasks)
        self.peers = Peers(config, lambda: self.image, self.proof, self.outgoing)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: self.random.randrange(1, 2**31),
            config.kraftpy_fetch_session_partitions_max,
        )
        self.config_room = ConfigRoom(config.kraftpy_max_configs_bytes, lambda: self.image)
        self.group_settings = GroupSettingsNow(config, lambda: self.image, self.complaints)
        self.client_quotas = ClientQuotaManager(config, clock, lambda: self.metadata.image.quotas.limits)
        self.share_sessions = ShareSessions(
            config.group_share_max_share_sessions, config.kraftpy_fetch_session_partitions_max
        )
        self.slow_requests = SlowRequests(config.kraftpy_slow_request_ms, self.complaints)
        self.telemetry = Telemetry(config, clock, lambda: self.image, self.complaints)
        self.metrics.register(self.telemetry)
        self.own_requests = OwnRequests(self)
        self.coordination = Coordination(self)
        coordinate = self.coordination.follow_leadership
        self.maintenance = Maintenance(
            config, clock, self.replica_manager, coordinate, lambda: self.connections, self.incidents
        )
        self.advertised: list[Listener] = []
        self.controller_address: list[Listener] = []
        """The address at which the other nodes reach this one, if it is a controller."""
        self._may_change = asyncio.Event()
        """Set once the partitions are open: from then on, metadata changes are acted on."""
        self._servers: list[asyncio.Server] = []
        self.secured: SecureListeners | None = None
        """The listeners with TLS or SASL; None until they are bound, and if there are none."""
        self._connections: dict[Connection, None] = {}
        most_of = self.settings.connections_of
        self.connection_limits = ConnectionLimits(config, self._descriptors, self.complaints, most_of)
        self.connection_quotas = ConnectionQuotas(self.settings, clock, lambda: self.image, tasks, self.complaints)
        self.settings.then(self.replica_manager.configure, self.log_moves.configure, self.maintenance.configure)
        self.settings.then(self.group_settings.configure, self.fetchers.configure)
        self.settings.then(functools.partial(self.connection_limits.reconfigure, tasks), self.reports.configure)
        self._receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._background: list[asyncio.Task[None]] = []
        self.console: ConsoleProcess | None = None
        self.is_one_of_many = False
        """Other nodes write to the same log (`server`)."""
        self._is_stopping = False
        """No client is served any more; a connection that was accepted earlier but is only set up now is refused."""

    # --- what handlers ask of it -------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The settings now in force; they may change while the broker runs."""
        return self.settings.config

    @property
    def image(self) -> Image:
        """The cluster's metadata as of now. Look it up again after every await."""
        return self.metadata.image

    @property
    def controller_id(self) -> BrokerId:
        """The node to name to clients as controller: the quorum's leader, or any live broker, as each one forwards."""
        leader = self.metadata.leader_id
        if leader is not None and not self.image.is_fenced(BrokerId(leader)):
            return BrokerId(leader)
        return next((broker.broker_id for broker in self.image.brokers() if not broker.fenced), NO_CONTROLLER)

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before it has one."""
        return self.lifecycle.broker_epoch

    @property
    def connections(self) -> Sequence[Connection]:
        """Every open client connection."""
        return list(self._connections)

    @property
    def health(self) -> dict[str, Any]:
        """The errors this node has survived, and the work it cannot do (`broker.health`)."""
        return health_of(self)

    @property
    def coordinators(self) -> Coordinators:
        """The group coordinators on this node. These and the following are imported and made when first needed."""
        return self.coordination.coordinators

    @property
    def transactions(self) -> TransactionCoordinators:
        """The transaction coordinators on this node."""
        return self.coordination.transactions

    @property
    def marker_writer(self) -> MarkerWriter:
        """Appends the markers of transactions that end to partitions led here."""
        return self.coordination.marker_writer

    @property
    def share_coordinators(self) -> ShareCoordinators:
        """The share coordinators on this node."""
        return self.coordination.share_coordinators

    @property
    def share_states(self) -> ShareStates:
        """The share coordinators' client."""
        return self.coordination.share_states

    @property
    def share_partitions(self) -> SharePartitions:
        """The partitions led here that share groups read."""
        return self.coordination.share_partitions

    def endpoints(self, listener: str) -> list[tuple[BrokerId, str, int, str | None]]:
        """Return (id, host, port, rack) of every live broker that has this listener."""
        found = []
        for broker in self.image.brokers():
            endpoint = broker.endpoint(listener)
            if endpoint is not None and not broker.fenced:
                found.append((broker.broker_id, endpoint.host, endpoint.port, broker.rack))
        return found

    # --- start and stop ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start serving clients. Raises StartupError if anything prevents it."""
        check_descriptors(self._descriptors)
        try:
            await open_monitoring(self)
            await self._bind()
            if self.config.kraftpy_console_listener is not None:
                from kraftpy.broker.console import console_of  # here: most brokers do not need it

                self.console = console_of(
                    self.config, self.advertised, self.metrics.monitor, is_one_of_many=self.is_one_of_many
                )
        except StartupError:
            for bound in self._servers:
                bound.close()
            self.metrics.close()
            raise
        try:
            opened = asyncio.to_thread(self.directories.open)
            if self.links is None:
                await opened
            else:
                await asyncio.gather(opened, self.links.derive_key())
                self.links.cluster_id = self.directories.cluster_id
            self.metadata.quorum.own_directory_id = lambda: self.directories.metadata_directory_id
            await self.metadata.start(self.directories.metadata_directory)
            await self._link()
            if self.controller is not None:
                self.controller.start()
            if self.config.controller_quorum_auto_join_enable:
                self._background.append(self.tasks.keep_running(self._auto_join().run, name="joining the voters"))
            await self._join()
            if self.config.is_broker:
                await self._start_partitions()
            else:  # a controller acts only on settings and ACLs
                self.metadata.follow_changes()
                self.settings.follow()
                self._may_change.set()
        except DirectoryError as error:
            raise StartupError(str(error)) from error
        except RegistrationError as error:
            raise StartupError(str(error)) from error
        except (JournalError, CodecError, CorruptFile, OSError) as error:
            raise StartupError(f"log.dirs: {error}", is_damage=True) from error
        except KafkaError as error:
            raise StartupError(f"log.dirs: {error.message}", is_damage=True) from error
        for listener in self.config.controller_listeners:
            assert self.links is not None
            self.links.serve_clients(listener.name, functools.partial(self._connection, listener.name))
        if self.secured is not None:
            await self.secured.begin()
            self._background += [
                self.tasks.keep_running(make, name=each) for each, make in self.secured.loops().items()
            ]
        if not self.config.is_broker:
            self._background.append(self.tasks.keep_running(self.maintenance.idle_connections, name="idle connections"))
            self.metrics.started()
            return
        self.fetchers.start()
        self.coordination.start()
        self.log_moves.resume()
        loops = {**self.maintenance.loops(), "reports": self.reports.run, _MOVES: self.log_moves.run}
        loops["client metrics"] = self.telemetry.run
        self._background += [self.tasks.keep_running(make, name=name) for name, make in loops.items()]
        for server, listener in zip(self._servers, self.config.client_listeners, strict=True):
            with opening(listener):
                await server.start_serving()
                let_many_wait(server, self.config.socket_listen_backlog_size)
        await self.lifecycle.start()
        self.metrics.started()
        if self.console is not None:
            self._background.append(self.tasks.keep_running(self.console.run, name="console"))

    async def stop(self, *, is_ready: bool = True) -> bool:
        """Hand over, stop serving, make everything durable and mark a clean stop; return whether it was clean.

        `is_ready`: the start was completed. If it was not, this leaves the same state as a crash.
        """
        self.metrics.stopping()
        if is_ready:
            await self.lifecycle.shut_down()
        else:
            self.lifecycle.stop()  # it may have begun before this node was unfenced
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for connection in self.connections:
            connection.abort()
        for running in self._background:
            running.cancel()
        moves = [each for each in self._background if each.get_name() == _MOVES]
        await asyncio.gather(*moves, return_exceptions=True)  # a half-finished move must not meet a closed log
        self.coordination.stop()
        self.peers.close()
        self.own_requests.close()
        self.telemetry.stop()
        self.isr_proposals.stop()
        await self.fetchers.stop()
        is_clean = is_ready
        self._may_change.set()
        if self.controller is not None:
            self.controller.stop()  # the next controller fences brokers that leave with this node
        try:
            await self.metadata.stop()
        except OSError as error:
            logger.critical("the metadata journal cannot be closed cleanly: %s", error)
            is_clean = False
        if self.links is not None:
            await self.links.stop()
        is_clean = await self.replica_manager.stop() and is_clean
        has_failed = not is_ready or any(disk.failure for disk in self.replica_manager.disks)
        try:
            await asyncio.to_thread(self.directories.close, self.broker_epoch, is_clean=is_clean)
        except OSError as error:
            logger.critical("the marker of a clean shutdown cannot be written: %s", error)
            is_clean = False
        self.metrics.close()
        return is_clean and not has_failed

    async def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        client_listeners = self.config.client_listeners if self.config.is_broker else ()
        if self.config.secured:
            from kraftpy.broker.security.listeners import SecureListeners  # here: most brokers do not need it

            self.secured = SecureListeners(self)
        for listener, advertised in zip(client_listeners, self.config.advertised_listeners, strict=True):
            with opening(listener):
                server = await loop.create_server(
                    functools.partial(self._protocol, listener.name),
                    listener.host or None,
                    listener.port,
                    backlog=min(ACCEPTED_AT_ONCE, self.config.socket_listen_backlog_size),
                    start_serving=False,
                )
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
            host = advertised.host or socket.gethostname()
            self.advertised.append(Listener(advertised.name, host, advertised.port or port))
        try:
            await self.connection_limits.resolve()
        except OSError as error:
            raise StartupError(f"max.connections.per.ip.overrides: {reason(error)}") from error
        for listener in self.config.controller_listeners:
            assert self.links is not None
            port = await self.links.listen(listener)
            self.controller_address.append(Listener(listener.name, listener.host or socket.gethostname(), port))
        if self.links is not None and (problem := self.links.why_untrusted(self.config)) is not None:
            await self.links.stop()
            raise StartupError(problem)

    async def _link(self) -> None:
        if self.links is not None:
            from kraftpy.broker.metadata.configured_links import start_links

            await start_links(self.config, self.links, self.metadata)

    def _auto_join(self) -> AutoJoin:
        from kraftpy.broker.metadata.auto_join import AutoJoin  # here: most nodes do not need it

        own_port = self.controller_address[0].port
        return AutoJoin(self.config, self.metadata, controller_address(self.config, socket.gethostname(), own_port))

    async def _join(self) -> None:
        """Find the cluster's id in the metadata, and adopt it."""
        deadline = self.clock.monotonic_ms() + self.config.initial_broker_registration_timeout_ms
        while not await self.metadata.wait_for(lambda: self.image.cluster_id is not None, _LOOK_AROUND_MS):
            refused = self.links is not None and self.links.refused_cluster is not None and not self.links.peers
            if refused or self.clock.monotonic_ms() > deadline:
                from kraftpy.broker.metadata.configured_links import why_no_quorum

                raise StartupError(why_no_quorum(self.config, self.links, self.directories))
        cluster_id = self.image.cluster_id
        assert cluster_id is not None
        await asyncio.to_thread(self.directories.adopt, cluster_id)
        if self.links is not None:
            self.links.cluster_id = cluster_id

    async def _start_partitions(self) -> None:
        await self.lifecycle.register(self.advertised, self.directories)
        self.settings.follow()  # by now everything is applied that was committed before the registration
        await self.replica_manager.start(self.metadata.follow_changes())
        self._may_change.set()
        await self.reports.report()  # before the controller lets this broker lead anything

    def _directory_failed(self, path: str, reason: str, partitions: Sequence[TopicPartition]) -> None:
        if self.directories.is_needed(path):
            self.tasks.create_task(self._give_up(path, reason), name="a log directory failed")
            return
        logger.critical("log directory %s is offline: %s; so are its %d partitions", path, reason, len(partitions))
        for key in partitions:
            self.coordination.follow_leadership(key)
        self.reports.wake()

    async def _give_up(self, path: str, reason: str) -> None:
        """Stop this node: without the metadata or any directory for records, it can do nothing."""
        what = "it holds the metadata" if path == self.directories.paths[0] else "there is no other"
        raise DirectoryFailed(f"log directory {path} is offline: {reason}; {what}: this node stops")

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        command = AllocateProducerIds(broker_id=self.node_id, broker_epoch=self.broker_epoch, time_ms=self.clock.now())
        decision = await self.metadata.submit(command)
        if decision.result is None:
            raise KafkaError(decision.error, decision.message or "no producer ids")
        return decision.result

    async def _metadata_changed(self, records: Sequence[Record] | None) -> None:
        await self._may_change.wait()
        self.settings.follow(records)
        if self.authorizer is not None:
            self.authorizer.follow(records)
        self.metrics.follow(records)
        if not self.config.is_broker:
            return
        await self.telemetry.follow(records)
        if records is None:
            await self.replica_manager.reconcile(self.image)
        else:
            await self.replica_manager.apply(records, self.image)
        self.coordination.apply(records)

    # --- connections -------------------------------------------------------------------------

    def _protocol(self, listener: str) -> asyncio.BaseProtocol:
        """Return the protocol for a socket accepted on this listener."""
        connection = self._connection(listener)
        if self.secured is None:
            return connection
        return self.secured.protocol(listener, connection, functools.partial(self._answer, listener))

    def _connection(self, listener: str) -> Connection:
        is_for_controllers = listener in self.config.controller_listener_names
        return Connection(
            functools.partial(self._answer_administrator if is_for_controllers else self._answer, listener),
            tasks=self.tasks,
            memory=self.request_memory,
            complaints=self.complaints,
            incidents=self.incidents,
            max_frame_bytes=self.config.socket_request_max_bytes,
            receive_buffer=self._receive_buffer,
            opened=functools.partial(self._connection_opened, listener),
            closed=self._connection_closed,
            metrics=self.metrics,
        )

    def _answer(self, listener: str, frame: bytearray, connection: Connection) -> Awaitable[Response | None]:
        if self.connection_limits.must_prove(connection):
            return self._answer_to_prove(listener, frame, connection)
        work = apis.answer(self, frame, connection.client_host, listener, connection)
        return self.slow_requests.watched(work, frame, connection)

    async def _answer_to_prove(self, listener: str, frame: bytearray, connection: Connection) -> Response | None:
        if frame[:2] == _API_VERSIONS:
            response = await apis.answer(self, frame, connection.client_host, listener, connection)
            if not self.connection_limits.must_prove(connection):
                return response
        raise ProtocolError("max.connections is reached, and this connection has not proved to be a broker's")

    async def _answer_administrator(self, listener: str, frame: bytearray, connection: Connection) -> Response | None:
        """Answer a request that arrived on a controller listener, which serves fewer APIs."""
        if int.from_bytes(frame[:2], "big") not in CONTROLLER_APIS:
            raise ProtocolError(f"API {int.from_bytes(frame[:2], 'big')} is not served on {listener}")
        return await self._answer(listener, frame, connection)

    def _connection_opened(self, listener: str, connection: Connection) -> bool:
        if self._is_stopping:
            return False
        quotas, limits = self.connection_quotas, self.connection_limits
        if not (quotas.opened(listener, connection) and limits.opened(connection, listener)):
            return False
        connection.listener = listener
        self.metrics.accepted[listener] += 1
        self._connections[connection] = None
        return True

    def _connection_closed(self, connection: Connection) -> None:
        if connection not in self._connections:  # it was refused
            return
        del self._connections[connection]
        for session in self.share_sessions.of_connection(connection):
            self.share_sessions.close(session)
            self.share_partitions.release(session.group_id, session.member_id)
        self.connection_limits.closed(connection)
        self.telemetry.disconnected(connection)


def _proof(broker: Broker) -> BrokerProof:
    return BrokerProof(
        broker.node_id,
        image=lambda: broker.image,
        broker_epoch=lambda: broker.broker_epoch,
        incarnation_id=broker.lifecycle.incarnation_id,
        key=lambda: bytes(32) if broker.links is None else broker.links.key_for(b"connections of brokers"),
    )
