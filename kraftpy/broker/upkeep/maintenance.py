"""The periodic work of a broker: retention, compaction, flushes, checkpoints, expiry, lag, idle connections.

Each is a loop of its own. A disk failure costs what it hit: the log directory, or, if the disk is full, this attempt.
An unexpected error costs the partition that it came from its turn, and the other partitions nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kraftpy.broker.connection import Connection
from kraftpy.broker.containment import Incidents
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.upkeep.cleaner import Cleaner
from kraftpy.broker.upkeep.producer_limit import forget_producers_beyond
from kraftpy.broker.upkeep.retention import Retention
from kraftpy.config import BrokerConfig
from kraftpy.ports import Clock
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import Millis, TopicPartition

logger = logging.getLogger(__name__)

_FLUSH_CHECK_MS = 1000
_CHECKPOINT_AT_MOST_EVERY_MS = 3000
_DIRECTORY_CHECK_MS = 1000
_PRODUCERS_CHECK_MS = 1_000
_BEFORE_A_PAUSE = 500
"""Partitions that a loop looks at before others get the event loop."""
_IDLE_CHECK_MS = 30_000


class Maintenance:
    """The periodic work of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        manager: ReplicaManager,
        coordinate: Callable[[TopicPartition], None],
        connections: Callable[[], Sequence[Connection]],
        incidents: Incidents,
    ) -> None:
        """`coordinate` lets a partition of an internal topic have a coordinator if it is led here."""
        self._config = config
        self._clock = clock
        self._manager = manager
        self._replicas = manager.replicas
        self._coordinate = coordinate
        self._connections = connections
        self._incidents = incidents
        self._complaints = incidents.complaints
        self._retention = Retention(manager, clock, incidents)
        self._cleaner = Cleaner(manager, clock, config, incidents)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops by name; each must be kept running until it is cancelled."""
        loops = {
            "retention": self.retention,
            "flushes": self.flushes,
            "checkpoints": self.checkpoints,
            "expiry of producers": self.expiry,
            "producers beyond the limit": self.producers,
            "idle connections": self.idle_connections,
            "lagging followers": self.followers,
            "high watermarks": self.high_watermarks,
            "log directories": self.directories,
        }
        if self._config.log_cleaner_enable:
            loops["log cleaner"] = self._cleaner.run
        return loops

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that changed while the broker runs."""
        self._config = config
        self._cleaner.configure(config)

    async def retention(self) -> None:
        """Delete segments beyond `retention.ms` and `retention.bytes`."""
        config = self._config
        await _pause(config.log_initial_task_delay_ms)
        while True:
            try:
                await self._retention.delete_old_segments()
            except OSError as error:
                self._complaints.own(
                    logger, "retention", "no segments are deleted: the checkpoints cannot be written: %s", error
                )
            await _pause(config.log_retention_check_interval_ms)

    async def flushes(self) -> None:
        """Sync logs whose `flush.ms` has passed, and those with sealed segments that are not synced yet.

        Logs that must be synced before they acknowledge anything promise so, once they can.

        Synced sealed segments are recorded in the checkpoints within seconds, so that a start after a crash does not
        read them again. Logs that could not be opened are retried here too.
        """
        interval_ms = min(self._config.log_flush_scheduler_interval_ms, _FLUSH_CHECK_MS)
        is_news, written_at = False, self._clock.monotonic_ms()
        while True:
            await _pause(interval_ms)
            await self._bring_online()
            is_news |= await self.flush_due()
            if is_news and self._clock.monotonic_ms() - written_at >= _CHECKPOINT_AT_MOST_EVERY_MS:
                is_news = not await self._checkpoint()
                written_at = self._clock.monotonic_ms()

    async def flush_due(self) -> bool:
        """Sync the logs that are due, and let them promise; return whether any had unsynced sealed segments.

        Only partitions that are noted for that are looked at (`replication.due_work`).
        """
        now, is_news, due = self._clock.now(), False, self._replicas.due
        for number, replica in enumerate([*due.syncs]):
            if number % _BEFORE_A_PAUSE == 0:
                await asyncio.sleep(0)
            with self._incidents.contained_in(replica.topic_partition, "flush"):
                is_news |= await self._flush(replica, now)
        await self._manager.topic_configs.promise_synced()
        due.settle()
        return is_news

    async def _flush(self, replica: Replica, now: Millis) -> bool:
        """Sync the log if it is due; return whether it had unsynced sealed segments."""
        log = replica.log
        if log.is_failed or log.is_closed or replica.operations.is_truncating:
            return False
        if log.recovery_point >= log.log_end_offset:
            replica.flushed_at_ms = now
            return False
        is_sealed = replica.syncs.has_unsynced_segments
        if (
            is_sealed
            or now - replica.flushed_at_ms >= log.config.flush_ms
            or replica.syncs.comes_before_ack  # a sync that lacked room is retried
        ):
            try:
                await replica.flush(log.log_end_offset)
            except KafkaError as error:
                if not (replica.is_offline or replica.log.is_closed):
                    self._complaints.own(logger, "sync", "%s is not synced yet: %s", replica.topic_partition, error)
            return is_sealed
        return False

    async def _checkpoint(self) -> bool:
        try:
            await self._manager.checkpoints.write()
        except OSError as error:
            self._complaints.own(logger, "checkpoint", "the checkpoints cannot be written: %s", error)
            return False
        return True

    async def _bring_online(self) -> None:
        for partition in await self._manager.retry_offline():
            self._coordinate(partition)

    async def checkpoints(self) -> None:
        """Write down how far each log is durable, so that a start after a crash scans no more than it must."""
        config = self._config
        while True:
            await _pause(
                min(
                    config.log_flush_offset_checkpoint_interval_ms,
                    config.log_flush_start_offset_checkpoint_interval_ms,
                )
            )
            await self._checkpoint()

    async def expiry(self) -> None:
        """Forget idempotent producers that have been silent for `producer.id.expiration.ms`."""
        while True:
            await _pause(self._config.producer_id_expiration_check_interval_ms)
            for number, replica in enumerate(self._replicas):
                if number % _BEFORE_A_PAUSE == 0:
                    await asyncio.sleep(0)
                if replica.operations.is_truncating:
                    continue
                with self._incidents.contained_in(replica.topic_partition, "expiry of producers"):
                    replica.log.expire_producers(self._clock.now(), self._config.producer_id_expiration_ms)
                    self._replicas.due.count_producers(replica)

    async def producers(self) -> None:
        """Keep no more producers than `kraftpy.max.producers`: the most recently active ones."""
        limit = self._config.kraftpy_max_producers
        while True:
            await _pause(_PRODUCERS_CHECK_MS)
            gone = await forget_producers_beyond(self._replicas, limit)
            if gone:
                logger.info("%d producers are forgotten early: kraftpy.max.producers=%d", gone, limit)

    async def followers(self) -> None:
        """Propose to drop replicas from the ISR that lag for longer than `replica.lag.time.max.ms` (rule 12)."""
        while True:
            await _pause(max(1, self._config.replica_lag_time_max_ms // 2))
            await self._manager.check_lagging_followers()

    async def high_watermarks(self) -> None:
        """Write the high watermarks, every `replica.high.watermark.checkpoint.interval.ms`."""
        while True:
            await _pause(max(1, self._config.replica_high_watermark_checkpoint_interval_ms))
            try:
                await self._manager.checkpoints.write_high_watermarks()
            except OSError as error:
                self._complaints.own(logger, "high watermarks", "the high watermarks cannot be written: %s", error)

    async def directories(self) -> None:
        """Check whether the log directories are still there."""
        while True:
            await _pause(_DIRECTORY_CHECK_MS)
            await self._manager.failures.check_directories()

    async def idle_connections(self) -> None:
        """Close connections that are idle for `connections.max.idle.ms`, or whose requests or responses are stuck."""
        idle_ms, receive_ms = self._config.connections_max_idle_ms, self._config.kraftpy_request_receive_timeout_ms
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else float("inf")
        while True:
            await _pause(min(idle_ms if idle_ms >= 0 else _IDLE_CHECK_MS, max(1, receive_ms // 4), _IDLE_CHECK_MS))
            now = asyncio.get_running_loop().time()
            for number, connection in enumerate(self._connections()):
                if number % _BEFORE_A_PAUSE == _BEFORE_A_PAUSE - 1:
                    await asyncio.sleep(0)
                if not connection.is_serving and now - connection.last_active_at > idle_seconds:
                    connection.abort()
                elif (reason := connection.overdue(now, receive_ms / 1000, idle_seconds)) is not None:
                    connection.close_overdue(reason)


async def _pause(milliseconds: Millis | int) -> None:
    # A loop whose interval is 0 must not keep the event loop to itself.
    # asyncio cannot sleep for Kafka's "never" (2^63 - 1 ms); a day at a time does the same.
    remaining = max(1, milliseconds) / 1000
    while remaining > 0:
        await asyncio.sleep(min(remaining, 86_400.0))
        remaining -= 86_400.0
