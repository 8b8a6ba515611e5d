"""The broker lifecycle: registration, catching up, unfencing, heartbeats and controlled shutdown.

    register -> heartbeats, fenced -> caught up: unfenced by the controller -> ... -> controlled shutdown

Every start is a new incarnation with its own epoch. A registration is refused while an earlier incarnation counts as
alive; it is retried until `initial.broker.registration.timeout.ms` have passed. If the controller no longer knows the
epoch, the broker registers again; it is then fenced, and must catch up like any other.

The first registration carries the epoch of the last clean stop, which proves that nothing was lost (KIP-966). After an
unclean stop, it carries the list of replicas that were synced (`LogDirectories.synced_replicas`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.controller import Controller
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.patience import patiently
from kraftpy.config import BrokerConfig, Listener
from kraftpy.metadata.commands import PARTITIONS_AT_ONCE, Endpoint, RegisterBroker, SyncedReplicas
from kraftpy.metadata.sessions import HeartbeatReply
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links
    from kraftpy.broker.storage.directories import LogDirectories

logger = logging.getLogger(__name__)

_WHILE_FENCED_MS = 50
"""The interval between heartbeats while this broker waits to be unfenced or to shut down."""
_RETRY_SECONDS = 0.1
_SHUTDOWN_MS = 6_000
"""The longest that a shutdown waits for its leaderships to move: containers are killed after 10 s."""
_UNHEARD_MS = 2_000
"""The longest that a shutdown waits for a controller: if the whole cluster stops, there may be none."""


class RegistrationError(Exception):
    """The cluster refused this broker's registration; the message says why."""


class Lifecycle:
    """One broker's registration and heartbeats."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: MetadataLog,
        controller: Controller | None,
        links: Links | None,
        tasks: Tasks,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._controller = controller
        self._links = links
        self._tasks = tasks
        self.incarnation_id = uuid.uuid4().bytes
        """This process's id; sent only to the cluster's nodes, as it authenticates this broker (`broker_proof`)."""
        self._endpoints: tuple[Endpoint, ...] = ()
        self._directories: LogDirectories | None = None
        self._synced_replicas: tuple[SyncedReplicas, ...] = ()
        self._running: asyncio.Task[None] | None = None
        self.broker_epoch = -1
        """The epoch of this broker's registration; -1 before the first."""

    @property
    def is_active(self) -> bool:
        """True if this broker is registered and unfenced, according to the local image."""
        broker = self._metadata.image.broker(BrokerId(self._config.node_id))
        return broker is not None and broker.broker_epoch == self.broker_epoch and not broker.fenced

    async def register(self, advertised: Sequence[Listener], directories: LogDirectories) -> None:
        """Register this broker, fenced at first. Raises RegistrationError."""
        self._endpoints = tuple(
            Endpoint(listener=listener.name, host=listener.host, port=listener.port) for listener in advertised
        )
        self._directories = directories
        reason = "the metadata quorum has no leader"
        try:
            async with asyncio.timeout(self._config.initial_broker_registration_timeout_ms / 1000):
                if self._links is not None:
                    await self._record_incarnation(directories)
                while (problem := await self._try_to_register()) is not None:
                    reason = problem
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise RegistrationError(f"node.id={self._config.node_id}: {reason}") from None

    async def _record_incarnation(self, directories: LogDirectories) -> None:
        """Read what the previous process left on disk, and record this one for the next.

        This waits for a quorum leader, so that a broker restarted many times without one leaves no records: only a
        limited number is kept.
        """
        while not await self._metadata.wait_for(lambda: self._metadata.leader_id is not None, 1000):
            pass
        complaints = self._tasks.incidents.complaints
        try:
            if directories.previous_broker_epoch < 0:
                self._synced_replicas = await patiently(
                    lambda: asyncio.to_thread(directories.synced_replicas),
                    "read which replicas were synced",
                    complaints,
                )
            begin = functools.partial(asyncio.to_thread, directories.begin, self.incarnation_id)
            await patiently(begin, "write the ids of the processes that ran with these disks", complaints, is_sync=True)
        except OSError as error:
            logger.warning("%s: after a crash, unsynced records will count as lost: %s", directories.paths[0], error)

    async def _try_to_register(self) -> str | None:
        """Try to register; return None on success, or the reason to try again. Raises RegistrationError."""
        before = self._directories
        command = RegisterBroker(
            broker_id=BrokerId(self._config.node_id),
            incarnation_id=self.incarnation_id,
            endpoints=self._endpoints,
            time_ms=self._clock.now(),
            rack=self._config.broker_rack,
            host=self._config.kraftpy_broker_host,
            previous_session_expired=self._links is None,  # a single node: it holds the lock on the directories
            previous_broker_epoch=-1 if before is None else before.previous_broker_epoch,
            previous_incarnation_ids=() if before is None else before.previous_incarnation_ids,
            synced_replicas=self._synced_replicas,
            max_partitions=PARTITIONS_AT_ONCE,
        )
        try:
            decision = await self._metadata.submit(command)
            while decision.result is not None and decision.result.is_partial:
                decision = await self._metadata.submit(command)
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            return error.message
        if decision.result is not None:
            self.broker_epoch = decision.result.broker_epoch
            self._directories, self._synced_replicas = None, ()  # reported once: it concerns the previous process
            return None
        if decision.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return decision.message or decision.error.name
        raise RegistrationError(f"node.id={self._config.node_id}: {decision.message}")

    # --- heartbeats --------------------------------------------------------------------------

    async def start(self) -> None:
        """Start sending heartbeats, and return once the controller has unfenced this broker."""
        self._running = self._tasks.keep_running(self._run, name="heartbeats")
        while not self.is_active:
            await self._metadata.wait_for(lambda: self.is_active, 1000)

    async def _run(self) -> None:
        while True:
            reply = await self._send_heartbeat(wants_shut_down=False)
            if reply.error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
                await self._register_again()
                continue
            is_well = reply.error == ErrorCode.NONE and not reply.is_fenced
            pause_ms = self._config.broker_heartbeat_interval_ms if is_well else _WHILE_FENCED_MS
            await self._metadata.wait_for(
                functools.partial(self._has_reason_since, self._heartbeat_reasons()),
                pause_ms,
            )

    def _has_reason_since(self, reasons: tuple[object, ...]) -> bool:
        """Return whether there is a reason for an immediate heartbeat, and a controller to send it to."""
        return self._can_reach_controller() and self._heartbeat_reasons() != reasons

    def _heartbeat_reasons(self) -> tuple[object, ...]:
        """Return a value whose change calls for an immediate heartbeat: a new controller, or another broker's shutdown
        that waits for this broker."""
        metadata = self._metadata
        stopping = max((broker.shutdown_index for broker in metadata.image.brokers()), default=0)
        return (metadata.leader_id, metadata.leader_epoch, stopping, metadata.acted_index >= stopping)

    def _can_reach_controller(self) -> bool:
        leader = self._metadata.leader_id
        if leader == self._config.node_id:
            return self._metadata.is_leader
        return leader is not None and self._links is not None and self._links.is_connected(leader)

    async def _register_again(self) -> None:
        logger.warning("the controller does not know epoch %d of this broker; registering again", self.broker_epoch)
        try:
            problem = await self._try_to_register()
        except (KafkaError, RegistrationError) as error:
            problem = str(error)
        if problem is not None:
            logger.warning("not registered: %s", problem)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _send_heartbeat(self, *, wants_shut_down: bool) -> HeartbeatReply:
        leader, applied = self._metadata.leader_id, self._metadata.acted_index
        if leader == self._config.node_id and self._controller is not None:
            return self._controller.heartbeat(
                BrokerId(self._config.node_id),
                self.broker_epoch,
                applied,
                wants_fence=False,
                wants_shut_down=wants_shut_down,
            )
        if leader is None or self._links is None:
            return HeartbeatReply(error=ErrorCode.NOT_CONTROLLER)
        from kraftpy.broker.metadata.link_messages import LinkError

        body = {
            "epoch": self.broker_epoch,
            "applied": applied,
            "wants_fence": False,
            "wants_shut_down": wants_shut_down,
        }
        try:
            answer = await self._links.request(leader, "heartbeat", body, self._config.broker_heartbeat_interval_ms)
        except LinkError as error:
            logger.debug("%s", error)
            return HeartbeatReply(error=ErrorCode.NOT_CONTROLLER)
        return HeartbeatReply(
            error=ErrorCode.of(answer["error"]),
            is_caught_up=answer["is_caught_up"],
            is_fenced=answer["is_fenced"],
            should_shut_down=answer["should_shut_down"],
        )

    # --- leaving -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the heartbeats without telling the controller."""
        if self._running is not None:
            self._running.cancel()

    async def shut_down(self) -> None:
        """Request a controlled shutdown, wait until this broker's leaderships have moved, and stop the heartbeats."""
        if self._running is None:
            return
        self.stop()
        own = BrokerId(self._config.node_id)
        others = [broker for broker in self._metadata.image.active_brokers() if broker.broker_id != own]
        if not self._config.controlled_shutdown_enable or not others or not self.is_active:
            return
        began_ms = heard_ms = self._clock.monotonic_ms()
        while True:
            reply = HeartbeatReply(error=ErrorCode.NOT_CONTROLLER)
            with self._tasks.incidents.contained("controlled shutdown"):
                reply = await self._send_heartbeat(wants_shut_down=True)
            now = self._clock.monotonic_ms()
            if reply.should_shut_down or reply.error in (
                ErrorCode.STALE_BROKER_EPOCH,
                ErrorCode.BROKER_ID_NOT_REGISTERED,
            ):
                return
            if reply.error == ErrorCode.NONE:
                heard_ms = now
            if now - heard_ms > _UNHEARD_MS or now - began_ms > _SHUTDOWN_MS:
                logger.warning("stopping before all leaderships of this broker have moved")
                return
            await self._metadata.wait_for(lambda: False, _WHILE_FENCED_MS)
