"""Applies the settings of topics to the logs of their partitions, with the promises of `kraftpy.flush.before.ack`.

A log that syncs before it acknowledges is marked so by a file in its directory (the promise): after a crash of the
broker the cluster still relies on such a replica. Invariant: a promise on disk is always kept. It is withdrawn before a
setting that ends it is applied, and written only once everything in the log is synced. A log whose promise cannot be
withdrawn keeps its settings until it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from kraftpy.broker.containment import Incidents
from kraftpy.broker.replication.directory_failures import DirectoryFailures, PartitionFetchers
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import in_slices
from kraftpy.config import BrokerConfig, ConfigError, TopicConfig
from kraftpy.config.topic import topic_config, usable_topic_overrides
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

_CONFIGS_AT_ONCE = 200
"""Topics whose settings are worked out before other tasks get the event loop."""
_LOOKED_AT_AT_ONCE = 1_000
_CONFIGURED_AT_ONCE = 500


class TopicConfigs:
    """The settings of the topics of which this broker holds partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        fetchers: PartitionFetchers,
        failures: DirectoryFailures,
        incidents: Incidents,
        changing: asyncio.Lock,
    ) -> None:
        """`changing` is held by those who open, close and configure partitions."""
        self.config = config
        """This broker's settings, which give topics their defaults."""
        self._replicas = replicas
        self._fetchers = fetchers
        self._failures = failures
        self._incidents = incidents
        self._changing = changing
        self._not_applied: set[str] = set()
        """Topics with a log whose promise could not be withdrawn."""

    def of(self, topic: str) -> TopicConfig:
        """Return a topic's settings in the current image; a stored value that cannot be used becomes the default."""
        image = self._replicas.image
        overrides = image.topic_configs(topic)
        try:
            return topic_config(overrides, self.config)
        except ConfigError:
            pass
        usable, problems = usable_topic_overrides(overrides, self.config)
        message = "topic %s: stored settings are not used, the defaults are: %s"
        what = "; ".join(problems)
        self._incidents.complaints.write(logger, logging.ERROR, "setting of a topic", topic, message, topic, what)
        return topic_config(usable, self.config)

    async def apply(self, topics: set[str]) -> None:
        """Apply the current settings of these topics. The caller holds `changing`."""
        concerned: list[tuple[Replica, TopicConfig]] = []
        async for names in in_slices(sorted(topics), _CONFIGS_AT_ONCE):
            for name in names:
                topic = self._replicas.image.topic(name)
                replicas = [] if topic is None else self._replicas.of_topic(topic.topic_id)
                if replicas:
                    config = self.of(name)
                    concerned += [(replica, config) for replica in replicas]
        promising: list[Replica] = []
        async for pairs in in_slices(concerned, _LOOKED_AT_AT_ONCE):
            for replica, config in pairs:
                if replica.log.promises_synced and not config.kraftpy_flush_before_ack:
                    promising.append(replica)
        await self._withdraw_promises(promising)
        async for pairs in in_slices(concerned, _CONFIGURED_AT_ONCE):
            for replica, config in pairs:
                if config.kraftpy_flush_before_ack or not replica.log.promises_synced:
                    with self._incidents.contained_in(replica.topic_partition, "settings"):
                        self._configure(replica, config)

    def _configure(self, replica: Replica, config: TopicConfig) -> None:
        was_synced_before_ack = replica.syncs.comes_before_ack
        replica.configure(config)
        if replica.syncs.comes_before_ack != was_synced_before_ack and replica.following is not None:
            self._fetchers.assign([(replica, replica.leader_id)])

    async def _withdraw_promises(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            try:
                await asyncio.to_thread(replica.log.promise, synced_before_ack=False)
            except OSError as error:
                if not self._failures.storage_failed(replica.log_directory, "write to a log in", error):
                    logger.error("%s: keeps its settings until there is room: %s", replica.topic_partition, error)
                    self._not_applied.add(replica.topic_partition.topic)

    async def promise_synced(self) -> None:
        """Write the promise of logs that have synced everything since `kraftpy.flush.before.ack` was set for them.

        Settings that could not be applied earlier are tried again first.
        """
        if self._not_applied:
            async with self._changing:
                topics, self._not_applied = self._not_applied, set()
                await self.apply({topic for topic in topics if self._replicas.image.topic(topic) is not None})
        for replica in [each for each in self._replicas.due.syncs if _lacks_promise(each)]:
            config = replica.log.config
            try:
                await replica.flush(replica.log_end_offset)
                async with self._changing:  # no setting changes meanwhile
                    is_held = self._replicas.held(replica.topic_partition) is replica
                    if is_held and replica.log.config is config and _lacks_promise(replica):
                        await asyncio.to_thread(replica.log.promise, synced_before_ack=True)
            except KafkaError as error:
                logger.debug("%s: %s", replica.topic_partition, error)
            except OSError as error:
                if not self._failures.storage_failed(replica.log_directory, "write to a log in", error):
                    logger.debug("%s: cannot promise anything yet: %s", replica.topic_partition, error)


def _lacks_promise(replica: Replica) -> bool:
    """Return whether the promise to sync before acknowledging is to be made, and can be."""
    is_usable = not (replica.log.is_closed or replica.operations.is_truncating)
    return is_usable and replica.syncs.lacks_promise
