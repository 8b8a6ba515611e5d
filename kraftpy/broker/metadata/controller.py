"""The active controller: the tasks that the leader of the metadata quorum performs without being asked.

While this node leads, it tracks the brokers' sessions (`metadata.sessions`), proposes the resulting commands (fencing,
unfencing, controlled shutdown, preferred leaders) and gives a new cluster its id. First of all, it puts its own static
settings for elections into the metadata. Every such command carries the controller's term, and is refused in any other.

Heartbeats arrive over links, and from this node's own broker through a call. A broker whose link breaks has the
disconnect grace, not the session timeout, to return: kill -9 closes a connection, a pause does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metadata.token_expiry import remove_expired_tokens
from kraftpy.broker.storage.directories import LogDirectories, random_id
from kraftpy.config import BROKER_SETTINGS, BrokerConfig
from kraftpy.config.settings import render
from kraftpy.metadata.commands import ChangeBroker, Command, ConfigValue, FormatCluster, SetControllerDefaults
from kraftpy.metadata.credentials import SetScramCredentials
from kraftpy.metadata.features import LATEST
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION
from kraftpy.metadata.sessions import HeartbeatReply, Sessions
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import BrokerId, Millis

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Controller:
    """This node's controller; it works only while this node leads the quorum."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: MetadataLog,
        directories: LogDirectories,
        tasks: Tasks,
        links: Links | None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._directories = directories
        self._tasks = tasks
        self._links = links
        interval_ms = config.leader_imbalance_check_interval_seconds * 1000
        self._sessions = Sessions(
            session_timeout_ms=config.broker_session_timeout_ms,
            disconnect_grace_ms=config.kraftpy_broker_disconnect_grace_ms,
            balance_interval_ms=interval_ms if config.auto_leader_rebalance_enable else None,
        )
        self._defaults = {
            name: text
            for name in (MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION)
            if (text := render(getattr(config, BROKER_SETTINGS[name].attribute))) != BROKER_SETTINGS[name].default
            and text is not None
        }
        self._term = -1
        self._defaults_refused_in = -1
        """The term in which this node's settings for elections were refused."""
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._submitting: set[asyncio.Task[None]] = set()
        self._started_ms = clock.now() - clock.monotonic_ms()
        self._sessions.connected(BrokerId(config.node_id), self._now())
        metadata.on_leadership(self._leadership_changed)
        if links is not None:
            links.on_connection(self._connection)
            links.serve("heartbeat", self._answer)

    def start(self) -> None:
        """Start the controller task, which works whenever this node leads."""
        self._running = self._tasks.keep_running(self._run, name="controller")
        remove = functools.partial(remove_expired_tokens, self._config, self._clock, self._metadata)
        self._expiring = self._tasks.keep_running(remove, name="expired delegation tokens")

    def stop(self) -> None:
        """Stop proposing commands."""
        self._sessions.deactivate()
        for task in [self._running, self._expiring, *self._submitting]:
            if task is not None:
                task.cancel()

    def heartbeat(
        self, broker_id: BrokerId, broker_epoch: int, applied_index: int, *, wants_fence: bool, wants_shut_down: bool
    ) -> HeartbeatReply:
        """Process a broker's heartbeat; `applied_index` is the newest entry it has acted on."""
        reply = self._sessions.heartbeat(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            applied_index=applied_index,
            wants_fence=wants_fence,
            wants_shutdown=wants_shut_down,
            image=self._metadata.image,
            now=self._now(),
        )
        self._wake.set()
        return reply

    async def _answer(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.heartbeat(
            BrokerId(peer),
            body["epoch"],
            body["applied"],
            wants_fence=body["wants_fence"],
            wants_shut_down=body["wants_shut_down"],
        )
        return {
            "error": int(reply.error),
            "is_caught_up": reply.is_caught_up,
            "is_fenced": reply.is_fenced,
            "should_shut_down": reply.should_shut_down,
        }

    def _now(self) -> Millis:
        """Return wall-clock time that never goes back or jumps."""
        return Millis(self._started_ms + self._clock.monotonic_ms())

    # --- leadership --------------------------------------------------------------------------

    def _leadership_changed(self, is_leader: bool, term: int) -> None:
        self._term = term
        if is_leader:
            logger.info("this node is the active controller of term %d", term)
            self._sessions.activate(self._metadata.image, term, self._now())
        else:
            self._sessions.deactivate()
        self._wake.set()

    def _connection(self, peer: int, is_up: bool) -> None:
        if is_up:
            self._sessions.connected(BrokerId(peer), self._now())
        else:
            self._sessions.disconnected(BrokerId(peer), self._now())
        self._wake.set()

    # --- the loop ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = None
            if self._sessions.is_active:
                if self._metadata.image.cluster_id is None:
                    await self._format()
                    continue
                if self._has_other_defaults():
                    await self._set_defaults()
                    continue
                for command in self._sessions.tick(self._metadata.image, self._now()):
                    self._propose(command)
                deadline = self._sessions.next_deadline()
                pause = None if deadline is None else max(deadline - self._now(), 1) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _format(self) -> None:
        """Give a new cluster its id: that of the leader's formatted directories, or a random one."""
        cluster_id = self._directories.cluster_id or random_id()
        initial = self._metadata.initial_credentials
        command = FormatCluster(
            cluster_id=cluster_id,
            time_ms=self._clock.now(),
            features=LATEST,
            min_insync_replicas=self._config.min_insync_replicas,
        )
        try:
            if initial:  # before the id, so that a crash in between only repeats this
                await self._metadata.submit(SetScramCredentials(changes=initial, time_ms=self._clock.now()))
            await self._metadata.submit(command)
        except KafkaError as error:
            logger.error("could not set the id of the new cluster: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _has_other_defaults(self) -> bool:
        """Return whether the settings for elections in the metadata differ from this node's own."""
        return self._metadata.image.controller_defaults != self._defaults and self._defaults_refused_in != self._term

    async def _set_defaults(self) -> None:
        """Put this node's static settings for elections into the metadata, by which every node decides."""
        term = self._term
        command = SetControllerDefaults(
            configs=tuple(ConfigValue(name=name, value=value) for name, value in self._defaults.items()),
            time_ms=self._clock.now(),
            controller_epoch=term,
        )
        try:
            decision = await self._metadata.submit(command)
        except KafkaError as error:
            logger.warning("this controller's settings for elections are not in the metadata yet: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        if decision.error != ErrorCode.NONE:
            self._defaults_refused_in = term
            logger.error("this controller's settings for elections are not used: %s", decision.message)

    def _propose(self, command: Command) -> None:
        task = self._tasks.create_task(self._submit(command), name="controller's command")
        self._submitting.add(task)
        task.add_done_callback(self._submitting.discard)

    def _parts_of(self, command: Command) -> int:
        """Return how many entries the command takes if it affects all replicas of its broker.

        They are submitted together, because waiting for each would delay a failover. Those that find nothing left to do
        change nothing.
        """
        if not isinstance(command, ChangeBroker) or not command.max_partitions:
            return 1
        return max(1, -(-self._metadata.image.replica_count(command.broker_id) // command.max_partitions))

    async def _submit(self, command: Command) -> None:
        try:
            submitted = (self._metadata.submit(command) for _ in range(self._parts_of(command)))
            *_, decision = await asyncio.gather(*submitted)
        except KafkaError as error:
            logger.warning("%s was not decided: %s", type(command).__name__, error)
            return
        if decision.error != ErrorCode.NONE:
            logger.info("%s was refused: %s", type(command).__name__, decision.message)
        if isinstance(command, ChangeBroker) and decision.result is not None and decision.result.is_partial:
            self._sessions.decided_in_part(command.broker_id, self._now())
        self._wake.set()
